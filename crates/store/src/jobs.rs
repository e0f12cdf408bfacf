//! Jobs: the order, where it stands, its events and rounds, its results, and which blobs it holds.

use crate::Sqlite;
use crate::error::{Result, StoreError};
use async_trait::async_trait;
use polder_api::SignedOrder;
use polder_api::user::{Event, EventKind, Failure};
use polder_api::worker::RoundDone;
use polder_words::{BlobRef, JobId, JobPhase, Nonce, OrgName, StudyName, UserName};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::{BTreeMap, BTreeSet};

/// A job to be stored.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Derived from the order.
    pub id: JobId,
    /// The order's.
    pub study: StudyName,
    /// Display name.
    pub name: String,
    /// Who signed.
    pub submitter: UserName,
    /// Of which organisation.
    pub submitter_org: OrgName,
    /// `low`, `normal`, `high`.
    pub priority: String,
    /// The order with its proof.
    pub signed: SignedOrder,
    /// The order's; a second job with it is refused.
    pub nonce: Nonce,
    /// Until when the nonce must be remembered, seconds since 1970.
    pub nonce_expires: u64,
    /// Rounds asked for.
    pub total_rounds: u32,
    /// Blobs the order names.
    pub holds: BTreeSet<polder_words::Hash>,
    /// What the server's role keeps of it.
    pub state: serde_json::Value,
    /// Milliseconds since 1970.
    pub submitted: u64,
}

/// What became of [`JobStore::insert_job`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// It is stored.
    New,
    /// This very order was stored before.
    Same,
}

/// A job as it is stored, without its order.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    /// In order of submission.
    pub seq: u64,
    /// Its id.
    pub id: JobId,
    /// Study.
    pub study: StudyName,
    /// Display name.
    pub name: String,
    /// Who submitted it.
    pub submitter: UserName,
    /// Of which organisation.
    pub submitter_org: OrgName,
    /// `low`, `normal`, `high`.
    pub priority: String,
    /// Where it stands.
    pub phase: JobPhase,
    /// Why, in words.
    pub reason: Option<String>,
    /// With `failed`.
    pub failure: Option<Failure>,
    /// Rounds done.
    pub round: u32,
    /// Rounds asked for.
    pub total_rounds: u32,
    /// The latest.
    pub metrics: BTreeMap<String, f64>,
    /// What the server's role keeps of it.
    pub state: serde_json::Value,
    /// Milliseconds since 1970.
    pub submitted: u64,
    /// Milliseconds since 1970 of the first training task.
    pub started: Option<u64>,
    /// Milliseconds since 1970 of the end.
    pub finished: Option<u64>,
}

/// What changes in a job; what is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct JobChange {
    /// Where it stands.
    pub phase: Option<JobPhase>,
    /// Why; `Some(None)` takes the reason away.
    pub reason: Option<Option<String>>,
    /// With `failed`.
    pub failure: Option<Failure>,
    /// What the server's role keeps of it.
    pub state: Option<serde_json::Value>,
    /// Milliseconds since 1970.
    pub started: Option<u64>,
    /// Milliseconds since 1970.
    pub finished: Option<u64>,
    /// Files to be added to its results.
    pub results: BTreeMap<String, BlobRef>,
}

/// What will have happened, whether it is awaited or not.
pub type Pending<T> = std::pin::Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Where jobs are kept.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Stores a job with its nonce and its first event, all or nothing.
    async fn insert_job(&self, job: NewJob) -> Result<Inserted>;
    /// One job.
    async fn job(&self, id: JobId) -> Result<Option<JobRow>>;
    /// The order of a job.
    async fn order(&self, id: JobId) -> Result<Option<SignedOrder>>;
    /// Ids in a study that begin with these digits, two at most.
    async fn find_jobs(&self, study: &StudyName, prefix: &str) -> Result<Vec<JobId>>;
    /// The newest jobs of a study, newest first.
    async fn list_jobs(&self, study: &StudyName, limit: u32) -> Result<Vec<JobRow>>;
    /// All jobs that have not ended, oldest first.
    async fn live_jobs(&self) -> Result<Vec<(JobRow, SignedOrder)>>;
    /// Changes a job and appends events, all or nothing.
    async fn change_job(
        &self,
        id: JobId,
        change: JobChange,
        events: Vec<EventKind>,
        at: u64,
    ) -> Result<Vec<Event>>;
    /// Appends events of no consequence. They are in the queue, in order, when this returns; the future says when they
    /// are on disk and need not be awaited.
    fn append_events(&self, id: JobId, events: Vec<EventKind>, at: u64) -> Pending<Vec<Event>>;
    /// Notes a round with its event; `None` when it was noted before.
    async fn add_round(&self, id: JobId, done: RoundDone, at: u64) -> Result<Option<Event>>;
    /// Events after a number, oldest first.
    async fn events(&self, id: JobId, after: u64, limit: u32) -> Result<Vec<Event>>;
    /// The files a job left.
    async fn results(&self, id: JobId) -> Result<BTreeMap<String, BlobRef>>;
    /// Removes a job that has ended; gives back the blobs of its study that nothing holds any more.
    async fn delete_job(&self, id: JobId) -> Result<Vec<polder_words::Hash>>;
    /// Blobs of a study that some job holds.
    async fn held(&self, study: &StudyName) -> Result<BTreeSet<polder_words::Hash>>;
    /// Forgets nonces of orders that have expired.
    async fn purge_nonces(&self, now: u64) -> Result<()>;
}

const COLUMNS: &str = "seq, id, study, name, submitter, submitter_org, priority, phase, reason, failure, round, \
                       total_rounds, metrics, state, submitted, started, finished";

fn read_job(row: &Row<'_>) -> rusqlite::Result<Result<JobRow>> {
    let text = |i: usize| row.get::<_, String>(i);
    let number = |i: usize| row.get::<_, i64>(i).map(unsigned);
    let (id, study, submitter, org, phase) = (text(1)?, text(2)?, text(4)?, text(5)?, text(7)?);
    let failure: Option<String> = row.get(9)?;
    let (metrics, state) = (text(12)?, text(13)?);
    let name = text(3)?;
    let priority = text(6)?;
    let reason = row.get(8)?;
    let (seq, submitted) = (number(0)?, number(14)?);
    let (round, total_rounds) = (row.get(10)?, row.get(11)?);
    let started = row.get::<_, Option<i64>>(15)?.map(unsigned);
    let finished = row.get::<_, Option<i64>>(16)?.map(unsigned);
    Ok((|| {
        Ok(JobRow {
            seq,
            id: id.parse().map_err(damaged)?,
            study: study.parse().map_err(damaged)?,
            name,
            submitter: submitter.parse().map_err(damaged)?,
            submitter_org: org.parse().map_err(damaged)?,
            priority,
            phase: JobPhase::from_word(&phase).ok_or_else(|| damaged(format!("phase {phase:?}")))?,
            reason,
            failure: failure.map(|text| serde_json::from_str(&text)).transpose().map_err(damaged)?,
            round,
            total_rounds,
            metrics: serde_json::from_str(&metrics).map_err(damaged)?,
            state: serde_json::from_str(&state).map_err(damaged)?,
            submitted,
            started,
            finished,
        })
    })())
}

fn damaged<E: std::fmt::Display>(error: E) -> StoreError {
    StoreError::damaged("jobs")(error)
}

pub(crate) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(damaged)
}

fn missing(id: JobId) -> StoreError {
    StoreError::Missing { what: format!("job {}", id.short()) }
}

/// Appends events and gives them their numbers.
fn append(c: &Connection, job: &str, events: Vec<EventKind>, at: u64) -> Result<Vec<Event>> {
    let doing = || StoreError::at("appending an event");
    let mut out = Vec::with_capacity(events.len());
    for what in events {
        let n: i64 = c
            .prepare_cached("SELECT coalesce(max(n), 0) + 1 FROM events WHERE job = ?1")
            .and_then(|mut s| s.query_row([job], |row| row.get(0)))
            .map_err(doing())?;
        c.prepare_cached("INSERT INTO events(job, n, at, body) VALUES (?1, ?2, ?3, ?4)")
            .map_err(doing())?
            .execute(params![job, n, signed(at), to_json(&what)?])
            .map_err(doing())?;
        out.push(Event { n: unsigned(n), at, what });
    }
    Ok(out)
}

fn insert(c: &Connection, job: &NewJob) -> Result<Inserted> {
    let doing = || StoreError::at("storing a job");
    let id = job.id.to_string();
    let known: bool = c
        .query_row("SELECT EXISTS(SELECT 1 FROM jobs WHERE id = ?1)", [&id], |row| row.get(0))
        .map_err(doing())?;
    if known {
        return Ok(Inserted::Same);
    }
    let fresh = c
        .execute(
            "INSERT OR IGNORE INTO nonces(nonce, expires) VALUES (?1, ?2)",
            params![job.nonce.to_string(), signed(job.nonce_expires)],
        )
        .map_err(doing())?;
    if fresh == 0 {
        return Err(StoreError::Exists { what: "an order with this nonce".to_owned() });
    }
    c.execute(
        "INSERT INTO jobs(id, study, name, submitter, submitter_org, priority, signed, phase, total_rounds, state, submitted)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        params![
            id,
            job.study.as_str(),
            job.name,
            job.submitter.as_str(),
            job.submitter_org.as_str(),
            job.priority,
            to_json(&job.signed)?,
            JobPhase::Submitted.as_str(),
            job.total_rounds,
            to_json(&job.state)?,
            signed(job.submitted),
        ],
    )
    .map_err(doing())?;
    hold(c, &id, job.study.as_str(), job.holds.iter())?;
    let first = EventKind::Phase { phase: JobPhase::Submitted, reason: None, failure: None };
    append(c, &id, vec![first], job.submitted)?;
    Ok(Inserted::New)
}

fn hold<'a>(
    c: &Connection,
    job: &str,
    study: &str,
    roots: impl Iterator<Item = &'a polder_words::Hash>,
) -> Result<()> {
    for root in roots {
        c.execute(
            "INSERT OR IGNORE INTO holds(study, root, job) VALUES (?1, ?2, ?3)",
            params![study, root.to_string(), job],
        )
        .map_err(StoreError::at("holding a blob"))?;
    }
    Ok(())
}

fn change(
    c: &Connection,
    id: JobId,
    change: &JobChange,
    events: Vec<EventKind>,
    at: u64,
) -> Result<Vec<Event>> {
    let doing = || StoreError::at("changing a job");
    let job = id.to_string();
    let changed = c
        .prepare_cached(
            "UPDATE jobs SET
                phase = coalesce(?2, phase), final = coalesce(?3, final),
                reason = CASE WHEN ?4 THEN ?5 ELSE reason END,
                failure = coalesce(?6, failure), state = coalesce(?7, state),
                started = coalesce(started, ?8), finished = coalesce(finished, ?9)
             WHERE id = ?1",
        )
        .map_err(doing())?
        .execute(params![
            job,
            change.phase.map(JobPhase::as_str),
            change.phase.map(JobPhase::is_final),
            change.reason.is_some(),
            change.reason.clone().flatten(),
            change.failure.as_ref().map(to_json).transpose()?,
            change.state.as_ref().map(to_json).transpose()?,
            change.started.map(signed),
            change.finished.map(signed),
        ])
        .map_err(doing())?;
    if changed == 0 {
        return Err(missing(id));
    }
    if !change.results.is_empty() {
        let study: String =
            c.query_row("SELECT study FROM jobs WHERE id = ?1", [&job], |row| row.get(0)).map_err(doing())?;
        for (name, blob) in &change.results {
            c.execute(
                "INSERT OR REPLACE INTO results(job, name, root, size) VALUES (?1, ?2, ?3, ?4)",
                params![job, name, blob.root.to_string(), signed(blob.size)],
            )
            .map_err(doing())?;
        }
        hold(c, &job, &study, change.results.values().map(|blob| &blob.root))?;
    }
    append(c, &job, events, at)
}

fn add_round(c: &Connection, id: JobId, done: RoundDone, at: u64) -> Result<Option<Event>> {
    let doing = || StoreError::at("noting a round");
    let job = id.to_string();
    let changed = c
        .prepare_cached(
            "UPDATE jobs SET round = ?2, total_rounds = ?3, metrics = ?4 WHERE id = ?1 AND round < ?2",
        )
        .map_err(doing())?
        .execute(params![job, done.round, done.total_rounds, to_json(&done.metrics)?])
        .map_err(doing())?;
    if changed == 0 {
        return Ok(None);
    }
    let RoundDone { round, total_rounds, metrics, sites, millis } = done;
    Ok(append(c, &job, vec![EventKind::Round { round, total_rounds, metrics, sites, millis }], at)?.pop())
}

fn delete(c: &Connection, id: JobId) -> Result<Vec<polder_words::Hash>> {
    let doing = || StoreError::at("deleting a job");
    let job = id.to_string();
    let gone = c.execute("DELETE FROM jobs WHERE id = ?1 AND final = 1", [&job]).map_err(doing())?;
    if gone == 0 {
        return Err(missing(id));
    }
    c.execute("DELETE FROM events WHERE job = ?1", [&job]).map_err(doing())?;
    c.execute("DELETE FROM results WHERE job = ?1", [&job]).map_err(doing())?;
    let free: Vec<String> = c
        .prepare(
            "SELECT root FROM holds h WHERE job = ?1 AND NOT EXISTS
                (SELECT 1 FROM holds o WHERE o.study = h.study AND o.root = h.root AND o.job <> ?1)",
        )
        .and_then(|mut s| s.query_map([&job], |row| row.get(0))?.collect())
        .map_err(doing())?;
    c.execute("DELETE FROM holds WHERE job = ?1", [&job]).map_err(doing())?;
    free.iter().map(|root| root.parse().map_err(StoreError::damaged("holds"))).collect()
}

#[async_trait]
impl JobStore for Sqlite {
    async fn insert_job(&self, job: NewJob) -> Result<Inserted> {
        self.db.call(move |c| insert(c, &job)).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobRow>> {
        self.db
            .call(move |c| {
                c.query_row(&format!("SELECT {COLUMNS} FROM jobs WHERE id = ?1"), [id.to_string()], read_job)
                    .optional()
                    .map_err(StoreError::at("reading a job"))?
                    .transpose()
            })
            .await
    }

    async fn order(&self, id: JobId) -> Result<Option<SignedOrder>> {
        self.db
            .call(move |c| {
                c.query_row("SELECT signed FROM jobs WHERE id = ?1", [id.to_string()], |row| {
                    row.get::<_, String>(0)
                })
                .optional()
                .map_err(StoreError::at("reading an order"))?
                .map(|text| serde_json::from_str(&text).map_err(damaged))
                .transpose()
            })
            .await
    }

    async fn find_jobs(&self, study: &StudyName, prefix: &str) -> Result<Vec<JobId>> {
        // The range of ids that begin with the digits; a text that is no hexadecimal digits matches none.
        let (study, from, to) = (study.to_string(), prefix.to_owned(), format!("{prefix}g"));
        self.db
            .call(move |c| {
                let ids: Vec<String> = c
                    .prepare("SELECT id FROM jobs WHERE study = ?1 AND id >= ?2 AND id < ?3 LIMIT 2")
                    .and_then(|mut s| s.query_map(params![study, from, to], |row| row.get(0))?.collect())
                    .map_err(StoreError::at("finding a job"))?;
                ids.iter().map(|id| id.parse().map_err(damaged)).collect()
            })
            .await
    }

    async fn list_jobs(&self, study: &StudyName, limit: u32) -> Result<Vec<JobRow>> {
        let study = study.to_string();
        self.db
            .call(move |c| {
                let sql = format!("SELECT {COLUMNS} FROM jobs WHERE study = ?1 ORDER BY seq DESC LIMIT ?2");
                let rows: Vec<_> = c
                    .prepare(&sql)
                    .and_then(|mut s| s.query_map(params![study, limit], read_job)?.collect())
                    .map_err(StoreError::at("listing jobs"))?;
                rows.into_iter().collect()
            })
            .await
    }

    async fn live_jobs(&self) -> Result<Vec<(JobRow, SignedOrder)>> {
        self.db
            .call(move |c| {
                let sql = format!("SELECT {COLUMNS}, signed FROM jobs WHERE final = 0 ORDER BY seq");
                let rows: Vec<(Result<JobRow>, String)> = c
                    .prepare(&sql)
                    .and_then(|mut s| s.query_map([], |row| Ok((read_job(row)?, row.get(17)?)))?.collect())
                    .map_err(StoreError::at("reading the jobs that live"))?;
                rows.into_iter()
                    .map(|(row, order)| Ok((row?, serde_json::from_str(&order).map_err(damaged)?)))
                    .collect()
            })
            .await
    }

    async fn change_job(
        &self,
        id: JobId,
        what: JobChange,
        events: Vec<EventKind>,
        at: u64,
    ) -> Result<Vec<Event>> {
        self.db.call(move |c| change(c, id, &what, events, at)).await
    }

    fn append_events(&self, id: JobId, events: Vec<EventKind>, at: u64) -> Pending<Vec<Event>> {
        Box::pin(self.db.call(move |c| append(c, &id.to_string(), events, at)))
    }

    async fn add_round(&self, id: JobId, done: RoundDone, at: u64) -> Result<Option<Event>> {
        self.db.call(move |c| add_round(c, id, done, at)).await
    }

    async fn events(&self, id: JobId, after: u64, limit: u32) -> Result<Vec<Event>> {
        self.db
            .call(move |c| {
                let rows: Vec<(i64, i64, String)> = c
                    .prepare_cached(
                        "SELECT n, at, body FROM events WHERE job = ?1 AND n > ?2 ORDER BY n LIMIT ?3",
                    )
                    .and_then(|mut s| {
                        s.query_map(params![id.to_string(), signed(after), limit], |row| {
                            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                        })?
                        .collect()
                    })
                    .map_err(StoreError::at("reading events"))?;
                rows.into_iter()
                    .map(|(n, at, body)| {
                        let what = serde_json::from_str(&body).map_err(StoreError::damaged("events"))?;
                        Ok(Event { n: unsigned(n), at: unsigned(at), what })
                    })
                    .collect()
            })
            .await
    }

    async fn results(&self, id: JobId) -> Result<BTreeMap<String, BlobRef>> {
        self.db
            .call(move |c| {
                let rows: Vec<(String, String, i64)> = c
                    .prepare("SELECT name, root, size FROM results WHERE job = ?1")
                    .and_then(|mut s| {
                        s.query_map([id.to_string()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                            .collect()
                    })
                    .map_err(StoreError::at("reading results"))?;
                rows.into_iter()
                    .map(|(name, root, size)| {
                        let root = root.parse().map_err(StoreError::damaged("results"))?;
                        Ok((name, BlobRef { root, size: unsigned(size) }))
                    })
                    .collect()
            })
            .await
    }

    async fn delete_job(&self, id: JobId) -> Result<Vec<polder_words::Hash>> {
        self.db.call(move |c| delete(c, id)).await
    }

    async fn held(&self, study: &StudyName) -> Result<BTreeSet<polder_words::Hash>> {
        let study = study.to_string();
        self.db
            .call(move |c| {
                let roots: Vec<String> = c
                    .prepare("SELECT DISTINCT root FROM holds WHERE study = ?1")
                    .and_then(|mut s| s.query_map([study], |row| row.get(0))?.collect())
                    .map_err(StoreError::at("reading what is held"))?;
                roots.iter().map(|root| root.parse().map_err(StoreError::damaged("holds"))).collect()
            })
            .await
    }

    async fn purge_nonces(&self, now: u64) -> Result<()> {
        self.db
            .call(move |c| {
                c.execute("DELETE FROM nonces WHERE expires < ?1", [signed(now)])
                    .map_err(StoreError::at("forgetting nonces"))?;
                Ok(())
            })
            .await
    }
}
