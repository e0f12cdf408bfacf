//! The server's side: which certificates a listener shows and asks for, and who the other side then is.

use super::{TlsError, provider, server_builder, verify};
use crate::identity::trust::timestamp;
use crate::identity::{Identity, IdentityError, Kit, Revocations, WorkerAuthority, WorkerCertificate};
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A participant of the federation: site, user or the server itself.
    Participant(Arc<Identity>),
    /// A worker of this parent.
    Worker(Arc<WorkerCertificate>),
    /// Showed no certificate: a worker that may only enrol.
    Nobody,
}

impl Holder {
    /// The participant, if it is one.
    #[must_use]
    pub fn participant(&self) -> Option<&Identity> {
        match self {
            Self::Participant(identity) => Some(identity),
            _ => None,
        }
    }

    /// The worker, if it is one.
    #[must_use]
    pub fn worker(&self) -> Option<&WorkerCertificate> {
        match self {
            Self::Worker(worker) => Some(worker),
            _ => None,
        }
    }
}

/// How a listener shakes hands.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    audience: Audience,
}

#[derive(Clone)]
enum Audience {
    Participants(Arc<Revocations>),
    Workers,
}

impl Acceptor {
    /// For sites and users: shows the server's certificate, demands one of the project CA.
    ///
    /// # Errors
    /// When rustls refuses the kit's key or certificate.
    pub fn participants(kit: &Kit, revocations: Arc<Revocations>) -> Result<Self, TlsError> {
        let verifier = verify::Participants::new(kit.trust(), revocations.clone())?;
        let config = server_builder()?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_single_cert(vec![kit.certificate().clone()], kit.key().for_rustls())?;
        Ok(Self { config: finished(config), audience: Audience::Participants(revocations) })
    }

    /// For workers: shows a certificate of the worker CA, accepts one of it or none.
    ///
    /// # Errors
    /// When the certificate cannot be made.
    pub fn workers(authority: Arc<WorkerAuthority>) -> Result<Self, TlsError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(authority.trust().roots(), provider())
            .allow_unauthenticated()
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let resolver = Renewing { authority, current: Mutex::new(None) };
        resolver.certificate(timestamp(UnixTime::now()))?;
        let config =
            server_builder()?.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(resolver));
        Ok(Self { config: finished(config), audience: Audience::Workers })
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// Who a verified certificate belongs to.
    pub(crate) fn holder(&self, chain: Option<&[CertificateDer<'_>]>) -> Result<Holder, IdentityError> {
        match (&self.audience, chain.and_then(<[_]>::first)) {
            (Audience::Participants(_), Some(der)) => {
                Ok(Holder::Participant(Arc::new(Identity::from_der(der)?)))
            }
            (Audience::Workers, Some(der)) => Ok(Holder::Worker(Arc::new(WorkerCertificate::from_der(der)?))),
            (_, None) => Ok(Holder::Nobody),
        }
    }

    /// Whether the holder's certificate is still good: connections live longer than certificates may.
    pub(crate) fn still_good(&self, holder: &Holder, now: Timestamp) -> Result<(), IdentityError> {
        let (name, not_after) = match (&self.audience, holder) {
            (Audience::Participants(revocations), Holder::Participant(identity)) => {
                if revocations.is_revoked(identity) {
                    return Err(IdentityError::Revoked {
                        name: identity.principal.to_string(),
                        serial: identity.serial.clone(),
                    });
                }
                (identity.principal.to_string(), identity.not_after)
            }
            (Audience::Workers, Holder::Worker(worker)) => (worker.launch.to_string(), worker.not_after),
            _ => return Ok(()),
        };
        if now > not_after { Err(IdentityError::Expired { name, not_after, now }) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.audience {
            Audience::Participants(_) => "Acceptor(participants)",
            Audience::Workers => "Acceptor(workers)",
        })
    }
}

fn finished(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.ignore_client_order = true;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// Days a certificate of the worker listener is valid; it is replaced at half of that.
const LISTENER_DAYS: u64 = 30;

/// The worker listener's certificate: made at start, kept in memory, renewed while the parent runs.
#[derive(Debug)]
struct Renewing {
    authority: Arc<WorkerAuthority>,
    current: Mutex<Option<(Arc<CertifiedKey>, Timestamp)>>,
}

impl Renewing {
    fn certificate(&self, now: Timestamp) -> Result<Arc<CertifiedKey>, TlsError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((certificate, renew)) = &*current
            && now < *renew
        {
            return Ok(certificate.clone());
        }
        let after = |days: u64| now.checked_add(Duration::from_secs(days * 86_400)).unwrap_or(Timestamp::MAX);
        let (key, leaf) = self.authority.server_certificate(now, after(LISTENER_DAYS))?;
        let chain = vec![leaf, self.authority.trust().certificate().clone()];
        let certificate =
            Arc::new(CertifiedKey::from_der(chain, key.for_rustls(), &provider()).map_err(TlsError::from)?);
        *current = Some((certificate.clone(), after(LISTENER_DAYS / 2)));
        Ok(certificate)
    }
}

impl ResolvesServerCert for Renewing {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match self.certificate(timestamp(UnixTime::now())) {
            Ok(certificate) => Some(certificate),
            Err(why) => {
                tracing::error!(%why, "cannot make a certificate for the worker listener");
                None
            }
        }
    }
}
