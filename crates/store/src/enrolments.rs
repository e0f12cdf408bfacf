//! One-time tokens of workers, and the key each was first used with.
//!
//! ```text
//! (token) --first key--> bound --same key--> the same certificate again
//!                          '----another key--> quarantined: neither key is served any more
//! ```

use crate::Sqlite;
use crate::error::{Result, StoreError};
use async_trait::async_trait;
use polder_words::{Hash, LaunchId};
use rusqlite::{OptionalExtension, params};

/// What is known of the enrolment of one launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolment {
    /// BLAKE3 of the token.
    pub token: Hash,
    /// The key it was first used with.
    pub key: Option<Hash>,
    /// The certificate that key was given, PEM.
    pub certificate: Option<String>,
    /// Another key came with the token.
    pub quarantined: bool,
}

/// What became of [`EnrolmentStore::bind_key`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// The token is bound to this key now; the certificate handed in counts.
    First,
    /// It was bound to this key before; this is the certificate.
    Same(String),
    /// It was bound to another: the launch is quarantined.
    Other,
    /// It is quarantined, or not known.
    Refused,
}

/// Where enrolments are kept.
#[async_trait]
pub trait EnrolmentStore: Send + Sync {
    /// A new token, in place of an older one that was not used.
    async fn put_enrolment(&self, launch: &LaunchId, token: Hash) -> Result<()>;
    /// What is known of a launch.
    async fn enrolment(&self, launch: &LaunchId) -> Result<Option<Enrolment>>;
    /// Binds the token to a key, once.
    async fn bind_key(&self, launch: &LaunchId, key: Hash, certificate: String) -> Result<Bound>;
    /// Forgets a launch.
    async fn remove_enrolment(&self, launch: &LaunchId) -> Result<()>;
}

fn read(c: &rusqlite::Connection, launch: &str) -> Result<Option<Enrolment>> {
    let row = c
        .query_row(
            "SELECT token, key, certificate, quarantined FROM enrolments WHERE launch = ?1",
            [launch],
            |row| {
                Ok((
                    row.get::<_, String>(0)?,
                    row.get::<_, Option<String>>(1)?,
                    row.get::<_, Option<String>>(2)?,
                    row.get::<_, bool>(3)?,
                ))
            },
        )
        .optional()
        .map_err(StoreError::at("reading an enrolment"))?;
    let damaged = || StoreError::damaged("enrolments");
    row.map(|(token, key, certificate, quarantined)| {
        Ok(Enrolment {
            token: token.parse().map_err(damaged())?,
            key: key.map(|key| key.parse()).transpose().map_err(damaged())?,
            certificate,
            quarantined,
        })
    })
    .transpose()
}

#[async_trait]
impl EnrolmentStore for Sqlite {
    async fn put_enrolment(&self, launch: &LaunchId, token: Hash) -> Result<()> {
        let launch = launch.to_string();
        self.db
            .call(move |c| {
                let changed = c
                    .execute(
                        "INSERT INTO enrolments(launch, token) VALUES (?1, ?2)
                         ON CONFLICT(launch) DO UPDATE SET token = excluded.token WHERE key IS NULL",
                        params![launch, token.to_string()],
                    )
                    .map_err(StoreError::at("storing an enrolment"))?;
                if changed == 0 {
                    return Err(StoreError::Exists {
                        what: format!("an enrolled worker of launch {launch}"),
                    });
                }
                Ok(())
            })
            .await
    }

    async fn enrolment(&self, launch: &LaunchId) -> Result<Option<Enrolment>> {
        let launch = launch.to_string();
        self.db.call(move |c| read(c, &launch)).await
    }

    async fn bind_key(&self, launch: &LaunchId, key: Hash, certificate: String) -> Result<Bound> {
        let launch = launch.to_string();
        self.db
            .call(move |c| {
                let doing = || StoreError::at("binding a key");
                let Some(known) = read(c, &launch)? else { return Ok(Bound::Refused) };
                if known.quarantined {
                    return Ok(Bound::Refused);
                }
                match (known.key, known.certificate) {
                    (Some(bound), Some(given)) if bound == key => Ok(Bound::Same(given)),
                    (Some(_), _) => {
                        c.execute("UPDATE enrolments SET quarantined = 1 WHERE launch = ?1", [&launch])
                            .map_err(doing())?;
                        Ok(Bound::Other)
                    }
                    (None, _) => {
                        c.execute(
                            "UPDATE enrolments SET key = ?2, certificate = ?3 WHERE launch = ?1",
                            params![launch, key.to_string(), certificate],
                        )
                        .map_err(doing())?;
                        Ok(Bound::First)
                    }
                }
            })
            .await
    }

    async fn remove_enrolment(&self, launch: &LaunchId) -> Result<()> {
        let launch = launch.to_string();
        self.db
            .call(move |c| {
                c.execute("DELETE FROM enrolments WHERE launch = ?1", [launch])
                    .map_err(StoreError::at("forgetting an enrolment"))?;
                Ok(())
            })
            .await
    }
}
