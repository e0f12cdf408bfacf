//! What a site checks of an order before it believes a word of it.
//!
//! The server only carries orders: whether one is genuine, meant for this site, fresh, and signed by somebody
//! who may do this here is decided from the order's own bytes, this site's project CA and this site's
//! `authorization.json`. The function is pure: time and what was seen before come in as values.

use jiff::Timestamp;
use polder_api::order::{ORDER_DOMAIN, Order, OrderSites, SignedOrder};
use polder_core::authz::{Person, Policy, Question, Right};
use polder_core::meta::JobMeta;
use polder_transport::identity::{Identity, IdentityError, Revocations, Signature, Trust};
use polder_words::{BlobRef, FailureClass, Hash, JobId, OrgName, SiteName, StudyName};

/// Largest order that is read: its meta has at most 256 KiB.
const ORDER_LIMIT: usize = 1 << 20;
/// Longest time between signature and expiry that is believed.
const LONGEST: u64 = 30 * 86_400;
/// How far clocks may differ.
const SKEW: u64 = 300;

/// An order that was checked.
#[derive(Debug, Clone)]
pub(crate) struct Verified {
    /// What was signed.
    pub(crate) order: Order,
    /// Its meta.
    pub(crate) meta: JobMeta,
    /// The app for this site.
    pub(crate) app: BlobRef,
}

/// Against what it is checked.
pub(crate) struct Facts<'a> {
    /// The job id under which the server handed it out.
    pub(crate) job: JobId,
    /// The project CA.
    pub(crate) trust: &'a Trust,
    /// Name of the federation.
    pub(crate) federation: &'a str,
    /// This site.
    pub(crate) site: &'a SiteName,
    /// Its organisation.
    pub(crate) org: &'a OrgName,
    /// The site's rights.
    pub(crate) policy: &'a Policy,
    /// Certificates that were taken back, as far as the kit says.
    pub(crate) revoked: &'a Revocations,
    /// The clock; `None` for an order that was accepted before and is only read again.
    pub(crate) now: Option<Timestamp>,
}

/// Why an order is not followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    #[error("the order is larger than {ORDER_LIMIT} bytes")]
    TooLarge,
    #[error("the order was handed out as job {given}, but its text is that of job {real}")]
    OtherJob { given: JobId, real: JobId },
    #[error("the order's signature is no base64 of an ECDSA signature")]
    Signature,
    #[error("the order is not signed by a participant of this federation: {0}")]
    Signer(#[source] IdentityError),
    #[error("the order is signed by {0}, whose certificate was revoked")]
    Revoked(String),
    #[error("the order is signed by {0}, who is no user")]
    NotAUser(String),
    #[error("the order cannot be read: {0}")]
    Malformed(#[source] serde_json::Error),
    #[error("the order has version {0}; this site reads version 1")]
    Version(u32),
    #[error("the order is of federation {found:?}; this site belongs to {own:?}")]
    Federation { found: String, own: String },
    #[error("the order names {named} as submitter, but {signer} signed it")]
    OtherSubmitter { named: String, signer: String },
    #[error("the order expired at {0} (seconds since 1970)")]
    Expired(u64),
    #[error("the order was issued at {0} (seconds since 1970), which is not yet")]
    NotYet(u64),
    #[error("the order is valid for {0} s; at most {LONGEST} s are accepted")]
    TooLong(u64),
    #[error("the order is not for site {0}")]
    NotForUs(SiteName),
    #[error("the order names no app archive for {0}")]
    NoApp(String),
    #[error("{0}")]
    Meta(#[source] polder_core::Error),
    #[error("the sites of the order are not those of its deploy_map")]
    SitesDiffer,
    #[error("{0}")]
    Denied(String),
}

impl OrderError {
    /// One word.
    pub(crate) fn class(&self) -> FailureClass {
        match self {
            Self::Meta(_) | Self::NoApp(_) | Self::NotForUs(_) => FailureClass::Config,
            _ => FailureClass::Policy,
        }
    }
}

/// Checks an order.
pub(crate) fn verify(signed: &SignedOrder, facts: &Facts<'_>) -> Result<Verified, OrderError> {
    if signed.order.len() > ORDER_LIMIT {
        return Err(OrderError::TooLarge);
    }
    let job = JobId::of_order(&Hash(*blake3::hash(signed.order.as_bytes()).as_bytes()));
    if job != facts.job {
        return Err(OrderError::OtherJob { given: facts.job, real: job });
    }
    let order: Order = serde_json::from_str(&signed.order).map_err(OrderError::Malformed)?;
    let issued = Timestamp::from_second(i64::try_from(order.issued).unwrap_or(i64::MAX))
        .map_err(|_| OrderError::NotYet(order.issued))?;
    let signature = Signature::try_from(signed.signature.clone()).map_err(|_| OrderError::Signature)?;
    // An order that was accepted while its certificate was valid goes on after the certificate has ended.
    let at = facts.now.unwrap_or(issued);
    let signer = facts
        .trust
        .verify_pem(&signed.certificate, at, ORDER_DOMAIN, signed.order.as_bytes(), &signature)
        .map_err(OrderError::Signer)?;
    if facts.revoked.is_revoked(&signer) {
        return Err(OrderError::Revoked(signer.principal.to_string()));
    }
    let Some(user) = signer.user() else {
        return Err(OrderError::NotAUser(signer.principal.to_string()));
    };
    if order.version != 1 {
        return Err(OrderError::Version(order.version));
    }
    if order.federation != facts.federation {
        return Err(OrderError::Federation { found: order.federation, own: facts.federation.to_owned() });
    }
    if order.submitter != *user {
        let (named, signer) = (order.submitter.to_string(), user.to_string());
        return Err(OrderError::OtherSubmitter { named, signer });
    }
    if let Some(now) = facts.now {
        check_time(&order, u64::try_from(now.as_second()).unwrap_or(0))?;
    }
    let meta = JobMeta::parse("meta.json", order.meta.as_bytes()).map_err(OrderError::Meta)?;
    check_sites(&order, &meta, facts.site)?;
    let app = app_of(&order, &meta, facts.site)?;
    authorise(&signer, &order.study, facts)?;
    Ok(Verified { order, meta, app })
}

fn check_time(order: &Order, now: u64) -> Result<(), OrderError> {
    if order.issued > now + SKEW {
        return Err(OrderError::NotYet(order.issued));
    }
    if order.expires <= now {
        return Err(OrderError::Expired(order.expires));
    }
    let span = order.expires.saturating_sub(order.issued);
    if span > LONGEST { Err(OrderError::TooLong(span)) } else { Ok(()) }
}

fn check_sites(order: &Order, meta: &JobMeta, site: &SiteName) -> Result<(), OrderError> {
    // An order may name fewer sites than deploy_map, never others.
    match (&order.sites, meta.clients()) {
        (OrderSites::All, None) => Ok(()),
        (OrderSites::All, Some(_)) => Err(OrderError::SitesDiffer),
        (OrderSites::Named(named), clients) => {
            if clients.is_some_and(|clients| named.iter().any(|name| !clients.contains(name))) {
                return Err(OrderError::SitesDiffer);
            }
            if named.contains(site) { Ok(()) } else { Err(OrderError::NotForUs(site.clone())) }
        }
    }
}

/// The archive of the app that `deploy_map` names for a site.
fn app_of(order: &Order, meta: &JobMeta, site: &SiteName) -> Result<BlobRef, OrderError> {
    let app = meta.app_for(site).ok_or_else(|| OrderError::NotForUs(site.clone()))?;
    order.apps.get(app).copied().ok_or_else(|| OrderError::NoApp(app.to_string()))
}

/// Whether the signer may submit here and bring code: an app's command is code, whatever else the app holds.
fn authorise(signer: &Identity, study: &StudyName, facts: &Facts<'_>) -> Result<(), OrderError> {
    let (Some(name), Some(role)) = (signer.user(), signer.role()) else {
        return Err(OrderError::NotAUser(signer.principal.to_string()));
    };
    let user = Person { name, org: &signer.org };
    for right in [Right::SubmitJob, Right::Byoc] {
        let question =
            Question { right, command: None, user, role, site_org: facts.org, submitter: Some(user) };
        let decision = facts.policy.decide(&question);
        if !decision.allowed {
            return Err(OrderError::Denied(format!("study {study}: {}", decision.sentence(&question))));
        }
    }
    Ok(())
}
