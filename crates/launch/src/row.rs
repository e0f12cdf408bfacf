//! One row of the ledger: a worker that is wanted, its current attempt and what became of earlier ones.

use crate::clock::Time;
use crate::launcher::{Allotted, NativeId, Plan, Resolved};
use polder_words::{JobId, LaunchId, NameError, Outcome, Role, WorkerPhase};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Version of the stored form.
pub const VERSION: u32 = 1;

/// What a row is found by: a parent launches one worker of each role for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The job.
    pub job: JobId,
    /// What the worker plays.
    pub role: Role,
}

impl Key {
    /// Of a launch.
    #[must_use]
    pub fn of(id: &LaunchId) -> Self {
        Self { job: id.job, role: id.role }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.role)
    }
}

impl FromStr for Key {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let (job, role) = text.split_once('.').unwrap_or((text, ""));
        Ok(Self { job: job.parse()?, role: role.parse()? })
    }
}

/// A worker that is wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// [`VERSION`].
    pub version: u32,
    /// What is asked for; the id in it names the current attempt.
    pub want: Resolved,
    /// What is set aside for it until it ended for good.
    pub lease: Allotted,
    /// The native request of the current attempt.
    pub plan: Plan,
    /// Where the current attempt stands.
    pub state: State,
    /// Laid over the state while the backend cannot be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<Unknown>,
    /// Set once it shall end; no attempt follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// The worker's own word on how the current attempt ended, kept until the exit is seen natively.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word: Option<Word>,
    /// Attempts made because one before failed.
    pub restarts: u32,
    /// Earlier attempts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<Past>,
}

/// Where an attempt stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// The intent is on disk. The native request may be on its way when this was written by an earlier run.
    Planned {
        /// Since when.
        since: Time,
    },
    /// The native object exists.
    Submitted {
        /// What the backend calls it.
        native: NativeId,
        /// Since when.
        since: Time,
    },
    /// The backend makes it wait.
    Pending {
        /// What the backend calls it.
        native: NativeId,
        /// Since when it is submitted.
        since: Time,
        /// In the backend's words.
        reason: String,
    },
    /// It runs.
    Running {
        /// What the backend calls it.
        native: NativeId,
        /// Since when.
        since: Time,
    },
    /// It ended; this outcome is final for the attempt.
    Exited {
        /// What the backend called it, when it got that far.
        native: Option<NativeId>,
        /// When.
        at: Time,
        /// How.
        outcome: Outcome,
        /// When another attempt is made; `None`: never, the launch has ended.
        retry: Option<Time>,
        /// Whether what was left of it is removed.
        removed: bool,
    },
}

/// The backend cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// Since when.
    pub since: Time,
    /// Why.
    pub why: String,
}

/// It shall end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// When that was decided.
    pub at: Time,
    /// How long a running worker may take to end by itself (its parent tells it) before it is ended by force.
    pub grace_ms: u64,
    /// Why.
    pub why: Why,
}

/// Why it shall end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Why {
    /// Asked for: `finished`, `aborted by lead@org_a.com`.
    Asked {
        /// In words.
        text: String,
    },
    /// It waited longer than it may.
    PendingTimeout {
        /// In words.
        text: String,
    },
    /// The backend will never run it.
    Refused {
        /// The reason as an outcome.
        outcome: Outcome,
    },
    /// It said how it ended and did not exit.
    Lingering,
}

/// What a worker said of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// When.
    pub at: Time,
    /// How it ended.
    pub outcome: Outcome,
}

/// An earlier attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Its number.
    pub attempt: u32,
    /// What the backend called it, when it got that far.
    pub native: Option<NativeId>,
    /// When it ended, or was given up.
    pub at: Time,
    /// How it ended; `None` when it provably never came to be.
    pub outcome: Option<Outcome>,
}

impl Row {
    /// A new row, as it stands before anything native is asked for.
    #[must_use]
    pub fn new(want: Resolved, lease: Allotted, plan: Plan, now: Time) -> Self {
        Self {
            version: VERSION,
            want,
            lease,
            plan,
            state: State::Planned { since: now },
            unknown: None,
            stop: None,
            word: None,
            restarts: 0,
            past: Vec::new(),
        }
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::of(&self.want.id)
    }

    /// The current attempt.
    #[must_use]
    pub fn id(&self) -> &LaunchId {
        &self.want.id
    }

    /// What the backend calls the current attempt.
    #[must_use]
    pub fn native(&self) -> Option<&NativeId> {
        match &self.state {
            State::Planned { .. } => None,
            State::Submitted { native, .. }
            | State::Pending { native, .. }
            | State::Running { native, .. } => Some(native),
            State::Exited { native, .. } => native.as_ref(),
        }
    }

    /// The phase people see.
    #[must_use]
    pub fn phase(&self) -> WorkerPhase {
        match self.state {
            State::Planned { .. } => WorkerPhase::Planned,
            State::Submitted { .. } => WorkerPhase::Submitted,
            State::Pending { .. } => WorkerPhase::Pending,
            State::Running { .. } => WorkerPhase::Running,
            State::Exited { .. } => WorkerPhase::Exited,
        }
    }

    /// Why it waits, when it does.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match &self.state {
            State::Pending { reason, .. } => Some(reason),
            State::Planned { .. } => self.unknown.as_ref().map(|unknown| unknown.why.as_str()),
            _ => None,
        }
    }

    /// How the launch ended: for good, no attempt follows.
    #[must_use]
    pub fn ended(&self) -> Option<&Outcome> {
        match &self.state {
            State::Exited { outcome, retry: None, .. } => Some(outcome),
            _ => None,
        }
    }

    /// Whether something native exists or may exist.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !matches!(self.state, State::Exited { .. })
    }

    /// Whether nothing is left to do, ever.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self.state, State::Exited { retry: None, removed: true, .. })
    }
}
