//! How a job comes to its end: the verdict, the grace, and the last word.

use super::{CLOSING_PATIENCE, Command, Effects, GRACE_SECONDS, Job, ServerWorker, Verdict};
use polder_api::site::{Goal, Stand};
use polder_api::user::{EventKind, Failure};
use polder_words::{BlobRef, FailureClass, JobPhase, Outcome, SiteName, UserName};
use std::collections::BTreeMap;

impl Job {
    /// Starting or running: can the job still be done when this site has ended?
    pub(crate) fn look_for_loss(&mut self, site: &SiteName, stand: &Stand, now: u64, out: &mut Effects) {
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
    pub(crate) fn decide(
        &mut self,
        verdict: Verdict,
        results: BTreeMap<String, BlobRef>,
        now: u64,
        out: &mut Effects,
    ) {
        if self.keep.verdict.is_some() || self.phase.is_final() {
            return;
        }
        self.keep.verdict = Some(verdict);
        self.tasks.clear();
        self.tasks_unknown = false;
        self.results.clear();
        out.tasks = true;
        out.change().results = results;
        let reason = self.keep.verdict.as_ref().map(Verdict::why).filter(|why| why != "finished");
        self.go(JobPhase::Finishing, reason, now, out);
        self.stop_all(out);
        self.close_if_over(now, out);
    }

    /// Somebody aborts it.
    pub(crate) fn abort(&mut self, by: UserName, now: u64) -> Effects {
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
    pub(crate) fn server_worker(&mut self, worker: ServerWorker, now: u64) -> Effects {
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

    /// The server worker said how the job ended.
    pub(crate) fn ending(
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

    pub(crate) fn closing_deadline(&self) -> u64 {
        self.since + GRACE_SECONDS * 1000 + CLOSING_PATIENCE
    }

    /// Finishing: is every worker gone, or the grace over?
    pub(crate) fn close_if_over(&mut self, now: u64, out: &mut Effects) {
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

    pub(crate) fn stop_all(&self, out: &mut Effects) {
        let why = self.keep.verdict.as_ref().map_or_else(String::new, Verdict::why);
        self.want(&Goal::Stop { why: why.clone(), grace_seconds: GRACE_SECONDS }, out);
        out.worker = Some(Command::Stop { why, grace_seconds: GRACE_SECONDS });
    }
}
