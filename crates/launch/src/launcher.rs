//! What every adapter does for the ledger, and the words between them.
//!
//! The adapter decides nothing: it turns a plan into a native object in two steps, says what it sees and ends what it
//! is told to. It may keep nothing in memory that it needs after a restart; the native object carries the launch id.
//! Every method may be dropped at any `await`, which the ledger takes for [`LaunchError::Unclear`].

use crate::clock::Time;
use async_trait::async_trait;
use bytes::Bytes;
use polder_words::{FailureClass, FileWay, Isolation, LaunchId, Mode, Outcome, StudyName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

/// Starts, finds, watches and ends workers with the means of one backend.
#[async_trait]
pub trait Launcher: Send + Sync {
    /// Which backend it is.
    fn mode(&self) -> Mode;

    /// What the site has. Stated facts, the ledger knows what is taken.
    ///
    /// # Errors
    /// When the backend does not answer.
    async fn offer(&self) -> Result<Offer, Down>;

    /// The native request of a launch: pure, so it can be printed, stored and compared. Holds no secret and no time.
    ///
    /// # Errors
    /// When the site cannot or will not do it, with the reason.
    fn plan(&self, want: &Resolved, with: &Allotted) -> Result<Plan, Refusal>;

    /// Makes the native object so that it does not run yet (Slurm: held; Docker: created; process: a waiting shim).
    ///
    /// # Errors
    /// [`LaunchError::Unclear`] whenever the object may exist nevertheless.
    async fn prepare(&self, id: &LaunchId, plan: &Plan, hand: &Handover) -> Result<NativeId, LaunchError>;

    /// Lets it run. Called after the native id is on disk; calling it again changes nothing.
    ///
    /// # Errors
    /// [`LaunchError::Refused`] when it will never run.
    async fn start(&self, id: &LaunchId, native: &NativeId) -> Result<(), LaunchError>;

    /// What became of each of these launches. Answering [`Fate::Gone`] is a promise: no object of this launch exists
    /// and none can appear any more, also not by a request that an earlier run of the parent had on its way.
    ///
    /// # Errors
    /// When the backend does not answer at all.
    async fn find(&self, ids: &[LaunchId]) -> Result<BTreeMap<LaunchId, Fate>, Down>;

    /// Says what happens to all workers until `stop` is cancelled: first [`Event::Relisted`], then changes. A gap is
    /// followed by another [`Event::Relisted`]. One watcher, however many workers, and no work while nothing happens.
    async fn watch(&self, out: Sender<Event>, stop: CancellationToken);

    /// Ends a worker, whatever its state; gone already is success. Returns once it is asked for: the end is seen.
    ///
    /// # Errors
    /// When it could not be asked for.
    async fn end(&self, id: &LaunchId, how: End) -> Result<(), LaunchError>;

    /// The last bytes of a worker's own output, post mortem; live logs come through the worker's channel.
    ///
    /// # Errors
    /// When the backend does not answer.
    async fn tail(&self, id: &LaunchId, max: usize) -> Result<Bytes, Down>;

    /// Removes what is left of a launch that ended. Called after its outcome is on disk; again is a no-op.
    ///
    /// # Errors
    /// When something is left.
    async fn remove(&self, id: &LaunchId) -> Result<(), LaunchError>;

    /// What an operator should know before the first job comes.
    async fn preflight(&self) -> Vec<Check>;
}

/// What one launch asks for at this site, everything decided: amounts, options, folders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// Which launch; the attempt in it is the current one.
    pub id: LaunchId,
    /// The study.
    pub study: StudyName,
    /// Absolute path of the run directory, see `polder_api::rundir`.
    pub run_dir: PathBuf,
    /// The worker binary.
    pub worker: PathBuf,
    /// How files go between worker and parent. Over the channel, `run_dir` is the parent's own, which the worker does not
    /// see: the plan gives it a folder elsewhere (`polder-worker run --run-dir`).
    #[serde(default)]
    pub files: FileWay,
    /// GPUs.
    #[serde(default)]
    pub gpus: u32,
    /// CPUs; `None`: as the site likes.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Bytes of memory; `None`: as the site likes.
    #[serde(default)]
    pub memory: Option<u64>,
    /// The job's launcher options of this mode, `default` and site merged.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// The study's runtime at this site, without values of secrets.
    #[serde(default)]
    pub runtime: Value,
    /// Longest wait from submission to running, in milliseconds; `None`: for ever.
    #[serde(default)]
    pub pending_timeout_ms: Option<u64>,
    /// New attempts after the first, for ends that are nobody's fault.
    #[serde(default = "default_max_restarts")]
    pub max_restarts: u32,
}

/// `max_restarts` where nobody says otherwise.
#[must_use]
pub fn default_max_restarts() -> u32 {
    2
}

/// A device of this site, as `CUDA_VISIBLE_DEVICES` (or the backend) names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceId(pub String);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What was set aside for one launch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Allotted {
    /// Devices nobody else gets meanwhile.
    #[serde(default)]
    pub devices: Vec<DeviceId>,
}

/// The native request, as JSON that people can read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// For which backend.
    pub mode: Mode,
    /// What exactly; the adapter's own form. `polder plan` prints it beside `mode`.
    #[serde(flatten)]
    pub native: Map<String, Value>,
}

/// What a worker needs to come home: a `polder_api::worker::Handover` as JSON. Holds a secret, so it is never
/// printed and never part of a plan.
#[derive(Clone, PartialEq, Eq)]
pub struct Handover(Vec<u8>);

impl Handover {
    /// From the document's bytes.
    #[must_use]
    pub fn new(document: Vec<u8>) -> Self {
        Self(document)
    }

    /// The bytes, to be written where only the worker's account can read.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handover({} bytes)", self.0.len())
    }
}

/// What the backend calls it: a container id, a job number, a pid and its host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NativeId(pub String);

impl fmt::Display for NativeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What the site has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// With what it launches.
    pub mode: Mode,
    /// `x86_64`.
    pub architectures: Vec<String>,
    /// What keeps a worker from its parent's files.
    pub isolation: Isolation,
    /// Limits the site does not enforce, in words.
    pub not_enforced: Vec<String>,
    /// All devices; `None` where a scheduler of the site's hands them out.
    pub devices: Option<Vec<DeviceId>>,
    /// All CPUs; `None` as above.
    pub cpus: Option<u32>,
    /// All memory, bytes; `None` as above.
    pub memory: Option<u64>,
    /// When a worker would start, as far as a scheduler says.
    pub expected_start: Option<Time>,
}

/// One launch as the backend shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// Which launch, read from the native object.
    pub id: LaunchId,
    /// What the backend calls it.
    pub native: NativeId,
    /// How far it is.
    pub state: Native,
}

/// Native states, as much of them as the ledger needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Native {
    /// Made, not started.
    Waiting,
    /// Started, made to wait by the backend.
    Pending {
        /// In the backend's words.
        reason: String,
    },
    /// Running.
    Running {
        /// Since when.
        since: Time,
    },
    /// Over.
    Exited(Exit),
}

/// How it ended, natively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Mapped by the adapter; the tail holds the last lines of the worker's output.
    pub outcome: Outcome,
    /// When.
    pub at: Time,
}

/// What a watcher says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// One launch changed.
    Seen(Sighting),
    /// Everything there is now; first of all and after each gap.
    Relisted {
        /// Every launch of this parent that the backend knows.
        complete: Vec<Sighting>,
    },
    /// The backend does not answer.
    Down(Down),
    /// It answers again; a [`Event::Relisted`] follows.
    Up,
}

/// What became of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is there.
    Seen(Sighting),
    /// It is not there and cannot appear any more.
    Gone(Proof),
    /// Cannot be said now.
    Unsure(Cause),
}

/// Why something is known to be gone, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Proof(pub String);

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Why something cannot be said or done, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cause(pub String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A backend that does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{why}")]
pub struct Down {
    /// Since when.
    pub since: Time,
    /// Why.
    pub why: Cause,
}

impl Down {
    /// Down from now on.
    pub fn now(why: impl fmt::Display) -> Self {
        Self { since: Time::now(), why: Cause(why.to_string()) }
    }
}

/// The site cannot or will not launch this.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{}{message}{}", .place.as_deref().map(Place::before).unwrap_or_default(),
    .place.as_deref().map(Place::after).unwrap_or_default())]
pub struct Refusal {
    /// One word.
    pub class: FailureClass,
    /// What is wrong.
    pub message: String,
    /// The document to look at, when it is about one.
    #[serde(flatten)]
    pub place: Option<Box<Place>>,
}

/// A place in a document, what stands there and what may; as in every error about a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The document.
    pub file: String,
    /// The path in it.
    pub at: String,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub allowed: String,
}

impl Place {
    fn before(&self) -> String {
        let at = if self.at.is_empty() { String::new() } else { format!("{}: ", self.at) };
        format!("{}: {at}", self.file)
    }

    fn after(&self) -> String {
        let part = |label: &str, text: &str| {
            if text.is_empty() { String::new() } else { format!("; {label}{text}") }
        };
        format!("{}{}", part("found ", &self.found), part("allowed: ", &self.allowed))
    }
}

impl Refusal {
    /// A refusal without a document.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), place: None }
    }

    /// The same about a place in a document.
    #[must_use]
    pub fn at(mut self, file: &str, at: &str, found: &str, allowed: &str) -> Self {
        self.place = Some(Box::new(Place {
            file: file.to_owned(),
            at: at.to_owned(),
            found: found.to_owned(),
            allowed: allowed.to_owned(),
        }));
        self
    }

    /// As the end of a launch.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome::failed(self.class, self.to_string())
    }
}

/// Why a native request did not go through.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// It was refused and nothing native exists (for `start`: it will never run).
    #[error("refused: {0}")]
    Refused(Refusal),
    /// It never left: trying again is safe.
    #[error("not sent: {0}")]
    NotSent(Down),
    /// Nobody knows. Let it settle, then `find`; never send it again blindly.
    #[error("unclear: {0}")]
    Unclear(Down),
}

/// How to end a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Between asking (TERM) and force (KILL); zero is force at once.
    pub grace: Duration,
    /// In words, for logs.
    pub why: String,
}

/// One finding of a preflight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at.
    pub what: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was found, and what to do about it.
    pub text: String,
}
