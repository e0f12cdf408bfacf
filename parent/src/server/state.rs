//! What the server's role holds in memory, and how effects of a job are carried out.

use super::blobs::Blobs;
use super::job::{Command, Effects, Facts, Job, ServerWorker};
use super::launches::Launches;
use super::logs::Logs;
use super::registry::Registry;
use super::revoked::Revoked;
use super::rights::Rights;
use super::sites::{Said, Sites};
use polder_api::site::{Goal, Task, TaskResult};
use polder_api::user::EventKind;
use polder_api::worker::Member;
use polder_launch::clock::Clock;
use polder_store::{Audit, JobChange, Store};
use polder_transport::identity::Kit;
use polder_transport::longpoll::Bell;
use polder_words::{Epoch, FailureClass, JobId, JobPhase, Outcome, SiteName, WorkerPhase};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The server's role of this parent.
pub(crate) struct Server {
    /// The federation's name.
    pub(super) federation: String,
    /// This run.
    pub(super) epoch: Epoch,
    pub(super) clock: Clock,
    pub(super) kit: Arc<Kit>,
    pub(super) revoked: Revoked,
    pub(super) store: Arc<dyn Store>,
    pub(super) audit: Arc<Audit>,
    pub(super) state_dir: PathBuf,
    pub(super) max_restarts: u32,
    pub(super) blobs: Blobs,
    /// Read by who counts on blobs that no job holds yet, written by who removes such.
    pub(super) blobs_in_use: tokio::sync::RwLock<()>,
    /// When studies' folders were swept last, milliseconds since 1970.
    pub(super) swept: AtomicU64,
    pub(super) logs: Arc<Logs>,
    pub(super) registry: Registry,
    pub(super) rights: Rights,
    pub(super) sites: Sites,
    /// Set once, right after both exist: the launcher asks this role, and this role the launcher.
    pub(super) launches: OnceLock<Arc<dyn Launches>>,
    pub(super) jobs: RwLock<BTreeMap<JobId, Arc<Cell>>>,
    /// The scheduler should look again.
    pub(super) wake: Notify,
    pub(super) worker_news: tokio::sync::mpsc::UnboundedSender<(JobId, ServerWorker)>,
    pub(super) stop: CancellationToken,
}

/// A job that has not ended, and what belongs to it.
pub(super) struct Cell {
    pub(super) facts: Arc<Facts>,
    /// Held while effects are carried out, so that they happen in the order in which they were decided.
    pub(super) job: tokio::sync::Mutex<Job>,
    /// Rung with each event and when the job has ended.
    pub(super) bell: Bell,
    /// Rung when a log has grown.
    pub(super) log_bell: Bell,
    /// What the server worker is told, as it is now.
    board: Mutex<Board>,
    /// When the scheduler must look at it; `u64::MAX`: not.
    pub(super) deadline: AtomicU64,
    /// Files of the server worker that lie in the relay already.
    pub(super) taken: Mutex<HashMap<(polder_words::TaskId, String), polder_words::BlobRef>>,
}

impl Cell {
    fn new(epoch: Epoch, job: Job) -> Self {
        Self {
            facts: Arc::clone(&job.facts),
            job: tokio::sync::Mutex::new(job),
            bell: Bell::new(epoch),
            log_bell: Bell::new(epoch),
            board: Mutex::default(),
            deadline: AtomicU64::new(u64::MAX),
            taken: Mutex::default(),
        }
    }

    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn taken(
        &self,
    ) -> MutexGuard<'_, HashMap<(polder_words::TaskId, String), polder_words::BlobRef>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the server worker sees: read without waiting for whoever decides about the job.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) results: BTreeMap<SiteName, TaskResult>,
    pub(super) roster: BTreeMap<SiteName, Member>,
}

/// What a site is told of one job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    pub(super) goal: Goal,
    pub(super) signed: Arc<polder_api::SignedOrder>,
    pub(super) task: Option<Arc<Task>>,
    pub(super) tasks_unknown: bool,
    /// The feed's count when the job became wanted: who read before has not seen the order.
    pub(super) since: u64,
}

impl Server {
    /// Milliseconds since 1970.
    pub(super) fn now(&self) -> u64 {
        self.clock.now().0
    }

    pub(super) fn cell(&self, job: JobId) -> Option<Arc<Cell>> {
        self.jobs.read().unwrap_or_else(PoisonError::into_inner).get(&job).cloned()
    }

    /// All jobs that have not ended, oldest first.
    pub(super) fn cells(&self) -> Vec<Arc<Cell>> {
        let mut cells: Vec<_> =
            self.jobs.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        cells.sort_by_key(|cell| cell.facts.seq);
        cells
    }

    /// Takes a job in; a job that is there stays.
    pub(super) fn add(&self, job: Job) -> Arc<Cell> {
        let mut jobs = self.jobs.write().unwrap_or_else(PoisonError::into_inner);
        let cell = jobs.entry(job.facts.id).or_insert_with(|| Arc::new(Cell::new(self.epoch, job)));
        Arc::clone(cell)
    }

    pub(super) fn launches(&self) -> &Arc<dyn Launches> {
        self.launches.get().expect("set before anything is served")
    }

    /// Writes to the audit log; a log that cannot be written stops nothing but is said.
    pub(super) fn note(&self, what: &str, fields: &[(&str, serde_json::Value)]) {
        if let Err(error) = self.audit.write(self.now(), what, fields) {
            tracing::error!(%error, "the audit log cannot be written");
        }
    }

    /// Does what a decision asks for. The caller holds the job's lock.
    pub(super) async fn carry_out(&self, cell: &Arc<Cell>, job: &mut Job, effects: Effects) {
        let id = cell.facts.id;
        if let Some(change) = effects.change {
            self.write_down(id, change, effects.events).await;
            cell.bell.ring();
        } else if !effects.events.is_empty() {
            // A worker moved: nothing follows from it, so nobody waits for the disk.
            let written = self.store.append_events(id, effects.events, self.now());
            let cell = Arc::clone(cell);
            tokio::spawn(async move {
                if let Err(error) = written.await {
                    tracing::warn!(job = %id.short(), %error, "an event is lost");
                }
                cell.bell.ring();
            });
        }
        for (site, goal) in &effects.goals {
            self.publish(cell, job, site, goal.as_ref());
        }
        if effects.tasks {
            self.publish_tasks(job);
        }
        let mut failed = None;
        match effects.worker {
            Some(Command::Run) => failed = self.run_worker(&cell.facts).await.err(),
            Some(Command::Stop { why, grace_seconds }) => self.launches().stop(id, &why, grace_seconds).await,
            Some(Command::Release) => self.launches().release(id).await,
            None => {}
        }
        if effects.poke {
            {
                let mut board = cell.board();
                board.results.clone_from(&job.results);
                board.roster = job.roster();
            }
            self.launches().poke(id);
        }
        let deadline = job.deadline().unwrap_or(u64::MAX);
        let moved = cell.deadline.swap(deadline, Ordering::Relaxed) != deadline;
        if effects.done {
            self.let_go(cell, job.phase).await;
        }
        if effects.schedule || moved {
            self.wake.notify_one();
        }
        if let Some(outcome) = failed {
            // Its launcher will never run it: as if it had been tried and had ended.
            let worker = ServerWorker {
                attempt: 1,
                phase: WorkerPhase::Exited,
                native: None,
                reason: None,
                ready: false,
                unknown_since: None,
                ended: Some(outcome),
            };
            let effects = job.server_worker(worker, self.now());
            Box::pin(self.carry_out(cell, job, effects)).await;
        }
    }

    async fn run_worker(&self, facts: &Facts) -> Result<(), Outcome> {
        let app = facts.app(&SiteName::server());
        let app = app.ok_or_else(|| Outcome::failed(FailureClass::Config, "no app goes to the server"))?;
        let path = self.blobs.study(&facts.study).path(&app.root);
        self.launches().run(facts, path).await
    }

    /// A server worker moved. Does not block: it is taken up in order by [`Server::follow_workers`].
    pub(super) fn moved(&self, job: JobId, worker: ServerWorker) {
        let _ = self.worker_news.send((job, worker));
    }

    /// Takes up what is told of server workers.
    pub(super) async fn follow_workers(
        self: Arc<Self>,
        mut news: tokio::sync::mpsc::UnboundedReceiver<(JobId, ServerWorker)>,
    ) {
        while let Some((id, worker)) = news.recv().await {
            if let Some(cell) = self.cell(id) {
                let mut job = cell.job.lock().await;
                let effects = job.server_worker(worker, self.now());
                self.carry_out(&cell, &mut job, effects).await;
            }
        }
    }

    /// A site spoke, perhaps of itself.
    pub(super) async fn site_said(&self, site: &SiteName, said: Option<Said>) {
        if let Some(row) = self.sites.heard(site, said, self.now()) {
            if let Err(error) = self.store.put_site(row).await {
                tracing::error!(%site, %error, "what a site said cannot be stored");
            }
            self.wake.notify_one();
        }
    }

    /// Writes, until it is written: nothing may be done that is not on disk.
    async fn write_down(&self, id: JobId, change: JobChange, events: Vec<EventKind>) {
        let at = self.now();
        loop {
            match self.store.change_job(id, change.clone(), events.clone(), at).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::error!(job = %id.short(), %error, "the job's state cannot be written; trying again");
                    tokio::select! {
                        () = self.stop.cancelled() => std::future::pending().await,
                        () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    }
                }
            }
        }
    }

    fn publish(&self, cell: &Cell, job: &Job, site: &SiteName, goal: Option<&Goal>) {
        let id = cell.facts.id;
        let Some(goal) = goal else {
            self.sites.let_go(site, &id);
            return;
        };
        let desired = self.sites.desired(site);
        let since = desired.get(&id).map_or_else(|| desired.cursor().n + 1, |known| known.since);
        desired.set(
            id,
            Wanted {
                goal: goal.clone(),
                signed: Arc::clone(&cell.facts.signed),
                task: job.tasks.get(site).cloned(),
                tasks_unknown: job.tasks_unknown,
                since,
            },
        );
    }

    fn publish_tasks(&self, job: &Job) {
        for site in &job.keep.sites {
            let task = job.tasks.get(site).cloned();
            self.sites.desired(site).update(&job.facts.id, |wanted| {
                wanted.task = task;
                wanted.tasks_unknown = job.tasks_unknown;
            });
        }
    }

    /// The job has ended and that is on disk.
    async fn let_go(&self, cell: &Cell, phase: JobPhase) {
        let id = cell.facts.id;
        self.note("job_ended", &[("job", id.to_string().into()), ("phase", phase.as_str().into())]);
        self.jobs.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.launches().forget(id);
        self.blobs.end_relay(id);
        // Those who wait for events read the end from the database now.
        cell.bell.ring();
    }
}
