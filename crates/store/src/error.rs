//! What can go wrong with the store.

use std::path::PathBuf;
use std::sync::Arc;

/// Why something could not be stored or read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database refused; `doing` says at what.
    #[error("database: {doing}: {source}")]
    Database {
        /// What was tried.
        doing: &'static str,
        /// What SQLite said.
        source: Arc<rusqlite::Error>,
    },
    /// A file or folder of the state could not be used.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// The database was written by a newer version.
    #[error("{path}: written by a newer version (schema {found}); this one knows schemas up to {known}", path = path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The newest schema known here.
        known: u32,
    },
    /// Another process uses the state.
    #[error("{path}: another parent{} is running on this state directory", holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), path = path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, when it has said so already.
        holder: Option<u32>,
    },
    /// A row that cannot be read.
    #[error("database: a damaged row in {table}: {why}")]
    Damaged {
        /// The table.
        table: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A thing that is there already.
    #[error("{what} exists already")]
    Exists {
        /// What.
        what: String,
    },
    /// Somebody changed it meanwhile.
    #[error("{what} changed meanwhile (it is at version {now})")]
    Changed {
        /// What.
        what: String,
        /// Its version now.
        now: u64,
    },
    /// It is not there.
    #[error("{what} does not exist")]
    Missing {
        /// What.
        what: String,
    },
    /// The writer has stopped.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub(crate) fn at(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Database { doing, source: Arc::new(source) }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source: Arc::new(source) }
    }

    pub(crate) fn damaged<E: std::fmt::Display>(table: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Damaged { table, why: error.to_string() }
    }
}

/// What the store returns.
pub type Result<T> = std::result::Result<T, StoreError>;
