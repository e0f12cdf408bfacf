//! What a role of the parent and its workers' room say to each other.

use async_trait::async_trait;
use polder_api::site::TaskResult;
use polder_api::worker::{Ending, Member, Report, RoundDone, Tasks, WorkerAssignment};
use polder_api::{BlobRef, Problem};
use polder_launch::{Refusal, Resolved, Short};
use polder_words::{JobId, LaunchId, Outcome, Role, SiteName, WorkerPhase};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The role above: whatever a worker is told and says, as far as it is not about launching.
///
/// Methods are called for the current attempt of a launch only, by a worker that proved to be it. Every call may
/// come twice.
#[async_trait]
pub(crate) trait Upstream: Send + Sync {
    /// What the worker is for. `gpus`, `shared_files` and `report_seconds` are filled in by the caller.
    async fn assignment(&self, launch: &LaunchId) -> Result<WorkerAssignment, Problem>;

    /// What it shall do now, from memory: read again whenever [`super::Workers::poke`] is called. Files it names lie
    /// in the run directory already.
    fn next(&self, launch: &LaunchId) -> NextBody;

    /// Client role: what became of its task.
    async fn result(&self, launch: &LaunchId, result: TaskResult) -> Result<(), Problem>;

    /// Server role: its current tasks, all of them.
    async fn tasks(&self, launch: &LaunchId, tasks: Tasks) -> Result<(), Problem>;

    /// Server role: a round is done.
    async fn round(&self, launch: &LaunchId, round: RoundDone) -> Result<(), Problem>;

    /// News and sign of life.
    async fn report(&self, launch: &LaunchId, report: Report) -> Result<(), Problem>;

    /// The worker's own word on its end. It is written to the ledger after this has returned.
    async fn ending(&self, launch: &LaunchId, ending: &Ending) -> Result<(), Problem>;

    /// A worker moved, or this parent was started and this is how it found it. Must not block.
    fn worker_changed(&self, job: JobId, role: Role, state: &WorkerState);
}

/// What a worker shall do now, without what its parent itself adds (cursor, epoch, stop).
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NextBody {
    /// Client role: the current task.
    pub(crate) task: Option<polder_api::site::Task>,
    /// Server role: results that are there.
    pub(crate) results: BTreeMap<SiteName, TaskResult>,
    /// Server role: how far each site is.
    pub(crate) roster: BTreeMap<SiteName, Member>,
}

/// A worker that is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Want {
    /// From [`super::Workers::resolved`], completed.
    pub(crate) launch: Resolved,
    /// The archive to unpack as `app/`, unless it is there already.
    pub(crate) app: Option<App>,
}

/// An app's archive on this disk, checked against its hash by whoever put it there.
#[derive(Debug, Clone)]
pub(crate) struct App {
    /// Where.
    pub(crate) path: PathBuf,
    /// Its name.
    pub(crate) blob: BlobRef,
}

/// Where a worker stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WorkerState {
    /// The current attempt.
    pub(crate) launch: LaunchId,
    /// Its phase.
    pub(crate) phase: WorkerPhase,
    /// What the backend calls it.
    pub(crate) native: Option<String>,
    /// Why it waits, or that it is silent.
    pub(crate) reason: Option<String>,
    /// Whether it has enrolled and asks for tasks, as far as this run of the parent has seen.
    pub(crate) ready: bool,
    /// Milliseconds since 1970 since when nobody can say how it is.
    pub(crate) unknown_since: Option<u64>,
    /// What it says it does.
    pub(crate) doing: Option<String>,
    /// How it ended for good: no attempt follows.
    pub(crate) ended: Option<Outcome>,
}

impl WorkerState {
    /// As it is told to the server.
    pub(crate) fn stand(&self) -> polder_api::site::Stand {
        use polder_api::site::Stand;
        match &self.ended {
            Some(outcome) => Stand::Ended { attempts: self.launch.attempt, outcome: outcome.clone() },
            None => Stand::Worker {
                attempt: self.launch.attempt,
                phase: self.phase,
                native: self.native.clone(),
                reason: self.reason.clone(),
                ready: self.ready,
                unknown_since: self.unknown_since,
            },
        }
    }
}

/// A worker that cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// Not now.
    #[error("{0}")]
    Short(Short),
    /// Not at this site.
    #[error("{0}")]
    Refused(Refusal),
    /// The app's archive is not one that may be unpacked.
    #[error("app {blob}: {why}", blob = .blob.root)]
    Bundle {
        /// Which.
        blob: BlobRef,
        /// Why.
        #[source]
        why: polder_store::bundle::BundleError,
    },
    /// This parent's own disk or ledger; trying again may help.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// Why a file of a run directory was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeError {
    /// The path is not one that is believed.
    #[error("{path:?} is not taken: {why}")]
    Path {
        /// As the worker named it, cut to 200 characters.
        path: String,
        /// `a link on the way`, `not a regular file`, ...
        why: &'static str,
    },
    /// It is larger than allowed.
    #[error("{path:?} has more than {cap} bytes")]
    TooLarge {
        /// As the worker named it.
        path: String,
        /// What is allowed.
        cap: u64,
    },
    /// It cannot be read or copied.
    #[error("{path:?}: {source}")]
    Io {
        /// As the worker named it.
        path: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}
