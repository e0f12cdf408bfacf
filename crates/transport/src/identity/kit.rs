//! A kit: everything one participant needs, in a directory only its owner may enter.
//!
//! ```text
//! ca.pem    the project CA's certificate
//! cert.pem  the participant's certificate
//! key.pem   its key, 0600; absent until it is put there when it was made at the site
//! kit.json  federation, name, kind, organisation, role, server
//! kit.sig   the project CA's signature of kit.json, base64
//! revoked.json  the server's alone: the revocation list in force, replaced by newer ones
//! ```

use super::files::{self, FileError};
use super::key::{DOMAIN_KIT, KeyError, PrivateKey, Signature};
use super::revocation::{RevocationError, RevocationList};
use super::trust::{IdentityError, Trust, holder_key};
use super::{Identity, Kind, Principal};
use crate::endpoint::Endpoint;
use jiff::Timestamp;
use polder_words::{OrgName, UserRole};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Why a kit cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KitError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// `kit.json` is not what it should be.
    #[error("{}: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong and where.
        #[source]
        source: serde_json::Error,
    },
    /// The signature of `kit.json` does not match.
    #[error("{}: altered, or signed by another CA than ca.pem: {source}", path.display())]
    Signature {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: KeyError,
    },
    /// A certificate in it.
    #[error("{}: {source}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: IdentityError,
    },
    /// The key in it.
    #[error("{}: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: KeyError,
    },
    /// The parts do not fit together.
    #[error("{}: {why}", path.display())]
    Mismatch {
        /// The directory.
        path: PathBuf,
        /// Which parts.
        why: String,
    },
    /// It is another kind of participant's.
    #[error("{}: this is the kit of {found}; needed is one of a {wanted}", path.display())]
    Kind {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        found: Principal,
        /// What kind is needed.
        wanted: Kind,
    },
}

/// `kit.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KitInfo {
    /// Version of the format: 1.
    pub version: u32,
    /// Name of the federation.
    pub federation: String,
    /// Name of the participant.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Its organisation.
    pub org: OrgName,
    /// A user's role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<UserRole>,
    /// Where the server is.
    pub server: Endpoint,
}

impl KitInfo {
    pub(crate) fn new(federation: &str, principal: &Principal, org: &OrgName, server: &Endpoint) -> Self {
        Self {
            version: 1,
            federation: federation.to_owned(),
            name: principal.name().to_owned(),
            kind: principal.kind(),
            org: org.clone(),
            role: principal.role(),
            server: server.clone(),
        }
    }

    /// The text of `kit.json`.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data becomes JSON") + "\n"
    }

    pub(crate) fn read(path: &Path) -> Result<(Self, String), KitError> {
        let text = files::read(path)?;
        let malformed = |source| KitError::Malformed { path: path.to_owned(), source };
        let info: Self = serde_json::from_str(&text).map_err(malformed)?;
        if info.version != 1 {
            return Err(malformed(serde::de::Error::custom(format!(
                "version is {}; allowed is 1",
                info.version
            ))));
        }
        Ok((info, text))
    }
}

/// An opened kit.
#[derive(Debug)]
pub struct Kit {
    dir: PathBuf,
    info: KitInfo,
    identity: Identity,
    trust: Trust,
    certificate: CertificateDer<'static>,
    pem: String,
    key: PrivateKey,
}

impl Kit {
    /// Opens a kit and checks that its parts fit together and are valid at a time.
    ///
    /// # Errors
    /// Names the file that is missing, open to others, altered, expired or another's.
    pub fn open(dir: &Path, now: Timestamp) -> Result<Self, KitError> {
        let path = |name: &str| dir.join(name);
        let trust = Trust::from_pem(&files::read(&path("ca.pem"))?)
            .map_err(|source| KitError::Certificate { path: path("ca.pem"), source })?;
        let (info, text) = KitInfo::read(&path("kit.json"))?;
        let signature = Signature::try_from(files::read(&path("kit.sig"))?).map_err(|error| {
            KitError::Key { path: path("kit.sig"), source: KeyError::Malformed(error.to_string()) }
        })?;
        trust
            .key()
            .verify(DOMAIN_KIT, text.as_bytes(), &signature)
            .map_err(|source| KitError::Signature { path: path("kit.json"), source })?;
        let certificate_error = |source| KitError::Certificate { path: path("cert.pem"), source };
        let pem = files::read(&path("cert.pem"))?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| certificate_error(IdentityError::Malformed(format!("{error:?}"))))?;
        let identity = trust.check(&certificate, now).map_err(certificate_error)?;
        if identity.name() != info.name
            || identity.kind() != info.kind
            || identity.role() != info.role
            || identity.org != info.org
        {
            let why =
                format!("kit.json is of {} {}, cert.pem of {}", info.kind, info.name, identity.principal);
            return Err(KitError::Mismatch { path: dir.to_owned(), why });
        }
        let key = PrivateKey::from_pem(&files::read_private(&path("key.pem"))?)
            .map_err(|source| KitError::Key { path: path("key.pem"), source })?;
        if holder_key(&certificate).map_err(certificate_error)? != key.public() {
            let why = "key.pem is not the key of cert.pem".to_owned();
            return Err(KitError::Mismatch { path: dir.to_owned(), why });
        }
        Ok(Self { dir: dir.to_owned(), info, identity, trust, certificate, pem, key })
    }

    /// The same, for a program that is one kind of participant.
    ///
    /// # Errors
    /// Also when the kit is another kind's.
    pub fn open_as(dir: &Path, wanted: Kind, now: Timestamp) -> Result<Self, KitError> {
        let kit = Self::open(dir, now)?;
        if kit.identity.kind() == wanted {
            Ok(kit)
        } else {
            Err(KitError::Kind { path: dir.to_owned(), found: kit.identity.principal, wanted })
        }
    }

    /// The revocations in `revoked.json` (in the server's kit); none when there is no such file.
    ///
    /// # Errors
    /// When the list is damaged or another CA signed it.
    pub fn revocations(&self) -> Result<RevocationList, RevocationError> {
        let path = self.dir.join("revoked.json");
        if path.exists() { RevocationList::read(&path, &self.trust) } else { Ok(RevocationList::empty()) }
    }

    /// Where it lies.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `kit.json`.
    #[must_use]
    pub fn info(&self) -> &KitInfo {
        &self.info
    }

    /// Whose it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The project CA.
    #[must_use]
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate, in PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// Signs bytes for a purpose, as this participant.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn sign(&self, domain: &str, bytes: &[u8]) -> Result<Signature, KeyError> {
        self.key.sign(domain, bytes)
    }
}
