//! One job as the server parent runs it: a state machine without clock, I/O or lock.
//!
//! ```text
//! submitted --+                        +--- all that must are reserved ---> starting --first tasks--> running
//!             v                        |                                        |                        |
//!          queued <--busy, silent-- deploying --refused by too many--> rejected |                        |
//!             |                        |                                        v                        v
//!             +------------------------+---------- verdict: completed, failed or aborted ----------> finishing
//!                                                                                                       |
//!                              completed | failed | aborted  <--- all workers have ended, or the grace is over
//! ```
//! What must survive a crash is in [`Keep`] and in the job's row; [`Effects`] says what to write, and the shell
//! writes it before it does the rest. What sites and workers say (stands, tasks, results) is soft: they say it again.

mod deploying;
mod ending;
mod shown;
#[cfg(test)]
mod tests;

use self::shown::worker_of;
use polder_api::site::{Goal, Stand, Task, TaskResult, Terms};
use polder_api::user::{EventKind, Failure, Worker};
use polder_api::{Order, SignedOrder};
use polder_core::meta::{JobMeta, Priority};
use polder_store::JobChange;
use polder_words::{BlobRef, JobId, JobPhase, LaunchId, Outcome, SiteName, StudyName, UserName, WorkerPhase};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long a connected site may take to reserve (it may have to fetch a large app), milliseconds.
pub(crate) const RESERVE_PATIENCE: u64 = 10 * 60 * 1000;
/// How long a site that is not connected may keep a deployment waiting.
pub(crate) const ABSENT_PATIENCE: u64 = 15 * 1000;
/// How long workers may take to end by themselves, seconds.
pub(crate) const GRACE_SECONDS: u64 = 10;
/// How long after the grace the server waits for sites to say that their workers have ended.
const CLOSING_PATIENCE: u64 = 5 * 1000;

/// What never changes about a job.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) id: JobId,
    pub(crate) seq: u64,
    pub(crate) name: String,
    pub(crate) study: StudyName,
    pub(crate) submitter: UserName,
    pub(crate) priority: Priority,
    pub(crate) submitted: u64,
    pub(crate) min_clients: u32,
    pub(crate) mandatory: BTreeSet<SiteName>,
    /// `None`: every site of the study.
    pub(crate) named: Option<BTreeSet<SiteName>>,
    pub(crate) meta: JobMeta,
    /// New attempts of it, for ends that are nobody's fault.
    pub(crate) max_restarts: u32,
    /// The app of each site that has one of its own; with `@ALL` [`Facts::app_of_all`].
    pub(crate) apps: BTreeMap<SiteName, BlobRef>,
    pub(crate) app_of_all: Option<BlobRef>,
    pub(crate) signed: Arc<SignedOrder>,
    pub(crate) order: Arc<Order>,
}

/// What is stored of a job beside its row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Keep {
    /// The server app's `job.yaml`, completed with defaults.
    pub(crate) job: serde_json::Value,
    /// The sites of the current deployment, in the order in which results are added up.
    #[serde(default)]
    pub(crate) sites: Vec<SiteName>,
    /// On what terms each takes part.
    #[serde(default)]
    pub(crate) terms: BTreeMap<SiteName, Terms>,
    /// Sites that refused, with their reasons: they are not asked again.
    #[serde(default)]
    pub(crate) refused: BTreeMap<SiteName, String>,
    /// How it will end, once that is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Verdict>,
    /// The workers as they were at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) workers: Vec<Worker>,
}

/// How a job ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub(crate) enum Verdict {
    Completed,
    Failed { failure: Failure },
    Aborted { by: UserName },
}

impl Verdict {
    fn why(&self) -> String {
        match self {
            Self::Completed => "finished".to_owned(),
            Self::Failed { failure } => format!("the job failed at {}", failure.site),
            Self::Aborted { by } => format!("aborted by {by}"),
        }
    }
}

/// The server worker as its launcher sees it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerWorker {
    pub(crate) attempt: u32,
    pub(crate) phase: WorkerPhase,
    pub(crate) native: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) ready: bool,
    pub(crate) unknown_since: Option<u64>,
    /// Set once it ended and no attempt follows.
    pub(crate) ended: Option<Outcome>,
}

/// What the shell is to do, in this order: write, publish, command, ring.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// To be written, with the events, before anything else.
    pub(crate) change: Option<JobChange>,
    pub(crate) events: Vec<EventKind>,
    /// New goals by site; `None`: the job is no longer wanted there.
    pub(crate) goals: BTreeMap<SiteName, Option<Goal>>,
    /// Tasks of these sites changed.
    pub(crate) tasks: bool,
    pub(crate) worker: Option<Command>,
    /// The server worker should look again.
    pub(crate) poke: bool,
    /// The scheduler should look again.
    pub(crate) schedule: bool,
    /// The job has ended: let go of it.
    pub(crate) done: bool,
}

/// What the server worker's launcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Run,
    Stop {
        why: String,
        grace_seconds: u64,
    },
    /// Gives back what was set aside for it.
    Release,
}

impl Effects {
    fn change(&mut self) -> &mut JobChange {
        self.change.get_or_insert_default()
    }
}

/// A job that has not ended.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) facts: Arc<Facts>,
    pub(crate) keep: Keep,
    pub(crate) phase: JobPhase,
    pub(crate) reason: Option<String>,
    pub(crate) started: Option<u64>,
    /// When the current phase began.
    since: u64,
    /// Not to be scheduled before.
    pub(crate) not_before: u64,
    /// How often it went back into the queue.
    returns: u32,
    pub(crate) stands: BTreeMap<SiteName, Stand>,
    /// Since when a site of the deployment is not connected.
    absent: BTreeMap<SiteName, u64>,
    pub(crate) tasks: BTreeMap<SiteName, Arc<Task>>,
    /// The server worker has not said its tasks to this run of the server.
    pub(crate) tasks_unknown: bool,
    pub(crate) results: BTreeMap<SiteName, TaskResult>,
    pub(crate) server: Option<ServerWorker>,
}

impl Job {
    /// A job as it is stored.
    pub(crate) fn new(
        facts: Arc<Facts>,
        keep: Keep,
        phase: JobPhase,
        reason: Option<String>,
        now: u64,
    ) -> Self {
        Self {
            facts,
            keep,
            phase,
            reason,
            started: None,
            since: now,
            not_before: 0,
            returns: 0,
            stands: BTreeMap::new(),
            absent: BTreeMap::new(),
            tasks: BTreeMap::new(),
            tasks_unknown: false,
            results: BTreeMap::new(),
            server: None,
        }
    }

    /// What has to be said again after a restart of the server.
    pub(crate) fn resume(&mut self, now: u64) -> Effects {
        let mut out = Effects::default();
        self.since = now;
        match self.phase {
            JobPhase::Submitted | JobPhase::Queued => out.schedule = true,
            JobPhase::Deploying => self.want(&Goal::Reserve, &mut out),
            JobPhase::Starting | JobPhase::Running => {
                self.tasks_unknown = true;
                self.want(&Goal::Run, &mut out);
                out.worker = Some(Command::Run);
            }
            _ => self.stop_all(&mut out),
        }
        out
    }

    fn want(&self, goal: &Goal, out: &mut Effects) {
        for site in &self.keep.sites {
            out.goals.insert(site.clone(), Some(goal.clone()));
        }
    }

    fn go(&mut self, phase: JobPhase, reason: Option<String>, now: u64, out: &mut Effects) {
        self.phase = phase;
        self.since = now;
        self.reason.clone_from(&reason);
        let keep = serde_json::to_value(&self.keep).unwrap_or_default();
        let change = out.change();
        change.phase = Some(phase);
        change.reason = Some(reason.clone());
        change.state = Some(keep);
        let failure = match (&self.keep.verdict, phase) {
            (Some(Verdict::Failed { failure }), JobPhase::Failed) => Some(failure.clone()),
            _ => None,
        };
        change.failure.clone_from(&failure);
        if phase.is_final() {
            change.finished = Some(now);
        }
        out.events.push(EventKind::Phase { phase, reason, failure });
    }

    /// Whether the scheduler may look at it.
    pub(crate) fn waits(&self, now: u64) -> bool {
        matches!(self.phase, JobPhase::Submitted | JobPhase::Queued) && self.not_before <= now
    }

    /// The scheduler has a reason why not now.
    pub(crate) fn wait(&mut self, reason: String, now: u64) -> Effects {
        let mut out = Effects::default();
        if self.phase == JobPhase::Submitted
            || (self.phase == JobPhase::Queued && self.reason.as_ref() != Some(&reason))
        {
            self.go(JobPhase::Queued, Some(reason), now, &mut out);
        }
        out
    }

    /// A site said how far it is.
    pub(crate) fn observe(&mut self, site: &SiteName, stand: &Stand, now: u64) -> Effects {
        let mut out = Effects::default();
        if !self.keep.sites.contains(site) {
            return out;
        }
        let before = self.stands.insert(site.clone(), stand.clone());
        if before.as_ref() == Some(stand) {
            return out;
        }
        if let Some(worker) = worker_of(site, stand) {
            let moved = before.as_ref().and_then(|before| worker_of(site, before)).is_none_or(|old| {
                (old.attempt, old.phase, &old.reason) != (worker.attempt, worker.phase, &worker.reason)
            });
            if moved {
                out.events.push(EventKind::Worker { worker });
            }
        }
        match self.phase {
            JobPhase::Deploying => self.judge(now, &mut out),
            JobPhase::Starting | JobPhase::Running => {
                out.poke = true;
                self.say_starting();
                self.look_for_loss(site, stand, now, &mut out);
            }
            JobPhase::Finishing => self.close_if_over(now, &mut out),
            _ => {}
        }
        out
    }

    /// A site came or went.
    pub(crate) fn site_connected(&mut self, site: &SiteName, connected: bool, now: u64) -> Effects {
        let mut out = Effects::default();
        if !self.keep.sites.contains(site) {
            return out;
        }
        if connected {
            self.absent.remove(site);
        } else {
            self.absent.entry(site.clone()).or_insert(now);
            if self.phase == JobPhase::Finishing {
                self.close_if_over(now, &mut out);
            }
        }
        out
    }

    /// Whether a launch is the current one of the server worker, and none after it has spoken.
    pub(crate) fn is_current(&self, launch: &LaunchId) -> bool {
        let launched = self.server.as_ref().map_or(0, |worker| worker.attempt);
        let spoken = self.tasks.values().map(|task| task.id.attempt).max().unwrap_or(0);
        launch.attempt >= launched.max(spoken)
    }

    /// The server worker replaced its tasks.
    pub(crate) fn put_tasks(&mut self, tasks: BTreeMap<SiteName, Arc<Task>>, now: u64) -> Effects {
        let mut out = Effects::default();
        if !matches!(self.phase, JobPhase::Starting | JobPhase::Running) {
            return out;
        }
        self.results.retain(|site, result| tasks.get(site).is_some_and(|task| task.id == result.task));
        self.tasks_unknown = false;
        let trains = tasks.values().any(|task| task.kind == "train");
        self.tasks = tasks.into_iter().filter(|(site, _)| self.keep.sites.contains(site)).collect();
        out.tasks = true;
        out.poke = true;
        if self.phase == JobPhase::Starting {
            self.go(JobPhase::Running, None, now, &mut out);
        }
        if self.started.is_none() && trains {
            self.started = Some(now);
            out.change().started = Some(now);
        }
        out
    }

    /// Whether a result is one of a current task; `None`: nobody knows yet.
    pub(crate) fn is_wanted(&self, site: &SiteName, result: &TaskResult) -> Option<bool> {
        let current = self.tasks.get(site).is_some_and(|task| task.id == result.task);
        (current || !self.tasks_unknown).then_some(current)
    }

    /// A site gave a result. Says whether it is one of a current task.
    pub(crate) fn put_result(&mut self, site: &SiteName, result: TaskResult) -> bool {
        if self.is_wanted(site, &result) != Some(true) {
            return false;
        }
        self.results.insert(site.clone(), result);
        true
    }

    /// When [`Job::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self.phase {
            JobPhase::Queued => Some(self.not_before).filter(|at| *at > self.since),
            JobPhase::Deploying => {
                let absent = self.absent.values().map(|since| since + ABSENT_PATIENCE).min();
                absent.into_iter().chain([self.since + RESERVE_PATIENCE]).min()
            }
            JobPhase::Finishing => Some(self.closing_deadline()),
            _ => None,
        }
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, now: u64) -> Effects {
        let mut out = Effects::default();
        match self.phase {
            JobPhase::Queued => out.schedule = true,
            JobPhase::Deploying => self.judge(now, &mut out),
            JobPhase::Finishing => self.close_if_over(now, &mut out),
            _ => {}
        }
        out
    }
}
