//! What a site says about Docker, as its adapter has it.

use crate::Places;
use polder_core::parent::{Devices, DockerLauncher};
use polder_core::value::{Data, Value, to_json};
use polder_docker::plan::User;
use polder_docker::{Settings, Stock};
use std::path::{Path, PathBuf};

/// Whom workers of a parent that is root run as: nobody.
const NOBODY: User = User { uid: 65534, gid: 65534 };

/// The settings of a launch.
pub(crate) fn settings(config: &DockerLauncher, job_images: bool, places: &Places) -> Settings {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let own = if uid.is_root() { NOBODY } else { User { uid: uid.as_raw(), gid: gid.as_raw() } };
    let kwargs = Value::from(Data::Map(config.job_container_kwargs.clone()));
    let kwargs = serde_json::from_str(&to_json(&kwargs)).expect("what core prints as JSON is JSON");
    let folder = |socket: &PathBuf| socket.parent().map(Path::to_owned);
    Settings {
        socket: config.socket.clone(),
        image: config.image.clone(),
        job_images,
        network: config.network.clone(),
        pull: config.pull,
        inventory: !inventory(&config.gpus).is_empty(),
        python_path: config.python_path.clone(),
        job_env: config.job_env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        kwargs,
        user: config.user.map_or(own, |(uid, gid)| User { uid, gid }),
        hide: vec![places.state.clone(), places.kit.clone(), places.config.clone()],
        sockets: places.sockets.first().and_then(folder).unwrap_or_else(|| places.state.join("sock")),
        workspace: config.workspace.as_ref().map(|host| (places.state.clone(), host.into())),
    }
}

/// What the site hands out.
pub(crate) fn stock(config: &DockerLauncher) -> Stock {
    Stock {
        gpus: inventory(&config.gpus),
        cpus: config.cpus,
        memory: config.memory.as_ref().and_then(|memory| memory.bytes_u64()),
    }
}

/// The GPUs by id. With `auto` those that the driver's own program names, on the host of the parent, which is the
/// engine's too; none where there is no such program.
fn inventory(gpus: &Devices) -> Vec<String> {
    match gpus {
        Devices::Ids(ids) => ids.clone(),
        Devices::Auto => {
            let mut command = std::process::Command::new("nvidia-smi");
            let said = command.args(["--query-gpu=uuid", "--format=csv,noheader"]).output();
            let said = said.ok().filter(|said| said.status.success());
            let text =
                said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
            text.lines().map(str::trim).filter(|id| id.starts_with("GPU-")).map(str::to_owned).collect()
        }
    }
}
