//! Certificate requests: a site makes its key itself and sends only the request, which is signed later.
//!
//! ```text
//! site:      polder request   -> key.pem (0600, stays), request.pem (goes to the operator)
//! operator:  polder provision -> kit without key.pem (goes to the site)
//! site:      CertificateRequest::complete puts its key into the kit
//! ```
//! A request proves that its maker has the key; name, organisation and role are the operator's to say,
//! and a request for another name than the one it is used for is refused.

use super::files::{self, FileError};
use super::key::{KeyError, PrivateKey, PublicKey};
use super::{Kit, KitError, Principal};
use jiff::Timestamp;
use polder_words::OrgName;
use rcgen::{CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, DnValue};
use std::path::{Path, PathBuf};

/// Why a request is not made or not signed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is none, or its maker does not have the key.
    #[error("not a certificate request: {0}")]
    Malformed(String),
    /// A key of another kind.
    #[error("certificate request: {0}")]
    Key(#[from] KeyError),
    /// It is for somebody else.
    #[error("certificate request is for {found:?}, not for {wanted:?}")]
    OtherName {
        /// The name in it.
        found: String,
        /// The name it is used for.
        wanted: String,
    },
    /// There is a key already.
    #[error("{}: a key is there already", .0.display())]
    Exists(PathBuf),
    /// The completed kit is not usable.
    #[error(transparent)]
    Kit(#[from] KitError),
}

/// A request that was read: who made it has the key.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    /// The key.
    pub key: PublicKey,
    /// The name it asks for, when it names one.
    pub name: Option<String>,
}

impl CertificateRequest {
    /// Makes a key and a request for it in a directory: `key.pem` and `request.pem`. Returns the request.
    ///
    /// # Errors
    /// When there is a key already or files cannot be written.
    pub fn make(dir: &Path, principal: &Principal, org: &OrgName) -> Result<String, RequestError> {
        files::private_dir(dir)?;
        let path = dir.join("key.pem");
        if path.exists() {
            return Err(RequestError::Exists(path));
        }
        let key = PrivateKey::generate()?;
        let request = request_for(&key, principal.name(), Some(org.as_str()))?;
        files::write(&path, key.to_pem().as_bytes(), 0o600)?;
        files::write(&dir.join("request.pem"), request.as_bytes(), 0o644)?;
        Ok(request)
    }

    /// Reads a request in PEM and checks that its maker has the key.
    ///
    /// # Errors
    /// When it is none, asks for an extension, or is for another kind of key.
    pub fn parse(text: &str) -> Result<Self, RequestError> {
        let parsed = CertificateSigningRequestParams::from_pem(text)
            .map_err(|error| RequestError::Malformed(error.to_string()))?;
        let key = PublicKey::from_point(rcgen::PublicKeyData::der_bytes(&parsed.public_key))?;
        let name = match parsed.params.distinguished_name.get(&DnType::CommonName) {
            Some(DnValue::Utf8String(name)) => Some(name.clone()),
            Some(DnValue::PrintableString(name)) => Some(name.to_string()),
            _ => None,
        };
        Ok(Self { key, name })
    }

    /// Refuses a request that names somebody else.
    ///
    /// # Errors
    /// When it does.
    pub fn check_name(&self, wanted: &str) -> Result<(), RequestError> {
        match &self.name {
            Some(found) if found != wanted => {
                Err(RequestError::OtherName { found: found.clone(), wanted: wanted.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Puts the key of a request into the kit that came back, and opens the kit.
    ///
    /// # Errors
    /// When the kit is another's, or has a key already that is not this one.
    pub fn complete(request_dir: &Path, kit_dir: &Path, now: Timestamp) -> Result<Kit, RequestError> {
        let target = kit_dir.join("key.pem");
        if !target.exists() {
            let key = files::read_private(&request_dir.join("key.pem"))?;
            files::write(&target, key.as_bytes(), 0o600)?;
        }
        Ok(Kit::open(kit_dir, now)?)
    }
}

/// A request in PEM.
pub(crate) fn request_for(key: &PrivateKey, name: &str, org: Option<&str>) -> Result<String, RequestError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(org) = org {
        params.distinguished_name.push(DnType::OrganizationName, org);
    }
    let pair = key.for_rcgen()?;
    params
        .serialize_request(&pair)
        .and_then(|request| request.pem())
        .map_err(|error| RequestError::Malformed(error.to_string()))
}
