//! The scheduler's shell: one task that looks when something changed, and when a job said it wants to be looked at.
//!
//! It takes no hints about what changed: each look goes over the connections of sites, the deadlines of jobs and the
//! jobs that wait, oldest and most urgent first. While nothing happens it sleeps.

use super::job::Job;
use super::sites::View;
use super::state::{Cell, Server};
use polder_api::site::Amount;
use polder_core::schedule::{Decision, Site, Stock, Waiting, schedule};
use polder_words::{JobPhase, OrgName, SiteName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// After how long a waiting job holds what it waits for, milliseconds.
const HOLDS_AFTER: u64 = 10 * 60 * 1000;

/// Runs until the server stops.
pub(super) async fn run(server: Arc<Server>) {
    loop {
        let next = look(&server).await;
        server.sweep_now_and_then().await;
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
    // A site that is asked for one job is not asked for another: who came first would be chance.
    let mut engaged: BTreeMap<SiteName, String> = BTreeMap::new();
    for cell in cells {
        let job = cell.job.lock().await;
        if job.phase == JobPhase::Deploying {
            let why = format!("it is being asked for job {}", job.facts.id.short());
            engaged.extend(job.keep.sites.iter().map(|site| (site.clone(), why.clone())));
        }
        if job.waits(now) {
            waiting.push(Arc::clone(cell));
        }
    }
    if waiting.is_empty() {
        return;
    }
    let all = server.registry.all_sites(server.sites.orgs());
    let views = server.sites.all(now);
    let mut jobs = Vec::new();
    for cell in &waiting {
        let study = server.registry.sites(&cell.facts.study, &all);
        let mut asked = question(&*cell.job.lock().await, &study, &views, &engaged, now);
        for site in server.sites.releasing(&cell.facts.id) {
            asked.resting.insert(site, "it has not yet let go of this job".to_owned());
        }
        jobs.push(asked);
    }
    let places = all.keys().map(|name| (name.clone(), place(views.get(name)))).collect();
    for (id, decision) in schedule(&jobs, &server.launches().standing(), &places) {
        let Some(cell) = waiting.iter().find(|cell| cell.facts.id == id) else { continue };
        let mut job = cell.job.lock().await;
        if !job.waits(now) {
            continue;
        }
        let effects = match decision {
            // One at a time for each site: the next look comes when these have answered.
            Decision::Start { sites } if sites.iter().any(|site| engaged.contains_key(site)) => {
                let site = sites.iter().find(|site| engaged.contains_key(*site));
                let why = site.map_or_else(String::new, |site| format!("{site}: {}", engaged[site]));
                job.wait(format!("waiting for site {why}"), now)
            }
            Decision::Start { sites } => match server.launches().reserve(&job.facts).await {
                Ok(()) => {
                    let why = format!("it is being asked for job {}", id.short());
                    engaged.extend(sites.iter().map(|site| (site.clone(), why.clone())));
                    job.deploy(sites, now)
                }
                Err(why) => job.wait(format!("waiting for the server: {why}"), now),
            },
            Decision::Wait { reason } => job.wait(reason, now),
            Decision::Impossible { reason } => job.reject(reason, now),
        };
        server.carry_out(cell, &mut job, effects).await;
    }
}

/// What the job wants, as the scheduler reads it.
fn question(
    job: &Job,
    study: &BTreeMap<SiteName, OrgName>,
    views: &BTreeMap<SiteName, View>,
    engaged: &BTreeMap<SiteName, String>,
    now: u64,
) -> Waiting {
    let facts = &job.facts;
    let sites: BTreeSet<SiteName> = match &facts.named {
        Some(named) => named.clone(),
        None => study.keys().cloned().collect(),
    };
    let mut refused = job.keep.refused.clone();
    for site in sites.iter().filter(|site| !study.contains_key(*site)) {
        refused.insert(site.clone(), format!("it is not in study {}", facts.study));
    }
    let mut resting = engaged.clone();
    for (site, view) in views {
        if let Some(down) = view.said.as_ref().and_then(|said| said.offer.down.as_ref()) {
            resting.insert(site.clone(), format!("its launcher does not answer: {}", down.why));
        }
    }
    let needs = sites.iter().cloned().chain([SiteName::server()]);
    Waiting {
        job: facts.id,
        priority: facts.priority,
        order: facts.seq,
        needs: needs.map(|site| (site.clone(), facts.needs(&site))).collect(),
        sites,
        min_clients: facts.min_clients,
        mandatory: facts.mandatory.clone(),
        refused,
        resting,
        holds: now.saturating_sub(facts.submitted) > HOLDS_AFTER,
    }
}

fn place(view: Option<&View>) -> Site {
    let offer = view.and_then(|view| view.said.as_ref()).map(|said| &said.offer);
    let stock = |amount: Option<Amount>, unit: u64| {
        amount.map(|Amount { free, all }| Stock {
            free: free.saturating_mul(unit),
            all: all.saturating_mul(unit),
        })
    };
    Site {
        connected: view.is_some_and(|view| view.connected),
        gpus: stock(offer.and_then(|offer| offer.gpus), 1),
        cpus: stock(offer.and_then(|offer| offer.cpus), 1),
        memory: stock(offer.and_then(|offer| offer.memory_mib), 1 << 20),
        jobs: None,
    }
}
