//! Ids the system makes: jobs, launches, tasks, hashes, epochs.

use crate::name::{NameError, SiteName};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let bytes = text.as_bytes();
    if bytes.len() != 2 * N {
        return None;
    }
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    for (slot, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *slot = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $type:ident, $n:literal, $what:literal, $allowed:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(pub [u8; $n]);

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for byte in self.0 {
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                from_hex(text).map(Self).ok_or_else(|| NameError {
                    what: $what,
                    found: text.chars().take(80).collect(),
                    allowed: $allowed,
                })
            }
        }
        impl TryFrom<String> for $type {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(id: $type) -> String {
                id.to_string()
            }
        }
    };
}

hex_id!(
    /// A job. Its id is the first 16 bytes of the BLAKE3 hash of the signed order's bytes, so the same
    /// order sent twice is the same job and a server cannot give an order another id.
    JobId, 16, "job id", "32 lower-case hexadecimal digits"
);
hex_id!(
    /// A BLAKE3 hash: of a blob (equal to what `b3sum` prints), a bundle or an order.
    Hash, 32, "hash", "64 lower-case hexadecimal digits"
);
hex_id!(
    /// A number used once, in orders.
    Nonce, 16, "nonce", "32 lower-case hexadecimal digits"
);
hex_id!(
    /// One run of a parent process. Cursors carry it, so that a reader notices a restart.
    Epoch, 8, "epoch", "16 lower-case hexadecimal digits"
);

impl JobId {
    /// The first twelve digits: what people see and may type.
    #[must_use]
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(12);
        text
    }

    /// The id of the job that an order with this hash asks for.
    #[must_use]
    pub fn of_order(order: &Hash) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&order.0[..16]);
        Self(id)
    }
}

/// Which part of a job a worker plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs the workflow, beside the server parent.
    Server,
    /// Runs the trainer, at a site.
    Client,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Server => "server",
            Self::Client => "client",
        })
    }
}

impl FromStr for Role {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "server" => Ok(Self::Server),
            "client" => Ok(Self::Client),
            _ => Err(NameError {
                what: "role",
                found: text.chars().take(80).collect(),
                allowed: "server or client",
            }),
        }
    }
}

/// What a person may do by default; carried in the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserRole {
    /// Runs the federation.
    ProjectAdmin,
    /// Runs the sites of one organisation.
    OrgAdmin,
    /// Submits jobs.
    Lead,
    /// Looks on.
    Member,
}

impl UserRole {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::ProjectAdmin, Self::OrgAdmin, Self::Lead, Self::Member];

    /// The word for it, as in `project.yml`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProjectAdmin => "project_admin",
            Self::OrgAdmin => "org_admin",
            Self::Lead => "lead",
            Self::Member => "member",
        }
    }
}

impl fmt::Display for UserRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for UserRole {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| NameError {
            what: "user role",
            found: text.chars().take(80).collect(),
            allowed: "project_admin, org_admin, lead or member",
        })
    }
}

/// One try to run one worker. A new attempt needs proof that the last is gone or fenced.
///
/// Printed as `<job>.<site>.<role>.<attempt>`; a site's name may hold dots, so it is read from both ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LaunchId {
    /// The job.
    pub job: JobId,
    /// Where it runs.
    pub site: SiteName,
    /// What it plays.
    pub role: Role,
    /// 1 for the first try.
    pub attempt: u32,
}

impl fmt::Display for LaunchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.job, self.site, self.role, self.attempt)
    }
}

impl FromStr for LaunchId {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let parse = || {
            let (job, rest) = text.split_once('.')?;
            let (rest, attempt) = rest.rsplit_once('.')?;
            let (site, role) = rest.rsplit_once('.')?;
            Some(Self {
                job: job.parse().ok()?,
                site: site.parse().ok()?,
                role: role.parse().ok()?,
                attempt: attempt.parse().ok().filter(|n| *n > 0 && !attempt.starts_with(['+', '0']))?,
            })
        };
        parse().ok_or_else(|| NameError {
            what: "launch id",
            found: text.chars().take(80).collect(),
            allowed: "<job>.<site>.<role>.<attempt>",
        })
    }
}

impl TryFrom<String> for LaunchId {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<LaunchId> for String {
    fn from(id: LaunchId) -> String {
        id.to_string()
    }
}

/// One task of one server worker: a new attempt of that worker gives its tasks new ids, so that a
/// result that was computed for an attempt that died can never be taken for a current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// Attempt of the server worker that gave the task.
    pub attempt: u32,
    /// Round, counted from 1.
    pub round: u32,
    /// Number within the round, counted from 0 (a cyclic workflow has several).
    pub step: u32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.attempt, self.round, self.step)
    }
}

/// A blob: named by the BLAKE3 hash of its bytes (equal to what `b3sum` prints) and never without its
/// size, so that a reader knows what to expect before the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlobRef {
    /// BLAKE3 of the whole blob.
    pub root: Hash,
    /// Bytes.
    pub size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn launch_ids_read_back(job: [u8; 16], site in "[a-z][a-z0-9.-]{0,20}[a-z0-9]", server: bool, attempt in 1u32..) {
            prop_assume!(SiteName::new(&site).is_ok());
            let id = LaunchId {
                job: JobId(job),
                site: SiteName::new(&site).expect("checked above"),
                role: if server { Role::Server } else { Role::Client },
                attempt,
            };
            prop_assert_eq!(id.to_string().parse::<LaunchId>(), Ok(id));
        }

        #[test]
        fn nothing_panics(text in ".{0,90}") {
            let _ = text.parse::<LaunchId>();
            let _ = text.parse::<Hash>();
            let _ = text.parse::<JobId>();
        }
    }
}
