//! The site API: what `polder_api::site` says. Every request is of a site, about itself.

use super::blobs::Area;
use super::sites::Said;
use super::state::{Cell, Server, Wanted};
use polder_api::site::{
    Ack, Assignment, Desired, Hello, LogChunk, Metrics, Observed, TaskOutcome, TaskResult, Welcome,
};
use polder_api::{INLINE_LIMIT, LONG_POLL_SECONDS, PROTOCOL, Payload, Problem, ProblemCode};
use polder_transport::longpoll::Cursor;
use polder_transport::server::{Call, Response, Router, json};
use polder_words::{BlobRef, Hash, JobId, Role, SiteName};
use std::sync::Arc;
use std::time::Duration;

/// JSON of a result may hold a small model in base64, and metrics.
const RESULT_LIMIT: usize = 1 << 20;
const JSON_LIMIT: usize = 1 << 20;
/// Largest model a site may send.
const MODEL_LIMIT: u64 = 64 << 30;

/// The routes of the site API.
pub(super) fn routes(router: Router<Server>) -> Router<Server> {
    router
        .post("/v1/site/hello", hello)
        .get("/v1/site/desired", desired)
        .post("/v1/site/observed", observed)
        .post("/v1/site/jobs/{job}/results", result)
        .post("/v1/site/jobs/{job}/metrics", metrics)
        .post("/v1/site/jobs/{job}/log", log)
        .get("/v1/site/jobs/{job}/blobs/{root}", read_blob)
        .get("/v1/site/jobs/{job}/blobs/{root}/tree", read_tree)
        .put("/v1/site/jobs/{job}/blobs/{root}", write_blob)
        .put("/v1/site/jobs/{job}/blobs/{root}/tree", write_tree)
}

/// Which site asks.
fn site_of(server: &Server, call: &Call) -> Result<SiteName, Problem> {
    let identity = call.peer.holder.participant();
    if let Some(identity) = identity {
        server.revoked.check(identity)?;
    }
    let site = identity.and_then(|identity| identity.site());
    site.cloned().ok_or_else(|| Problem::new(ProblemCode::Forbidden, "this path is for sites"))
}

/// The job, if the site takes part in it; else it does not exist.
async fn job_of(server: &Server, call: &Call, site: &SiteName) -> Result<(Arc<Cell>, JobId), Problem> {
    let id: JobId = call.param("job")?;
    let absent = || Problem::new(ProblemCode::NotFound, format!("no job {} for site {site}", id.short()));
    let cell = server.cell(id).ok_or_else(absent)?;
    if !cell.job.lock().await.keep.sites.contains(site) {
        return Err(absent());
    }
    Ok((cell, id))
}

fn ack(server: &Server) -> Response {
    json(&Ack { epoch: server.epoch })
}

async fn hello(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let site = site_of(&server, &call)?;
    let hello: Hello = call.json(JSON_LIMIT).await?;
    if hello.protocol != PROTOCOL {
        return Err(Problem {
            at: Some("protocol".to_owned()),
            found: Some(hello.protocol.to_string()),
            allowed: Some(PROTOCOL.to_string()),
            ..Problem::new(
                ProblemCode::Invalid,
                format!("site {site} (version {}) speaks another protocol than this server", hello.version),
            )
        });
    }
    let org = call.peer.holder.participant().map(|identity| identity.org.clone());
    let Some(org) = org else { return Err(Problem::new(ProblemCode::Forbidden, "this path is for sites")) };
    let said = Said { org, version: hello.version.clone(), offer: hello.offer };
    tracing::info!(%site, version = %hello.version, addr = %call.peer.addr, "site says hello");
    server.site_said(&site, Some(said)).await;
    Ok(json(&Welcome {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        federation: server.federation.clone(),
        epoch: server.epoch,
        now: server.now(),
    }))
}

/// Ends a poll in the books, also when its connection broke and the handler was dropped.
struct OpenPoll<'a> {
    server: &'a Server,
    site: &'a SiteName,
    answered: bool,
}

impl<'a> OpenPoll<'a> {
    fn new(server: &'a Server, site: &'a SiteName) -> Self {
        server.sites.poll_opened(site, server.now());
        server.wake.notify_one();
        Self { server, site, answered: false }
    }
}

impl Drop for OpenPoll<'_> {
    fn drop(&mut self) {
        self.server.sites.poll_ended(self.site, self.answered, self.server.now());
        if !self.answered {
            self.server.wake.notify_one();
        }
    }
}

async fn desired(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let site = site_of(&server, &call)?;
    if server.sites.said(&site).is_none() {
        return Err(Problem::new(ProblemCode::Conflict, "say hello first"));
    }
    let after = call.query::<String>("after")?.filter(|text| !text.is_empty());
    let after: Option<Cursor> = after.map(|text| text.parse()).transpose().map_err(|error| Problem {
        at: Some("after".to_owned()),
        ..Problem::new(ProblemCode::Invalid, format!("{error}"))
    })?;
    let wait = Duration::from_secs(call.query::<u64>("wait")?.unwrap_or(0).min(LONG_POLL_SECONDS));
    let feed = server.sites.desired(&site);
    if after.is_some_and(|after| after.epoch == server.epoch && server.sites.has_read(&site, after.n)) {
        server.wake.notify_one();
    }
    let mut poll = OpenPoll::new(&server, &site);
    let page = tokio::select! {
        page = feed.wait(after, wait) => page,
        () = call.stopping.cancelled() => feed.read(after),
    };
    poll.answered = true;
    drop(poll);
    let seen = if page.snapshot { 0 } else { after.map_or(0, |after| after.n) };
    let assignments = page.set.into_iter().map(|(job, wanted)| assignment(job, wanted, seen)).collect();
    Ok(json(&Desired {
        cursor: page.cursor.to_string(),
        snapshot: page.snapshot,
        assignments,
        forgotten: page.removed,
    }))
}

fn assignment(job: JobId, wanted: Wanted, seen: u64) -> Assignment {
    Assignment {
        job,
        goal: wanted.goal,
        order: (wanted.since > seen).then(|| wanted.signed.as_ref().clone()),
        task: wanted.task.map(|task| task.as_ref().clone()),
        tasks_unknown: wanted.tasks_unknown,
    }
}

async fn observed(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let site = site_of(&server, &call)?;
    let observed: Observed = call.json(JSON_LIMIT).await?;
    let said = observed.offer.and_then(|offer| Some(Said { offer, ..server.sites.said(&site)? }));
    server.site_said(&site, said).await;
    for observation in observed.jobs {
        if let Some(cell) = server.cell(observation.job) {
            let mut job = cell.job.lock().await;
            let effects = job.observe(&site, &observation.stand, server.now());
            server.carry_out(&cell, &mut job, effects).await;
        }
    }
    Ok(ack(&server))
}

async fn result(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let site = site_of(&server, &call)?;
    let (cell, id) = job_of(&server, &call, &site).await?;
    let mut result: TaskResult = call.json(RESULT_LIMIT).await?;
    // Looked at first, so that a late result costs no file.
    let wanted = cell.job.lock().await.is_wanted(&site, &result);
    match wanted {
        Some(true) => {}
        Some(false) => {
            server.drop_model(&cell, &site, &result).await;
            return Ok(ack(&server));
        }
        None => return Err(not_yet()),
    }
    if let TaskOutcome::Done { model: Some(model), .. } = &mut result.result {
        *model = server.hand_down(id, &site, model).await?;
    }
    let mut job = cell.job.lock().await;
    if job.put_result(&site, result) {
        cell.board().results.clone_from(&job.results);
        drop(job);
        server.launches().poke(id);
    }
    Ok(ack(&server))
}

/// After a restart: what is current is known once the job's own worker has said its tasks again.
fn not_yet() -> Problem {
    Problem::new(ProblemCode::Busy, "the server does not know the job's tasks again yet; try again")
}

async fn metrics(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let site = site_of(&server, &call)?;
    let (_, id) = job_of(&server, &call, &site).await?;
    let metrics: Metrics = call.json(JSON_LIMIT).await?;
    server.note_metrics(id, &site, metrics.points).await;
    Ok(ack(&server))
}

async fn log(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let site = site_of(&server, &call)?;
    let (cell, id) = job_of(&server, &call, &site).await?;
    let chunk: LogChunk = call.json(JSON_LIMIT).await?;
    server
        .append_log(&cell, id, site, Role::Client, chunk.attempt, chunk.offset, chunk.text.into_bytes())
        .await?;
    Ok(ack(&server))
}

/// Where a blob lies that a site may read: its app, or the model of its current task.
async fn granted(server: &Server, call: &Call) -> Result<(Area, Hash), Problem> {
    let site = site_of(server, call)?;
    let (cell, id) = job_of(server, call, &site).await?;
    let root: Hash = call.param("root")?;
    if cell.facts.app(&site).is_some_and(|app| app.root == root) {
        return Ok((server.blobs.study(&cell.facts.study), root));
    }
    let job = cell.job.lock().await;
    let model = job.tasks.get(&site).and_then(|task| task.model.as_ref());
    match model {
        Some(Payload::Blob { blob }) if blob.root == root => {
            Ok((server.blobs.relay(id, &SiteName::server()), root))
        }
        _ => Err(Problem::new(ProblemCode::NotFound, "no such blob")),
    }
}

async fn read_blob(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (area, root) = granted(&server, &call).await?;
    server.blobs.serve(&call, &area, &root).await
}

async fn read_tree(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let (area, root) = granted(&server, &call).await?;
    server.blobs.serve_tree(&area, &root).await
}

/// Where a site may put a model: while it has a task in the job.
async fn may_write(server: &Server, call: &Call) -> Result<(Area, BlobRef), Problem> {
    let site = site_of(server, call)?;
    let (cell, id) = job_of(server, call, &site).await?;
    let size = call.query::<u64>("size")?.ok_or_else(|| Problem {
        at: Some("size".to_owned()),
        ..Problem::new(ProblemCode::Invalid, "the blob's size is missing")
    })?;
    let (has_task, unknown) = {
        let job = cell.job.lock().await;
        (job.tasks.contains_key(&site), job.tasks_unknown)
    };
    if unknown {
        return Err(not_yet());
    }
    if !has_task {
        return Err(Problem::new(ProblemCode::Conflict, format!("site {site} has no task in this job now")));
    }
    if size > MODEL_LIMIT {
        return Err(Problem {
            found: Some(size.to_string()),
            allowed: Some(format!("at most {MODEL_LIMIT}")),
            ..Problem::new(ProblemCode::TooLarge, "the model is too large")
        });
    }
    Ok((server.blobs.relay(id, &site), BlobRef { root: call.param("root")?, size }))
}

async fn write_blob(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let (area, blob) = may_write(&server, &call).await?;
    server.blobs.upload(&mut call, &area, blob, false).await
}

async fn write_tree(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let (area, blob) = may_write(&server, &call).await?;
    server.blobs.begin_upload(&mut call, &area, blob).await
}

/// Whether a payload may ride in a message.
pub(super) fn check_inline(data: &str) -> Result<(), Problem> {
    if data.len() as u64 > INLINE_LIMIT.div_ceil(3) * 4 {
        return Err(Problem {
            allowed: Some(format!("at most {INLINE_LIMIT} bytes; larger ones go as blobs")),
            ..Problem::new(ProblemCode::TooLarge, "the model is too large to ride in the message")
        });
    }
    Ok(())
}
