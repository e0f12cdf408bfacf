//! The scheduler's shell: one task that looks when something changed, and when a job said it wants to be looked at.
//!
//! It takes no hints about what changed: each look goes over the connections of sites, the deadlines of jobs and the
//! jobs that wait, oldest and most urgent first. While nothing happens it sleeps.

use super::job::Job;
use super::schedule::{self, Decision, Place, Waiting};
use super::state::{Cell, Server};
use polder_words::SiteName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs until the server stops.
pub(super) async fn run(server: Arc<Server>) {
    loop {
        let next = look(&server).await;
        let now = server.now();
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(now).max(1))).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = server.stop.cancelled() => return,
            () = server.wake.notified() => {}
            () = sleep => {}
        }
    }
}

/// One look; gives when the next is due without news.
async fn look(server: &Arc<Server>) -> Option<u64> {
    let now = server.now();
    let cells = server.cells();
    let (changed, mut next) = server.sites.changes(now);
    for (site, connected) in &changed {
        tracing::info!(%site, connected, "site");
        for cell in &cells {
            let mut job = cell.job.lock().await;
            let effects = job.site_connected(site, *connected, now);
            server.carry_out(cell, &mut job, effects).await;
        }
    }
    for cell in &cells {
        if cell.deadline.load(Ordering::Relaxed) <= now {
            let mut job = cell.job.lock().await;
            let effects = job.tick(now);
            server.carry_out(cell, &mut job, effects).await;
        }
    }
    schedule_all(server, &cells, now).await;
    for cell in &cells {
        let at = cell.deadline.load(Ordering::Relaxed);
        if at != u64::MAX {
            // What was due and did nothing is not looked at again at once.
            next = Some(next.map_or(at, |next| next.min(at)).max(now + 50));
        }
    }
    next
}

async fn schedule_all(server: &Arc<Server>, cells: &[Arc<Cell>], now: u64) {
    let mut waiting = Vec::new();
    let mut engaged: BTreeMap<SiteName, String> = BTreeMap::new();
    for cell in cells {
        let job = cell.job.lock().await;
        if job.phase == polder_words::JobPhase::Deploying {
            for site in &job.keep.sites {
                engaged.insert(site.clone(), format!("it is being asked for job {}", job.facts.id.short()));
            }
        }
        if job.waits(now) {
            waiting.push(Arc::clone(cell));
        }
    }
    if waiting.is_empty() {
        return;
    }
    waiting.sort_by_key(|cell| (schedule::rank(&cell.facts.priority), cell.facts.seq));
    let all = server.registry.all_sites(server.sites.orgs());
    let views = server.sites.all(now);
    for cell in waiting {
        let mut job = cell.job.lock().await;
        if !job.waits(now) {
            continue;
        }
        let study = server.registry.sites(&cell.facts.study, &all);
        let places = places(&job, &study, &views, &engaged);
        let facts = &job.facts;
        let want = Waiting {
            min_clients: facts.min_clients,
            mandatory: &facts.mandatory,
            named: facts.named.as_ref(),
        };
        let effects = match schedule::decide(&want, &places) {
            Decision::Start(sites) => match server.launches().reserve(facts).await {
                Ok(()) => {
                    for site in &sites {
                        engaged
                            .insert(site.clone(), format!("it is being asked for job {}", facts.id.short()));
                    }
                    job.deploy(sites, now)
                }
                Err(why) => job.wait(format!("waiting for the server: {why}"), now),
            },
            Decision::Wait(reason) => job.wait(reason, now),
            Decision::Never(why) => job.reject(why, now),
        };
        server.carry_out(&cell, &mut job, effects).await;
    }
}

fn places(
    job: &Job,
    study: &BTreeMap<SiteName, polder_words::OrgName>,
    views: &BTreeMap<SiteName, super::sites::View>,
    engaged: &BTreeMap<SiteName, String>,
) -> BTreeMap<SiteName, Place> {
    let names: BTreeSet<&SiteName> = match &job.facts.named {
        Some(named) => named.iter().collect(),
        None => study.keys().collect(),
    };
    let place = |site: &SiteName| {
        if !study.contains_key(site) {
            return Place::Never(format!("it is not in study {}", job.facts.study));
        }
        if let Some(why) = job.keep.refused.get(site) {
            return Place::Never(why.clone());
        }
        let Some(view) = views.get(site).filter(|view| view.connected) else {
            return Place::Away;
        };
        if let Some(down) = view.said.as_ref().and_then(|said| said.offer.down.as_ref()) {
            return Place::NotNow(format!("its launcher does not answer: {}", down.why));
        }
        match engaged.get(site) {
            Some(why) => Place::NotNow(why.clone()),
            None => Place::Ready,
        }
    };
    names.into_iter().map(|site| (site.clone(), place(site))).collect()
}
