//! TLS: one provider, four configurations.
//!
//! | side | who | what it demands of the other |
//! |---|---|---|
//! | server | site and user listener | a certificate of the project CA, not revoked |
//! | server | worker listener | nothing (may only enrol) or a certificate of the worker CA |
//! | client | site, user | a certificate of the project CA for a server, with the name dialled |
//! | client | worker | any server certificate issued by the pinned worker-CA key |
//!
//! TLS 1.3, and 1.2 with AEAD suites for old proxies; AES-128-GCM first, as it is the fastest on every
//! machine with AES instructions. Sessions are never resumed: a resumed session would skip the look at
//! the certificate, and a full handshake costs under a millisecond.

mod accept;
mod verify;

pub use accept::{Acceptor, Holder};
pub use verify::Refused;

use crate::identity::{IdentityError, Kit, PrivateKey};
use polder_words::Hash;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::sync::{Arc, LazyLock};

/// Why a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls refuses the key or certificate.
    #[error("TLS configuration: {0}")]
    Config(#[from] rustls::Error),
    /// A certificate.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate for the worker listener cannot be made.
    #[error(transparent)]
    Authority(#[from] crate::identity::AuthorityError),
}

/// The only cryptography there is: ring, AES-128-GCM first.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        use ring::cipher_suite as suite;
        Arc::new(CryptoProvider {
            cipher_suites: vec![
                suite::TLS13_AES_128_GCM_SHA256,
                suite::TLS13_AES_256_GCM_SHA384,
                suite::TLS13_CHACHA20_POLY1305_SHA256,
                suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            ],
            kx_groups: vec![ring::kx_group::X25519, ring::kx_group::SECP256R1, ring::kx_group::SECP384R1],
            ..ring::default_provider()
        })
    });
    PROVIDER.clone()
}

fn client_builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, TlsError> {
    Ok(ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?)
}

fn server_builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>, TlsError> {
    Ok(ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?)
}

/// The client side of a site or user: shows the kit's certificate, accepts only the federation's server.
///
/// # Errors
/// When rustls refuses key or certificate.
pub fn client_config(kit: &Kit) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = client_builder()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verify::Federation::new(kit.trust())?))
        .with_client_auth_cert(vec![kit.certificate().clone()], kit.key().for_rustls())?;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The client side of a worker: accepts only what the pinned worker-CA key issued. Without a certificate
/// of its own it may only enrol.
///
/// # Errors
/// When rustls refuses key or certificate.
pub fn worker_client_config(
    pin: Hash,
    certificate: Option<(&str, &PrivateKey)>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder =
        client_builder()?.dangerous().with_custom_certificate_verifier(Arc::new(verify::PinnedKey::new(pin)));
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some((pem, key)) => {
            let der = CertificateDer::from_pem_slice(pem.as_bytes())
                .map_err(|error| IdentityError::Malformed(format!("{error:?}")))?;
            builder.with_client_auth_cert(vec![der], key.for_rustls())?
        }
    };
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
