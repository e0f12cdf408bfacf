//! The order: what a submitter signs, and every site verifies for itself.
//!
//! The signature covers the exact text of the order; the job's id is derived from the hash of that text,
//! so a server may refuse an order but can neither change it nor run it under another name. The job's
//! meta travels inside the order, each app as an archive of its own named by hash: a site is given the
//! app that `deploy_map` names for it and nothing else, and can still check it against the signature.

use polder_words::id::BlobRef;
use polder_words::{AppName, Nonce, SiteName, StudyName, UserName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The domain separator under which orders are signed.
pub const ORDER_DOMAIN: &str = "polder-order-v1";

/// The domain separator under which the server signs how a result came about.
pub const PROVENANCE_DOMAIN: &str = "polder-provenance-v1";

/// `provenance.json` among a job's results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedProvenance {
    /// The exact JSON text that was signed.
    pub provenance: String,
    /// [`PROVENANCE_DOMAIN`].
    pub domain: String,
    /// ECDSA P-256 / SHA-256 signature over domain and text, base64 of the ASN.1 form.
    pub signature: String,
    /// The server's certificate, PEM.
    pub certificate: String,
}

/// Which sites the order is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderSites {
    /// Every connected site of the study.
    All,
    /// These, the `server` not counted.
    Named(BTreeSet<SiteName>),
}

/// What is signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// 1.
    pub version: u32,
    /// Name of the federation (project.yml), so that an order of one is nothing in another.
    pub federation: String,
    /// The study of the submitter's session.
    pub study: StudyName,
    /// Who signs; equal to the name in the certificate.
    pub submitter: UserName,
    /// Which sites.
    pub sites: OrderSites,
    /// The job's meta as JSON text, at most 256 KiB.
    pub meta: String,
    /// Each app's archive (gzip-compressed tar).
    pub apps: BTreeMap<AppName, BlobRef>,
    /// The job this one was cloned from, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_from: Option<polder_words::JobId>,
    /// Used once.
    pub nonce: Nonce,
    /// When it was signed, seconds since 1970.
    pub issued: u64,
    /// When it ends being acceptable, seconds since 1970.
    pub expires: u64,
}

/// An order with its proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedOrder {
    /// The exact JSON text of the [`Order`] that was signed.
    pub order: String,
    /// ECDSA P-256 / SHA-256 signature over domain and text, base64 of the ASN.1 form.
    pub signature: String,
    /// The submitter's certificate, PEM.
    pub certificate: String,
}
