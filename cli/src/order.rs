//! Making an order: what is signed, and by whom.

use crate::job_folder::JobFolder;
use crate::output::Failure;
use crate::server::now_seconds;
use polder_api::order::ORDER_DOMAIN;
use polder_api::user::Session;
use polder_api::{Order, OrderSites, ProblemCode, SignedOrder};
use polder_transport::identity::Kit;
use polder_words::{AppName, BlobRef, Hash, JobId, Nonce, SiteName};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, BTreeSet};

/// How long a site may still accept an order: a job may wait long for its turn.
const VALID_SECONDS: u64 = 30 * 24 * 3600;

/// Which sites a job is for: those named on the command line, else those of `deploy_map`.
pub(crate) fn sites_of(job: &JobFolder, named: &[SiteName]) -> Result<OrderSites, Failure> {
    let planned = job.meta.clients();
    if named.is_empty() {
        return Ok(planned.map_or(OrderSites::All, |sites| OrderSites::Named(sites.into_iter().collect())));
    }
    let named: BTreeSet<SiteName> = named.iter().filter(|site| !site.is_server()).cloned().collect();
    if let Some(planned) = planned
        && let Some(foreign) = named.iter().find(|site| !planned.contains(site))
    {
        let names: Vec<&str> = planned.iter().map(|site| site.as_str()).collect();
        return Err(Failure::new(ProblemCode::Invalid, "--site: deploy_map gives this site no app")
            .found(foreign.to_string(), names.join(", ")));
    }
    Ok(OrderSites::Named(named))
}

/// An order of now, not yet signed.
pub(crate) fn order(
    session: &Session,
    sites: OrderSites,
    meta: String,
    apps: BTreeMap<AppName, BlobRef>,
    cloned_from: Option<JobId>,
) -> Result<Order, Failure> {
    let mut nonce = [0; 16];
    let filled = getrandom(&mut nonce, GetRandomFlags::empty()).unwrap_or(0);
    if filled != nonce.len() {
        return Err(Failure::new(ProblemCode::Internal, "the system has no randomness"));
    }
    let issued = now_seconds();
    Ok(Order {
        version: 1,
        federation: session.federation.clone(),
        study: session.study.clone(),
        submitter: session.user.clone(),
        sites,
        meta,
        apps,
        cloned_from,
        nonce: Nonce(nonce),
        issued,
        expires: issued + VALID_SECONDS,
    })
}

/// Signs an order with a user's key; also gives the id the job will have.
pub(crate) fn sign(kit: &Kit, order: &Order) -> Result<(SignedOrder, JobId), Failure> {
    let text = serde_json::to_string(order).expect("an order has text keys");
    let signature = kit
        .sign(ORDER_DOMAIN, text.as_bytes())
        .map_err(|error| Failure::new(ProblemCode::Internal, format!("cannot sign: {error}")))?;
    let job = JobId::of_order(&Hash(*blake3::hash(text.as_bytes()).as_bytes()));
    let signed = SignedOrder {
        order: text,
        signature: signature.to_string(),
        certificate: kit.certificate_pem().to_owned(),
    };
    Ok((signed, job))
}
