//! Until the workers are launched: reservations, and the way back into the queue.

use super::{ABSENT_PATIENCE, Command, Effects, Job, RESERVE_PATIENCE, ServerWorker};
use polder_api::site::{Goal, Stand};
use polder_words::{JobPhase, Outcome, SiteName};

impl Job {
    /// The scheduler chose sites.
    pub(crate) fn deploy(&mut self, mut sites: Vec<SiteName>, now: u64) -> Effects {
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
    pub(crate) fn reject(&mut self, why: String, now: u64) -> Effects {
        let mut out = Effects::default();
        self.leave_sites(&mut out);
        self.go(JobPhase::Rejected, Some(why), now, &mut out);
        out.done = true;
        out
    }

    pub(crate) fn leave_sites(&mut self, out: &mut Effects) {
        for site in self.keep.sites.drain(..) {
            out.goals.insert(site, None);
        }
        self.keep.terms.clear();
        out.worker = Some(Command::Release);
        out.schedule = true;
    }

    /// Deploying: is everybody there who must be?
    pub(crate) fn judge(&mut self, now: u64, out: &mut Effects) {
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
    pub(crate) fn go_back(&mut self, reason: String, now: u64, out: &mut Effects) {
        self.leave_sites(out);
        self.stands.clear();
        self.returns = self.returns.saturating_add(1);
        // A site that is busy says so when something becomes free, which wakes the scheduler; the pause only
        // keeps two jobs from asking the same sites in turns.
        self.not_before = now + (250 << self.returns.min(7));
        self.go(JobPhase::Queued, Some(reason), now, out);
    }

    pub(crate) fn start(
        &mut self,
        refused: Vec<(SiteName, String)>,
        not_now: &[(SiteName, String)],
        now: u64,
        out: &mut Effects,
    ) {
        for (site, _) in refused.iter().chain(not_now) {
            self.keep.sites.retain(|other| other != site);
            self.stands.remove(site);
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
    pub(crate) fn say_starting(&mut self) {
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
}
