//! A parent's second CA, for its workers alone: local, in its data directory, known to no other part of
//! the federation.
//!
//! A worker is told the pin of this CA's key, makes a key of its own, and enrols with a one-time token
//! and a certificate request. It accepts whatever server certificate this key issued, so that a parent
//! may make itself a new one at every start. The worker's certificate carries its launch id as CN.

use super::authority::{AuthorityError, leaf, make_ca, open_ca, san, sign_leaf};
use super::files;
use super::key::{KeyError, PrivateKey, PublicKey, Signature};
use super::request::{CertificateRequest, RequestError};
use super::trust::{IdentityError, Trust};
use super::{Serial, Subject, not_after, parse};
use jiff::Timestamp;
use polder_words::{Hash, LaunchId};
use rcgen::ExtendedKeyUsagePurpose;
use rustls_pki_types::CertificateDer;
use std::path::Path;

/// The name in the certificate of every worker listener, and what a worker asks for.
pub const WORKER_SERVER_NAME: &str = "polder-parent";

/// Why the worker CA cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum WorkerAuthorityError {
    /// The CA's files or a certificate.
    #[error("worker CA: {0}")]
    Authority(#[from] AuthorityError),
    /// The request.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// What a worker's certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCertificate {
    /// Which launch.
    pub launch: LaunchId,
    /// Pin of the worker's key.
    pub key: Hash,
    /// The certificate's number.
    pub serial: Serial,
    /// Until when it is valid.
    pub not_after: Timestamp,
}

impl WorkerCertificate {
    /// Reads what a certificate says, without asking whether it is genuine.
    ///
    /// # Errors
    /// When it is no worker's certificate.
    pub fn from_der(der: &[u8]) -> Result<Self, IdentityError> {
        let certificate = parse(der)?;
        let subject = Subject::of(&certificate)?;
        let wrong = |why: String| IdentityError::Subject { found: subject.to_string(), why };
        if subject.unit != "worker" {
            return Err(wrong("OU is not worker".to_owned()));
        }
        Ok(Self {
            launch: subject
                .name
                .parse()
                .map_err(|error: polder_words::NameError| wrong(error.to_string()))?,
            key: PublicKey::from_spki(certificate.public_key().raw)?.pin(),
            serial: Serial::from_bytes(certificate.raw_serial()),
            not_after: not_after(&certificate)?,
        })
    }
}

/// The worker CA.
#[derive(Debug)]
pub struct WorkerAuthority {
    key: PrivateKey,
    trust: Trust,
}

impl WorkerAuthority {
    /// Opens the CA in a directory, or makes it.
    ///
    /// # Errors
    /// When its files are damaged, open to others or cannot be written.
    pub fn open_or_create(dir: &Path, now: Timestamp) -> Result<Self, WorkerAuthorityError> {
        if !dir.join("ca.pem").exists() {
            files::private_dir(dir).map_err(AuthorityError::from)?;
            // A key without a certificate is what a crash between the two writes leaves: nobody was
            // told its pin yet, so it is replaced.
            let (key, certificate) = make_ca("polder", "polder worker CA", now)?;
            let write = |name: &str, text: &str, mode| files::write(&dir.join(name), text.as_bytes(), mode);
            write("ca.key", &key.to_pem(), 0o600).map_err(AuthorityError::from)?;
            write("ca.pem", &super::key::pem("CERTIFICATE", &certificate), 0o644)
                .map_err(AuthorityError::from)?;
        }
        let (key, trust) = open_ca(dir)?;
        Ok(Self { key, trust })
    }

    /// BLAKE3 of the CA's SubjectPublicKeyInfo: what workers pin.
    #[must_use]
    pub fn pin(&self) -> Hash {
        self.key.public().pin()
    }

    /// What this CA vouches for.
    #[must_use]
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Issues a worker's certificate, in PEM, for the key in a request (PEM).
    ///
    /// Who calls this has checked the token and bound it to [`CertificateRequest::key`].
    ///
    /// # Errors
    /// When the request is none, or names another launch.
    pub fn issue(
        &self,
        request: &str,
        launch: &LaunchId,
        now: Timestamp,
        not_after: Timestamp,
    ) -> Result<String, WorkerAuthorityError> {
        let request = CertificateRequest::parse(request)?;
        let name = launch.to_string();
        request.check_name(&name)?;
        let mut params = leaf(&name, None, "worker", now, not_after)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = sign_leaf(&params, &request.key, &self.trust, &self.key)?;
        Ok(super::key::pem("CERTIFICATE", &certificate))
    }

    /// Makes a key and a certificate for the worker listener.
    pub(crate) fn server_certificate(
        &self,
        now: Timestamp,
        not_after: Timestamp,
    ) -> Result<(PrivateKey, CertificateDer<'static>), AuthorityError> {
        let key = PrivateKey::generate().map_err(|_| AuthorityError::NoRandomness)?;
        let mut params = leaf(WORKER_SERVER_NAME, None, "parent", now, not_after)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = vec![san(WORKER_SERVER_NAME)?];
        let certificate = sign_leaf(&params, &key.public(), &self.trust, &self.key)?;
        Ok((key, certificate))
    }

    /// Signs with the CA's key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn sign(&self, domain: &str, bytes: &[u8]) -> Result<Signature, KeyError> {
        self.key.sign(domain, bytes)
    }
}

/// A worker's side of enrolment: its key and the request for it.
#[derive(Debug)]
pub struct WorkerKey {
    key: PrivateKey,
    request: String,
}

impl WorkerKey {
    /// Makes a key for a launch.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn generate(launch: &LaunchId) -> Result<Self, RequestError> {
        Self::with(PrivateKey::generate()?, launch)
    }

    /// Takes a key that was kept (a worker that was started again in the same attempt).
    ///
    /// # Errors
    /// When the request cannot be made.
    pub fn with(key: PrivateKey, launch: &LaunchId) -> Result<Self, RequestError> {
        let request = super::request::request_for(&key, &launch.to_string(), None)?;
        Ok(Self { key, request })
    }

    /// The request, in PEM.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.request
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }
}
