//! From a site's `parent.yaml` to its launcher: the only place that names the modes side by side.

mod ask;
mod docker;

pub use ask::{ask, of as refusal_of};

use polder_core::parent::{Devices, LauncherConfig, ParentConfig, ProcessLauncher as ProcessConfig};
use polder_launch::{Allotted, Launcher, Plan, Refusal, Resolved};
use polder_process::{Gpus, ProcessLauncher, Settings};
use polder_words::Mode;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Where the parent has what a launcher needs to know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The parent's state folder; run directories are in `runs` below it. Workers do not see the rest of it.
    pub state: PathBuf,
    /// The kit; workers do not see it.
    pub kit: PathBuf,
    /// `parent.yaml`; workers do not see it (it may hold a proxy's password).
    pub config: PathBuf,
    /// Sockets of the parent that workers dial.
    pub sockets: Vec<PathBuf>,
}

/// A site whose launcher cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AdapterError {
    /// This build has no such launcher.
    #[error("parent.yaml: launcher: {mode} is not in this build; allowed: process, docker")]
    NotBuilt {
        /// Which one.
        mode: Mode,
    },
}

/// The launcher a site asks for.
///
/// # Errors
/// When this build does not have it.
pub fn from_config(config: &ParentConfig, places: &Places) -> Result<Arc<dyn Launcher>, AdapterError> {
    match &config.launcher {
        LauncherConfig::Process(config) => Ok(Arc::new(ProcessLauncher::new(process(config, places)))),
        LauncherConfig::Docker(docker) => {
            let settings = docker::settings(docker, config.job_images, places);
            Ok(Arc::new(polder_docker::DockerLauncher::new(settings, docker::stock(docker))))
        }
        LauncherConfig::K8s(_) | LauncherConfig::Slurm(_) => {
            Err(AdapterError::NotBuilt { mode: config.launcher.mode() })
        }
    }
}

/// The native request of a launch, exactly as the launcher of this site sends it. Pure but for processes, whose
/// request depends on what this host can do.
///
/// # Errors
/// When this site cannot do it, with the setting to change.
pub fn plan(
    config: &ParentConfig,
    places: &Places,
    want: &Resolved,
    with: &Allotted,
) -> Result<Plan, Refusal> {
    let images = config.job_images;
    match &config.launcher {
        LauncherConfig::Process(settings) => ProcessLauncher::new(process(settings, places)).plan(want, with),
        LauncherConfig::Docker(settings) => {
            polder_docker::plan(&docker::settings(settings, images, places), want, with)
                .map(|plan| native(Mode::Docker, &plan))
        }
        LauncherConfig::K8s(settings) => {
            polder_kubernetes::plan::plan(settings, images, want, with).map(|plan| native(Mode::K8s, &plan))
        }
        LauncherConfig::Slurm(settings) => {
            polder_slurm::plan::plan(settings, images, &polder_slurm::plan::ThisHost, want, with)
                .map(|plan| native(Mode::Slurm, &plan))
        }
    }
}

fn native(mode: Mode, plan: &impl Serialize) -> Plan {
    match serde_json::to_value(plan) {
        Ok(serde_json::Value::Object(native)) => Plan { mode, native },
        other => unreachable!("a plan is a struct of plain data: {other:?}"),
    }
}

fn process(config: &ProcessConfig, places: &Places) -> Settings {
    let mut settings = Settings::new(places.state.join("runs"));
    settings.hide = vec![places.state.clone(), places.kit.clone(), places.config.clone()];
    settings.sockets.clone_from(&places.sockets);
    settings.gpus = match &config.gpus {
        Devices::Auto => Gpus::Auto,
        Devices::Ids(ids) => Gpus::Ids(ids.clone()),
    };
    settings.cpus = config.cpus;
    settings.memory = config.memory.as_ref().and_then(|memory| memory.bytes_u64());
    settings.user.clone_from(&config.user);
    settings.forward_env.clone_from(&config.forward_env);
    settings.read.clone_from(&config.read);
    settings.write.clone_from(&config.write);
    settings.cgroup.clone_from(&config.cgroup);
    settings
}

/// The worker program of a site: what it names, else the one beside this program.
#[must_use]
pub fn worker_program(config: &LauncherConfig) -> PathBuf {
    let named = match config {
        LauncherConfig::Process(config) => config.worker.as_ref(),
        LauncherConfig::Docker(config) => config.worker.as_ref(),
        LauncherConfig::K8s(_) | LauncherConfig::Slurm(_) => None,
    };
    if let Some(worker) = named {
        return worker.clone();
    }
    let beside = std::env::current_exe().ok().and_then(|me| Some(me.parent()?.join("polder-worker")));
    beside.unwrap_or_else(|| Path::new("/usr/libexec/polder/polder-worker").to_owned())
}

/// The workers' socket in a state folder. Where it is mounted into containers it lies in a folder of its own: the folder
/// is what is mounted, since the socket's inode is another one when the parent was started again.
#[must_use]
pub fn socket_in(state: &Path, mode: Mode) -> PathBuf {
    match mode {
        Mode::Docker => state.join("sock").join("worker.sock"),
        Mode::Process | Mode::K8s | Mode::Slurm => state.join("worker.sock"),
    }
}

/// How long a worker may wait to run at this site, in milliseconds, when the job does not say; `None`: for ever.
#[must_use]
pub fn pending_timeout_ms(config: &LauncherConfig) -> Option<u64> {
    let timeout = match config {
        LauncherConfig::Process(config) => Some(config.pending_timeout),
        LauncherConfig::Docker(config) => config.pending_timeout,
        LauncherConfig::K8s(config) => config.pending_timeout,
        LauncherConfig::Slurm(config) => Some(config.pending_timeout),
    };
    timeout.map(polder_launch::clock::millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polder_core::parent::ParentConfig;

    fn config(launcher: &str) -> ParentConfig {
        let text = format!("name: a\nserver: https://fl.example.org\nlauncher: {launcher}\n");
        ParentConfig::parse("parent.yaml", text.as_bytes()).expect("a configuration")
    }

    fn places() -> Places {
        Places {
            state: "/nowhere/state".into(),
            kit: "/nowhere/kit".into(),
            config: "/nowhere/parent.yaml".into(),
            sockets: Vec::new(),
        }
    }

    #[test]
    fn processes_and_containers_and_nothing_else_for_now() {
        let launcher = from_config(&config("{process: {gpus: [0, 1]}}"), &places()).expect("a launcher");
        assert_eq!(launcher.mode(), Mode::Process);
        let launcher = from_config(&config("{docker: {}}"), &places()).expect("a launcher");
        assert_eq!(launcher.mode(), Mode::Docker);
        for (other, name) in [("{kubernetes: {}}", "k8s"), ("{slurm: {sandbox: none}}", "slurm")] {
            let error = from_config(&config(other), &places()).err().expect("refused").to_string();
            assert!(error.contains(name) && error.contains("allowed: process"), "{error}");
        }
    }

    #[test]
    fn what_a_site_says_reaches_the_launcher() {
        let yaml = "{process: {gpus: [GPU-a], cpus: 3, memory: 2Gi, user: fl, forward_env: [OMP_NUM_THREADS], \
                    read: [/data], write: [/scratch], cgroup: /sys/fs/cgroup/polder, worker: /opt/w, pending_timeout: 90s}}";
        let config = config(yaml).launcher;
        let LauncherConfig::Process(process_config) = &config else { panic!("process") };
        let settings = process(process_config, &places());
        assert_eq!(settings.runs, Path::new("/nowhere/state/runs"));
        let hidden = ["/nowhere/state", "/nowhere/kit", "/nowhere/parent.yaml"].map(PathBuf::from);
        assert_eq!(settings.hide, hidden);
        assert_eq!((settings.gpus, settings.cpus), (Gpus::Ids(vec!["GPU-a".into()]), Some(3)));
        assert_eq!((settings.memory, settings.user.as_deref()), (Some(2 << 30), Some("fl")));
        assert_eq!(
            (settings.read, settings.forward_env),
            (vec!["/data".into()], vec!["OMP_NUM_THREADS".into()])
        );
        assert_eq!(settings.write, [PathBuf::from("/scratch")]);
        assert_eq!(settings.cgroup.as_deref(), Some(Path::new("/sys/fs/cgroup/polder")));
        assert_eq!(worker_program(&config), Path::new("/opt/w"));
        assert_eq!(pending_timeout_ms(&config), Some(90_000));
    }
}
