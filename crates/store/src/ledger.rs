//! The launch ledger's rows in the parent's database.

use crate::Sqlite;
use crate::error::StoreError;
use async_trait::async_trait;
use polder_launch::store::{LedgerStore, StoreError as LedgerError};
use rusqlite::params;

fn failed(what: &'static str) -> impl FnOnce(StoreError) -> LedgerError {
    move |error| LedgerError::new(what, error)
}

#[async_trait]
impl LedgerStore for Sqlite {
    async fn load(&self) -> Result<Vec<(String, String)>, LedgerError> {
        self.db
            .call(|c| {
                c.prepare("SELECT id, body FROM launches ORDER BY id")
                    .and_then(|mut s| s.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
                    .map_err(StoreError::at("reading the launch ledger"))
            })
            .await
            .map_err(failed("cannot be read"))
    }

    async fn put(&self, key: &str, row: &str) -> Result<(), LedgerError> {
        let (key, row) = (key.to_owned(), row.to_owned());
        self.db
            .call(move |c| {
                c.prepare_cached("INSERT OR REPLACE INTO launches(id, body) VALUES (?1, ?2)")
                    .and_then(|mut s| s.execute(params![key, row]))
                    .map_err(StoreError::at("writing the launch ledger"))?;
                Ok(())
            })
            .await
            .map_err(failed("a row cannot be written"))
    }

    async fn delete(&self, key: &str) -> Result<(), LedgerError> {
        let key = key.to_owned();
        self.db
            .call(move |c| {
                c.execute("DELETE FROM launches WHERE id = ?1", [key])
                    .map_err(StoreError::at("writing the launch ledger"))?;
                Ok(())
            })
            .await
            .map_err(failed("a row cannot be removed"))
    }
}
