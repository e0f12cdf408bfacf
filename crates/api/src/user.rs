//! The user API: CLI and Python client to the server parent. All paths below `/v1/user`.
//!
//! | request | answer |
//! |---|---|
//! | `POST sessions` [`OpenSession`] | [`Session`] |
//! | `DELETE sessions` | 204 |
//! | `GET jobs` | [`Jobs`] |
//! | `POST uploads` [`OpenUpload`], then blob pieces below `uploads/<root>` | as `transport::blob` says |
//! | `POST jobs` [`Submit`] | [`Submitted`]; the same order twice is the same job |
//! | `GET jobs/<id>` (whole id or a unique beginning of at least 4 digits) | [`Job`] |
//! | `GET jobs/<id>/events?after=<n>&wait=<s>` | [`Events`], a long poll |
//! | `GET jobs/<id>/logs?site=<s>&role=<r>&after=<offset>&wait=<s>` | [`Log`], a long poll |
//! | `POST jobs/<id>/abort` | 204 |
//! | `DELETE jobs/<id>` | 204 |
//! | `GET jobs/<id>/order` | the `SignedOrder`, for `clone`; apps below `jobs/<id>/blobs/<root>` |
//! | `GET jobs/<id>/results` | [`Results`]; files below `jobs/<id>/blobs/<root>` |
//! | `GET sites` | [`Sites`] |
//! | `GET studies`, `POST studies` [`StudyChange`] | [`Studies`], [`Study`] |
//!
//! Every request but `POST sessions` carries `Authorization: Bearer <token>` and is checked for study
//! first, then rights: a job of another study is "not found".

use crate::order::SignedOrder;
use crate::problem::Problem;
use polder_words::id::BlobRef;
use polder_words::{
    FailureClass, Isolation, JobId, JobPhase, Mode, OrgName, Role, SiteName, StudyName, UserName, WorkerPhase,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Asks for a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// The study to bind it to.
    pub study: StudyName,
    /// [`crate::PROTOCOL`] of the client.
    pub protocol: u32,
}

/// A session: valid for one certificate and one study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Sent with every request. A secret: stored 0600.
    pub token: String,
    /// The federation's name, to put into orders.
    pub federation: String,
    /// Its study.
    pub study: StudyName,
    /// Its user.
    pub user: UserName,
    /// The user's role: `project_admin`, `org_admin`, `lead`, `member`.
    pub role: String,
    /// Seconds since 1970.
    pub expires: u64,
}

/// A job to submit; every app's archive is uploaded before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submit {
    /// The signed order.
    pub order: SignedOrder,
}

/// Asks to upload one app's archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenUpload {
    /// What will come.
    pub blob: BlobRef,
}

/// The job was stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// Its id.
    pub job: JobId,
}

/// A list of jobs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Jobs {
    /// The jobs of the session's study that the user may see.
    pub jobs: Vec<Job>,
}

/// A job as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Display name.
    pub name: String,
    /// Study.
    pub study: StudyName,
    /// Who submitted it.
    pub submitter: UserName,
    /// Where it stands.
    pub phase: JobPhase,
    /// The reason in words while it waits or after it ended: `waiting for site uni: 3 GPUs free of 8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Which site, class, cause and last lines, once it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Rounds done and asked for.
    pub round: u32,
    /// Rounds asked for.
    pub total_rounds: u32,
    /// The latest aggregated metrics.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Each worker; empty in lists.
    #[serde(default)]
    pub workers: Vec<Worker>,
    /// Milliseconds since 1970.
    pub submitted: u64,
    /// Milliseconds since 1970, once the first training step was given out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// Milliseconds since 1970, once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<u64>,
    /// `low`, `normal`, `high`.
    pub priority: String,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Where; `server` for the server worker.
    pub site: SiteName,
    /// One word.
    pub class: FailureClass,
    /// The native cause.
    pub cause: String,
    /// Last lines of the log, as far as that site's export policy lets them out.
    #[serde(default)]
    pub tail: String,
}

/// One worker of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Where.
    pub site: SiteName,
    /// What it plays.
    pub role: Role,
    /// 1 for the first try.
    pub attempt: u32,
    /// Where it stands.
    pub phase: WorkerPhase,
    /// What the backend calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<String>,
    /// Why it waits, or how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Milliseconds since 1970 since when its state is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_since: Option<u64>,
}

/// Events of one job after a number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Events {
    /// In order.
    pub events: Vec<Event>,
    /// What to ask for next.
    pub next: u64,
    /// No more will come.
    pub end: bool,
}

/// Something that happened to a job. Stored, so a client that comes back misses nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Counted from 1.
    pub n: u64,
    /// Milliseconds since 1970.
    pub at: u64,
    /// What.
    #[serde(flatten)]
    pub what: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The job moved.
    Phase {
        /// Where to.
        phase: JobPhase,
        /// In words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// With `failed`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// A round was aggregated.
    Round {
        /// From 1.
        round: u32,
        /// How many.
        total_rounds: u32,
        /// Aggregated, weighted like the model.
        metrics: BTreeMap<String, f64>,
        /// Each site's own, as exported.
        #[serde(default)]
        sites: BTreeMap<SiteName, BTreeMap<String, f64>>,
        /// Milliseconds the round took.
        millis: u64,
    },
    /// A worker moved.
    Worker {
        /// Its new state.
        worker: Worker,
    },
}

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// Text from `after` on; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// What to ask for next.
    pub next: u64,
    /// No more will come.
    pub end: bool,
}

/// The files a job left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Name to blob: `model.safetensors`, `metrics.json`, `provenance.json`, ...
    pub files: BTreeMap<String, BlobRef>,
}

/// The sites of the session's study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sites {
    /// By name.
    pub sites: Vec<Site>,
}

/// One site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Name.
    pub name: SiteName,
    /// Organisation.
    pub org: OrgName,
    /// Whether its parent is connected.
    pub connected: bool,
    /// Milliseconds since 1970 of the last sign of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
    /// What it launches with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Isolation its workers get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Free and all: `gpus`, `cpus`, `memory_mib`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<crate::site::Offer>,
    /// Version of its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Workers it runs now.
    pub running: u32,
}

/// The studies this user may see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Studies {
    /// By name.
    pub studies: Vec<Study>,
}

/// One study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Name.
    pub name: StudyName,
    /// Sites by organisation.
    pub site_orgs: BTreeMap<OrgName, Vec<SiteName>>,
    /// Its members.
    pub users: Vec<UserName>,
    /// Grows with every change; a change names the version it was made from.
    pub version: u64,
}

/// A change to the registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum StudyChange {
    /// A new study.
    Register {
        /// Name.
        study: StudyName,
        /// Sites by organisation.
        #[serde(default)]
        site_orgs: BTreeMap<OrgName, Vec<SiteName>>,
        /// Members.
        #[serde(default)]
        users: Vec<UserName>,
    },
    /// No more; refused while jobs of it run.
    Remove {
        /// Name.
        study: StudyName,
    },
    /// A site joins.
    AddSite {
        /// Name.
        study: StudyName,
        /// Organisation of the site.
        org: OrgName,
        /// The site.
        site: SiteName,
    },
    /// A site leaves.
    RemoveSite {
        /// Name.
        study: StudyName,
        /// The site.
        site: SiteName,
    },
    /// A member joins.
    AddUser {
        /// Name.
        study: StudyName,
        /// The member.
        user: UserName,
    },
    /// A member leaves; the member's sessions of this study end at once.
    RemoveUser {
        /// Name.
        study: StudyName,
        /// The member.
        user: UserName,
    },
}

/// What the CLI prints for any refusal with `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDocument {
    /// The refusal.
    pub error: Problem,
}
