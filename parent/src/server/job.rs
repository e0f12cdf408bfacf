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

use polder_api::site::{Goal, Stand, Task, TaskResult, Terms};
use polder_api::user::{EventKind, Failure, Worker};
use polder_api::worker::Member;
use polder_api::{Order, SignedOrder};
use polder_core::meta::{JobMeta, Priority};
use polder_store::JobChange;
use polder_words::{
    BlobRef, FailureClass, JobId, JobPhase, LaunchId, Outcome, Role, SiteName, StudyName, UserName,
    WorkerPhase,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long a connected site may take to reserve (it may have to fetch a large app), milliseconds.
pub(super) const RESERVE_PATIENCE: u64 = 10 * 60 * 1000;
/// How long a site that is not connected may keep a deployment waiting.
pub(super) const ABSENT_PATIENCE: u64 = 5 * 1000;
/// How long workers may take to end by themselves, seconds.
pub(super) const GRACE_SECONDS: u64 = 10;
/// How long after the grace the server waits for sites to say that their workers have ended.
const CLOSING_PATIENCE: u64 = 5 * 1000;

/// What never changes about a job.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) id: JobId,
    pub(super) seq: u64,
    pub(super) name: String,
    pub(super) study: StudyName,
    pub(super) submitter: UserName,
    pub(super) priority: Priority,
    pub(super) submitted: u64,
    pub(super) min_clients: u32,
    pub(super) mandatory: BTreeSet<SiteName>,
    /// `None`: every site of the study.
    pub(super) named: Option<BTreeSet<SiteName>>,
    pub(super) meta: JobMeta,
    /// New attempts of it, for ends that are nobody's fault.
    pub(super) max_restarts: u32,
    /// The app of each site that has one of its own; with `@ALL` [`Facts::app_of_all`].
    pub(super) apps: BTreeMap<SiteName, BlobRef>,
    pub(super) app_of_all: Option<BlobRef>,
    pub(super) signed: Arc<SignedOrder>,
    pub(super) order: Arc<Order>,
}

/// What is stored of a job beside its row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Keep {
    /// The server app's `job.yaml`, completed with defaults.
    pub(super) job: serde_json::Value,
    /// The sites of the current deployment, in the order in which results are added up.
    #[serde(default)]
    pub(super) sites: Vec<SiteName>,
    /// On what terms each takes part.
    #[serde(default)]
    pub(super) terms: BTreeMap<SiteName, Terms>,
    /// Sites that refused, with their reasons: they are not asked again.
    #[serde(default)]
    pub(super) refused: BTreeMap<SiteName, String>,
    /// How it will end, once that is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Verdict>,
    /// The workers as they were at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) workers: Vec<Worker>,
}

/// How a job ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub(super) enum Verdict {
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
pub(super) struct ServerWorker {
    pub(super) attempt: u32,
    pub(super) phase: WorkerPhase,
    pub(super) native: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) ready: bool,
    pub(super) unknown_since: Option<u64>,
    /// Set once it ended and no attempt follows.
    pub(super) ended: Option<Outcome>,
}

/// What the shell is to do, in this order: write, publish, command, ring.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// To be written, with the events, before anything else.
    pub(super) change: Option<JobChange>,
    pub(super) events: Vec<EventKind>,
    /// New goals by site; `None`: the job is no longer wanted there.
    pub(super) goals: BTreeMap<SiteName, Option<Goal>>,
    /// Tasks of these sites changed.
    pub(super) tasks: bool,
    pub(super) worker: Option<Command>,
    /// The server worker should look again.
    pub(super) poke: bool,
    /// The scheduler should look again.
    pub(super) schedule: bool,
    /// The job has ended: let go of it.
    pub(super) done: bool,
}

/// What the server worker's launcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
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
pub(super) struct Job {
    pub(super) facts: Arc<Facts>,
    pub(super) keep: Keep,
    pub(super) phase: JobPhase,
    pub(super) reason: Option<String>,
    pub(super) started: Option<u64>,
    /// When the current phase began.
    since: u64,
    /// Not to be scheduled before.
    pub(super) not_before: u64,
    /// How often it went back into the queue.
    returns: u32,
    pub(super) stands: BTreeMap<SiteName, Stand>,
    /// Since when a site of the deployment is not connected.
    absent: BTreeMap<SiteName, u64>,
    pub(super) tasks: BTreeMap<SiteName, Arc<Task>>,
    pub(super) results: BTreeMap<SiteName, TaskResult>,
    pub(super) server: Option<ServerWorker>,
}

impl Job {
    /// A job as it is stored.
    pub(super) fn new(
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
            results: BTreeMap::new(),
            server: None,
        }
    }

    /// What has to be said again after a restart of the server.
    pub(super) fn resume(&mut self, now: u64) -> Effects {
        let mut out = Effects::default();
        self.since = now;
        match self.phase {
            JobPhase::Submitted | JobPhase::Queued => out.schedule = true,
            JobPhase::Deploying => self.want(&Goal::Reserve, &mut out),
            JobPhase::Starting | JobPhase::Running => {
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

    fn stop_all(&self, out: &mut Effects) {
        let why = self.keep.verdict.as_ref().map_or_else(String::new, Verdict::why);
        self.want(&Goal::Stop { why: why.clone(), grace_seconds: GRACE_SECONDS }, out);
        out.worker = Some(Command::Stop { why, grace_seconds: GRACE_SECONDS });
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
    pub(super) fn waits(&self, now: u64) -> bool {
        matches!(self.phase, JobPhase::Submitted | JobPhase::Queued) && self.not_before <= now
    }

    /// The scheduler has a reason why not now.
    pub(super) fn wait(&mut self, reason: String, now: u64) -> Effects {
        let mut out = Effects::default();
        if self.phase == JobPhase::Submitted
            || (self.phase == JobPhase::Queued && self.reason.as_ref() != Some(&reason))
        {
            self.go(JobPhase::Queued, Some(reason), now, &mut out);
        }
        out
    }

    /// The scheduler chose sites.
    pub(super) fn deploy(&mut self, mut sites: Vec<SiteName>, now: u64) -> Effects {
        let mut out = Effects::default();
        if !matches!(self.phase, JobPhase::Submitted | JobPhase::Queued) {
            return out;
        }
        // One order for all runs, whoever connected first: results are added up in it.
        sites.sort();
        self.stands.clear();
        self.absent.clear();
        self.keep.sites = sites;
        self.keep.terms.clear();
        self.go(JobPhase::Deploying, None, now, &mut out);
        self.want(&Goal::Reserve, &mut out);
        out
    }

    /// Never: the scheduler says so.
    pub(super) fn reject(&mut self, why: String, now: u64) -> Effects {
        let mut out = Effects::default();
        self.leave_sites(&mut out);
        self.go(JobPhase::Rejected, Some(why), now, &mut out);
        out.done = true;
        out
    }

    fn leave_sites(&mut self, out: &mut Effects) {
        for site in self.keep.sites.drain(..) {
            out.goals.insert(site, None);
        }
        self.keep.terms.clear();
        out.worker = Some(Command::Release);
        out.schedule = true;
    }

    /// A site said how far it is.
    pub(super) fn observe(&mut self, site: &SiteName, stand: &Stand, now: u64) -> Effects {
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
    pub(super) fn site_connected(&mut self, site: &SiteName, connected: bool, now: u64) -> Effects {
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

    /// Deploying: is everybody there who must be?
    fn judge(&mut self, now: u64, out: &mut Effects) {
        let mut refused = Vec::new();
        let mut not_now = Vec::new();
        let mut open = 0;
        for site in &self.keep.sites {
            match self.stands.get(site) {
                Some(Stand::Refused { why, .. }) => refused.push((site.clone(), why.clone())),
                Some(Stand::Busy { reason }) => not_now.push((site.clone(), reason.clone())),
                Some(Stand::Ended { outcome: Outcome::Failed { cause, .. }, .. }) => {
                    refused.push((site.clone(), cause.clone()));
                }
                Some(Stand::Reserved { .. } | Stand::Worker { .. }) => {}
                _ if self.absent.get(site).is_some_and(|since| now >= since + ABSENT_PATIENCE) => {
                    not_now.push((site.clone(), "its parent is not connected".to_owned()));
                }
                _ if now >= self.since + RESERVE_PATIENCE => {
                    not_now.push((site.clone(), "it did not answer in time".to_owned()));
                }
                _ => open += 1,
            }
        }
        let mandatory = |list: &[(SiteName, String)]| {
            list.iter().find(|(site, _)| self.facts.mandatory.contains(site)).cloned()
        };
        let least = usize::try_from(self.facts.min_clients).unwrap_or(usize::MAX);
        let rest = self.keep.sites.len() - refused.len() - not_now.len();
        let too_few = rest < least;
        if let Some((site, why)) = mandatory(&refused) {
            self.keep.refused.extend(refused);
            *out = self.reject(format!("site {site}, which is mandatory, refused: {why}"), now);
            return;
        }
        if too_few || mandatory(&not_now).is_some() {
            let (site, why) = mandatory(&not_now)
                .or_else(|| not_now.first().cloned())
                .or_else(|| refused.first().cloned())
                .unwrap_or_else(|| (SiteName::server(), "no site is left".to_owned()));
            self.keep.refused.extend(refused);
            self.go_back(format!("waiting for site {site}: {why}"), now, out);
            return;
        }
        if open > 0 {
            return;
        }
        self.start(refused, &not_now, now, out);
    }

    /// Back into the queue; sites let go of what they set aside.
    fn go_back(&mut self, reason: String, now: u64, out: &mut Effects) {
        self.leave_sites(out);
        self.stands.clear();
        self.returns = self.returns.saturating_add(1);
        // A site that is busy says so when something becomes free, which wakes the scheduler; the pause only
        // keeps two jobs from asking the same sites in turns.
        self.not_before = now + (250 << self.returns.min(7));
        self.go(JobPhase::Queued, Some(reason), now, out);
    }

    fn start(
        &mut self,
        refused: Vec<(SiteName, String)>,
        not_now: &[(SiteName, String)],
        now: u64,
        out: &mut Effects,
    ) {
        for (site, _) in refused.iter().chain(not_now) {
            self.keep.sites.retain(|other| other != site);
            out.goals.insert(site.clone(), None);
        }
        self.keep.refused.extend(refused);
        for site in &self.keep.sites {
            if let Some(Stand::Reserved { terms: Some(terms) }) = self.stands.get(site) {
                self.keep.terms.insert(site.clone(), terms.clone());
            }
        }
        let total = self.keep.sites.len() + 1;
        self.go(JobPhase::Starting, Some(format!("0 of {total} workers")), now, out);
        self.want(&Goal::Run, out);
        out.worker = Some(Command::Run);
    }

    /// `k of n workers`, with the first reason of those that wait.
    fn say_starting(&mut self) {
        if self.phase != JobPhase::Starting {
            return;
        }
        let total = self.keep.sites.len() + 1;
        let mut ready = usize::from(self.server.as_ref().is_some_and(|worker| worker.ready));
        let mut waits = None;
        if let Some(ServerWorker { reason: Some(reason), ready: false, .. }) = &self.server {
            waits = Some(format!("server: {reason}"));
        }
        for (site, stand) in &self.stands {
            match stand {
                Stand::Worker { ready: true, .. } => ready += 1,
                Stand::Worker { reason: Some(reason), phase, .. } if waits.is_none() => {
                    waits = Some(format!("{site}: {phase}: {reason}"));
                }
                _ => {}
            }
        }
        let waits = waits.map_or_else(String::new, |waits| format!("; {waits}"));
        self.reason = Some(format!("{ready} of {total} workers{waits}"));
    }

    /// Starting or running: can the job still be done when this site has ended?
    fn look_for_loss(&mut self, site: &SiteName, stand: &Stand, now: u64, out: &mut Effects) {
        let outcome = match stand {
            Stand::Ended { outcome, .. } => outcome.clone(),
            Stand::Refused { class, why } => Outcome::failed(*class, why.clone()),
            _ => return,
        };
        let Outcome::Failed { class, cause, tail } = outcome else { return };
        let gone = |stand: &Stand| {
            matches!(stand, Stand::Ended { outcome: Outcome::Failed { .. }, .. } | Stand::Refused { .. })
        };
        let left = self.keep.sites.len() - self.stands.values().filter(|stand| gone(stand)).count();
        let too_few = left < usize::try_from(self.facts.min_clients).unwrap_or(usize::MAX);
        if too_few || self.facts.mandatory.contains(site) {
            let failure = Failure { site: site.clone(), class, cause, tail };
            self.decide(Verdict::Failed { failure }, BTreeMap::new(), now, out);
        }
    }

    /// How it ends is known: stop everything.
    fn decide(&mut self, verdict: Verdict, results: BTreeMap<String, BlobRef>, now: u64, out: &mut Effects) {
        if self.keep.verdict.is_some() || self.phase.is_final() {
            return;
        }
        self.keep.verdict = Some(verdict);
        self.tasks.clear();
        self.results.clear();
        out.tasks = true;
        out.change().results = results;
        let reason = self.keep.verdict.as_ref().map(Verdict::why).filter(|why| why != "finished");
        self.go(JobPhase::Finishing, reason, now, out);
        self.stop_all(out);
        self.close_if_over(now, out);
    }

    /// Somebody aborts it.
    pub(super) fn abort(&mut self, by: UserName, now: u64) -> Effects {
        let mut out = Effects::default();
        match self.phase {
            JobPhase::Submitted | JobPhase::Queued | JobPhase::Deploying => {
                self.keep.verdict = Some(Verdict::Aborted { by: by.clone() });
                self.leave_sites(&mut out);
                self.go(JobPhase::Aborted, Some(format!("aborted by {by}")), now, &mut out);
                out.done = true;
            }
            _ => self.decide(Verdict::Aborted { by }, BTreeMap::new(), now, &mut out),
        }
        out
    }

    /// The server worker's launcher says how it stands.
    pub(super) fn server_worker(&mut self, worker: ServerWorker, now: u64) -> Effects {
        let mut out = Effects::default();
        if self.server.as_ref() == Some(&worker) {
            return out;
        }
        let moved = self.server.as_ref().is_none_or(|old| {
            (old.attempt, old.phase, &old.reason) != (worker.attempt, worker.phase, &worker.reason)
        });
        self.server = Some(worker);
        if moved {
            out.events.extend(self.server_row().map(|worker| EventKind::Worker { worker }));
        }
        self.say_starting();
        let ended = self.server.as_ref().and_then(|worker| worker.ended.clone());
        match (self.phase, ended) {
            (JobPhase::Starting | JobPhase::Running, Some(outcome)) => {
                let failure = match outcome {
                    Outcome::Failed { class, cause, tail } => {
                        Failure { site: SiteName::server(), class, cause, tail }
                    }
                    // It would have handed over its results before it ended well.
                    Outcome::Completed => Failure {
                        site: SiteName::server(),
                        class: FailureClass::Infrastructure,
                        cause: "the server's worker ended without a result".to_owned(),
                        tail: String::new(),
                    },
                };
                self.decide(Verdict::Failed { failure }, BTreeMap::new(), now, &mut out);
            }
            (JobPhase::Finishing, _) => self.close_if_over(now, &mut out),
            _ => {}
        }
        out
    }

    /// Whether a launch is the current one of the server worker.
    pub(super) fn is_current(&self, launch: &LaunchId) -> bool {
        self.server.as_ref().is_none_or(|worker| worker.attempt <= launch.attempt)
    }

    /// The server worker replaced its tasks.
    pub(super) fn put_tasks(&mut self, tasks: BTreeMap<SiteName, Arc<Task>>, now: u64) -> Effects {
        let mut out = Effects::default();
        if !matches!(self.phase, JobPhase::Starting | JobPhase::Running) {
            return out;
        }
        self.results.retain(|site, result| tasks.get(site).is_some_and(|task| task.id == result.task));
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

    /// A site gave a result. Says whether it is one of a current task.
    pub(super) fn put_result(&mut self, site: &SiteName, result: TaskResult) -> bool {
        if self.tasks.get(site).is_none_or(|task| task.id != result.task) {
            return false;
        }
        self.results.insert(site.clone(), result);
        true
    }

    /// The server worker said how the job ended.
    pub(super) fn ending(
        &mut self,
        outcome: Outcome,
        site: Option<SiteName>,
        results: BTreeMap<String, BlobRef>,
        now: u64,
    ) -> Effects {
        let mut out = Effects::default();
        let verdict = match outcome {
            Outcome::Completed => Verdict::Completed,
            Outcome::Failed { class, cause, tail } => {
                let site = site.unwrap_or_else(SiteName::server);
                // `site x: ` is said by the field beside it.
                let cause = cause.strip_prefix(&format!("site {site}: ")).map(str::to_owned).unwrap_or(cause);
                Verdict::Failed { failure: Failure { site, class, cause, tail } }
            }
        };
        self.decide(verdict, results, now, &mut out);
        out
    }

    /// When [`Job::tick`] is due.
    pub(super) fn deadline(&self) -> Option<u64> {
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

    fn closing_deadline(&self) -> u64 {
        self.since + GRACE_SECONDS * 1000 + CLOSING_PATIENCE
    }

    /// Time passed.
    pub(super) fn tick(&mut self, now: u64) -> Effects {
        let mut out = Effects::default();
        match self.phase {
            JobPhase::Queued => out.schedule = true,
            JobPhase::Deploying => self.judge(now, &mut out),
            JobPhase::Finishing => self.close_if_over(now, &mut out),
            _ => {}
        }
        out
    }

    /// Finishing: is every worker gone, or the grace over?
    fn close_if_over(&mut self, now: u64, out: &mut Effects) {
        let Some(verdict) = self.keep.verdict.clone() else { return };
        if self.phase != JobPhase::Finishing {
            return;
        }
        let over = |stand: Option<&Stand>| matches!(stand, Some(Stand::Ended { .. } | Stand::Refused { .. }));
        let waiting = self.keep.sites.iter().any(|site| !over(self.stands.get(site)))
            || self.server.as_ref().is_some_and(|worker| worker.ended.is_none());
        if waiting && now < self.closing_deadline() {
            return;
        }
        self.keep.workers = self.workers();
        let (phase, reason) = match verdict {
            Verdict::Completed => (JobPhase::Completed, None),
            Verdict::Failed { failure } => {
                (JobPhase::Failed, Some(format!("{}: {}: {}", failure.site, failure.class, failure.cause)))
            }
            Verdict::Aborted { by } => (JobPhase::Aborted, Some(format!("aborted by {by}"))),
        };
        for site in &self.keep.sites {
            out.goals.insert(site.clone(), None);
        }
        self.go(phase, reason, now, out);
        out.schedule = true;
        out.done = true;
    }

    /// The sites as the server worker sees them. A site that has said nothing yet in this run of the parent is
    /// not named: for the worker it is as it was.
    pub(super) fn roster(&self) -> BTreeMap<SiteName, Member> {
        let member = |stand: &Stand| match stand {
            Stand::Worker { ready: true, .. } => Member::Ready,
            Stand::Ended { outcome, .. } => Member::Gone { outcome: outcome.clone() },
            Stand::Refused { class, why } => Member::Gone { outcome: Outcome::failed(*class, why.clone()) },
            _ => Member::Starting,
        };
        self.stands.iter().map(|(site, stand)| (site.clone(), member(stand))).collect()
    }

    fn server_row(&self) -> Option<Worker> {
        self.server.as_ref().map(|worker| Worker {
            site: SiteName::server(),
            role: Role::Server,
            attempt: worker.attempt,
            phase: worker.phase,
            native: worker.native.clone(),
            reason: worker.ended.as_ref().map(describe).or_else(|| worker.reason.clone()),
            unknown_since: worker.unknown_since,
        })
    }

    /// Its workers as people see them.
    pub(super) fn workers(&self) -> Vec<Worker> {
        let sites = self.stands.iter().filter_map(|(site, stand)| worker_of(site, stand));
        self.server_row().into_iter().chain(sites).collect()
    }
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Completed => "completed".to_owned(),
        Outcome::Failed { class, cause, .. } => format!("{class}: {cause}"),
    }
}

fn worker_of(site: &SiteName, stand: &Stand) -> Option<Worker> {
    let (attempt, phase, native, reason, unknown_since) = match stand {
        Stand::Worker { attempt, phase, native, reason, unknown_since, .. } => {
            (*attempt, *phase, native.clone(), reason.clone(), *unknown_since)
        }
        Stand::Ended { attempts, outcome } if *attempts > 0 => {
            (*attempts, WorkerPhase::Exited, None, Some(describe(outcome)), None)
        }
        _ => return None,
    };
    Some(Worker { site: site.clone(), role: Role::Client, attempt, phase, native, reason, unknown_since })
}
