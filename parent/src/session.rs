//! Tokens: how they are made, split and compared.
//!
//! A session's token is `<id>.<secret>`, both hexadecimal: the id finds the row, of the secret only the hash is
//! stored and compared in constant time. A worker's one-time token is a secret alone.

use polder_words::Hash;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt::Write;
use subtle::ConstantTimeEq;

/// The system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub(crate) struct NoRandom;

/// Fresh random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandom)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A new token.
pub(crate) struct Token {
    /// Finds the row.
    pub(crate) id: String,
    /// What is stored of the secret.
    pub(crate) secret: Hash,
    /// What its owner is given, once.
    pub(crate) text: String,
}

impl Token {
    /// Made of fresh random bytes.
    pub(crate) fn new() -> Result<Self, NoRandom> {
        let id = hex(&random::<8>()?);
        let secret = hex(&random::<32>()?);
        Ok(Self { secret: hash(&secret), text: format!("{id}.{secret}"), id })
    }
}

/// The two halves of a session's token.
pub(crate) fn split(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.split_once('.')?;
    (id.len() == 16 && secret.len() == 64).then_some((id, secret))
}

/// What is stored of a secret.
pub(crate) fn hash(secret: &str) -> Hash {
    Hash(*blake3::hash(secret.as_bytes()).as_bytes())
}

/// Whether a secret is the one that was stored; takes as long for a wrong one as for the right one.
pub(crate) fn is(secret: &str, stored: &Hash) -> bool {
    hash(secret).0.ct_eq(&stored.0).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_secret() {
        let token = Token::new().expect("random bytes");
        let (id, secret) = split(&token.text).expect("two halves");
        assert_eq!(id, token.id);
        assert!(is(secret, &token.secret));
        assert!(!is(&Token::new().expect("random bytes").text, &token.secret));
        assert!(!is(&secret.to_uppercase(), &token.secret) || secret.bytes().all(|b| b.is_ascii_digit()));
        for bad in ["", ".", "a.b", &token.id] {
            assert_eq!(split(bad), None);
        }
    }
}
