//! Who may do what at the server: `authorization.json` beside `parent.yaml`, read again when it changes.

use polder_api::{Problem, ProblemCode};
use polder_core::authz::{Person, Policy, Question, Right};
use polder_words::{OrgName, UserName, UserRole};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The policy in force.
pub(super) struct Rights {
    path: PathBuf,
    /// The server's own organisation: what `o:site` means here.
    org: OrgName,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    /// Of the file; `None`: there is none.
    stamp: Option<(SystemTime, u64)>,
    policy: Arc<Policy>,
}

/// A person who wants something.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) name: UserName,
    pub(super) org: OrgName,
    pub(super) role: UserRole,
}

impl Rights {
    /// Reads the file, if there is one.
    pub(super) fn open(path: PathBuf, org: OrgName) -> anyhow::Result<Self> {
        let (stamp, policy) = read(&path)?.map_or_else(|| (None, Policy::default()), |(s, p)| (Some(s), p));
        for warning in &policy.warnings {
            tracing::warn!(file = %path.display(), "{warning}");
        }
        Ok(Self { path, org, loaded: Mutex::new(Loaded { stamp, policy: Arc::new(policy) }) })
    }

    /// The policy as the file says it now. A file that became unreadable changes nothing, and is said.
    fn policy(&self) -> Arc<Policy> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if stamp(&self.path) != loaded.stamp {
            match read(&self.path) {
                Ok(Some((stamp, policy))) => {
                    *loaded = Loaded { stamp: Some(stamp), policy: Arc::new(policy) }
                }
                Ok(None) => *loaded = Loaded { stamp: None, policy: Arc::default() },
                Err(error) => {
                    tracing::error!(%error, "authorization.json is not accepted; what was read before stays in force");
                    loaded.stamp = stamp(&self.path);
                }
            }
        }
        Arc::clone(&loaded.policy)
    }

    /// Whether somebody may do this, with the job's submitter where it is about a job.
    pub(super) fn check(
        &self,
        who: &Who,
        right: Right,
        submitter: Option<(&UserName, &OrgName)>,
    ) -> Result<(), Problem> {
        let question = Question {
            right,
            command: None,
            user: Person { name: &who.name, org: &who.org },
            role: who.role,
            site_org: &self.org,
            submitter: submitter.map(|(name, org)| Person { name, org }),
        };
        let decision = self.policy().decide(&question);
        if decision.allowed {
            Ok(())
        } else {
            Err(Problem::new(ProblemCode::Forbidden, decision.sentence(&question)))
        }
    }
}

fn stamp(path: &PathBuf) -> Option<(SystemTime, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

type Read = Option<((SystemTime, u64), Policy)>;

fn read(path: &PathBuf) -> anyhow::Result<Read> {
    let Some(stamp) = stamp(path) else { return Ok(None) };
    let bytes = std::fs::read(path)?;
    Ok(Some((stamp, Policy::parse(&path.display().to_string(), &bytes)?)))
}
