//! Where every worker of this parent is launched and spoken to, for both roles.
//!
//! ```text
//!   role (server/ or site/)           workers/                               worker
//!     run, stop, forget, poke  ---->  ledger --> launcher --> native object --> starts
//!     Upstream  <--------------------  api: enrol, assignment, next, results, report, outcome
//!     worker_changed  <--------------  ledger's rows + what the worker says of itself
//! ```
//! Launching is the ledger's; this room adds what a launch needs to come home: its run directory ([`dir`]), a
//! one-time token and a certificate ([`enrol`]), and the API a worker speaks ([`api`]). What a worker says is
//! believed about its own launch alone, and only while its attempt is the current one. A worker that is silent is shown
//! as unknown; only its backend can prove that it is dead.

mod api;
mod dir;
mod enrol;
mod port;
mod seat;
mod socket;
mod take;
mod words;

pub(crate) use dir::RunDir;
pub(crate) use port::Reach;
pub(crate) use socket::socket_path;
pub(crate) use words::{App, NextBody, RunError, TakeError, Upstream, Want, WorkerState};

use crate::time::now_ms;
use anyhow::Context as _;
use jiff::Timestamp;
use polder_api::worker::Stop;
use polder_api::{BlobRef, Problem, ProblemCode};
use polder_launch::row::Why;
use polder_launch::{
    Allotted, Ask, Clock, Key, Launcher, Ledger, Resolved, Row, Settings, Short, Standing, State, WantError,
};
use polder_store::{Audit, EnrolmentStore as _, Sqlite};
use polder_transport::blob::Tree;
use polder_transport::identity::WorkerAuthority;
use polder_transport::server::{Limits, Listener, serve};
use polder_transport::tls::Acceptor;
use polder_words::{Epoch, FileWay, JobId, LaunchId, Role, SiteName, StudyName, WorkerPhase};
use seat::{Seat, Seats};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What this room is built from.
pub(crate) struct WorkersSetup {
    /// The state directory.
    pub(crate) state: PathBuf,
    /// The name launches carry; `server` for the server's own workers.
    pub(crate) site: SiteName,
    /// This run of the parent.
    pub(crate) epoch: Epoch,
    /// The database: ledger rows and enrolments.
    pub(crate) store: Arc<Sqlite>,
    /// The audit log.
    pub(crate) audit: Arc<Audit>,
    /// What workers are launched with.
    pub(crate) launcher: Arc<dyn Launcher>,
    /// The worker binary.
    pub(crate) worker: PathBuf,
    /// How long a worker's long poll is kept.
    pub(crate) poll: Duration,
    /// How often a worker says that it lives.
    pub(crate) heartbeat: Duration,
    /// How workers reach this parent.
    pub(crate) reach: Reach,
    /// How files go between it and them.
    pub(crate) files: FileWay,
}

/// A handle on the workers of this parent; cheap to clone.
#[derive(Clone)]
pub(crate) struct Workers {
    inner: Arc<Inner>,
}

struct Inner {
    site: SiteName,
    epoch: Epoch,
    runs: PathBuf,
    worker: PathBuf,
    files: FileWay,
    poll: Duration,
    heartbeat: Duration,
    began: u64,
    store: Arc<Sqlite>,
    audit: Arc<Audit>,
    authority: Arc<WorkerAuthority>,
    ledger: Ledger,
    upstream: Arc<dyn Upstream>,
    seats: Seats,
    /// What the role was told last.
    told: Mutex<BTreeMap<Key, WorkerState>>,
    /// Launches being forgotten.
    forgetting: Mutex<BTreeSet<Key>>,
    stop: CancellationToken,
}

impl Workers {
    /// Opens the ledger (adopting what runs), the worker CA, the workers' socket and port, and serves until `stop`.
    ///
    /// # Errors
    /// When one of them cannot be opened.
    pub(crate) async fn start(
        setup: WorkersSetup,
        upstream: Arc<dyn Upstream>,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let authority = WorkerAuthority::open_or_create(&setup.state.join("worker-ca"), Timestamp::now())?;
        let authority = Arc::new(authority);
        let runs = setup.state.join("runs");
        dir::make(&runs, 0o711).with_context(|| format!("cannot make {}", runs.display()))?;
        let socket = socket_path(&setup.state, setup.launcher.mode())?;
        let port = setup.reach.listen().await?;
        if let Some(address) = port.as_ref().and_then(Listener::local_addr) {
            tracing::info!(%address, "workers of other hosts may dial");
        }
        let host = enrol::Desk {
            runs: runs.clone(),
            reach: setup.reach,
            socket: socket.clone(),
            pin: authority.pin(),
            store: Arc::clone(&setup.store),
        };
        let ledger = Ledger::open(
            Arc::clone(&setup.store) as Arc<dyn polder_launch::LedgerStore>,
            setup.launcher,
            Arc::new(host),
            Settings { clock: Clock::default() },
        )
        .await?;
        // Workers of any account may connect: what they may do is a matter of their certificate.
        let listener = Listener::unix(&socket, 0o666)?;
        let acceptor = Acceptor::workers(Arc::clone(&authority))?;
        let inner = Arc::new(Inner {
            site: setup.site,
            epoch: setup.epoch,
            runs,
            worker: setup.worker,
            files: setup.files,
            poll: setup.poll,
            heartbeat: setup.heartbeat,
            began: now_ms(),
            store: setup.store,
            audit: setup.audit,
            authority,
            ledger,
            upstream,
            seats: Seats::new(setup.epoch),
            told: Mutex::default(),
            forgetting: Mutex::default(),
            stop: stop.clone(),
        });
        let workers = Self { inner };
        let limits = Limits { connections: 4096, grace: Duration::from_secs(2), ..Limits::default() };
        // Each has its own connections: whoever floods the port keeps nobody from the socket.
        for listener in std::iter::once(listener).chain(port) {
            let (acceptor, limits, stop) = (acceptor.clone(), limits.clone(), stop.clone());
            tokio::spawn(serve(listener, acceptor, api::router(&workers), limits, stop));
        }
        workers.look();
        tokio::spawn(workers.clone().follow());
        Ok(workers)
    }

    /// A launch of this job with everything that this room knows filled in: nothing asked for, no options.
    pub(crate) fn resolved(&self, job: JobId, role: Role, study: &StudyName) -> Resolved {
        Resolved {
            id: LaunchId { job, site: self.inner.site.clone(), role, attempt: 1 },
            study: study.clone(),
            run_dir: self.run_dir(job, role).path().to_owned(),
            worker: self.inner.worker.clone(),
            files: self.inner.files,
            gpus: 0,
            cpus: None,
            memory: None,
            options: serde_json::Map::new(),
            runtime: serde_json::Value::Null,
            pending_timeout_ms: None,
            max_restarts: polder_launch::launcher::default_max_restarts(),
        }
    }

    /// The run directory of a worker, whether it exists or not.
    pub(crate) fn run_dir(&self, job: JobId, role: Role) -> RunDir {
        RunDir::of(&self.inner.runs, job, role)
    }

    /// Unpacks an app as `app/` of a run directory, whole or not at all; one that is there already stays.
    ///
    /// # Errors
    /// When the archive breaks a rule ([`RunError::Bundle`]; nothing is left behind) or the disk says no.
    pub(crate) async fn unpack(&self, job: JobId, role: Role, app: App) -> Result<(), RunError> {
        let dir = self.run_dir(job, role);
        blocking(move || dir.unpack(&app)).await?
    }

    /// Sets resources aside; again is the same reservation.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) async fn reserve(&self, job: JobId, role: Role, ask: Ask) -> Result<Allotted, Short> {
        self.inner.ledger.reserve(job, role, ask).await
    }

    /// Gives a reservation back.
    pub(crate) async fn release(&self, job: JobId, role: Role) {
        self.inner.ledger.release(job, role).await;
    }

    /// Wants a worker. When this returns the intent is on disk. One that is wanted already stays as it is.
    ///
    /// # Errors
    /// When it cannot be had; nothing is launched then.
    pub(crate) async fn run(&self, want: Want) -> Result<(), RunError> {
        let Key { job, role } = Key::of(&want.launch.id);
        if self.inner.ledger.state(job, role).is_some() {
            return Ok(());
        }
        if let Some(app) = want.app {
            self.unpack(job, role, app).await?;
        }
        match self.inner.ledger.want(want.launch).await {
            Ok(_) => {
                self.look();
                Ok(())
            }
            Err(WantError::Short(short)) => Err(RunError::Short(short)),
            Err(WantError::Refused(refusal)) => Err(RunError::Refused(refusal)),
            Err(WantError::Ledger(error)) => Err(RunError::Failed(error.into())),
        }
    }

    /// Ends a worker: it is told, and ended by force after the grace. On disk when this returns.
    ///
    /// # Errors
    /// When the ledger cannot write it down.
    pub(crate) async fn stop(&self, job: JobId, role: Role, stop: Stop) -> anyhow::Result<()> {
        let grace = Duration::from_secs(stop.grace_seconds);
        self.inner.ledger.stop(job, role, stop.why, grace).await?;
        self.poke(job, role);
        Ok(())
    }

    /// Ends a worker if need be, and removes what is left of it: native leftovers, run directory, enrolments. Goes on
    /// by itself after this has returned; after a restart it has to be asked for again.
    pub(crate) fn forget(&self, job: JobId, role: Role) {
        let key = Key { job, role };
        if lock(&self.inner.forgetting).insert(key) {
            let workers = self.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = workers.inner.stop.cancelled() => {}
                    () = workers.erase(key) => {}
                }
                lock(&workers.inner.forgetting).remove(&key);
            });
        }
    }

    /// Whether a worker is being forgotten: wait with wanting it again.
    pub(crate) fn is_forgetting(&self, job: JobId, role: Role) -> bool {
        lock(&self.inner.forgetting).contains(&Key { job, role })
    }

    /// Where a worker stands; `None` when none is wanted.
    pub(crate) fn state(&self, job: JobId, role: Role) -> Option<WorkerState> {
        self.inner.ledger.state(job, role).map(|row| self.describe(&row))
    }

    /// Every worker that is wanted or not yet forgotten.
    pub(crate) fn all(&self) -> Vec<(JobId, Role, WorkerState)> {
        let rows = self.inner.ledger.rows();
        rows.iter().map(|row| (row.id().job, row.id().role, self.describe(row))).collect()
    }

    /// Every run directory there is, also without a worker.
    pub(crate) fn run_dirs(&self) -> Vec<(JobId, Role)> {
        dir::list(&self.inner.runs)
    }

    /// What `next` says for this worker changed.
    pub(crate) fn poke(&self, job: JobId, role: Role) {
        if let Some(seat) = self.inner.seats.get(Key { job, role }) {
            seat.bell.ring();
        }
    }

    /// What the site has and what is free.
    pub(crate) fn standing(&self) -> Standing {
        self.inner.ledger.standing()
    }

    /// Changes whenever a worker or what is free changes.
    pub(crate) fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.ledger.changes()
    }

    /// The native request a launch would make, without making it: what the adapter refuses shows here.
    ///
    /// # Errors
    /// As the adapter refuses.
    pub(crate) fn plan(
        &self,
        want: &Resolved,
        with: &Allotted,
    ) -> Result<polder_launch::Plan, polder_launch::Refusal> {
        self.inner.ledger.plan(want, with)
    }

    /// Puts a blob into a worker's `in/`, read-only, as a hard link where that is possible; gives its path relative to
    /// the run directory.
    ///
    /// # Errors
    /// When the disk says no.
    pub(crate) async fn give_file(
        &self,
        job: JobId,
        role: Role,
        blob: BlobRef,
        source: PathBuf,
    ) -> std::io::Result<String> {
        let dir = self.run_dir(job, role);
        blocking(move || dir.give(&blob, &source)).await.map_err(std::io::Error::other)?
    }

    /// Removes what lies in a worker's `in/` beside these.
    pub(crate) async fn keep_only(&self, job: JobId, role: Role, keep: BTreeSet<polder_words::Hash>) {
        let dir = self.run_dir(job, role);
        let _ = blocking(move || dir.keep_only(&keep)).await;
    }

    /// Copies a file a worker left into a folder of ours, named by its hash: no link on the way is followed, it has to
    /// be a regular file of the worker with one name and at most `cap` bytes.
    ///
    /// # Errors
    /// When it is anything else, or cannot be copied; nothing is left behind then.
    pub(crate) async fn take_file(
        &self,
        job: JobId,
        role: Role,
        path: &str,
        cap: u64,
        into: &Path,
    ) -> Result<Tree, TakeError> {
        let (dir, into, path) = (self.run_dir(job, role), into.to_owned(), path.to_owned());
        let shown = path.clone();
        match blocking(move || take::take(&dir, &path, cap, &into)).await {
            Ok(done) => done,
            Err(error) => Err(TakeError::Io { path: shown, source: std::io::Error::other(error) }),
        }
    }

    /// The last bytes of what a worker wrote, for who may see them.
    pub(crate) async fn tail(&self, launch: &LaunchId, max: usize) -> String {
        match self.inner.ledger.tail(launch, max).await {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }

    fn describe(&self, row: &Row) -> WorkerState {
        let launch = row.id().clone();
        let seat = self.inner.seats.look(Key::of(&launch), launch.attempt);
        let since = match row.state {
            State::Running { since, .. } => since.0,
            _ => 0,
        };
        let mut state = WorkerState {
            phase: row.phase(),
            native: row.native().map(ToString::to_string),
            reason: row.reason().map(str::to_owned),
            ready: seat.ready && row.is_live(),
            unknown_since: row.unknown.as_ref().map(|unknown| unknown.since.0),
            doing: seat.doing,
            ended: row.ended().cloned(),
            launch,
        };
        if state.phase == WorkerPhase::Running && state.unknown_since.is_none() {
            let heard = seat.heard.unwrap_or(0).max(since).max(self.inner.began);
            if now_ms().saturating_sub(heard) > self.silence() {
                state.unknown_since = Some(heard);
                state.reason = Some("its worker is silent; its backend says that it runs".to_owned());
            }
        }
        if let State::Exited {
            outcome: polder_words::Outcome::Failed { cause, .. }, retry: Some(_), ..
        } = &row.state
        {
            state.reason = Some(format!("{cause}; another attempt follows"));
        }
        state
    }

    /// How long a worker may be silent before that is shown, in milliseconds.
    fn silence(&self) -> u64 {
        polder_launch::clock::millis(self.inner.heartbeat.saturating_mul(3))
    }

    /// Tells the role what changed since it was told last, one teller at a time: what is told last is what is true.
    fn look(&self) {
        let mut told = lock(&self.inner.told);
        let rows = self.inner.ledger.rows();
        told.retain(|key, _| rows.iter().any(|row| row.key() == *key));
        for row in &rows {
            let (key, state) = (row.key(), self.describe(row));
            if told.get(&key) != Some(&state) {
                self.inner.upstream.worker_changed(key.job, key.role, &state);
                told.insert(key, state);
            }
        }
    }

    /// Follows the ledger; while something runs, also the silence of workers.
    async fn follow(self) {
        let mut changes = self.inner.ledger.changes();
        loop {
            let lives = self.inner.ledger.rows().iter().any(|row| matches!(row.state, State::Running { .. }));
            tokio::select! {
                () = self.inner.stop.cancelled() => return self.inner.ledger.close().await,
                changed = changes.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(self.inner.heartbeat), if lives => {}
            }
            self.look();
        }
    }

    async fn erase(&self, key: Key) {
        let mut changes = self.inner.ledger.changes();
        loop {
            let Some(row) = self.inner.ledger.state(key.job, key.role) else { break };
            if row.ended().is_none()
                && let Err(error) =
                    self.inner.ledger.stop(key.job, key.role, "no longer wanted", Duration::ZERO).await
            {
                tracing::warn!(%error, job = %key.job, "a worker that is no longer wanted cannot be ended");
            }
            match self.inner.ledger.forget(key.job, key.role).await {
                Ok(true) => {
                    for attempt in 1..=row.id().attempt {
                        let launch = LaunchId { attempt, ..row.id().clone() };
                        let _ = self.inner.store.remove_enrolment(&launch).await;
                    }
                    break;
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, job = %key.job, "a launch cannot be forgotten yet"),
            }
            let _ = tokio::time::timeout(Duration::from_secs(5), changes.changed()).await;
        }
        self.inner.ledger.release(key.job, key.role).await;
        self.inner.seats.remove(key);
        let dir = self.run_dir(key.job, key.role);
        if let Ok(Err(error)) = blocking(move || dir.remove()).await {
            tracing::warn!(%error, job = %key.job, role = %key.role, "a run directory cannot be removed");
        }
        self.look();
    }

    /// The row of a launch, when that is the current attempt and lives.
    fn current(&self, launch: &LaunchId) -> Result<Row, Problem> {
        let row = self.inner.ledger.state(launch.job, launch.role);
        let row =
            row.ok_or_else(|| Problem::new(ProblemCode::NotFound, format!("{launch} is not wanted")))?;
        if row.id() != launch {
            let text = format!("attempt {} is not the current one ({} is)", launch.attempt, row.id().attempt);
            return Err(Problem::new(ProblemCode::Conflict, text));
        }
        Ok(row)
    }

    /// What a worker is told about its end.
    fn stop_of(row: &Row) -> Option<Stop> {
        let stop = row.stop.as_ref()?;
        let why = match &stop.why {
            Why::Asked { text } | Why::PendingTimeout { text } => text.clone(),
            Why::Refused { .. } | Why::Lingering => "ended by its parent".to_owned(),
        };
        let rest = stop.at.0.saturating_add(stop.grace_ms).saturating_sub(now_ms());
        Some(Stop { why, grace_seconds: rest.div_ceil(1000) })
    }

    fn seat(&self, launch: &LaunchId) -> Arc<Seat> {
        self.inner.seats.of(Key::of(launch))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what blocks beside the tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await.context("a blocking task was lost")
}
