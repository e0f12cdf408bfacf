//! From what is stored of a job to what its state machine needs.

use super::job::Facts;
use polder_api::{Order, OrderSites, SignedOrder};
use polder_core::meta::{Deploy, JobMeta};
use polder_core::resources::{Portable, View};
use polder_core::scalars::Memory;
use polder_core::schedule::Amounts;
use polder_core::value::Int;
use polder_launch::Resolved;
use polder_store::JobRow;
use polder_words::{BlobRef, SiteName};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Facts {
    /// The archive a site is to get.
    pub(super) fn app(&self, site: &SiteName) -> Option<BlobRef> {
        self.apps.get(site).copied().or(self.app_of_all)
    }

    /// What the meta says about resources at a site; it was checked when it was parsed.
    pub(super) fn needs(&self, site: &SiteName) -> Amounts {
        let portable = self.portable(site);
        Amounts {
            gpus: portable.gpus.as_ref().and_then(Int::as_u64).unwrap_or(0),
            cpus: portable.cpus.as_ref().and_then(Int::as_u64).unwrap_or(0),
            memory: portable.memory.as_ref().and_then(Memory::bytes_u64).unwrap_or(0),
        }
    }

    fn portable(&self, site: &SiteName) -> Portable {
        let view = View {
            file: "meta.json",
            resource_spec: self.meta.resource_spec.value(),
            launcher_spec: self.meta.launcher_spec.value(),
        };
        view.portable(site.as_str()).unwrap_or_default()
    }

    /// Completes the launch of the server's worker.
    pub(super) fn fill(&self, launch: &mut Resolved) {
        let portable = self.portable(&SiteName::server());
        let small = |int: &Int| int.as_u64().map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        launch.gpus = portable.gpus.as_ref().and_then(small).unwrap_or(0);
        launch.cpus = portable.cpus.as_ref().and_then(small);
        launch.memory = portable.memory.as_ref().and_then(Memory::bytes_u64);
        launch.max_restarts = self.max_restarts;
    }
}

/// Puts a stored job together.
pub(super) fn of(row: &JobRow, signed: SignedOrder, order: Order, meta: JobMeta, max_restarts: u32) -> Facts {
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
        priority: meta.priority,
        submitted: row.submitted,
        min_clients: meta.min_clients,
        mandatory: meta.mandatory_clients.iter().cloned().collect(),
        named: match &order.sites {
            OrderSites::All => None,
            OrderSites::Named(named) => Some(named.clone()),
        },
        apps,
        app_of_all,
        max_restarts,
        meta,
        signed: Arc::new(signed),
        order: Arc::new(order),
    }
}
