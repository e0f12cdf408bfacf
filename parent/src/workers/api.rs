//! The worker API, see [`polder_api::worker`]: who asks, how much, and which part of the parent answers.

use super::{Workers, now_ms};
use polder_api::site::{Ack, TaskResult};
use polder_api::worker::{Ending, Enrol, Next, Report, RoundDone, Tasks};
use polder_api::{LONG_POLL_SECONDS, Problem, ProblemCode};
use polder_launch::Row;
use polder_transport::longpoll::Cursor;
use polder_transport::server::{Call, Peer, Response, Router, json};
use polder_words::{FileWay, LaunchId, Role};
use std::sync::Arc;
use std::time::Duration;

/// A certificate request and a token.
const ENROL_BYTES: usize = 16 * 1024;
/// An inline model, metrics and the last log lines.
const RESULT_BYTES: usize = 512 * 1024;
/// 256 KiB of log in base64, and metrics.
const REPORT_BYTES: usize = 1024 * 1024;
/// An inline model for each of a hundred sites.
const TASKS_BYTES: usize = 16 * 1024 * 1024;

/// Every path of the API.
pub(super) fn router(workers: &Workers) -> Arc<Router<Workers>> {
    let router = Router::new(Arc::new(workers.clone()))
        .post("/v1/worker/enrol", |workers: Arc<Workers>, mut call: Call| async move {
            let ask: Enrol = call.json(ENROL_BYTES).await?;
            let from = call.peer.addr.to_string();
            Ok(json(&workers.enrol(ask, &from).await?))
        })
        .get("/v1/worker/assignment", |workers: Arc<Workers>, call: Call| async move {
            let (launch, row) = workers.speaker(call.peer.clone(), None).await?;
            let mut assignment = workers.inner.upstream.assignment(&launch).await?;
            assignment.launch = launch;
            assignment.gpus = row.lease.devices.iter().map(ToString::to_string).collect();
            assignment.shared_files = row.want.files == FileWay::Shared;
            assignment.report_seconds = workers.inner.heartbeat.as_secs().max(1);
            Ok(json(&assignment))
        })
        .get("/v1/worker/next", next)
        .post("/v1/worker/results", |workers: Arc<Workers>, mut call: Call| async move {
            let (launch, _) = workers.speaker(call.peer.clone(), Some(Role::Client)).await?;
            let result: TaskResult = call.json(RESULT_BYTES).await?;
            workers.inner.upstream.result(&launch, result).await?;
            workers.ack()
        })
        .put("/v1/worker/tasks", |workers: Arc<Workers>, mut call: Call| async move {
            let (launch, _) = workers.speaker(call.peer.clone(), Some(Role::Server)).await?;
            let tasks: Tasks = call.json(TASKS_BYTES).await?;
            workers.inner.upstream.tasks(&launch, tasks).await?;
            workers.ack()
        })
        .post("/v1/worker/rounds", |workers: Arc<Workers>, mut call: Call| async move {
            let (launch, _) = workers.speaker(call.peer.clone(), Some(Role::Server)).await?;
            let round: RoundDone = call.json(REPORT_BYTES).await?;
            workers.inner.upstream.round(&launch, round).await?;
            workers.ack()
        })
        .post("/v1/worker/report", |workers: Arc<Workers>, mut call: Call| async move {
            let (launch, _) = workers.speaker(call.peer.clone(), None).await?;
            let report: Report = call.json(REPORT_BYTES).await?;
            let doing = report.doing.chars().take(200).collect();
            let seat = workers.seat(&launch);
            if seat.with(launch.attempt, |notes| notes.doing.replace(doing)).is_none() {
                workers.look();
            }
            workers.inner.upstream.report(&launch, report).await?;
            workers.ack()
        })
        .post("/v1/worker/outcome", |workers: Arc<Workers>, mut call: Call| async move {
            let (launch, row) = workers.speaker(call.peer.clone(), None).await?;
            let ending: Ending = call.json(REPORT_BYTES).await?;
            // Said before: it was taken then, the answer was lost.
            if row.word.is_none() {
                workers.inner.upstream.ending(&launch, &ending).await?;
                workers.inner.ledger.report_outcome(&launch, ending.outcome).await.map_err(|error| {
                    tracing::error!(%launch, %error, "the outcome of a worker cannot be written down");
                    Problem::new(ProblemCode::Internal, "the parent's database does not answer")
                })?;
            }
            workers.ack()
        });
    Arc::new(router)
}

/// What a worker shall do now: at once when that is news to it, else when there is some.
async fn next(workers: Arc<Workers>, call: Call) -> Result<Response, Problem> {
    let (launch, _) = workers.speaker(call.peer.clone(), None).await?;
    let after: Option<Cursor> = call.query("after")?;
    let wait = call.query::<u64>("wait")?.unwrap_or(0).min(LONG_POLL_SECONDS);
    let wait = Duration::from_secs(wait).min(workers.inner.poll);
    let seat = workers.seat(&launch);
    if !seat.with(launch.attempt, |notes| std::mem::replace(&mut notes.ready, true)) {
        workers.look();
    }
    let stopping = call.stopping.clone();
    let cursor = tokio::select! {
        biased;
        cursor = seat.bell.wait(after, wait) => cursor,
        () = stopping.cancelled() => seat.bell.cursor(),
    };
    seat.with(launch.attempt, |notes| notes.heard = Some(now_ms()));
    // The cursor is older than what is read now: a change in between is told twice rather than never.
    let row = workers.current(&launch)?;
    let body = workers.inner.upstream.next(&launch);
    Ok(json(&Next {
        cursor: cursor.to_string(),
        epoch: workers.inner.epoch,
        stop: Workers::stop_of(&row),
        task: body.task,
        results: body.results,
        roster: body.roster,
    }))
}

impl Workers {
    /// Who asks: a worker with a certificate of ours, about its own launch, which is the current attempt.
    async fn speaker(&self, peer: Arc<Peer>, role: Option<Role>) -> Result<(LaunchId, Row), Problem> {
        let Some(worker) = peer.holder.worker() else {
            return Err(Problem::new(ProblemCode::Unauthenticated, "enrol first: no certificate was shown"));
        };
        let launch = &worker.launch;
        if role.is_some_and(|role| role != launch.role) {
            let text = format!("not for a worker of role {}", launch.role);
            return Err(Problem::new(ProblemCode::Forbidden, text));
        }
        let row = self.current(launch)?;
        let seat = self.seat(launch);
        if !seat.spend(launch.attempt) {
            return Err(Problem::new(ProblemCode::Busy, "too many requests; go slower"));
        }
        self.is_bound(launch, worker.key).await?;
        let silent = seat.with(launch.attempt, |notes| {
            let now = now_ms();
            notes.heard.replace(now).is_some_and(|heard| now.saturating_sub(heard) > self.silence())
        });
        if silent {
            self.look();
        }
        Ok((launch.clone(), row))
    }

    fn ack(&self) -> Result<Response, Problem> {
        Ok(json(&Ack { epoch: self.inner.epoch }))
    }
}
