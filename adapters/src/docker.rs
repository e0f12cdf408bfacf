//! What a site says about Docker, as its adapter has it.

use crate::Places;
use polder_core::parent::{Devices, DockerLauncher};
use polder_core::value::{Data, Value, to_json};
use polder_docker::Settings;
use polder_docker::plan::User;
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
        inventory: matches!(&config.gpus, Devices::Ids(ids) if !ids.is_empty()),
        python_path: config.python_path.clone(),
        job_env: config.job_env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        kwargs,
        user: config.user.map_or(own, |(uid, gid)| User { uid, gid }),
        hide: vec![places.state.clone(), places.kit.clone(), places.config.clone()],
        sockets: places.sockets.first().and_then(folder).unwrap_or_else(|| places.state.join("sock")),
        workspace: config.workspace.as_ref().map(|host| (places.state.clone(), host.into())),
    }
}
