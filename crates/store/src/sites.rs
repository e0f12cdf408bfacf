//! The study registry, and what the server last heard of each site.

use crate::Sqlite;
use crate::error::{Result, StoreError};
use crate::jobs::{signed, unsigned};
use async_trait::async_trait;
use polder_words::SiteName;
use rusqlite::{OptionalExtension, params};

/// The registry as one versioned document.
#[derive(Debug, Clone, PartialEq)]
pub struct RegistryRow {
    /// Grows with every change.
    pub version: u64,
    /// The studies.
    pub body: serde_json::Value,
}

/// Where the study registry is kept.
#[async_trait]
pub trait RegistryStore: Send + Sync {
    /// The registry, once there is one.
    async fn registry(&self) -> Result<Option<RegistryRow>>;
    /// Replaces the registry of version `from` (0: there is none) by the next one.
    async fn put_registry(&self, from: u64, body: serde_json::Value) -> Result<u64>;
}

/// What was last heard of a site.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteRow {
    /// Which.
    pub name: SiteName,
    /// Milliseconds since 1970.
    pub last_seen: u64,
    /// What it said of itself.
    pub body: serde_json::Value,
}

/// Where sites are kept.
#[async_trait]
pub trait SiteStore: Send + Sync {
    /// Notes what was heard.
    async fn put_site(&self, site: SiteRow) -> Result<()>;
    /// All that were ever heard of.
    async fn sites(&self) -> Result<Vec<SiteRow>>;
}

#[async_trait]
impl RegistryStore for Sqlite {
    async fn registry(&self) -> Result<Option<RegistryRow>> {
        self.db
            .call(|c| {
                c.query_row("SELECT version, body FROM registry", [], |row| {
                    Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
                })
                .optional()
                .map_err(StoreError::at("reading the registry"))?
                .map(|(version, body)| {
                    let body = serde_json::from_str(&body).map_err(StoreError::damaged("registry"))?;
                    Ok(RegistryRow { version: unsigned(version), body })
                })
                .transpose()
            })
            .await
    }

    async fn put_registry(&self, from: u64, body: serde_json::Value) -> Result<u64> {
        self.db
            .call(move |c| {
                let doing = || StoreError::at("storing the registry");
                let now: Option<i64> = c
                    .query_row("SELECT version FROM registry", [], |row| row.get(0))
                    .optional()
                    .map_err(doing())?;
                let now = now.map_or(0, unsigned);
                if now != from {
                    return Err(StoreError::Changed { what: "the registry".to_owned(), now });
                }
                c.execute(
                    "INSERT OR REPLACE INTO registry(one, version, body) VALUES (1, ?1, ?2)",
                    params![signed(now + 1), body.to_string()],
                )
                .map_err(doing())?;
                Ok(now + 1)
            })
            .await
    }
}

#[async_trait]
impl SiteStore for Sqlite {
    async fn put_site(&self, site: SiteRow) -> Result<()> {
        self.db
            .call(move |c| {
                c.execute(
                    "INSERT OR REPLACE INTO sites(name, last_seen, body) VALUES (?1, ?2, ?3)",
                    params![site.name.as_str(), signed(site.last_seen), site.body.to_string()],
                )
                .map_err(StoreError::at("noting a site"))?;
                Ok(())
            })
            .await
    }

    async fn sites(&self) -> Result<Vec<SiteRow>> {
        self.db
            .call(|c| {
                let rows: Vec<(String, i64, String)> = c
                    .prepare("SELECT name, last_seen, body FROM sites")
                    .and_then(|mut s| {
                        s.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
                    })
                    .map_err(StoreError::at("reading sites"))?;
                rows.into_iter()
                    .map(|(name, last_seen, body)| {
                        Ok(SiteRow {
                            name: name.parse().map_err(StoreError::damaged("sites"))?,
                            last_seen: unsigned(last_seen),
                            body: serde_json::from_str(&body).map_err(StoreError::damaged("sites"))?,
                        })
                    })
                    .collect()
            })
            .await
    }
}
