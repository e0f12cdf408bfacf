//! What the server's role is to its own workers: the other half of relaying.
//!
//! Tasks go from the worker's `out/` into the relay and from there to sites; results come into the relay and are
//! linked into the worker's `in/`. Nothing here waits for a disk but the first task of a job, its rounds' events
//! (which the worker does not wait for) and its end.

use super::job::ServerWorker;
use super::provenance;
use super::site_api::check_inline;
use super::state::{Cell, Server};
use crate::workers::{NextBody, TakeError, Upstream, WorkerState};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polder_api::site::{MetricPoint, Task, TaskOutcome, TaskResult};
use polder_api::worker::{Ending, Report, RoundDone, Tasks, WorkerAssignment};
use polder_api::{BlobRef, Payload, Problem, ProblemCode};
use polder_words::{Hash, JobId, LaunchId, Outcome, Role, SiteName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Largest file a server worker may hand over.
const FILE_LIMIT: u64 = 64 << 30;
/// Most files a job may leave.
const RESULTS_LIMIT: usize = 1000;

fn taking(error: &TakeError) -> Problem {
    match error {
        TakeError::Path { .. } => Problem::new(ProblemCode::Invalid, error.to_string()),
        TakeError::TooLarge { .. } => Problem::new(ProblemCode::TooLarge, error.to_string()),
        TakeError::Io { .. } => {
            tracing::error!(%error, "a file of the server worker cannot be taken");
            Problem::new(ProblemCode::Internal, error.to_string())
        }
    }
}

fn internal(what: &'static str) -> impl FnOnce(std::io::Error) -> Problem {
    move |error| {
        tracing::error!(%error, what);
        Problem::new(ProblemCode::Internal, format!("{what}: {error}"))
    }
}

impl Server {
    fn of_launch(&self, launch: &LaunchId) -> Result<Arc<Cell>, Problem> {
        self.cell(launch.job).ok_or_else(|| {
            Problem::new(ProblemCode::NotFound, format!("job {} has ended", launch.job.short()))
        })
    }

    /// Puts a model that a site sent where the server worker finds it.
    pub(super) async fn hand_down(
        &self,
        id: JobId,
        of: &SiteName,
        model: &Payload,
    ) -> Result<Payload, Problem> {
        match model {
            Payload::Inline { data } => {
                check_inline(data)?;
                Ok(model.clone())
            }
            Payload::Blob { blob } => {
                let area = self.blobs.relay(id, of);
                if !area.has(blob) {
                    return Err(Problem::new(ProblemCode::Conflict, "the model has not been uploaded"));
                }
                let path = self.launches().give(id, area.path(&blob.root), *blob).await;
                let path = path.map_err(internal("the model cannot be handed to the server worker"))?;
                Ok(Payload::File { path, blob: Some(*blob) })
            }
            Payload::File { .. } => Err(Problem {
                allowed: Some("inline, blob".to_owned()),
                ..Problem::new(ProblemCode::Invalid, "a site's model is not a file here")
            }),
        }
    }

    /// A result came too late: its model is of no use.
    pub(super) async fn drop_model(&self, cell: &Cell, of: &SiteName, result: &TaskResult) {
        let Some(Payload::Blob { blob }) = model_of(result) else { return };
        let job = cell.job.lock().await;
        let used = job.results.get(of).and_then(model_of).and_then(root_of);
        if used != Some(blob.root) {
            self.blobs.relay(cell.facts.id, of).remove(&blob.root);
        }
    }

    /// A task's model as sites are given it.
    async fn hand_out(&self, cell: &Cell, task: &Task) -> Result<Option<Payload>, Problem> {
        let Some(model) = &task.model else { return Ok(None) };
        let path = match model {
            Payload::Inline { data } => {
                check_inline(data)?;
                return Ok(Some(model.clone()));
            }
            Payload::File { path, .. } => path,
            Payload::Blob { .. } => {
                return Err(Problem::new(
                    ProblemCode::Invalid,
                    "a task's model is a file of the run directory",
                ));
            }
        };
        let key = (task.id, path.clone());
        let known = cell.taken().get(&key).copied();
        let area = self.blobs.relay(cell.facts.id, &SiteName::server());
        let blob = match known.filter(|blob| area.has(blob)) {
            Some(blob) => blob,
            None => {
                let folder = area.folder().map_err(internal("the relay's folder cannot be made"))?;
                let taken = self.launches().take(cell.facts.id, path, FILE_LIMIT, folder).await;
                let tree = taken.map_err(|error| taking(&error))?;
                // Sites ask for it before they ask for the bytes.
                area.note_tree(&tree).map_err(internal("the model's piece list cannot be kept"))?;
                let blob = tree.blob();
                let mut taken = cell.taken();
                taken.retain(|(id, _), _| *id == task.id);
                taken.insert(key, blob);
                blob
            }
        };
        Ok(Some(Payload::Blob { blob }))
    }

    /// Removes from the relay and from the worker's `in/` what no current task or result needs.
    fn sweep(
        self: Arc<Self>,
        cell: Arc<Cell>,
        before: &BTreeSet<Relayed>,
        after: &BTreeSet<Relayed>,
        given: BTreeSet<Hash>,
    ) {
        let stale: Vec<Relayed> = before.difference(after).cloned().collect();
        if stale.is_empty() {
            return;
        }
        tokio::spawn(async move {
            let id = cell.facts.id;
            self.launches().keep_only(id, given).await;
            let removed = tokio::task::spawn_blocking(move || {
                for (of, root) in &stale {
                    self.blobs.relay(id, of).remove(root);
                }
            });
            let _ = removed.await;
        });
    }

    pub(super) async fn note_metrics(&self, id: JobId, site: &SiteName, points: Vec<MetricPoint>) {
        let mut text = String::new();
        for point in points {
            let line = serde_json::json!({"site": site, "round": point.round, "step": point.step, "values": point.values});
            text.push_str(&line.to_string());
            text.push('\n');
        }
        let logs = Arc::clone(&self.logs);
        let noted = tokio::task::spawn_blocking(move || logs.append_metrics(id, text.as_bytes())).await;
        if let Ok(Err(error)) = noted {
            tracing::warn!(job = %id.short(), %error, "metrics cannot be noted");
        }
    }

    #[expect(clippy::too_many_arguments, reason = "each is a plain part of where the bytes go")]
    pub(super) async fn append_log(
        &self,
        cell: &Cell,
        id: JobId,
        site: SiteName,
        role: Role,
        attempt: u32,
        offset: u64,
        bytes: Vec<u8>,
    ) -> Result<(), Problem> {
        let logs = Arc::clone(&self.logs);
        let appended =
            tokio::task::spawn_blocking(move || logs.append(id, &site, role, attempt, offset, &bytes)).await;
        match appended {
            Ok(Ok(new)) => {
                if new {
                    cell.log_bell.ring();
                }
                Ok(())
            }
            Ok(Err(error)) => Err(internal("the log cannot be stored")(error)),
            Err(error) => Err(internal("the log cannot be stored")(std::io::Error::other(error))),
        }
    }

    /// Takes over what the worker left, and signs how it came about.
    async fn take_results(&self, cell: &Cell, ending: &Ending) -> Result<BTreeMap<String, BlobRef>, Problem> {
        let id = cell.facts.id;
        let area = self.blobs.study(&cell.facts.study);
        area.folder().map_err(internal("the study's folder cannot be made"))?;
        if ending.results.len() > RESULTS_LIMIT {
            return Err(Problem::new(
                ProblemCode::TooLarge,
                format!("more than {RESULTS_LIMIT} result files"),
            ));
        }
        let mut files = BTreeMap::new();
        for (name, path) in &ending.results {
            if !is_file_name(name) {
                return Err(Problem {
                    found: Some(name.chars().take(80).collect()),
                    allowed: Some("1 to 200 letters, digits, '.', '_' or '-', no '.' first".to_owned()),
                    ..Problem::new(ProblemCode::Invalid, "a result's name is not one of a file")
                });
            }
            let folder = area.folder().map_err(internal("the study's folder cannot be made"))?;
            let blob =
                self.launches().take(id, path, FILE_LIMIT, folder).await.map_err(|error| taking(&error))?;
            files.insert(name.clone(), blob.blob());
        }
        if ending.outcome == Outcome::Completed {
            if let Some(bytes) = self.logs.metrics(id) {
                files.insert(
                    "site_metrics.jsonl".to_owned(),
                    area.put(&bytes).map_err(internal("metrics cannot be stored"))?,
                );
            }
            let document = {
                let job = cell.job.lock().await;
                provenance::document(self, &job, &files)
            };
            let signed = provenance::sign(self, &document).map_err(|error| {
                tracing::error!(%error, "the provenance cannot be signed");
                Problem::new(ProblemCode::Internal, "the provenance cannot be signed")
            })?;
            let blob = area.put(signed.as_bytes()).map_err(internal("the provenance cannot be stored"))?;
            files.insert(provenance::FILE.to_owned(), blob);
        }
        let synced: Vec<_> = files.values().map(|blob| area.path(&blob.root)).collect();
        let folder = area.folder().map_err(internal("the study's folder cannot be made"))?.to_owned();
        let synced = tokio::task::spawn_blocking(move || super::blobs::sync(&synced, &folder)).await;
        synced
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(internal("results cannot be synced"))?;
        Ok(files)
    }
}

/// A blob in the relay, and who made it.
type Relayed = (SiteName, Hash);

/// What the current tasks and results of a job need in the relay.
fn relayed(job: &super::job::Job) -> BTreeSet<Relayed> {
    let made = |of: &SiteName, model| root_of(model).map(|root| (of.clone(), root));
    let server = SiteName::server();
    let tasks = job.tasks.values().filter_map(|task| made(&server, task.model.as_ref()?));
    let results = job.results.iter().filter_map(|(site, result)| made(site, model_of(result)?));
    tasks.chain(results).collect()
}

/// The model of a result.
fn model_of(result: &TaskResult) -> Option<&Payload> {
    match &result.result {
        TaskOutcome::Done { model, .. } => model.as_ref(),
        TaskOutcome::Failed { .. } => None,
    }
}

/// The hash of a model that does not ride in the message.
fn root_of(model: &Payload) -> Option<Hash> {
    match model {
        Payload::Blob { blob } | Payload::File { blob: Some(blob), .. } => Some(blob.root),
        Payload::Inline { .. } | Payload::File { blob: None, .. } => None,
    }
}

fn is_file_name(name: &str) -> bool {
    (1..=200).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// The upstream as an object of its own: `Workers` holds it, and the server holds `Workers`.
pub(super) struct ServerUpstream(pub(super) Arc<Server>);

#[async_trait]
impl Upstream for ServerUpstream {
    async fn assignment(&self, launch: &LaunchId) -> Result<WorkerAssignment, Problem> {
        let cell = self.0.of_launch(launch)?;
        let job = cell.job.lock().await;
        let facts = &cell.facts;
        Ok(WorkerAssignment {
            launch: launch.clone(),
            study: facts.study.clone(),
            name: facts.name.clone(),
            job: job.keep.job.clone(),
            sites: job.keep.sites.clone(),
            min_clients: facts.min_clients,
            mandatory: facts.mandatory.iter().filter(|site| job.keep.sites.contains(site)).cloned().collect(),
            env: BTreeMap::new(),
            secret_env: BTreeMap::new(),
            gpus: Vec::new(),
            shared_files: true,
            report_seconds: 10,
        })
    }

    fn next(&self, launch: &LaunchId) -> NextBody {
        let Some(cell) = self.0.cell(launch.job) else { return NextBody::default() };
        let board = cell.board();
        NextBody { task: None, results: board.results.clone(), roster: board.roster.clone() }
    }

    async fn result(&self, launch: &LaunchId, _: TaskResult) -> Result<(), Problem> {
        Err(Problem::new(
            ProblemCode::Forbidden,
            format!("{launch} is a server worker: it has tasks, not results"),
        ))
    }

    async fn tasks(&self, launch: &LaunchId, tasks: Tasks) -> Result<(), Problem> {
        let server = &self.0;
        let cell = server.of_launch(launch)?;
        let mut given: BTreeMap<SiteName, Arc<Task>> = BTreeMap::new();
        for (site, mut task) in tasks.tasks {
            if task.id.attempt != launch.attempt {
                return Err(Problem {
                    found: Some(task.id.to_string()),
                    allowed: Some(format!("tasks of attempt {}", launch.attempt)),
                    ..Problem::new(ProblemCode::Invalid, "a task of another attempt")
                });
            }
            // Most often all sites get the same: it is held once then.
            task.model = server.hand_out(&cell, &task).await?;
            let same = given.values().find(|other| ***other == task).cloned();
            given.insert(site, same.unwrap_or_else(|| Arc::new(task)));
        }
        let mut job = cell.job.lock().await;
        if !job.is_current(launch) {
            return Err(Problem::new(ProblemCode::Conflict, format!("{launch} is not the current attempt")));
        }
        let before = relayed(&job);
        let effects = job.put_tasks(given, server.now());
        let after = relayed(&job);
        let results = job.results.values().filter_map(|result| root_of(model_of(result)?)).collect();
        server.carry_out(&cell, &mut job, effects).await;
        drop(job);
        Arc::clone(server).sweep(cell, &before, &after, results);
        Ok(())
    }

    async fn round(&self, launch: &LaunchId, round: RoundDone) -> Result<(), Problem> {
        let cell = self.0.of_launch(launch)?;
        match self.0.store.add_round(launch.job, round, self.0.now()).await {
            Ok(_) => {
                cell.bell.ring();
                Ok(())
            }
            Err(error) => {
                tracing::error!(job = %launch.job.short(), %error, "a round cannot be noted");
                Err(Problem::new(ProblemCode::Busy, "the round cannot be noted now"))
            }
        }
    }

    async fn report(&self, launch: &LaunchId, report: Report) -> Result<(), Problem> {
        let cell = self.0.of_launch(launch)?;
        if let Some(log) = report.log {
            let bytes = STANDARD.decode(&log.data).map_err(|error| {
                Problem::new(ProblemCode::Invalid, format!("the log is not base64: {error}"))
            })?;
            let site = SiteName::server();
            self.0
                .append_log(&cell, launch.job, site, Role::Server, launch.attempt, log.offset, bytes)
                .await?;
        }
        Ok(())
    }

    async fn ending(&self, launch: &LaunchId, ending: &Ending) -> Result<(), Problem> {
        let server = &self.0;
        let Ok(cell) = server.of_launch(launch) else { return Ok(()) };
        {
            let job = cell.job.lock().await;
            if job.keep.verdict.is_some() || !job.is_current(launch) {
                return Ok(());
            }
        }
        let mut outcome = ending.outcome.clone();
        let results = match server.take_results(&cell, ending).await {
            // What it wants to hand over is not acceptable, and will not be by being sent again.
            Err(problem) if matches!(problem.code, ProblemCode::Invalid | ProblemCode::TooLarge) => {
                let cause = format!("its results are not taken: {}", problem.message);
                outcome = Outcome::failed(polder_words::FailureClass::Policy, cause);
                BTreeMap::new()
            }
            taken => taken?,
        };
        let mut job = cell.job.lock().await;
        let effects = job.ending(outcome, ending.site.clone(), results, server.now());
        server.carry_out(&cell, &mut job, effects).await;
        Ok(())
    }

    fn worker_changed(&self, job: JobId, role: Role, state: &WorkerState) {
        if role == Role::Server {
            let worker = ServerWorker {
                attempt: state.launch.attempt,
                phase: state.phase,
                native: state.native.clone(),
                reason: state.reason.clone(),
                ready: state.ready,
                unknown_since: state.unknown_since,
                ended: state.ended.clone(),
            };
            self.0.moved(job, worker);
        }
    }
}
