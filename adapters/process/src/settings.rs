//! What a site says about launching processes.

use polder_words::Isolation;
use std::path::PathBuf;

/// Settings of the process launcher; [`Settings::new`] has the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the run directories are, `<state>/runs`.
    pub runs: PathBuf,
    /// What a worker must not see: the parent's state, kit and configuration.
    pub hide: Vec<PathBuf>,
    /// Sockets of the parent that workers dial.
    pub sockets: Vec<PathBuf>,
    /// What a worker may read besides the system and its run directory.
    pub read: Vec<PathBuf>,
    /// What a worker may write besides its run directory.
    pub write: Vec<PathBuf>,
    /// Account of the workers: a name, `uid` or `uid:gid`. Needs a parent that may switch.
    pub user: Option<String>,
    /// An isolation to take whatever the host can do better; `None`: the best there is.
    pub isolation: Option<Isolation>,
    /// GPUs.
    pub gpus: Gpus,
    /// CPUs to hand out; `None`: those of the host.
    pub cpus: Option<u32>,
    /// Bytes of memory to hand out; `None`: those of the host.
    pub memory: Option<u64>,
    /// Processes and threads a worker may have.
    pub pids: u64,
    /// A delegated folder of control groups version 2 to make the workers' groups in.
    pub cgroup: Option<PathBuf>,
    /// Variables of the parent that workers get.
    pub forward_env: Vec<String>,
    /// Bytes of a worker's own output that are kept, first and last together.
    pub log_bytes: u64,
    /// Program to be the shim; `None`: the worker's. Tests.
    pub shim: Option<PathBuf>,
    /// Arguments for the worker instead of `run --handover FILE`. Tests.
    pub worker_args: Option<Vec<String>>,
}

/// The GPUs a parent hands out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Gpus {
    /// Those `nvidia-smi` lists; none where there is no such program.
    #[default]
    Auto,
    /// Those.
    Ids(Vec<String>),
}

/// Variables of the parent that every worker gets: where programs are and how text is written.
pub const FORWARDED: [&str; 8] =
    ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"];

impl Settings {
    /// For run directories below `runs`.
    #[must_use]
    pub fn new(runs: PathBuf) -> Self {
        Self {
            runs,
            hide: Vec::new(),
            sockets: Vec::new(),
            read: Vec::new(),
            write: Vec::new(),
            user: None,
            isolation: None,
            gpus: Gpus::Auto,
            cpus: None,
            memory: None,
            pids: 4096,
            cgroup: None,
            forward_env: Vec::new(),
            log_bytes: 16 << 20,
            shim: None,
            worker_args: None,
        }
    }
}
