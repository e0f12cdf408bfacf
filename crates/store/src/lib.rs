//! What a parent keeps on disk: SQLite for every state that matters, blob files named by hash, app
//! archives and the audit log. Everything is on disk before it is acted on.
//!
//! The rest of a parent sees traits ([`JobStore`], [`SessionStore`], ...); [`Sqlite`] implements them all over one
//! thread that commits in groups ([`db`]).
//!
//! ```text
//! state    the directory, locked by one process
//! db       the database's thread; schema: tables and their versions
//! jobs     jobs, events, rounds, results, nonces, what holds which blob
//! sessions, registry, sites, enrolments, documents; the launch ledger's rows
//! bundle   apps as archives
//! audit    a log in which no line can be changed unnoticed
//! ```

pub mod audit;
pub mod bundle;
pub mod db;
pub mod documents;
pub mod enrolments;
pub mod error;
pub mod jobs;
mod ledger;
mod schema;
pub mod sessions;
pub mod sites;
pub mod state;

pub use audit::Audit;
pub use db::Db;
pub use documents::DocumentStore;
pub use enrolments::{Bound, Enrolment, EnrolmentStore};
pub use error::{Result, StoreError};
pub use jobs::{Inserted, JobChange, JobRow, JobStore, NewJob};
pub use sessions::{SessionRow, SessionStore};
pub use sites::{RegistryRow, RegistryStore, SiteRow, SiteStore};
pub use state::StateDir;

use std::path::Path;

/// Everything a parent stores, behind one object.
pub trait Store:
    JobStore + SessionStore + RegistryStore + SiteStore + EnrolmentStore + DocumentStore
{
}
impl<T: JobStore + SessionStore + RegistryStore + SiteStore + EnrolmentStore + DocumentStore> Store for T {}

/// The store in one SQLite file.
#[derive(Debug, Clone)]
pub struct Sqlite {
    db: Db,
}

impl Sqlite {
    /// Opens `polder.db` in a state directory.
    ///
    /// # Errors
    /// When the file cannot be opened, is damaged, or comes from a newer version.
    pub fn open(state: &Path) -> Result<Self> {
        Ok(Self { db: Db::open(&state.join("polder.db"))? })
    }

    /// The database, for what has no trait here.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }
}
