//! How the two kinds of client check a server, and how a listener checks participants.

use super::provider;
use crate::identity::trust::{holder_key, timestamp};
use crate::identity::{Identity, IdentityError, Kind, Revocations, Trust, parse};
use polder_words::Hash;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;

/// Why a peer's certificate was refused during the handshake; travels inside rustls' error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The certificate itself.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A genuine certificate for another name.
    #[error("the server's certificate is for {presented}, not for {wanted}")]
    OtherName {
        /// The names in it.
        presented: String,
        /// The name dialled.
        wanted: String,
    },
    /// Not the pinned key's.
    #[error("the server's certificate (issued by {issuer:?}) was not issued by the worker CA key {pin}")]
    NotPinned {
        /// Who says to have issued it.
        issuer: String,
        /// The pin.
        pin: Hash,
    },
}

fn refused(why: impl Into<Refused>) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why.into()))))
}

/// A client of the federation: the server's certificate is the project CA's, for a server, for the name.
#[derive(Debug)]
pub(super) struct Federation {
    trust: Trust,
    inner: Arc<WebPkiServerVerifier>,
}

impl Federation {
    pub(super) fn new(trust: &Trust) -> Result<Self, Error> {
        let inner = WebPkiServerVerifier::builder_with_provider(trust.roots(), provider())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { trust: trust.clone(), inner })
    }
}

impl ServerCertVerifier for Federation {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.inner.verify_server_cert(end_entity, &[], server_name, ocsp, now).map_err(
            |error| match error {
                Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                    expected,
                    presented,
                }) => refused(Refused::OtherName {
                    presented: presented.join(", "),
                    wanted: expected.to_str().into_owned(),
                }),
                error => refused(self.trust.explain(&error, end_entity, timestamp(now))),
            },
        )?;
        let identity = Identity::from_der(end_entity).map_err(refused)?;
        if identity.kind() != Kind::Server {
            return Err(refused(IdentityError::Purpose {
                name: identity.principal.to_string(),
                why: "it is not a server".to_owned(),
            }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// A worker: the chain holds a CA certificate with the pinned key, and that key issued the server's.
///
/// The name does not matter: whoever holds this key is the parent, wherever it listens.
#[derive(Debug)]
pub(super) struct PinnedKey {
    pin: Hash,
}

impl PinnedKey {
    pub(super) fn new(pin: Hash) -> Self {
        Self { pin }
    }
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned = intermediates.iter().find(|der| holder_key(der).is_ok_and(|key| key.pin() == self.pin));
        let Some(pinned) = pinned else {
            let issuer = parse(end_entity).map_err(refused)?.issuer().to_string();
            return Err(refused(Refused::NotPinned { issuer, pin: self.pin }));
        };
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone())?;
        let parsed = rustls::server::ParsedCertificate::try_from(end_entity)?;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &roots,
            &[],
            now,
            provider().signature_verification_algorithms.all,
        )
        .map_err(|error| match Trust::from_der(pinned.clone().into_owned()) {
            Ok(trust) => refused(trust.explain(&error, end_entity, timestamp(now))),
            Err(why) => refused(why),
        })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A listener for participants: a certificate of the project CA, of one of our forms, not revoked.
///
/// Errors keep rustls' own kinds, because those decide the alert the other side is told.
#[derive(Debug)]
pub(super) struct Participants {
    trust: Trust,
    revocations: Arc<Revocations>,
    inner: Arc<dyn ClientCertVerifier>,
}

impl Participants {
    pub(super) fn new(trust: &Trust, revocations: Arc<Revocations>) -> Result<Self, Error> {
        let inner = WebPkiClientVerifier::builder_with_provider(trust.roots(), provider())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { trust: trust.clone(), revocations, inner })
    }
}

impl ClientCertVerifier for Participants {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, &[], now).map_err(|error| {
            let why = self.trust.explain(&error, end_entity, timestamp(now));
            tracing::warn!(%why, "refused a client's certificate");
            // A CA that took our CA's name is a foreign one too.
            if matches!(why, IdentityError::Foreign { .. }) {
                return Error::InvalidCertificate(CertificateError::UnknownIssuer);
            }
            error
        })?;
        let identity = Identity::from_der(end_entity).map_err(|why| {
            tracing::warn!(%why, "refused a client's certificate");
            refused(why)
        })?;
        if self.revocations.is_revoked(&identity) {
            tracing::warn!(principal = %identity.principal, serial = %identity.serial, "refused a revoked certificate");
            return Err(Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
