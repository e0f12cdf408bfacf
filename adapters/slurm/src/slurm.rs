//! What the launcher needs of a cluster, and the cluster's words for it.
//!
//! The bridge's client implements it with the library; tests with a script.

use async_trait::async_trait;
use std::time::Duration;
use thiserror::Error;

/// A job's number.
pub type JobNumber = u32;

/// Requests to a controller, each one RPC at most.
#[async_trait]
pub trait Slurm: Send + Sync {
    /// Whether the controller answers, and what it says about itself.
    ///
    /// # Errors
    /// When it does not.
    async fn ping(&self) -> Result<Cluster, Trouble>;

    /// Submits a job, held.
    ///
    /// # Errors
    /// [`Trouble::Unclear`] whenever the job may exist nevertheless.
    async fn submit(&self, job: &Submission) -> Result<JobNumber, Trouble>;

    /// Releases a held job; one that is not held any more stays as it is.
    ///
    /// # Errors
    /// When it is not known to be released.
    async fn release(&self, job: JobNumber) -> Result<(), Trouble>;

    /// Ends a job, whatever its state; one that ended is success.
    ///
    /// # Errors
    /// When it is not known to be asked for.
    async fn cancel(&self, job: JobNumber) -> Result<(), Trouble>;

    /// Every job of this account that the controller remembers.
    ///
    /// # Errors
    /// When it does not answer, or answers what cannot be read.
    async fn jobs(&self) -> Result<Vec<Job>, Trouble>;
}

/// A controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// `ClusterName`.
    pub name: String,
    /// Of the library.
    pub version: String,
    /// `MessageTimeout`: a request older than twice that is not on its way any more.
    pub message_timeout: Duration,
}

/// What is submitted: a plan's descriptor and script, and values of the parent's variables.
#[derive(Clone, PartialEq, Eq)]
pub struct Submission {
    /// The request.
    pub descriptor: crate::plan::Descriptor,
    /// The batch script.
    pub script: String,
    /// The job's whole environment.
    pub environment: Vec<(String, String)>,
    /// The account of the cluster; `None`: that of the bridge.
    pub user: Option<String>,
}

/// A job as the controller shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub number: JobNumber,
    /// Its name.
    pub name: String,
    /// Its comment.
    pub comment: String,
    /// Where it runs.
    pub work_dir: String,
    /// The base state as Slurm spells it: `PENDING`, `RUNNING`, `NODE_FAIL`.
    pub state: String,
    /// Flags over it: `COMPLETING`, `CONFIGURING`.
    pub flags: Vec<String>,
    /// Why it waits or ended, as Slurm spells it: `Priority`, `JobHeldUser`.
    pub reason: String,
    /// Whether its priority is zero.
    pub held: bool,
    /// Exit code of the script.
    pub exit_code: u32,
    /// Signal that ended the script; 0: none.
    pub signal: u32,
    /// Seconds since 1970; 0: not yet. For a waiting job: when Slurm expects it to start.
    pub start: u64,
    /// Seconds since 1970; 0: not yet.
    pub end: u64,
}

/// Why a request brought nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Trouble {
    /// It never left.
    #[error("not sent: {0}")]
    NotSent(String),
    /// Nobody knows whether it was done.
    #[error("no answer: {0}")]
    Unclear(String),
    /// The controller said no.
    #[error("{text}")]
    Refused {
        /// Slurm's number for it: `2035`.
        code: i32,
        /// In Slurm's words.
        text: String,
    },
}
