//! The tables, their version, and how an older file becomes a newer one.

use crate::error::{Result, StoreError};
use rusqlite::Connection;
use std::path::Path;
use std::time::Duration;

/// One step each; the schema's version is the number of steps done (`PRAGMA user_version`). A step that was
/// released never changes.
const STEPS: &[&str] = &["
CREATE TABLE jobs(
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    study TEXT NOT NULL,
    name TEXT NOT NULL,
    submitter TEXT NOT NULL,
    submitter_org TEXT NOT NULL,
    priority TEXT NOT NULL,
    signed TEXT NOT NULL,           -- SignedOrder, JSON
    phase TEXT NOT NULL,
    final INTEGER NOT NULL DEFAULT 0,
    reason TEXT,
    failure TEXT,                   -- Failure, JSON
    round INTEGER NOT NULL DEFAULT 0,
    total_rounds INTEGER NOT NULL DEFAULT 0,
    metrics TEXT NOT NULL DEFAULT '{}',
    state TEXT NOT NULL,            -- what the server's role keeps of it, JSON
    submitted INTEGER NOT NULL,
    started INTEGER,
    finished INTEGER
) STRICT;
CREATE INDEX jobs_by_study ON jobs(study, seq);
CREATE INDEX jobs_that_live ON jobs(seq) WHERE final = 0;
CREATE TABLE events(
    job TEXT NOT NULL,
    n INTEGER NOT NULL,
    at INTEGER NOT NULL,
    body TEXT NOT NULL,             -- EventKind, JSON
    PRIMARY KEY(job, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE results(
    job TEXT NOT NULL,
    name TEXT NOT NULL,
    root TEXT NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY(job, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE holds(
    study TEXT NOT NULL,
    root TEXT NOT NULL,
    job TEXT NOT NULL,
    PRIMARY KEY(study, root, job)
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_by_job ON holds(job);
CREATE TABLE nonces(nonce TEXT PRIMARY KEY, expires INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE sessions(
    id TEXT PRIMARY KEY,
    secret TEXT NOT NULL,           -- hash of the token's secret half
    user TEXT NOT NULL,
    study TEXT NOT NULL,
    certificate TEXT NOT NULL,      -- fingerprint
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE registry(
    one INTEGER PRIMARY KEY CHECK(one = 1),
    version INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE TABLE sites(name TEXT PRIMARY KEY, last_seen INTEGER NOT NULL, body TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE launches(
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL              -- the ledger's row, JSON
) STRICT, WITHOUT ROWID;
CREATE TABLE enrolments(
    launch TEXT PRIMARY KEY,
    token TEXT NOT NULL,            -- hash of the one-time token
    key TEXT,                       -- hash of the first key it came with
    certificate TEXT,               -- what that key was given, PEM
    quarantined INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE documents(
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY(kind, key)
) STRICT, WITHOUT ROWID;
"];

/// The newest schema known.
pub(crate) fn known() -> u32 {
    u32::try_from(STEPS.len()).unwrap_or(u32::MAX)
}

/// Sets the connection up and does the steps that are missing.
pub(crate) fn prepare(connection: &Connection, path: &Path) -> Result<()> {
    let set = StoreError::at;
    connection.busy_timeout(Duration::from_secs(5)).map_err(set("setting up"))?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;
             PRAGMA cache_size = -1024; PRAGMA temp_store = MEMORY; PRAGMA journal_size_limit = 4194304;",
        )
        .map_err(set("setting up"))?;
    connection.set_prepared_statement_cache_capacity(48);
    let found: u32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(set("reading the version"))?;
    if found > known() {
        return Err(StoreError::Newer { path: path.to_owned(), found, known: known() });
    }
    for (done, step) in STEPS.iter().enumerate().skip(found as usize) {
        connection
            .execute_batch(&format!("BEGIN; {step}; PRAGMA user_version = {}; COMMIT;", done + 1))
            .map_err(set("bringing the schema up to date"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_newer_version_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("polder.db");
        let connection = Connection::open(&path).expect("opens");
        prepare(&connection, &path).expect("new");
        prepare(&connection, &path).expect("known");
        connection.execute_batch("PRAGMA user_version = 99").expect("set");
        let error = prepare(&connection, &path).expect_err("newer").to_string();
        assert!(error.contains("newer version (schema 99)"), "{error}");
    }

    #[test]
    fn every_commit_is_synced() {
        let connection = Connection::open_in_memory().expect("opens");
        prepare(&connection, Path::new("memory")).expect("new");
        let full: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).expect("says");
        assert_eq!(full, 2);
    }
}
