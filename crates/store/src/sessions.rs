//! Sessions of users. Of a token only the hash of its secret half is stored.

use crate::Sqlite;
use crate::error::{Result, StoreError};
use crate::jobs::{signed, unsigned};
use async_trait::async_trait;
use polder_words::{Hash, StudyName, UserName};
use rusqlite::{OptionalExtension, params};

/// A session as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// The token's public half.
    pub id: String,
    /// BLAKE3 of the token's secret half.
    pub secret: Hash,
    /// Whose.
    pub user: UserName,
    /// For which study.
    pub study: StudyName,
    /// BLAKE3 of the certificate it was opened with.
    pub certificate: Hash,
    /// Seconds since 1970.
    pub expires: u64,
}

/// Where sessions are kept.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Stores one; sessions that have expired by `now` are forgotten on the way.
    async fn put_session(&self, session: SessionRow, now: u64) -> Result<()>;
    /// One by the public half of its token.
    async fn session(&self, id: &str) -> Result<Option<SessionRow>>;
    /// Ends one.
    async fn end_session(&self, id: &str) -> Result<()>;
    /// Ends all of a user in a study, or in every study.
    async fn end_sessions(&self, user: &UserName, study: Option<&StudyName>) -> Result<u64>;
}

#[async_trait]
impl SessionStore for Sqlite {
    async fn put_session(&self, s: SessionRow, now: u64) -> Result<()> {
        self.db
            .call(move |c| {
                let doing = || StoreError::at("storing a session");
                c.execute("DELETE FROM sessions WHERE expires < ?1", [signed(now)]).map_err(doing())?;
                c.execute(
                    "INSERT INTO sessions(id, secret, user, study, certificate, expires) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![
                        s.id,
                        s.secret.to_string(),
                        s.user.as_str(),
                        s.study.as_str(),
                        s.certificate.to_string(),
                        signed(s.expires)
                    ],
                )
                .map_err(doing())?;
                Ok(())
            })
            .await
    }

    async fn session(&self, id: &str) -> Result<Option<SessionRow>> {
        let id = id.to_owned();
        self.db
            .call(move |c| {
                let row = c
                    .prepare_cached(
                        "SELECT secret, user, study, certificate, expires FROM sessions WHERE id = ?1",
                    )
                    .and_then(|mut s| {
                        s.query_row([&id], |row| {
                            let text = |i: usize| row.get::<_, String>(i);
                            Ok((text(0)?, text(1)?, text(2)?, text(3)?, row.get::<_, i64>(4)?))
                        })
                        .optional()
                    })
                    .map_err(StoreError::at("reading a session"))?;
                let damaged = || StoreError::damaged("sessions");
                row.map(|(secret, user, study, certificate, expires)| {
                    Ok(SessionRow {
                        id,
                        secret: secret.parse().map_err(damaged())?,
                        user: user.parse().map_err(damaged())?,
                        study: study.parse().map_err(damaged())?,
                        certificate: certificate.parse().map_err(damaged())?,
                        expires: unsigned(expires),
                    })
                })
                .transpose()
            })
            .await
    }

    async fn end_session(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        self.db
            .call(move |c| {
                c.execute("DELETE FROM sessions WHERE id = ?1", [id])
                    .map_err(StoreError::at("ending a session"))?;
                Ok(())
            })
            .await
    }

    async fn end_sessions(&self, user: &UserName, study: Option<&StudyName>) -> Result<u64> {
        let (user, study) = (user.to_string(), study.map(ToString::to_string));
        self.db
            .call(move |c| {
                c.execute(
                    "DELETE FROM sessions WHERE user = ?1 AND (?2 IS NULL OR study = ?2)",
                    params![user, study],
                )
                .map(|n| n as u64)
                .map_err(StoreError::at("ending sessions"))
            })
            .await
    }
}
