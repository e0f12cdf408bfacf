//! Where a server is: host and port, written `https://host:port`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The address people write for a server. Everything is TLS, so the scheme is always `https`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// A DNS name in lower case, or an address (IPv6 without brackets).
    pub host: String,
    /// The port; 443 when none is written.
    pub port: u16,
}

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a server address: {why}; allowed is https://HOST[:PORT]")]
pub struct EndpointError {
    /// The text, cut to 120 characters.
    pub found: String,
    /// What is wrong.
    pub why: &'static str,
}

/// Whether a text is a DNS name as certificates carry it (letters, digits, inner hyphens, dots).
#[must_use]
pub fn is_dns_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
        && !text.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()))
}

impl Endpoint {
    /// An endpoint from its parts.
    ///
    /// # Errors
    /// When the host is neither a DNS name nor an address.
    pub fn new(host: &str, port: u16) -> Result<Self, EndpointError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Self { host: address.to_string(), port });
        }
        if is_dns_name(host) {
            return Ok(Self { host: host.to_ascii_lowercase(), port });
        }
        Err(EndpointError {
            found: host.chars().take(120).collect(),
            why: "the host is neither a DNS name nor an address",
        })
    }

    /// `host:port`, IPv6 in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.authority())
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = |why| EndpointError { found: text.chars().take(120).collect(), why };
        let rest = text.strip_prefix("https://").ok_or_else(|| wrong("it does not begin with https://"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) {
            return Err(wrong("it has more than host and port"));
        }
        let (host, port) = if let Some(inner) = rest.strip_prefix('[') {
            let (host, after) = inner.split_once(']').ok_or_else(|| wrong("a bracket is not closed"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(wrong("what stands in brackets is not an IPv6 address"));
            }
            let port = match after {
                "" => None,
                _ => Some(after.strip_prefix(':').ok_or_else(|| wrong("no port follows the bracket"))?),
            };
            (host, port)
        } else {
            match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            }
        };
        let port = match port {
            None => 443,
            Some(port) => port
                .parse::<u16>()
                .ok()
                .filter(|n| *n > 0 && !port.starts_with(['+', '0']))
                .ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?,
        };
        Self::new(host, port).map_err(|error| wrong(error.why))
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;
    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_and_bad() {
        for (text, host, port) in [
            ("https://fl.example.org:8443", "fl.example.org", 8443),
            ("https://FL.example.org/", "fl.example.org", 443),
            ("https://10.0.0.1:1", "10.0.0.1", 1),
            ("https://[::1]:8443", "::1", 8443),
        ] {
            assert_eq!(text.parse(), Ok(Endpoint { host: host.to_owned(), port }), "{text}");
        }
        for text in [
            "http://a",
            "https://",
            "https://a:0",
            "https://a:65536",
            "https://a:b",
            "https://a/x",
            "https://u@a",
            "https://::1",
            "https://[::1",
            "https://a_b",
            "https://1.2.3",
            "https://a:+1",
            "a:1",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_prints_back(text in "https://[a-z0-9.:\\[\\]-]{0,30}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>(), Ok(endpoint));
            }
        }
        #[test]
        fn nothing_panics(text in ".{0,60}") {
            let _ = text.parse::<Endpoint>();
        }
    }
}
