//! Where the ledger's rows are kept.

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use thiserror::Error;

/// The disk did not do it.
#[derive(Debug, Error)]
#[error("ledger: {what}")]
pub struct StoreError {
    /// What failed.
    pub what: String,
    /// Why.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// From an error of the store below.
    pub fn new(what: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { what: what.into(), source: Some(source.into()) }
    }

    /// What failed and why, all of it.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.what.clone();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(&format!(": {error}"));
            source = error.source();
        }
        text
    }
}

/// Rows by key: a text to a JSON document. Dull on purpose, so that any store can be one.
#[async_trait]
pub trait LedgerStore: Send + Sync {
    /// Every row.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn load(&self) -> Result<Vec<(String, String)>, StoreError>;

    /// Writes a row. It is on disk, synced, when this returns.
    ///
    /// # Errors
    /// When it is not.
    async fn put(&self, key: &str, row: &str) -> Result<(), StoreError>;

    /// Forgets a row; one that is not there is forgotten already.
    ///
    /// # Errors
    /// When it may still be there.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;
}

/// Rows in memory, for tests: clones share them, so a "restarted" ledger finds what the last one wrote.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Mutex<BTreeMap<String, String>>>);

#[async_trait]
impl LedgerStore for MemoryStore {
    async fn load(&self) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.0.lock().expect("no holder of this lock panics");
        Ok(rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    async fn put(&self, key: &str, row: &str) -> Result<(), StoreError> {
        self.0.lock().expect("no holder of this lock panics").insert(key.to_owned(), row.to_owned());
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.0.lock().expect("no holder of this lock panics").remove(key);
        Ok(())
    }
}
