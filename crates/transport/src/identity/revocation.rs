//! Taking certificates back: a numbered list signed by the project CA, kept by the server.
//!
//! On disk and on the wire it is `{"list": "<JSON text>", "signature": "<base64>"}`: the signature covers
//! the text as it stands, so nobody has to agree on how JSON is spelt. A list never replaces one with a
//! higher number.

use super::files::{self, FileError};
use super::key::{DOMAIN_REVOCATION, KeyError, PrivateKey, Signature};
use super::trust::Trust;
use super::{Identity, Serial};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// Why a revocation list is not taken.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is none.
    #[error("{}: not a revocation list: {source}", path.display())]
    Malformed {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// Somebody else signed it, or it was altered.
    #[error("{}: revocation list: {source}", path.display())]
    Signature {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: KeyError,
    },
    /// It is older than the one in force.
    #[error("revocation list {found} is older than {have}, which is in force")]
    Older {
        /// The number it has.
        found: u64,
        /// The number in force.
        have: u64,
    },
    /// It cannot be signed.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// A certificate that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoked {
    /// Its number.
    pub serial: Serial,
    /// Whose it was.
    pub name: String,
    /// Since when.
    pub at: Timestamp,
    /// Why, in words.
    pub reason: String,
}

/// The list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevocationList {
    /// Version of the format: 1.
    pub version: u32,
    /// Grows with each list.
    pub number: u64,
    /// When it was made.
    pub issued: Timestamp,
    /// What it takes back.
    pub revoked: Vec<Revoked>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    list: String,
    signature: Signature,
}

impl RevocationList {
    /// A list that takes nothing back.
    #[must_use]
    pub fn empty() -> Self {
        Self { version: 1, number: 0, issued: Timestamp::UNIX_EPOCH, revoked: Vec::new() }
    }

    pub(crate) fn sign(&self, key: &PrivateKey) -> Result<String, RevocationError> {
        let list = serde_json::to_string(self).expect("plain data becomes JSON");
        let signature = key.sign(DOMAIN_REVOCATION, list.as_bytes())?;
        Ok(serde_json::to_string(&Envelope { list, signature }).expect("plain data becomes JSON") + "\n")
    }

    /// Reads a signed list from a file.
    ///
    /// # Errors
    /// When it is none or the CA did not sign it.
    pub fn read(path: &Path, trust: &Trust) -> Result<Self, RevocationError> {
        Self::parse(&files::read(path)?, path, trust)
    }

    /// Reads a signed list from a text; `origin` names it in errors.
    ///
    /// # Errors
    /// When it is none or the CA did not sign it.
    pub fn parse(text: &str, origin: &Path, trust: &Trust) -> Result<Self, RevocationError> {
        let malformed = |source| RevocationError::Malformed { path: origin.to_owned(), source };
        let envelope: Envelope = serde_json::from_str(text).map_err(malformed)?;
        trust
            .key()
            .verify(DOMAIN_REVOCATION, envelope.list.as_bytes(), &envelope.signature)
            .map_err(|source| RevocationError::Signature { path: origin.to_owned(), source })?;
        let list: Self = serde_json::from_str(&envelope.list).map_err(malformed)?;
        if list.version != 1 {
            return Err(malformed(serde::de::Error::custom(format!(
                "version is {}; allowed is 1",
                list.version
            ))));
        }
        Ok(list)
    }
}

/// The revocations in force, asked at every handshake and request.
#[derive(Debug, Default)]
pub struct Revocations {
    inner: RwLock<InForce>,
}

#[derive(Debug, Default)]
struct InForce {
    number: u64,
    serials: HashSet<Serial>,
}

impl Revocations {
    /// With a list in force.
    #[must_use]
    pub fn new(list: &RevocationList) -> Self {
        let serials = list.revoked.iter().map(|revoked| revoked.serial.clone()).collect();
        Self { inner: RwLock::new(InForce { number: list.number, serials }) }
    }

    /// Whether a certificate was taken back.
    #[must_use]
    pub fn is_revoked(&self, identity: &Identity) -> bool {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).serials.contains(&identity.serial)
    }

    /// Puts a newer list in force.
    ///
    /// # Errors
    /// When it is older than the one in force.
    pub fn replace(&self, list: &RevocationList) -> Result<(), RevocationError> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if list.number < inner.number {
            return Err(RevocationError::Older { found: list.number, have: inner.number });
        }
        inner.number = list.number;
        inner.serials = list.revoked.iter().map(|revoked| revoked.serial.clone()).collect();
        Ok(())
    }
}
