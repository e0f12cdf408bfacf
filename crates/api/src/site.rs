//! The site API: a site parent dials the server parent. All paths below `/v1/site`.
//!
//! | request | answer |
//! |---|---|
//! | `POST hello` [`Hello`] | [`Welcome`] |
//! | `GET desired?after=<epoch:n>&wait=<s>` | [`Desired`], a long poll |
//! | `POST observed` [`Observed`] | [`Ack`] |
//! | `POST jobs/<id>/results` [`TaskResult`] | [`Ack`]; the same result twice is one |
//! | `POST jobs/<id>/metrics` [`Metrics`] | [`Ack`] |
//! | `POST jobs/<id>/log` [`LogChunk`] | [`Ack`]; bytes already had are skipped by offset |
//! | blobs below `jobs/<id>/blobs/<root>` | as `transport::blob` says; reading is a grant of the job |
//!
//! Nothing is pushed and nothing is queued: the server holds what it wants of a site (assignments with
//! their current task), the site reads a snapshot, then changes, and says what it observes. Every
//! message may come twice. After a restart of the server (another epoch) the site says `observed`
//! anew and sends again the result of each task that is still current.

use crate::order::SignedOrder;
use crate::payload::Payload;
use polder_words::{Epoch, FailureClass, Isolation, JobId, Mode, Outcome, SiteName, TaskId, WorkerPhase};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The first message of a site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// Version of the parent.
    pub version: String,
    /// This run of the site's parent.
    pub epoch: Epoch,
    /// What the site has.
    pub offer: Offer,
}

/// The server's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// Version of the server.
    pub version: String,
    /// The federation's name.
    pub federation: String,
    /// This run of the server.
    pub epoch: Epoch,
    /// The server's clock, milliseconds since 1970: a skew over a minute is said in the site's log.
    pub now: u64,
}

/// What a site has and what is free of it. Stated facts, not promises: a reservation decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// What it launches with.
    pub mode: Mode,
    /// `x86_64`.
    pub architectures: Vec<String>,
    /// What keeps a worker from its parent's files.
    pub isolation: Isolation,
    /// Whether CPU and memory limits are enforced, in words when not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_enforced: Vec<String>,
    /// All GPUs; absent where a scheduler of the site's decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Amount>,
    /// All CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Amount>,
    /// Memory, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<Amount>,
    /// Since when the backend cannot be asked (milliseconds since 1970), and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Down>,
}

/// Free of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Not taken by a worker or reservation.
    pub free: u64,
    /// What there is.
    pub all: u64,
}

/// A backend that does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Down {
    /// Milliseconds since 1970.
    pub since: u64,
    /// Why.
    pub why: String,
}

/// What the server wants of this site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Desired {
    /// Text of `transport::longpoll::Cursor`, to ask with next.
    pub cursor: String,
    /// Whether this is everything: jobs not named are not wanted.
    pub snapshot: bool,
    /// New or changed assignments.
    pub assignments: Vec<Assignment>,
    /// Jobs no longer wanted and forgotten: their run directories may go.
    pub forgotten: Vec<JobId>,
}

/// One job the site takes part in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The job.
    pub job: JobId,
    /// What is wanted.
    pub goal: Goal,
    /// The order, in a snapshot and when the assignment is new; a change does not repeat it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<SignedOrder>,
    /// The current task of the site in this job, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// The server was restarted and has not heard from the job's own worker yet: `task` says nothing, the task the site
    /// has stands, and so does its result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tasks_unknown: bool,
}

/// What the server wants of one job at one site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "goal", rename_all = "snake_case")]
pub enum Goal {
    /// Check the order, fetch the app, set resources aside; launch nothing.
    Reserve,
    /// Launch and keep running.
    Run,
    /// End the worker. The observation that follows says `exited`.
    Stop {
        /// `finished`, `aborted by lead@org_a.com`, ...
        why: String,
        /// Let it end by itself for this many seconds, then end it.
        grace_seconds: u64,
    },
}

/// What the site's trainer is asked to do. One at a time; a new one replaces the last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// `train`, `evaluate` or `init`.
    pub kind: String,
    /// How many rounds there will be.
    pub total_rounds: u32,
    /// The model to start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Payload>,
    /// Further values of the workflow.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Milliseconds the site may take, counted from when its worker takes the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_millis: Option<u64>,
}

/// What became of a task at one site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Which task.
    pub task: TaskId,
    /// How it went.
    #[serde(flatten)]
    pub result: TaskOutcome,
}

/// How a task went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum TaskOutcome {
    /// Done.
    Done {
        /// The trained model; absent for `evaluate`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<Payload>,
        /// Weight in the aggregation, finite and above 0.
        weight: f64,
        /// Scalars that may leave the site.
        #[serde(default)]
        metrics: BTreeMap<String, f64>,
    },
    /// The trainer failed or its result was refused.
    Failed {
        /// One word.
        class: FailureClass,
        /// What exactly.
        cause: String,
        /// Last log lines, as far as exported.
        #[serde(default)]
        tail: String,
    },
}

/// What a site sees. Whole for each job named; jobs not named are unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// This run of the site's parent.
    pub epoch: Epoch,
    /// Each job that changed, or all after another server epoch.
    pub jobs: Vec<Observation>,
    /// The offer, when it changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Offer>,
}

/// One job as its site sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The job.
    pub job: JobId,
    /// How far the site is.
    #[serde(flatten)]
    pub stand: Stand,
}

/// How far a site is with a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stand", rename_all = "snake_case")]
pub enum Stand {
    /// Checking, fetching.
    Preparing,
    /// Resources are set aside, the app is there.
    Reserved {
        /// On what terms the job will run here; for the provenance of its result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        terms: Option<Terms>,
    },
    /// Not now; the reason in words. The reservation is not held.
    Busy {
        /// `2 GPUs free of 4, 3 asked for`.
        reason: String,
    },
    /// Never; with the reason.
    Refused {
        /// `policy`, `config`, `resources`, ...
        class: FailureClass,
        /// Why, in words.
        why: String,
    },
    /// There is a worker.
    Worker {
        /// Attempt.
        attempt: u32,
        /// Where it stands.
        phase: WorkerPhase,
        /// What the backend calls it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        native: Option<String>,
        /// Why it waits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Whether it has enrolled and asked for its first task.
        ready: bool,
        /// Milliseconds since 1970 since when the backend cannot say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unknown_since: Option<u64>,
    },
    /// The worker ended for good: no further attempt will be made.
    Ended {
        /// Attempts made.
        attempts: u32,
        /// How.
        outcome: Outcome,
    },
}

/// On what terms a job runs at a site, as the site says it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Version of the site's parent.
    pub version: String,
    /// What it launches with.
    pub mode: Mode,
    /// What keeps the worker from its parent's files.
    pub isolation: Isolation,
    /// The image, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The app's archive as it was checked against the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<polder_words::Hash>,
    /// The study's export policy as it is applied here.
    #[serde(default)]
    pub export: Value,
}

/// Metrics outside of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// In the order they were given.
    pub points: Vec<MetricPoint>,
}

/// Scalars at one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricPoint {
    /// Round.
    pub round: u32,
    /// Step in the round.
    pub step: u64,
    /// Name to value.
    pub values: BTreeMap<String, f64>,
}

/// Log bytes that may leave the site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChunk {
    /// Attempt whose log it is.
    pub attempt: u32,
    /// Where in the exported log of this attempt.
    pub offset: u64,
    /// The text, invalid UTF-8 replaced.
    pub text: String,
}

/// Taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The answering side's run: another one than before means, say everything again.
    pub epoch: Epoch,
}

/// The member sites a server worker sees.
pub type Roster = BTreeMap<SiteName, Stand>;
