//! Sites of the session's study, and the registry.

use super::{Caller, caller, stored};
use crate::server::state::Server;
use polder_api::site::Stand;
use polder_api::user::{Site, Sites, Studies, StudyChange};
use polder_api::{Problem, ProblemCode};
use polder_core::authz::Right;
use polder_transport::server::{Call, Response, json};
use polder_words::{SiteName, UserName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `GET sites`.
pub(super) async fn sites(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let caller = caller(&server, &call).await?;
    server.rights.check(&caller.who, Right::View, None)?;
    let mut running: BTreeMap<SiteName, u32> = BTreeMap::new();
    for cell in server.cells().iter().filter(|cell| cell.facts.study == caller.study) {
        for (site, stand) in &cell.job.lock().await.stands {
            if matches!(stand, Stand::Worker { .. }) {
                *running.entry(site.clone()).or_default() += 1;
            }
        }
    }
    let views = server.sites.all(server.now());
    let all = server.registry.all_sites(server.sites.orgs());
    let sites = server.registry.sites(&caller.study, &all).into_iter().map(|(name, org)| {
        let view = views.get(&name);
        let said = view.and_then(|view| view.said.as_ref());
        Site {
            org,
            connected: view.is_some_and(|view| view.connected),
            last_seen: view.and_then(|view| view.last_seen),
            mode: said.map(|said| said.offer.mode),
            isolation: said.map(|said| said.offer.isolation),
            offer: said.map(|said| said.offer.clone()),
            version: said.map(|said| said.version.clone()),
            running: running.get(&name).copied().unwrap_or(0),
            name,
        }
    });
    Ok(json(&Sites { sites: sites.collect() }))
}

/// `GET studies`.
pub(super) async fn list(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let caller = caller(&server, &call).await?;
    Ok(json(&Studies { studies: server.registry.list(&caller.who) }))
}

/// `POST studies`.
pub(super) async fn change(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let caller = caller(&server, &call).await?;
    let change: StudyChange = call.json(256 << 10).await?;
    let leaving: Option<UserName> = match &change {
        StudyChange::RemoveUser { user, .. } => Some(user.clone()),
        _ => None,
    };
    let jobs = match &change {
        StudyChange::Remove { study } => {
            server.store.list_jobs(study, 10_000).await.map_err(|error| stored(&error))?.len() as u64
        }
        _ => 0,
    };
    let said = serde_json::to_value(&change).unwrap_or_default();
    let study = server.registry.change(&caller.who, change, jobs, server.sites.orgs()).await?;
    noted(&server, &caller, said);
    if let Some(user) = leaving {
        server.store.end_sessions(&user, Some(&study.name)).await.map_err(|error| stored(&error))?;
    }
    // A job may wait for a site that has joined.
    server.wake.notify_one();
    Ok(json(&study))
}

fn noted(server: &Server, caller: &Caller, change: serde_json::Value) {
    server.note("study_changed", &[("user", caller.who.name.as_str().into()), ("change", change)]);
}

/// Named sites must be of the study.
pub(super) fn check_sites<'a>(
    server: &Server,
    caller: &Caller,
    sites: impl Iterator<Item = &'a SiteName>,
) -> Result<(), Problem> {
    for site in sites {
        if !server.registry.has_site(&caller.study, site) {
            return Err(Problem {
                found: Some(site.to_string()),
                allowed: Some(format!("sites of study {}", caller.study)),
                ..Problem::new(ProblemCode::Invalid, format!("site {site} is not in study {}", caller.study))
            });
        }
    }
    Ok(())
}
