//! Certificates that were taken back: the signed list in the server's kit, read again when it changes.
//!
//! The listener refuses a revoked certificate in the handshake; a connection that was there before is refused at
//! its next request.

use polder_api::{Problem, ProblemCode};
use polder_transport::identity::{Identity, Kit, RevocationList, Revocations, Trust};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Beside the other files of the kit.
const FILE: &str = "revoked.json";

/// The list in force.
pub(super) struct Revoked {
    path: PathBuf,
    trust: Trust,
    list: Arc<Revocations>,
    stamp: Mutex<Option<(SystemTime, u64)>>,
}

impl Revoked {
    /// Reads the list; one that cannot be believed is a reason not to start.
    pub(super) fn open(kit: &Kit) -> anyhow::Result<Self> {
        let path = kit.dir().join(FILE);
        let stamp = stamp(&path);
        let list = match stamp {
            Some(_) => Revocations::new(&RevocationList::read(&path, kit.trust())?),
            None => Revocations::default(),
        };
        Ok(Self { path, trust: kit.trust().clone(), list: Arc::new(list), stamp: Mutex::new(stamp) })
    }

    /// What the listener looks at.
    pub(super) fn list(&self) -> &Arc<Revocations> {
        &self.list
    }

    /// Refuses a certificate that was taken back.
    pub(super) fn check(&self, identity: &Identity) -> Result<(), Problem> {
        self.look();
        if self.list.is_revoked(identity) {
            let text = format!("certificate {} of {} is revoked", identity.serial, identity.name());
            return Err(Problem::new(ProblemCode::Unauthenticated, text));
        }
        Ok(())
    }

    fn look(&self) {
        let mut known = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.path);
        // A list that vanished takes nothing back.
        if now == *known || now.is_none() {
            return;
        }
        *known = now;
        match RevocationList::read(&self.path, &self.trust).and_then(|list| self.list.replace(&list)) {
            Ok(()) => tracing::info!(file = %self.path.display(), "read what certificates are revoked"),
            Err(error) => {
                tracing::error!(%error, "the revocation list is not accepted; the one before stays in force");
            }
        }
    }
}

fn stamp(path: &PathBuf) -> Option<(SystemTime, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}
