//! Making an order: what is signed, and by whom.

use crate::job_folder::JobFolder;
use crate::output::Failure;
use crate::server::now_seconds;
use polder_api::order::ORDER_DOMAIN;
use polder_api::user::Session;
use polder_api::{Order, OrderSites, ProblemCode, SignedOrder};
use polder_transport::identity::Kit;
use polder_words::{AppName, BlobRef, Hash, JobId, Nonce};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;

/// How long a site may still accept an order: a job may wait long for its turn.
const VALID_SECONDS: u64 = 30 * 24 * 3600;

/// Which sites a job is for: those of its `deploy_map`. Sites compare the two, so they are the same.
pub(crate) fn sites_of(job: &JobFolder) -> OrderSites {
    job.meta.clients().map_or(OrderSites::All, |sites| OrderSites::Named(sites.into_iter().collect()))
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
