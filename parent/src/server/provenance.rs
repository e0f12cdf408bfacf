//! How a result came about, signed by the server: order, code, sites and their terms, versions.

use super::job::Job;
use super::state::Server;
use polder_api::BlobRef;
use polder_api::order::{PROVENANCE_DOMAIN, SignedProvenance};
use polder_transport::identity::KeyError;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The result's name.
pub(super) const FILE: &str = "provenance.json";
/// What is signed.
pub(super) fn document(server: &Server, job: &Job, results: &BTreeMap<String, BlobRef>) -> String {
    let facts = &job.facts;
    let sites: BTreeMap<_, Value> = job
        .keep
        .sites
        .iter()
        .map(|site| {
            let attempts =
                job.workers().into_iter().find(|worker| worker.site == *site).map(|worker| worker.attempt);
            let said = job.keep.terms.get(site);
            (site, json!({"app": facts.app(site), "attempts": attempts, "terms": said}))
        })
        .collect();
    let order = blake3::hash(facts.signed.order.as_bytes()).to_hex();
    let document = json!({
        "version": 1,
        "federation": server.federation,
        "server_version": env!("CARGO_PKG_VERSION"),
        "job": facts.id,
        "study": facts.study,
        "submitter": facts.submitter,
        "order": order.as_str(),
        "apps": facts.order.apps,
        "cloned_from": facts.order.cloned_from,
        "server_app": facts.app(&polder_words::SiteName::server()),
        "job_config": job.keep.job,
        "sites": sites,
        "left_out": job.keep.refused,
        "results": results,
        "submitted": facts.submitted,
        "started": job.started,
        "ended": server.now(),
    });
    document.to_string()
}

/// The file: the exact text, its signature, and the certificate to check it with.
pub(super) fn sign(server: &Server, document: &str) -> Result<String, KeyError> {
    let file = SignedProvenance {
        provenance: document.to_owned(),
        domain: PROVENANCE_DOMAIN.to_owned(),
        signature: server.kit.sign(PROVENANCE_DOMAIN, document.as_bytes())?.to_string(),
        certificate: server.kit.certificate_pem().to_owned(),
    };
    let text = serde_json::to_string_pretty(&file).expect("plain data with text keys");
    Ok(text + "\n")
}
