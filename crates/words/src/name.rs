//! Names people choose: sites, studies, users, organisations and apps.
//!
//! A name ends up in paths, certificates, labels and job names, so what is allowed is narrow and
//! checked here once. The study rule is FLARE 2.9's (`^[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?$`).

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a text is not the name it was meant to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a {what}: {allowed}")]
pub struct NameError {
    /// What was asked for: `site name`, `study name`, ...
    pub what: &'static str,
    /// The text that was given, cut to 80 characters.
    pub found: String,
    /// The rule, in words.
    pub allowed: &'static str,
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// A host-like name: 1 to 63 of `A-Z a-z 0-9 . _ -`, beginning and ending with a letter or digit, no `..`.
fn is_host_like(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|b| is_plain(*b))
        && bytes[0].is_ascii_alphanumeric()
        && bytes[bytes.len() - 1].is_ascii_alphanumeric()
        && !text.contains("..")
}

fn is_study(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&bytes.len())
        && edge(bytes[0])
        && edge(bytes[bytes.len() - 1])
        && bytes.iter().all(|b| edge(*b) || matches!(b, b'_' | b'-'))
}

fn is_user(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=128).contains(&bytes.len())
        && bytes.iter().all(|b| is_plain(*b) || matches!(b, b'@' | b'+'))
        && bytes[0].is_ascii_alphanumeric()
        && !text.contains("..")
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $check:expr, $allowed:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Box<str>);

        impl $type {
            /// Checks and takes a name.
            ///
            /// # Errors
            /// When the text does not follow the rule of this kind of name.
            pub fn new(text: &str) -> Result<Self, NameError> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(NameError { what: $what, found: text.chars().take(80).collect(), allowed: $allowed })
                }
            }

            /// The name as written.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &self.0)
            }
        }

        impl std::str::FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $type {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(&text)
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0.into()
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// A site of the federation; the server's own site is called `server`.
    SiteName, "site name", is_host_like,
    "1 to 63 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
);
name!(
    /// A study. `default` is reserved but valid.
    StudyName, "study name", is_study,
    "1 to 63 lower-case letters, digits, '_' or '-', beginning and ending with a letter or digit"
);
name!(
    /// A person, usually written like a mail address.
    UserName, "user name", is_user,
    "1 to 128 letters, digits, '.', '_', '-', '+' or '@', beginning with a letter or digit"
);
name!(
    /// An organisation: what sites and users belong to.
    OrgName, "organisation name", is_host_like,
    "1 to 63 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
);
name!(
    /// An app folder of a job, as named in `deploy_map`.
    AppName, "app name", is_host_like,
    "1 to 63 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
);

impl SiteName {
    /// The name under which the server takes part in `deploy_map` and `resource_spec`.
    #[must_use]
    pub fn server() -> Self {
        Self("server".into())
    }

    /// Whether this is the server's own place.
    #[must_use]
    pub fn is_server(&self) -> bool {
        &*self.0 == "server"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn study_names_follow_flare() {
        for good in ["a", "pathology", "a-b_c", "0", &"a".repeat(63)] {
            assert!(StudyName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a.b", "ä", &"a".repeat(64), "a b", "a\n"] {
            assert!(StudyName::new(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_never_a_path(text in ".{0,70}") {
            for ok in [SiteName::new(&text).is_ok(), StudyName::new(&text).is_ok(), UserName::new(&text).is_ok()] {
                if ok {
                    prop_assert!(!text.contains('/') && !text.contains("..") && !text.starts_with('.') && !text.contains('\0'));
                }
            }
        }

        #[test]
        fn what_is_accepted_prints_back(text in "[a-z0-9._@-]{1,70}") {
            if let Ok(name) = UserName::new(&text) {
                prop_assert_eq!(UserName::new(name.as_ref()), Ok(name));
            }
        }
    }
}
