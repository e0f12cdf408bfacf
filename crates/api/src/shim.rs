//! What a launcher of processes and its shim (`polder-worker supervise`) tell each other, as files of an attempt's
//! folder: files survive either side, and writing one again changes nothing.
//!
//! | file | by | says |
//! |---|---|---|
//! | `supervise.json` [`Order`] | launcher | what to run, within which limits |
//! | `shim.json` [`Claim`] | shim | it has this attempt; made exactly once, so that there is one shim |
//! | `go` | launcher | run it |
//! | `running.json` [`Running`] | shim | it runs |
//! | `end.json` [`EndOrder`] | launcher | end it |
//! | `exit.json` [`ExitRecord`] | shim | how it ended; nothing is left running |
//! | `removed` | launcher | the outcome is known; no shim may claim this attempt any more |

use polder_words::{FailureClass, Isolation, LaunchId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// File of an [`Order`].
pub const ORDER: &str = "supervise.json";
/// File that says run.
pub const GO: &str = "go";
/// File of a [`Running`].
pub const RUNNING: &str = "running.json";
/// File of an [`EndOrder`].
pub const END: &str = "end.json";
/// File that says that nobody may claim this attempt any more.
pub const REMOVED: &str = "removed";
/// What the shim prints once it waits.
pub const READY: &str = "ready";

/// What to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Which launch.
    pub launch: LaunchId,
    /// Program and arguments, nothing expanded.
    pub command: Vec<String>,
    /// Where it starts.
    pub directory: PathBuf,
    /// All its variables.
    pub env: BTreeMap<String, String>,
    /// Its account, when it is another than the parent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// What keeps it from the parent's files.
    pub fence: Fence,
    /// How much it may use.
    pub limits: Limits,
    /// Where limits are enforced.
    pub cgroups: Cgroups,
    /// How much of its output is kept.
    pub log: LogCap,
}

/// An account, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// User.
    pub uid: u32,
    /// Group; no other group is kept.
    pub gid: u32,
}

/// Isolation and what lies inside of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// Its kind.
    pub isolation: Isolation,
    /// Readable and executable; what is not there is left out.
    pub read: Vec<PathBuf>,
    /// Readable and writable.
    pub write: Vec<PathBuf>,
    /// Out of sight, where a mount namespace does the hiding.
    pub hide: Vec<PathBuf>,
}

/// How much it may use; absent is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory, swap included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// CPUs worth of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Open files, a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
}

/// Folders the shim may make the worker's control group in, by what they control.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cgroups {
    /// Name of the group.
    pub name: String,
    /// Version 1, memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<PathBuf>,
    /// Version 1, CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<PathBuf>,
    /// Version 1, number of processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<PathBuf>,
    /// Version 2, with the controllers that are delegated there (perhaps none; it still ends a tree at once).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unified: Option<PathBuf>,
}

/// How much of the output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCap {
    /// First bytes.
    pub head: u64,
    /// Last bytes, at least.
    pub tail: u64,
}

/// Who has this attempt. A pid alone names nothing: with boot and start time it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Which launch.
    pub launch: LaunchId,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// The shim; 0 when a launcher claimed the attempt itself so that no shim can.
    pub pid: u32,
    /// Its start, in clock ticks after boot.
    pub start: u64,
}

/// It runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The worker.
    pub pid: u32,
    /// Its start, in clock ticks after boot.
    pub start: u64,
    /// Milliseconds since 1970.
    pub since: u64,
    /// Where its groups are.
    pub cgroups: Vec<PathBuf>,
    /// What keeps it from the parent's files, in fact.
    pub isolation: Isolation,
    /// What is not enforced, in words.
    pub not_enforced: Vec<String>,
}

/// End it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOrder {
    /// Between TERM and KILL, in milliseconds.
    pub grace_ms: u64,
    /// Why.
    pub why: String,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// Which launch.
    pub launch: LaunchId,
    /// Milliseconds since 1970.
    pub at: u64,
    /// How.
    #[serde(flatten)]
    pub how: How,
    /// Why it was ended, when it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// Processes the kernel killed because the group used more memory than it may.
    #[serde(default)]
    pub oom_kills: u64,
    /// Most memory the group had, bytes; absent without a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<u64>,
    /// Processes that were still there after the worker and were killed.
    #[serde(default)]
    pub left: u64,
    /// Bytes of output.
    #[serde(default)]
    pub log_bytes: u64,
    /// Bytes of it that were dropped.
    #[serde(default)]
    pub log_dropped: u64,
    /// What kept it from the parent's files, in fact.
    pub isolation: Isolation,
    /// What was not enforced, in words.
    #[serde(default)]
    pub not_enforced: Vec<String>,
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum How {
    /// By itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// By a signal.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// It could not be started.
    Failed {
        /// One word.
        class: FailureClass,
        /// Why.
        cause: String,
    },
    /// It was ended before it was started.
    NeverStarted,
}
