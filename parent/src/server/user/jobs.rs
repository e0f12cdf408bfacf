//! Looking at jobs, ending and deleting them, and what they left.

use super::{Caller, caller, stored};
use crate::server::blobs::Area;
use crate::server::state::Server;
use polder_api::user::{Events, Job, Jobs, Log, Results};
use polder_api::{LONG_POLL_SECONDS, Order, Problem, ProblemCode};
use polder_core::authz::Right;
use polder_store::JobRow;
use polder_transport::server::{Call, Response, json, no_content};
use polder_words::{Hash, JobId, Role, SiteName};
use std::sync::Arc;
use std::time::Duration;

/// Most jobs in a list.
const LIST: u32 = 1000;
/// Most events in an answer.
const EVENTS: u32 = 500;

fn no_job(text: &str) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("no job {}", text.chars().take(40).collect::<String>()))
}

/// The job a path names, whole or by its beginning, if it is of the caller's study.
async fn job_of(server: &Server, caller: &Caller, call: &Call) -> Result<JobRow, Problem> {
    let text: String = call.param("job")?;
    let id = match text.parse::<JobId>() {
        Ok(id) => id,
        Err(_) if text.len() >= 4 && text.bytes().all(|b| b.is_ascii_hexdigit()) => {
            let prefix = text.to_ascii_lowercase();
            let found =
                server.store.find_jobs(&caller.study, &prefix).await.map_err(|error| stored(&error))?;
            match found.as_slice() {
                [id] => *id,
                [] => return Err(no_job(&text)),
                _ => {
                    return Err(Problem::new(
                        ProblemCode::Conflict,
                        format!("several jobs begin with {text}: give more digits"),
                    ));
                }
            }
        }
        Err(_) => {
            return Err(Problem {
                found: Some(text.chars().take(40).collect()),
                allowed: Some("32 hexadecimal digits, or a unique beginning of at least 4".to_owned()),
                ..Problem::new(ProblemCode::Invalid, "that is no job's id")
            });
        }
    };
    let row = server.store.job(id).await.map_err(|error| stored(&error))?;
    row.filter(|row| row.study == caller.study).ok_or_else(|| no_job(&text))
}

/// The same, and the caller has the right.
async fn allowed(server: &Server, call: &Call, right: Right) -> Result<(Caller, JobRow), Problem> {
    let caller = caller(server, call).await?;
    let row = job_of(server, &caller, call).await?;
    server.rights.check(&caller.who, right, Some((&row.submitter, &row.submitter_org)))?;
    Ok((caller, row))
}

async fn shown(server: &Server, row: JobRow, workers: bool) -> Job {
    let mut job = Job {
        id: row.id,
        name: row.name,
        study: row.study,
        submitter: row.submitter,
        phase: row.phase,
        reason: row.reason,
        failure: row.failure,
        round: row.round,
        total_rounds: row.total_rounds,
        metrics: row.metrics,
        workers: Vec::new(),
        submitted: row.submitted,
        started: row.started,
        finished: row.finished,
        priority: row.priority,
    };
    if let Some(cell) = server.cell(row.id) {
        let live = cell.job.lock().await;
        job.phase = live.phase;
        job.reason.clone_from(&live.reason);
        if workers {
            job.workers = live.workers();
        }
    } else if workers {
        job.workers = row
            .state
            .get("workers")
            .and_then(|list| serde_json::from_value(list.clone()).ok())
            .unwrap_or_default();
    }
    job
}

/// `GET jobs`.
pub(super) async fn list(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let caller = caller(&server, &call).await?;
    let rows = server.store.list_jobs(&caller.study, LIST).await.map_err(|error| stored(&error))?;
    let mut jobs = Vec::new();
    for row in rows {
        let submitter = (&row.submitter, &row.submitter_org);
        if server.rights.check(&caller.who, Right::View, Some(submitter)).is_ok() {
            jobs.push(shown(&server, row, false).await);
        }
    }
    Ok(json(&Jobs { jobs }))
}

/// `GET jobs/<id>`.
pub(super) async fn show(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (_, row) = allowed(&server, &call, Right::View).await?;
    Ok(json(&shown(&server, row, true).await))
}

/// How long to wait for news.
fn wait_of(call: &Call) -> Result<Duration, Problem> {
    Ok(Duration::from_secs(call.query::<u64>("wait")?.unwrap_or(0).min(LONG_POLL_SECONDS)))
}

/// `GET jobs/<id>/events`.
pub(super) async fn events(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (_, row) = allowed(&server, &call, Right::View).await?;
    let after = call.query::<u64>("after")?.unwrap_or(0);
    let deadline = tokio::time::Instant::now() + wait_of(&call)?;
    loop {
        // Both before the events: what comes in between is found by the next look.
        let cell = server.cell(row.id);
        let heard = cell.as_ref().map(|cell| cell.bell.cursor());
        let events = server.store.events(row.id, after, EVENTS).await.map_err(|error| stored(&error))?;
        let ended = cell.is_none() && (events.len() as u64) < u64::from(EVENTS);
        let time_is_up = tokio::time::Instant::now() >= deadline || call.stopping.is_cancelled();
        if !events.is_empty() || ended || time_is_up {
            let next = events.last().map_or(after, |event| event.n);
            return Ok(json(&Events { events, next, end: ended }));
        }
        if let Some(cell) = cell {
            let rest = deadline.saturating_duration_since(tokio::time::Instant::now());
            tokio::select! {
                _ = cell.bell.wait(heard, rest) => {}
                () = call.stopping.cancelled() => {}
            }
        }
    }
}

/// `GET jobs/<id>/logs`.
pub(super) async fn logs(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (_, row) = allowed(&server, &call, Right::View).await?;
    let site: SiteName = call.query("site")?.ok_or_else(|| Problem {
        at: Some("site".to_owned()),
        ..Problem::new(ProblemCode::Invalid, "the site is missing")
    })?;
    let role = if site.is_server() { Role::Server } else { Role::Client };
    let role = call.query::<Role>("role")?.unwrap_or(role);
    let after = call.query::<u64>("after")?.unwrap_or(0);
    let deadline = tokio::time::Instant::now() + wait_of(&call)?;
    loop {
        let cell = server.cell(row.id);
        let heard = cell.as_ref().map(|cell| cell.log_bell.cursor());
        let (logs, from) = (Arc::clone(&server.logs), site.clone());
        let read = tokio::task::spawn_blocking(move || logs.read(row.id, &from, role, after)).await;
        let piece = read.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(|error| {
            tracing::error!(%error, "a log cannot be read");
            Problem::new(ProblemCode::Internal, "the log cannot be read")
        })?;
        let ended = cell.is_none() && piece.next == after;
        let time_is_up = tokio::time::Instant::now() >= deadline || call.stopping.is_cancelled();
        if piece.next > after || ended || time_is_up {
            let text = String::from_utf8_lossy(&piece.bytes).into_owned();
            return Ok(json(&Log { text, next: piece.next, end: ended }));
        }
        if let Some(cell) = cell {
            let rest = deadline.saturating_duration_since(tokio::time::Instant::now());
            tokio::select! {
                _ = cell.log_bell.wait(heard, rest) => {}
                () = call.stopping.cancelled() => {}
            }
        }
    }
}

/// `POST jobs/<id>/abort`.
pub(super) async fn abort(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (caller, row) = allowed(&server, &call, Right::ManageJob).await?;
    let Some(cell) = server.cell(row.id) else {
        return Err(Problem::new(
            ProblemCode::Conflict,
            format!("job {} has ended: {}", row.id.short(), row.phase),
        ));
    };
    server.note(
        "job_aborted",
        &[("user", caller.who.name.as_str().into()), ("job", row.id.to_string().into())],
    );
    let mut job = cell.job.lock().await;
    let effects = job.abort(caller.who.name, server.now());
    server.carry_out(&cell, &mut job, effects).await;
    Ok(no_content())
}

/// `DELETE jobs/<id>`.
pub(super) async fn delete(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (caller, row) = allowed(&server, &call, Right::ManageJob).await?;
    if server.cell(row.id).is_some() {
        return Err(Problem::new(
            ProblemCode::Conflict,
            format!("job {} has not ended: abort it first", row.id.short()),
        ));
    }
    let _alone = server.blobs_in_use.write().await;
    let freed = server.store.delete_job(row.id).await.map_err(|error| match error {
        polder_store::StoreError::Missing { .. } => no_job(&row.id.to_string()),
        error => stored(&error),
    })?;
    server.note(
        "job_deleted",
        &[("user", caller.who.name.as_str().into()), ("job", row.id.to_string().into())],
    );
    let (logs, area) = (Arc::clone(&server.logs), server.blobs.study(&row.study));
    let removed = tokio::task::spawn_blocking(move || {
        logs.remove(row.id);
        freed.iter().for_each(|root| area.remove(root));
    });
    let _ = removed.await;
    Ok(no_content())
}

/// `GET jobs/<id>/order`.
pub(super) async fn order(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (_, row) = allowed(&server, &call, Right::CloneJob).await?;
    let order = server.store.order(row.id).await.map_err(|error| stored(&error))?;
    order.map(|order| json(&order)).ok_or_else(|| no_job(&row.id.to_string()))
}

/// `GET jobs/<id>/results`.
pub(super) async fn results(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (_, row) = allowed(&server, &call, Right::DownloadJob).await?;
    let files = server.store.results(row.id).await.map_err(|error| stored(&error))?;
    Ok(json(&Results { files }))
}

/// A blob of a job: a result for who may download, an app for who may clone.
async fn granted(server: &Server, call: &Call) -> Result<(Area, Hash), Problem> {
    let caller = caller(server, call).await?;
    let row = job_of(server, &caller, call).await?;
    let root: Hash = call.param("root")?;
    let area = server.blobs.study(&row.study);
    let submitter = Some((&row.submitter, &row.submitter_org));
    let results = server.store.results(row.id).await.map_err(|error| stored(&error))?;
    if results.values().any(|blob| blob.root == root) {
        server.rights.check(&caller.who, Right::DownloadJob, submitter)?;
        return Ok((area, root));
    }
    let order = server.store.order(row.id).await.map_err(|error| stored(&error))?;
    let order: Option<Order> = order.and_then(|signed| serde_json::from_str(&signed.order).ok());
    if order.is_some_and(|order| order.apps.values().any(|blob| blob.root == root)) {
        server.rights.check(&caller.who, Right::CloneJob, submitter)?;
        return Ok((area, root));
    }
    Err(Problem::new(ProblemCode::NotFound, "no such file in this job"))
}

/// `GET jobs/<id>/blobs/<root>`.
pub(super) async fn read_blob(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (area, root) = granted(&server, &call).await?;
    server.blobs.serve(&call, &area, &root).await
}

/// `GET jobs/<id>/blobs/<root>/tree`.
pub(super) async fn read_tree(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (area, root) = granted(&server, &call).await?;
    server.blobs.serve_tree(&area, &root).await
}
