//! Polder's own keys of a study: who may use it, what may leave and be reached, which images, how much at once.

use crate::error::Result;
use crate::images;
use crate::scalars::Memory;
use crate::value::{At, Value};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Who may use a study on the cluster by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// Accounts.
    pub users: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
}

impl Access {
    pub(super) fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&["users", "groups"])?;
        let names = |key: &str| match fields.given(key) {
            None => Ok(Vec::new()),
            Some(at) => at.seq()?.iter().map(account).collect(),
        };
        Ok(Self { users: names("users")?, groups: names("groups")? })
    }

    pub(super) fn to_value(&self) -> Value {
        let names = |names: &[String]| Value::seq(names.iter().map(|name| Value::from(name.as_str())));
        Value::map([("users", names(&self.users)), ("groups", names(&self.groups))])
    }
}

/// The name of an account or group of a host. `root` is none: nothing of a study runs as root.
pub(super) fn account(at: &At<'_>) -> Result<String> {
    const ALLOWED: &str =
        "an account's name: letters, digits, `.`, `_`, `-` or `@`, no digit or `-` first; not root";
    let text = at.text()?;
    let good = text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'@'))
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text != "root";
    if good { Ok(text.to_owned()) } else { Err(at.refuse("is not an account", ALLOWED)) }
}

/// A place workers may reach.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Egress {
    /// A name, `*.domain`, or an address; IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Egress {
    /// Reads `host:port`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = (port.bytes().all(|b| b.is_ascii_digit())).then(|| port.parse().ok())??;
        let bare = host.strip_prefix("*.").unwrap_or(host);
        let good = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                (1..=253).contains(&bare.len())
                    && bare.split('.').all(|label| {
                        !label.is_empty()
                            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
                    })
            }
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (good && port > 0).then(|| Self { host: host.to_owned(), port })
    }

    pub(super) fn read(at: &At<'_>) -> Result<Self> {
        at.value()
            .as_text()
            .and_then(Self::parse)
            .ok_or_else(|| at.refuse("is not a place to reach", "host:port, *.domain:port or [v6]:port"))
    }
}

impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Whether somebody at the site has to agree to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Nobody.
    #[default]
    None,
    /// Once for each bundle of code.
    ByHash,
    /// For each job.
    Manual,
}

const APPROVALS: [(&str, Approval); 3] =
    [("none", Approval::None), ("by_hash", Approval::ByHash), ("manual", Approval::Manual)];

impl Approval {
    pub(super) fn read(at: &At<'_>) -> Result<Self> {
        at.word(&APPROVALS)
    }

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        APPROVALS.iter().find(|(_, value)| *value == self).map_or("none", |(word, _)| word)
    }
}

/// Which images may run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImagePolicy {
    /// Patterns, `*` for any run of characters; absent: any.
    pub allow: Option<Vec<String>>,
    /// Whether a reference needs a digest (`name@sha256:...`).
    pub require_digest: bool,
    /// Whether the digest a reference had at first is kept.
    pub pin: bool,
}

impl ImagePolicy {
    pub(super) fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&["allow", "require_digest", "pin"])?;
        let flag = |key: &str| fields.given(key).map_or(Ok(false), |at| at.bool());
        let allow = match fields.given("allow") {
            None => None,
            Some(at) => Some(
                at.seq()?
                    .iter()
                    .map(|item| {
                        let text = item.text()?;
                        if images::is_pattern(text) {
                            Ok(text.to_owned())
                        } else {
                            Err(item
                                .refuse("is not a pattern of images", "such as registry.example.org/study/*"))
                        }
                    })
                    .collect::<Result<_>>()?,
            ),
        };
        Ok(Self { allow, require_digest: flag("require_digest")?, pin: flag("pin")? })
    }

    pub(super) fn to_value(&self) -> Value {
        let mut out = Vec::new();
        if let Some(allow) = &self.allow {
            out.push(("allow", Value::seq(allow.iter().map(|pattern| Value::from(pattern.as_str())))));
        }
        out.push(("require_digest", Value::from(self.require_digest)));
        out.push(("pin", Value::from(self.pin)));
        Value::map(out)
    }
}

/// How much of the site a study may have at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// GPUs.
    pub gpus: Option<u32>,
    /// CPUs.
    pub cpus: Option<u32>,
    /// Memory.
    pub memory: Option<Memory>,
    /// The longest time of a job.
    pub time: Option<Duration>,
    /// Jobs.
    pub jobs: Option<u32>,
}

impl Limits {
    pub(super) fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&["gpus", "cpus", "memory", "time", "jobs"])?;
        let count = |key: &str| fields.given(key).map(|at| at.count(0, 1_000_000)).transpose();
        Ok(Self {
            gpus: count("gpus")?,
            cpus: count("cpus")?,
            memory: fields.given("memory").map(|at| Memory::read(&at)).transpose()?,
            time: fields.given("time").map(|at| at.duration()).transpose()?,
            jobs: count("jobs")?,
        })
    }

    pub(super) fn to_value(&self) -> Value {
        let mut out = Vec::new();
        let mut put = |key, value: Option<Value>| out.extend(value.map(|value| (key, value)));
        put("gpus", self.gpus.map(Value::from));
        put("cpus", self.cpus.map(Value::from));
        put("memory", self.memory.as_ref().map(|memory| Value::from(memory.as_str())));
        put("time", self.time.map(|time| Value::from(crate::time::print(time))));
        put("jobs", self.jobs.map(Value::from));
        Value::map(out)
    }
}
