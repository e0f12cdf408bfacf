//! States of jobs and workers, and what became of them.
//!
//! ```text
//! submitted -> queued(reason) -> deploying -> starting(k of n) -> running(round r of R)
//!           -> finishing -> completed | failed | aborted | rejected
//! ```

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! spelled {
    ($type:ident { $($variant:ident => $text:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word for it, as printed and stored.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Reads the word back.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Where a job stands. The reason or detail travels beside it as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// Stored, not yet looked at by the scheduler.
    Submitted,
    /// Waiting; the reason says for what.
    Queued,
    /// Sites check the order, fetch the bundle and reserve resources.
    Deploying,
    /// Workers are being launched.
    Starting,
    /// Rounds are running.
    Running,
    /// The workflow is done; results are being stored, workers end.
    Finishing,
    /// Done.
    Completed,
    /// Ended by a failure.
    Failed,
    /// Ended by a person.
    Aborted,
    /// Refused before anything was launched.
    Rejected,
}
spelled!(JobPhase {
    Submitted => "submitted", Queued => "queued", Deploying => "deploying", Starting => "starting",
    Running => "running", Finishing => "finishing", Completed => "completed", Failed => "failed",
    Aborted => "aborted", Rejected => "rejected",
});

impl JobPhase {
    /// Whether nothing will happen to the job any more.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Aborted | Self::Rejected)
    }
}

/// Where a worker stands, `unknown since` is laid over it and not a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerPhase {
    /// The intent is on disk; nothing native exists.
    Planned,
    /// The native object exists and its id is on disk.
    Submitted,
    /// The backend makes it wait.
    Pending,
    /// It runs.
    Running,
    /// It has ended; the outcome is on disk.
    Exited,
}
spelled!(WorkerPhase {
    Planned => "planned", Submitted => "submitted", Pending => "pending", Running => "running", Exited => "exited",
});

/// Why something failed, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The user's program: non-zero exit, bad output, NaN, wrong shape.
    UserCode,
    /// A configuration of the job or site.
    Config,
    /// A rule of the site, study or federation forbids it.
    Policy,
    /// Not enough of something.
    Resources,
    /// The image could not be had or started.
    Image,
    /// A secret is missing.
    Secret,
    /// A machine, network or service failed.
    Infrastructure,
    /// It took longer than allowed.
    Timeout,
    /// It used more memory than allowed.
    OutOfMemory,
    /// The scheduler took its place.
    Preempted,
    /// Gone, proven, and nobody can say how it ended.
    Lost,
    /// A person or the parent ended it.
    Aborted,
}
spelled!(FailureClass {
    UserCode => "user_code", Config => "config", Policy => "policy", Resources => "resources", Image => "image",
    Secret => "secret", Infrastructure => "infrastructure", Timeout => "timeout", OutOfMemory => "out_of_memory",
    Preempted => "preempted", Lost => "lost", Aborted => "aborted",
});

impl FailureClass {
    /// Whether a new attempt may help: the failure is no fault of the user's code or of a rule.
    #[must_use]
    pub fn is_worth_retrying(self) -> bool {
        matches!(self, Self::Infrastructure | Self::Preempted | Self::Lost)
    }
}

/// How a worker or job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum Outcome {
    /// As it should.
    Completed,
    /// It did not.
    Failed {
        /// One word.
        class: FailureClass,
        /// The native cause, one line: `exit 7`, `signal 9 (KILL)`, `OOMKilled`, `site uni: NaN in "weight"`.
        cause: String,
        /// The last lines of its log, as far as the export policy lets them out.
        tail: String,
    },
}

impl Outcome {
    /// A failure without a log tail.
    #[must_use]
    pub fn failed(class: FailureClass, cause: impl Into<String>) -> Self {
        Self::Failed { class, cause: cause.into(), tail: String::new() }
    }
}

/// What a site launches with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Plain processes of the host.
    Process,
    /// A Docker or Podman engine.
    Docker,
    /// Kubernetes pods.
    K8s,
    /// Slurm jobs.
    Slurm,
}
spelled!(Mode { Process => "process", Docker => "docker", K8s => "k8s", Slurm => "slurm" });

/// How a worker and its parent hand each other files (the app, models, results).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileWay {
    /// Both see the same run directory.
    #[default]
    Shared,
    /// The worker has a run directory of its own; everything goes over its channel.
    Channel,
}
spelled!(FileWay { Shared => "shared", Channel => "channel" });

/// What keeps a worker away from its parent's files; a study may refuse `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Nothing: it runs with the parent's rights.
    None,
    /// A Landlock domain around it.
    Landlock,
    /// A user and mount namespace of its own.
    UserNamespace,
    /// An account of its own.
    OwnUid,
    /// A container.
    Container,
}
spelled!(Isolation {
    None => "none", Landlock => "landlock", UserNamespace => "user_namespace", OwnUid => "own_uid", Container => "container",
});
