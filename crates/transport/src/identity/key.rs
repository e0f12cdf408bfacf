//! Keys and signatures: ECDSA on P-256 with SHA-256, made and checked by ring.
//!
//! What is signed is never the bytes alone. A signature covers
//! `"polder-signature" 0x00 <length of domain, u64 little endian> <domain> <bytes>`, so that a signature
//! made for one purpose (a job's order) can never be shown for another (a kit). Signatures are the ASN.1 form
//! that OpenSSL and Python's `cryptography` write, in base64 where they are text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polder_words::Hash;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use std::fmt;
use zeroize::Zeroizing;

/// What a kit's description is signed for, by the project CA.
pub const DOMAIN_KIT: &str = "polder kit v1";
/// What a revocation list is signed for, by the project CA.
pub const DOMAIN_REVOCATION: &str = "polder revocation v1";

/// Why a key or a signature is no good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is no private key of the only kind used here.
    #[error("not a private key in PKCS#8 PEM, ECDSA P-256: {0}")]
    Malformed(String),
    /// The system gave no randomness.
    #[error("the system gave no random bytes")]
    NoRandomness,
    /// The public key is of another kind.
    #[error("not an ECDSA P-256 public key")]
    OtherKind,
    /// The signature does not fit key, purpose and bytes.
    #[error("the signature does not match (signed for {domain:?})")]
    BadSignature {
        /// What it should have been made for.
        domain: String,
    },
}

/// DER of a SubjectPublicKeyInfo for P-256, up to the point.
const SPKI_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A public key: an uncompressed point of P-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 65]);

impl PublicKey {
    /// Reads the key out of a SubjectPublicKeyInfo in DER.
    ///
    /// # Errors
    /// When it is of another kind than ECDSA P-256, or its point is compressed.
    pub fn from_spki(der: &[u8]) -> Result<Self, KeyError> {
        let point = der.strip_prefix(SPKI_HEAD.as_slice()).ok_or(KeyError::OtherKind)?;
        Self::from_point(point)
    }

    pub(crate) fn from_point(point: &[u8]) -> Result<Self, KeyError> {
        let point: [u8; 65] = point.try_into().map_err(|_| KeyError::OtherKind)?;
        if point[0] == 4 { Ok(Self(point)) } else { Err(KeyError::OtherKind) }
    }

    /// The SubjectPublicKeyInfo, in DER.
    #[must_use]
    pub fn spki(&self) -> Vec<u8> {
        [SPKI_HEAD.as_slice(), &self.0].concat()
    }

    /// BLAKE3 of the SubjectPublicKeyInfo: what others pin.
    #[must_use]
    pub fn pin(&self) -> Hash {
        Hash(*blake3::hash(&self.spki()).as_bytes())
    }

    /// Checks a signature made by [`PrivateKey::sign`].
    ///
    /// # Errors
    /// When it was made by another key, for another purpose or over other bytes.
    pub fn verify(&self, domain: &str, bytes: &[u8], signature: &Signature) -> Result<(), KeyError> {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.0)
            .verify(&framed(domain, bytes), &signature.0)
            .map_err(|_| KeyError::BadSignature { domain: domain.to_owned() })
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.pin())
    }
}

impl rcgen::PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }
    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

fn framed(domain: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(25 + domain.len() + bytes.len());
    out.extend_from_slice(b"polder-signature\0");
    out.extend_from_slice(&(domain.len() as u64).to_le_bytes());
    out.extend_from_slice(domain.as_bytes());
    out.extend_from_slice(bytes);
    out
}

/// A signature, base64 in text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Signature(Vec<u8>);

impl TryFrom<String> for Signature {
    type Error = base64::DecodeError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD.decode(text.trim_ascii()).map(Self)
    }
}

impl From<Signature> for String {
    fn from(signature: Signature) -> Self {
        signature.to_string()
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(&self.0))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A private key. Wiped from memory when dropped, never printed.
pub struct PrivateKey {
    pkcs8: Zeroizing<Vec<u8>>,
    pair: EcdsaKeyPair,
    public: PublicKey,
    random: SystemRandom,
}

impl PrivateKey {
    /// Makes a key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn generate() -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
            .map_err(|_| KeyError::NoRandomness)?;
        Self::from_pkcs8(document.as_ref())
    }

    /// Reads a key from PKCS#8 DER.
    ///
    /// # Errors
    /// When it is not an ECDSA P-256 key.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der, &random)
            .map_err(|error| KeyError::Malformed(error.to_string()))?;
        let public = PublicKey::from_point(pair.public_key().as_ref())?;
        Ok(Self { pkcs8: Zeroizing::new(der.to_vec()), pair, public, random })
    }

    /// Reads a key from PKCS#8 PEM.
    ///
    /// # Errors
    /// When the text holds no ECDSA P-256 key.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| KeyError::Malformed(format!("{error:?}")))?;
        Self::from_pkcs8(der.secret_pkcs8_der())
    }

    /// The key as PKCS#8 PEM.
    #[must_use]
    pub fn to_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(pem("PRIVATE KEY", &self.pkcs8))
    }

    /// Its public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs bytes for a purpose.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn sign(&self, domain: &str, bytes: &[u8]) -> Result<Signature, KeyError> {
        let signature =
            self.pair.sign(&self.random, &framed(domain, bytes)).map_err(|_| KeyError::NoRandomness)?;
        Ok(Signature(signature.as_ref().to_vec()))
    }

    pub(crate) fn for_rcgen(&self) -> Result<rcgen::KeyPair, KeyError> {
        let der = PrivatePkcs8KeyDer::from(self.pkcs8.as_slice());
        rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ECDSA_P256_SHA256)
            .map_err(|error| KeyError::Malformed(error.to_string()))
    }

    pub(crate) fn for_rustls(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.pkcs8.to_vec()))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(of {:?})", self.public)
    }
}

/// PEM of one section.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let body = Zeroizing::new(STANDARD.encode(der));
    let mut out = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = more;
    }
    out.push_str("-----END ");
    out.push_str(label);
    out.push_str("-----\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_survives_pem() {
        let key = PrivateKey::generate().unwrap();
        let again = PrivateKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(key.public(), again.public());
        assert_eq!(PublicKey::from_spki(&key.public().spki()), Ok(key.public()));
        assert!(!format!("{key:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_signature_serves_one_purpose_one_key_and_one_text() {
        let key = PrivateKey::generate().unwrap();
        let other = PrivateKey::generate().unwrap();
        let signature = key.sign("polder-order-v1", b"bytes").unwrap();
        assert_eq!(key.public().verify("polder-order-v1", b"bytes", &signature), Ok(()));
        assert!(key.public().verify(DOMAIN_KIT, b"bytes", &signature).is_err());
        assert!(key.public().verify("polder-order-v1", b"bytez", &signature).is_err());
        assert!(other.public().verify("polder-order-v1", b"bytes", &signature).is_err());
        // The border between purpose and bytes cannot be moved.
        let moved = key.sign("polder-order-v", b"1bytes").unwrap();
        assert!(key.public().verify("polder-order-v1", b"bytes", &moved).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,200}", bytes: Vec<u8>) {
            let _ = PrivateKey::from_pem(&text);
            let _ = PrivateKey::from_pkcs8(&bytes);
            let _ = PublicKey::from_spki(&bytes);
            let _ = Signature::try_from(text);
        }
    }
}
