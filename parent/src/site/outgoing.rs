//! What goes up: the result of the current task, metrics and log lines. A result is said again to another run of the
//! server for as long as its task is the current one.

use super::job::Job;
use super::lock;
use polder_api::site::{Ack, Metrics, TaskResult};
use polder_transport::blob::{BlobError, Transfer, Tree, upload};
use polder_transport::client::ClientError;
use polder_words::Epoch;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Most metric points and log chunks kept for a server that is away; the oldest go first.
const BACKLOG: usize = 4096;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A result on its way.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) result: TaskResult,
    /// Its model, when it is no part of the message.
    pub(super) spool: Option<Spool>,
}

/// A result's model, out of the worker's reach.
#[derive(Debug)]
pub(super) struct Spool {
    pub(super) path: PathBuf,
    pub(super) tree: Tree,
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl SendError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Blob(error) => error.is_transient(),
            Self::Client(error) => error.is_transient(),
        }
    }
}

/// Brings results up.
pub(super) async fn results(job: &Arc<Job>) {
    let mut results = job.result.subscribe();
    let mut server = job.site.server.subscribe();
    loop {
        let outgoing = results.borrow_and_update().clone();
        let to = *server.borrow_and_update();
        if let (Some(outgoing), Some(epoch)) = (outgoing, to) {
            tokio::select! {
                () = send(job, &outgoing, epoch) => {}
                changed = results.changed() => match changed {
                    Ok(()) => { results.mark_changed(); continue; }
                    Err(_) => return,
                },
            }
        }
        tokio::select! {
            changed = results.changed() => if changed.is_err() { return },
            changed = server.changed() => if changed.is_err() { return },
        }
    }
}

async fn send(job: &Job, outgoing: &Outgoing, _to: Epoch) {
    let mut pause = Duration::from_millis(50);
    loop {
        match send_once(job, outgoing).await {
            Ok(()) => return,
            Err(error) if error.is_transient() => {
                tracing::debug!(job = %job.id.short(), %error, "a result is not up yet");
            }
            Err(error) => {
                // Another task is wanted meanwhile, or the job is gone: the server will say so itself.
                tracing::warn!(job = %job.id.short(), %error, "the server does not take a result");
                pause = pause.max(Duration::from_secs(1));
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn send_once(job: &Job, outgoing: &Outgoing) -> Result<(), SendError> {
    let client = &job.site.client;
    if let Some(spool) = &outgoing.spool {
        let prefix = format!("/v1/site/jobs/{}/blobs", job.id);
        upload(client, &prefix, &spool.path, &spool.tree, &Transfer::default()).await?;
    }
    let path = format!("/v1/site/jobs/{}/results", job.id);
    let _: Ack = client.post(&path).json(&outgoing.result).idempotent().fetch().await?;
    Ok(())
}

/// Brings metrics and log lines up, in order.
pub(super) async fn talk(job: &Arc<Job>) {
    let mut pause = Duration::from_millis(100);
    loop {
        let (points, chunk) = {
            let talk = lock(&job.talk);
            let points: Vec<_> = talk.metrics.iter().take(500).cloned().collect();
            (points, talk.log.front().cloned())
        };
        if points.is_empty() && chunk.is_none() {
            job.talks.notified().await;
            continue;
        }
        let mut sent = true;
        if !points.is_empty() {
            let count = points.len();
            let path = format!("/v1/site/jobs/{}/metrics", job.id);
            let ask = job.site.client.post(&path).json(&Metrics { points }).idempotent();
            if passed(ask.fetch::<Ack>().await) {
                lock(&job.talk).metrics.drain(..count);
            } else {
                sent = false;
            }
        }
        if let (true, Some(chunk)) = (sent, chunk) {
            let path = format!("/v1/site/jobs/{}/log", job.id);
            if passed(job.site.client.post(&path).json(&chunk).idempotent().fetch::<Ack>().await) {
                lock(&job.talk).log.pop_front();
            } else {
                sent = false;
            }
        }
        if sent {
            pause = Duration::from_millis(100);
        } else {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let mut talk = lock(&job.talk);
        let (metrics, log) = (talk.metrics.len(), talk.log.len());
        talk.metrics.drain(..metrics.saturating_sub(BACKLOG));
        talk.log.drain(..log.saturating_sub(BACKLOG / 16));
    }
}

/// Whether there is no need to say it again: it was taken, or will never be.
fn passed(answer: Result<Ack, ClientError>) -> bool {
    match answer {
        Ok(_) => true,
        Err(error) => !error.is_transient(),
    }
}
