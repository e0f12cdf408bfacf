//! The worker API: a worker dials its own parent and nobody else. All paths below `/v1/worker`.
//!
//! | request | answer |
//! |---|---|
//! | `POST enrol` [`Enrol`] (no client certificate yet) | [`Enrolled`] |
//! | `GET assignment` | [`WorkerAssignment`] |
//! | `GET next?after=<epoch:n>&wait=<s>` | [`Next`], a long poll: what is wanted now |
//! | `POST results` [`crate::site::TaskResult`] (client role) | [`crate::site::Ack`] |
//! | `PUT tasks` [`Tasks`] (server role) | [`crate::site::Ack`]; replaces the set of current tasks |
//! | `POST rounds` [`RoundDone`] (server role) | [`crate::site::Ack`]; the same round twice is one |
//! | `POST report` [`Report`] | [`crate::site::Ack`]; also the sign of life |
//! | `POST outcome` [`Ending`] | [`crate::site::Ack`]; then the worker exits |
//!
//! TLS in both directions also on the Unix socket. Models lie as files in the run directory where parent
//! and worker share one ([`WorkerAssignment::shared_files`]), else they are fetched below `blobs/<root>`.
//! Everything a worker said about its current task it says again when the parent's epoch changes.

use crate::site::{MetricPoint, Task, TaskResult};
use polder_words::{Epoch, FileWay, LaunchId, Outcome, SiteName, StudyName, TaskId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a launcher gives a worker, in a file only the worker's account can read. Never part of a plan,
/// never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// Which launch.
    pub launch: LaunchId,
    /// Where to dial, in order of preference.
    pub dial: Vec<Dial>,
    /// BLAKE3 of the worker CA's public key (SubjectPublicKeyInfo, DER).
    pub pin: polder_words::Hash,
    /// One-time token, bound to the first key it comes with.
    pub token: String,
    /// Absolute path of the run directory as the worker sees it; `polder-worker run --run-dir` says another.
    pub run_dir: String,
    /// Whether that directory is the parent's as well, or everything goes over the channel.
    #[serde(default)]
    pub files: FileWay,
}

/// One way to reach the parent. Names are resolved by the parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dial {
    /// A socket on the same host.
    Unix {
        /// Its path.
        path: String,
    },
    /// A port.
    Tcp {
        /// `address:port`, the address numeric.
        address: String,
    },
}

/// Asks for a certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrol {
    /// Which launch.
    pub launch: LaunchId,
    /// The one-time token.
    pub token: String,
    /// Certificate request (PEM), signed with the worker's own key.
    pub request: String,
}

/// The certificate, valid while the job lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// PEM.
    pub certificate: String,
}

/// What the worker is for.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerAssignment {
    /// Which launch.
    pub launch: LaunchId,
    /// The study.
    pub study: StudyName,
    /// The job's display name.
    pub name: String,
    /// The app's `job.yaml`, as JSON (parsed and completed with defaults by the parent).
    pub job: serde_json::Value,
    /// Server role: the sites that take part, in the order in which results are added up.
    #[serde(default)]
    pub sites: Vec<SiteName>,
    /// Server role: fewest sites that must stay.
    #[serde(default)]
    pub min_clients: u32,
    /// Server role: sites that must stay.
    #[serde(default)]
    pub mandatory: Vec<SiteName>,
    /// Variables for the trainer, the study's `env`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Secret variables for the trainer: they exist only here and in the trainer.
    #[serde(default)]
    pub secret_env: BTreeMap<String, String>,
    /// GPU ids given to this worker, as `CUDA_VISIBLE_DEVICES` wants them.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Whether `in/` and `out/` of the run directory are shared with the parent.
    pub shared_files: bool,
    /// Seconds between reports when nothing happens.
    pub report_seconds: u64,
}

/// What the parent wants of the worker now: state, not a queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Next {
    /// Text of `transport::longpoll::Cursor`.
    pub cursor: String,
    /// The parent's run: another one means, say everything again.
    pub epoch: Epoch,
    /// End now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Client role: the current task, always whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// Server role: results of the current tasks that are there, always all of them.
    #[serde(default)]
    pub results: BTreeMap<SiteName, TaskResult>,
    /// Server role: how far each site is.
    #[serde(default)]
    pub roster: BTreeMap<SiteName, Member>,
}

/// A site as the server worker sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "member", rename_all = "snake_case")]
pub enum Member {
    /// Its worker is not there yet.
    Starting,
    /// Its worker waits for a task or works on one.
    Ready,
    /// It ended or was refused and will not come back.
    Gone {
        /// How.
        outcome: Outcome,
    },
}

/// End.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// `finished`, `aborted by ...`.
    pub why: String,
    /// Seconds before the parent ends it by force.
    pub grace_seconds: u64,
}

/// The server worker's current tasks: all of them, a site without one is not named.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tasks {
    /// By site.
    pub tasks: BTreeMap<SiteName, Task>,
}

/// A round was aggregated and its checkpoint is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundDone {
    /// From 1.
    pub round: u32,
    /// How many there will be.
    pub total_rounds: u32,
    /// Aggregated metrics.
    pub metrics: BTreeMap<String, f64>,
    /// Each site's own.
    pub sites: BTreeMap<SiteName, BTreeMap<String, f64>>,
    /// Milliseconds the round took.
    pub millis: u64,
}

/// A sign of life with news.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What it does, in words: `waiting for a task`, `training, round 3`.
    pub doing: String,
    /// The task it works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// New metrics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricPoint>,
    /// New log bytes of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<WorkerLog>,
}

/// Log bytes of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLog {
    /// Where in the log of this attempt.
    pub offset: u64,
    /// Base64 of the bytes, at most 256 KiB of them.
    pub data: String,
    /// Bytes that were dropped before `offset` because the log flooded.
    #[serde(default)]
    pub dropped: u64,
}

/// The worker's own word on how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// How; the tail inside holds the last log lines.
    pub outcome: Outcome,
    /// Server role: the site whose failure it is; absent when it is the server worker's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteName>,
    /// Server role: files beneath the run directory to keep as results, name to relative path.
    #[serde(default)]
    pub results: BTreeMap<String, String>,
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover")
            .field("launch", &self.launch)
            .field("dial", &self.dial)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Enrol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enrol").field("launch", &self.launch).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for WorkerAssignment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerAssignment")
            .field("launch", &self.launch)
            .field("study", &self.study)
            .finish_non_exhaustive()
    }
}
