//! The project CA: a directory that the operator of the federation keeps, and nobody else needs.
//!
//! ```text
//! ca.pem         its certificate, public
//! ca.key         its key, 0600
//! issued.jsonl   one line a certificate: who, which number, until when
//! revoked.json   the newest revocation list, signed
//! ```

use super::files::{self, FileError};
use super::key::{KeyError, PrivateKey, PublicKey, Signature};
use super::revocation::{RevocationError, RevocationList, Revoked};
use super::trust::{IdentityError, Trust};
use super::{Principal, Serial};
use crate::endpoint::is_dns_name;
use jiff::Timestamp;
use polder_words::OrgName;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber,
};
use ring::rand::SecureRandom as _;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Years a CA is valid.
const CA_DAYS: u32 = 20 * 365;
/// Clocks differ: certificates begin an hour before they are made.
const BACKDATE: Duration = Duration::from_secs(3600);

/// Why the project CA cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key.
    #[error("{}: {source}", path.display())]
    Key {
        /// The file of the key.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: KeyError,
    },
    /// A certificate.
    #[error("{}: {source}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: IdentityError,
    },
    /// The certificate is another key's.
    #[error("{} and {} do not belong together", certificate.display(), key.display())]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// A name or address that a certificate cannot carry.
    #[error("{found:?} is neither a DNS name nor an address")]
    Host {
        /// The text.
        found: String,
    },
    /// There is one already.
    #[error("{}: a CA is there already", .0.display())]
    Exists(PathBuf),
    /// `issued.jsonl` has a line that is none of ours.
    #[error("{}: line {line}: {source}", path.display())]
    Issued {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// Nobody of that name has a certificate.
    #[error("no certificate was issued to {0:?}")]
    Unknown(String),
    /// The revocation list.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// The certificate could not be made.
    #[error("cannot make the certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The system gave no randomness.
    #[error("the system gave no random bytes")]
    NoRandomness,
}

/// A line of `issued.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// `server`, `site` or `user`.
    pub kind: super::Kind,
    /// Whose.
    pub name: String,
    /// Its number.
    pub serial: Serial,
    /// Until when it is valid.
    pub not_after: Timestamp,
}

/// The project CA.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    key: PrivateKey,
    trust: Trust,
}

impl Authority {
    /// Makes a CA in a directory.
    ///
    /// # Errors
    /// When there is one already, or files cannot be written.
    pub fn create(dir: &Path, federation: &str, now: Timestamp) -> Result<Self, AuthorityError> {
        files::private_dir(dir)?;
        let path = dir.join("ca.pem");
        if path.exists() || dir.join("ca.key").exists() {
            return Err(AuthorityError::Exists(dir.to_owned()));
        }
        let (key, certificate) = make_ca(federation, "polder project CA", now)?;
        // The key first: a certificate without its key would look like a CA that lost it.
        files::write(&dir.join("ca.key"), key.to_pem().as_bytes(), 0o600)?;
        files::write(&path, super::key::pem("CERTIFICATE", &certificate).as_bytes(), 0o644)?;
        Self::open(dir)
    }

    /// Opens the CA in a directory.
    ///
    /// # Errors
    /// When files are missing, readable by others, or do not belong together.
    pub fn open(dir: &Path) -> Result<Self, AuthorityError> {
        let (key, trust) = open_ca(dir)?;
        Ok(Self { dir: dir.to_owned(), key, trust })
    }

    /// Opens the CA, or makes one where there is none.
    ///
    /// # Errors
    /// As [`Authority::open`] and [`Authority::create`].
    pub fn open_or_create(dir: &Path, federation: &str, now: Timestamp) -> Result<Self, AuthorityError> {
        if dir.join("ca.pem").exists() { Self::open(dir) } else { Self::create(dir, federation, now) }
    }

    /// What this CA vouches for.
    #[must_use]
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Signs with the CA's key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn sign(&self, domain: &str, bytes: &[u8]) -> Result<Signature, KeyError> {
        self.key.sign(domain, bytes)
    }

    /// Issues a certificate for a public key and writes it down; returns PEM.
    ///
    /// `hosts` are DNS names and addresses; they stand only in certificates of the server.
    ///
    /// # Errors
    /// When a host is not one, or `issued.jsonl` cannot be written.
    pub fn issue(
        &self,
        principal: &Principal,
        org: &OrgName,
        hosts: &[String],
        key: &PublicKey,
        now: Timestamp,
        days: u32,
    ) -> Result<String, AuthorityError> {
        let mut params =
            leaf(principal.name(), Some(org.as_str()), &principal.unit(), now, days_after(now, days))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Principal::Server(_) = principal {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            params.subject_alt_names = hosts.iter().map(|host| san(host)).collect::<Result<_, _>>()?;
        }
        let certificate = sign_leaf(&params, key, &self.trust, &self.key)?;
        let line = Issued {
            kind: principal.kind(),
            name: principal.name().to_owned(),
            serial: Serial::from_bytes(params.serial_number.as_ref().map_or(&[], |s| s.as_ref())),
            not_after: days_after(now, days),
        };
        self.append(&line)?;
        Ok(super::key::pem("CERTIFICATE", &certificate))
    }

    fn append(&self, line: &Issued) -> Result<(), AuthorityError> {
        let path = self.dir.join("issued.jsonl");
        let mut text = serde_json::to_string(line).expect("plain data becomes JSON");
        text.push('\n');
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()
            })
            .map_err(files::failed(&path, "append"))?;
        Ok(())
    }

    /// Every certificate issued, oldest first.
    ///
    /// # Errors
    /// When `issued.jsonl` cannot be read.
    pub fn issued(&self) -> Result<Vec<Issued>, AuthorityError> {
        let path = self.dir.join("issued.jsonl");
        if !path.exists() {
            return Ok(Vec::new());
        }
        files::read(&path)?
            .lines()
            .enumerate()
            .filter(|(_, text)| !text.trim().is_empty())
            .map(|(n, text)| {
                serde_json::from_str(text).map_err(|source| AuthorityError::Issued {
                    path: path.clone(),
                    line: n + 1,
                    source,
                })
            })
            .collect()
    }

    /// Takes back every certificate issued to a name so far; returns the new list.
    ///
    /// # Errors
    /// When nobody of that name has one, or the list cannot be written.
    pub fn revoke(&self, name: &str, reason: &str, now: Timestamp) -> Result<RevocationList, AuthorityError> {
        let of_name: Vec<Issued> = self.issued()?.into_iter().filter(|issued| issued.name == name).collect();
        if of_name.is_empty() {
            return Err(AuthorityError::Unknown(name.to_owned()));
        }
        let mut list = self.revoked()?;
        for issued in of_name {
            if !list.revoked.iter().any(|old| old.serial == issued.serial) {
                list.revoked.push(Revoked {
                    serial: issued.serial,
                    name: issued.name,
                    at: now,
                    reason: reason.to_owned(),
                });
            }
        }
        list.number += 1;
        list.issued = now;
        files::write(&self.dir.join("revoked.json"), list.sign(&self.key)?.as_bytes(), 0o644)?;
        Ok(list)
    }

    /// The newest revocation list; an empty one when nothing was ever revoked.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn revoked(&self) -> Result<RevocationList, AuthorityError> {
        let path = self.dir.join("revoked.json");
        if path.exists() {
            Ok(RevocationList::read(&path, &self.trust)?)
        } else {
            Ok(RevocationList::empty())
        }
    }

    /// The newest revocation list as the server reads it.
    ///
    /// # Errors
    /// When the file is damaged or the system has no randomness.
    pub fn revoked_signed(&self) -> Result<String, AuthorityError> {
        Ok(self.revoked()?.sign(&self.key)?)
    }
}

/// Makes a self-signed CA with a key of its own.
pub(crate) fn make_ca(
    organisation: &str,
    name: &str,
    now: Timestamp,
) -> Result<(PrivateKey, CertificateDer<'static>), AuthorityError> {
    let key = PrivateKey::generate().map_err(|_| AuthorityError::NoRandomness)?;
    let mut params = base(now, days_after(now, CA_DAYS))?;
    params.distinguished_name.push(DnType::OrganizationName, organisation);
    // The key's pin in the name tells two CAs of one federation's name apart in every message.
    let pin = key.public().pin().to_string();
    params.distinguished_name.push(DnType::CommonName, format!("{name} {}", &pin[..8]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let pair = key.for_rcgen().map_err(|_| AuthorityError::NoRandomness)?;
    let certificate = params.self_signed(&pair)?;
    Ok((key, certificate.der().clone()))
}

/// Opens `ca.pem` and `ca.key`.
pub(crate) fn open_ca(dir: &Path) -> Result<(PrivateKey, Trust), AuthorityError> {
    let (certificate, secret) = (dir.join("ca.pem"), dir.join("ca.key"));
    let trust = Trust::from_pem(&files::read(&certificate)?)
        .map_err(|source| AuthorityError::Certificate { path: certificate.clone(), source })?;
    let key = PrivateKey::from_pem(&files::read_private(&secret)?)
        .map_err(|source| AuthorityError::Key { path: secret.clone(), source })?;
    if key.public() != trust.key() {
        return Err(AuthorityError::Mismatch { certificate, key: secret });
    }
    Ok((key, trust))
}

/// A leaf's parameters, without extended usages and names.
pub(crate) fn leaf(
    name: &str,
    org: Option<&str>,
    unit: &str,
    now: Timestamp,
    not_after: Timestamp,
) -> Result<CertificateParams, AuthorityError> {
    let mut params = base(now, not_after)?;
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(org) = org {
        params.distinguished_name.push(DnType::OrganizationName, org);
    }
    params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

pub(crate) fn sign_leaf(
    params: &CertificateParams,
    key: &PublicKey,
    trust: &Trust,
    signer: &PrivateKey,
) -> Result<CertificateDer<'static>, AuthorityError> {
    let pair = signer.for_rcgen().map_err(|_| AuthorityError::NoRandomness)?;
    let issuer = Issuer::from_ca_cert_der(trust.certificate(), pair)?;
    Ok(params.signed_by(key, &issuer)?.der().clone())
}

pub(crate) fn san(host: &str) -> Result<SanType, AuthorityError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    if !is_dns_name(host) {
        return Err(AuthorityError::Host { found: host.to_owned() });
    }
    Ok(SanType::DnsName(host.to_ascii_lowercase().try_into()?))
}

fn base(now: Timestamp, not_after: Timestamp) -> Result<CertificateParams, AuthorityError> {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let seconds = |time: Timestamp| Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
    let mut serial = [0_u8; 16];
    ring::rand::SystemRandom::new().fill(&mut serial).map_err(|_| AuthorityError::NoRandomness)?;
    // Positive and without a leading zero byte, so that it reads the same in every tool.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = epoch + seconds(now).saturating_sub(BACKDATE);
    params.not_after = epoch + seconds(not_after);
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

pub(crate) fn days_after(now: Timestamp, days: u32) -> Timestamp {
    now.checked_add(Duration::from_secs(u64::from(days) * 86_400)).unwrap_or(Timestamp::MAX)
}
