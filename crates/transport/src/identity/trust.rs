//! What a CA vouches for: checking certificates and the signatures of their holders.

use super::key::{KeyError, PublicKey, Signature};
use super::{Identity, Serial, parse};
use crate::tls::provider;
use jiff::Timestamp;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a certificate or a signature is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It is no certificate.
    #[error("not a certificate: {0}")]
    Malformed(String),
    /// Its subject is none of Polder's.
    #[error("certificate subject {found:?}: {why}")]
    Subject {
        /// The subject.
        found: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another CA issued it.
    #[error("certificate issued by {issuer:?}, which is not the CA of this federation ({expected:?})")]
    Foreign {
        /// Who says to have issued it.
        issuer: String,
        /// Whose certificates are accepted.
        expected: String,
    },
    /// Its time is over.
    #[error("certificate of {name} expired at {not_after} (now {now})")]
    Expired {
        /// Whose.
        name: String,
        /// When.
        not_after: Timestamp,
        /// The time it was checked for.
        now: Timestamp,
    },
    /// Its time has not come.
    #[error("certificate of {name} is not valid yet (now {now}): check the clocks")]
    NotYetValid {
        /// Whose.
        name: String,
        /// The time it was checked for.
        now: Timestamp,
    },
    /// It was taken back.
    #[error("certificate {serial} of {name} is revoked")]
    Revoked {
        /// Whose.
        name: String,
        /// Its number.
        serial: Serial,
    },
    /// It is genuine and not for this use.
    #[error("certificate of {name} cannot be used here: {why}")]
    Purpose {
        /// Whose.
        name: String,
        /// What does not fit.
        why: String,
    },
    /// The holder's signature does not match.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// A CA whose certificates are believed.
#[derive(Clone)]
pub struct Trust {
    inner: Arc<Inner>,
}

struct Inner {
    certificate: CertificateDer<'static>,
    subject: String,
    key: PublicKey,
    roots: Arc<RootCertStore>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Trust {
    /// Reads a CA certificate in PEM.
    ///
    /// # Errors
    /// When the text holds no usable CA certificate.
    pub fn from_pem(text: &str) -> Result<Self, IdentityError> {
        let der = CertificateDer::from_pem_slice(text.as_bytes())
            .map_err(|error| IdentityError::Malformed(format!("{error:?}")))?;
        Self::from_der(der)
    }

    /// Takes a CA certificate in DER.
    ///
    /// # Errors
    /// When it is no usable CA certificate.
    pub fn from_der(certificate: CertificateDer<'static>) -> Result<Self, IdentityError> {
        let (subject, key) = {
            let parsed = parse(&certificate)?;
            let subject = parsed.subject().to_string();
            if !parsed.is_ca() {
                return Err(IdentityError::Purpose { name: subject, why: "it is not a CA".to_owned() });
            }
            (subject, PublicKey::from_spki(parsed.public_key().raw)?)
        };
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).map_err(|error| IdentityError::Malformed(error.to_string()))?;
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .build()
            .map_err(|error| IdentityError::Malformed(error.to_string()))?;
        Ok(Self { inner: Arc::new(Inner { certificate, subject, key, roots, verifier }) })
    }

    /// The CA's certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.inner.certificate
    }

    /// The CA's certificate, in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        super::key::pem("CERTIFICATE", &self.inner.certificate)
    }

    /// The CA's key.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.inner.key
    }

    /// The CA's name as its certificate has it.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.inner.subject
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        self.inner.roots.clone()
    }

    /// Checks that this CA issued a certificate and that it is valid at a time.
    ///
    /// # Errors
    /// Says whether it is foreign, expired, not yet valid or of another form.
    pub fn check(&self, certificate: &CertificateDer<'_>, now: Timestamp) -> Result<Identity, IdentityError> {
        self.check_chain(certificate, now)?;
        Identity::from_der(certificate)
    }

    pub(crate) fn check_chain(
        &self,
        certificate: &CertificateDer<'_>,
        now: Timestamp,
    ) -> Result<(), IdentityError> {
        self.inner
            .verifier
            .verify_client_cert(certificate, &[], unix_time(now))
            .map(drop)
            .map_err(|error| self.explain(&error, certificate, now))
    }

    /// Checks a certificate and a signature its holder made.
    ///
    /// # Errors
    /// When either is not to be believed.
    pub fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        now: Timestamp,
        domain: &str,
        bytes: &[u8],
        signature: &Signature,
    ) -> Result<Identity, IdentityError> {
        let identity = self.check(certificate, now)?;
        holder_key(certificate)?.verify(domain, bytes, signature)?;
        Ok(identity)
    }

    /// The same with the certificate in PEM.
    ///
    /// # Errors
    /// When either is not to be believed.
    pub fn verify_pem(
        &self,
        certificate: &str,
        now: Timestamp,
        domain: &str,
        bytes: &[u8],
        signature: &Signature,
    ) -> Result<Identity, IdentityError> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|error| IdentityError::Malformed(format!("{error:?}")))?;
        self.verify(&der, now, domain, bytes, signature)
    }

    /// Turns what webpki says into what a person can act upon.
    pub(crate) fn explain(
        &self,
        error: &rustls::Error,
        certificate: &CertificateDer<'_>,
        now: Timestamp,
    ) -> IdentityError {
        let Ok(parsed) = parse(certificate) else {
            return IdentityError::Malformed(error.to_string());
        };
        let name = parsed.subject().to_string();
        match error {
            rustls::Error::InvalidCertificate(problem) => match problem {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    match super::not_after(&parsed) {
                        Ok(not_after) => IdentityError::Expired { name, not_after, now },
                        Err(error) => error,
                    }
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    IdentityError::NotYetValid { name, now }
                }
                CertificateError::UnknownIssuer | CertificateError::BadSignature => IdentityError::Foreign {
                    issuer: parsed.issuer().to_string(),
                    expected: self.inner.subject.clone(),
                },
                CertificateError::BadEncoding => IdentityError::Malformed("bad encoding".to_owned()),
                other => IdentityError::Purpose { name, why: other.to_string() },
            },
            other => IdentityError::Malformed(other.to_string()),
        }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({})", self.inner.subject)
    }
}

/// The public key in a certificate.
pub(crate) fn holder_key(certificate: &[u8]) -> Result<PublicKey, IdentityError> {
    Ok(PublicKey::from_spki(parse(certificate)?.public_key().raw)?)
}

pub(crate) fn unix_time(now: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0)))
}

pub(crate) fn timestamp(now: UnixTime) -> Timestamp {
    i64::try_from(now.as_secs()).ok().and_then(|s| Timestamp::from_second(s).ok()).unwrap_or(Timestamp::MAX)
}
