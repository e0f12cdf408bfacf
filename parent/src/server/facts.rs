//! From what is stored of a job to what its state machine needs.

use super::job::Facts;
use polder_api::{Order, OrderSites, SignedOrder};
use polder_core::meta::{Deploy, JobMeta};
use polder_core::resources::View;
use polder_launch::Resolved;
use polder_store::JobRow;
use polder_words::{BlobRef, SiteName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the job's own worker at the server asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ServerAsk {
    pub(super) gpus: u32,
    pub(super) cpus: Option<u32>,
    pub(super) memory: Option<u64>,
}

impl ServerAsk {
    /// Completes a launch.
    pub(super) fn fill(&self, launch: &mut Resolved) {
        launch.gpus = self.gpus;
        launch.cpus = self.cpus;
        launch.memory = self.memory;
    }
}

/// Puts a stored job together.
pub(super) fn of(
    row: &JobRow,
    signed: SignedOrder,
    order: Order,
    meta: &JobMeta,
    max_restarts: u32,
) -> Facts {
    let mut apps: BTreeMap<SiteName, BlobRef> = BTreeMap::new();
    let mut app_of_all = None;
    for (app, deploy) in &meta.deploy_map {
        let blob = order.apps.get(app).copied();
        match deploy {
            Deploy::All => app_of_all = blob,
            Deploy::Sites(sites) => apps.extend(sites.iter().filter_map(|site| Some((site.clone(), blob?)))),
        }
    }
    Facts {
        id: row.id,
        seq: row.seq,
        name: row.name.clone(),
        study: row.study.clone(),
        submitter: row.submitter.clone(),
        priority: row.priority.clone(),
        submitted: row.submitted,
        min_clients: meta.min_clients,
        mandatory: meta.mandatory_clients.iter().cloned().collect(),
        named: match &order.sites {
            OrderSites::All => None,
            OrderSites::Named(named) => Some(named.clone()),
        },
        apps,
        app_of_all,
        ask: ask(meta),
        max_restarts,
        signed: Arc::new(signed),
        order: Arc::new(order),
    }
}

/// What the meta says about resources at `server`; checked when the meta was parsed.
fn ask(meta: &JobMeta) -> ServerAsk {
    let view = View {
        file: "meta.json",
        resource_spec: meta.resource_spec.value(),
        launcher_spec: meta.launcher_spec.value(),
    };
    let portable = view.portable(SiteName::server().as_str()).unwrap_or_default();
    let small = |int: &polder_core::value::Int| int.as_u64().map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    ServerAsk {
        gpus: portable.gpus.as_ref().and_then(small).unwrap_or(0),
        cpus: portable.cpus.as_ref().and_then(small),
        memory: portable.memory.as_ref().and_then(polder_core::scalars::Memory::bytes_u64),
    }
}
