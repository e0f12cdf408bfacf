//! Small JSON documents by kind and key, for roles that need no table of their own.

use crate::Sqlite;
use crate::error::{Result, StoreError};
use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};
use serde_json::Value;

/// Where documents are kept.
#[async_trait]
pub trait DocumentStore: Send + Sync {
    /// Stores one in place of the one before.
    async fn put_document(&self, kind: &'static str, key: &str, body: Value) -> Result<()>;
    /// One.
    async fn document(&self, kind: &'static str, key: &str) -> Result<Option<Value>>;
    /// All of a kind, by key.
    async fn documents(&self, kind: &'static str) -> Result<Vec<(String, Value)>>;
    /// Removes one, if it is there.
    async fn remove_document(&self, kind: &'static str, key: &str) -> Result<()>;
}

fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(StoreError::damaged("documents"))
}

#[async_trait]
impl DocumentStore for Sqlite {
    async fn put_document(&self, kind: &'static str, key: &str, body: Value) -> Result<()> {
        let key = key.to_owned();
        self.db
            .call(move |c| {
                c.prepare_cached("INSERT OR REPLACE INTO documents(kind, key, body) VALUES (?1, ?2, ?3)")
                    .and_then(|mut s| s.execute(params![kind, key, body.to_string()]))
                    .map_err(StoreError::at("storing a document"))?;
                Ok(())
            })
            .await
    }

    async fn document(&self, kind: &'static str, key: &str) -> Result<Option<Value>> {
        let key = key.to_owned();
        self.db
            .call(move |c| {
                c.query_row(
                    "SELECT body FROM documents WHERE kind = ?1 AND key = ?2",
                    params![kind, key],
                    |row| row.get::<_, String>(0),
                )
                .optional()
                .map_err(StoreError::at("reading a document"))?
                .map(|text| parse(&text))
                .transpose()
            })
            .await
    }

    async fn documents(&self, kind: &'static str) -> Result<Vec<(String, Value)>> {
        self.db
            .call(move |c| {
                let rows: Vec<(String, String)> = c
                    .prepare("SELECT key, body FROM documents WHERE kind = ?1 ORDER BY key")
                    .and_then(|mut s| s.query_map([kind], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
                    .map_err(StoreError::at("reading documents"))?;
                rows.into_iter().map(|(key, text)| Ok((key, parse(&text)?))).collect()
            })
            .await
    }

    async fn remove_document(&self, kind: &'static str, key: &str) -> Result<()> {
        let key = key.to_owned();
        self.db
            .call(move |c| {
                c.execute("DELETE FROM documents WHERE kind = ?1 AND key = ?2", params![kind, key])
                    .map_err(StoreError::at("removing a document"))?;
                Ok(())
            })
            .await
    }
}
