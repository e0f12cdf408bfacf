//! A job's workers, as the server worker and as people see them.

use super::Job;
use polder_api::site::Stand;
use polder_api::user::Worker;
use polder_api::worker::Member;
use polder_words::{Outcome, Role, SiteName, WorkerPhase};
use std::collections::BTreeMap;

impl Job {
    /// The sites as the server worker sees them. A site that has said nothing yet in this run of the parent is
    /// not named: for the worker it is as it was.
    pub(crate) fn roster(&self) -> BTreeMap<SiteName, Member> {
        let member = |stand: &Stand| match stand {
            Stand::Worker { ready: true, .. } => Member::Ready,
            Stand::Ended { outcome, .. } => Member::Gone { outcome: outcome.clone() },
            Stand::Refused { class, why } => Member::Gone { outcome: Outcome::failed(*class, why.clone()) },
            _ => Member::Starting,
        };
        self.stands.iter().map(|(site, stand)| (site.clone(), member(stand))).collect()
    }

    pub(super) fn server_row(&self) -> Option<Worker> {
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
    pub(crate) fn workers(&self) -> Vec<Worker> {
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

pub(super) fn worker_of(site: &SiteName, stand: &Stand) -> Option<Worker> {
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
