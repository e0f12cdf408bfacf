//! The site role: a parent that dials the server, decides for itself, launches workers and is the gate through
//! which everything leaves.
//!
//! ```text
//!   server parent                      this room                                  workers/
//!     desired  ---- link: long poll --> job.wanted --> driver: order, app, reserve, run, stop --> Workers
//!                                                  \-> tasks: blobs fetched, files given ------> next
//!     observed <--- link: when dirty -- job.stand  <-- worker_changed <------------------------- ledger
//!     results  <--- outgoing: upload, post  <-- gate: export policy over the spooled bytes <---- results
//! ```
//! Nothing here is remembered that could not be said again, but for two things on disk: the orders that were
//! accepted (with their nonces) and the ledger. Files: [`order`] what is believed, [`job`] one job and its
//! driver, [`tasks`] what goes down, [`gate`] what may leave, [`outgoing`] what goes up, [`link`] the wire.

mod gate;
mod job;
mod link;
mod order;
mod outgoing;
mod tasks;
mod upstream;

use crate::boot::Ground;
use crate::time::now_ms;
use crate::workers::{Reach, Workers, WorkersSetup};
use anyhow::Context as _;
use job::Job;
use polder_api::site::{Amount, Assignment, Down, Offer, Stand};
use polder_core::authz::Policy;
use polder_core::parent::ParentConfig;
use polder_core::study_runtime::{StudyRuntime, StudyRuntimes};
use polder_launch::Standing;
use polder_store::{Audit, DocumentStore as _, Sqlite};
use polder_transport::client::{Client, Dialer, Proxy};
use polder_transport::identity::Kit;
use polder_words::{Epoch, JobId, Nonce, Role, StudyName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Accepted orders, by job.
const ORDERS: &str = "site_order";
/// Nonces of orders, by nonce: kept until the order could not be accepted any more anyway.
const NONCES: &str = "site_nonce";

/// A nonce that was seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Spent {
    job: JobId,
    expires: u64,
    /// Whether the job was forgotten: the order is not accepted again.
    over: bool,
}

/// Everything of this site.
pub(crate) struct Site {
    config: ParentConfig,
    folder: PathBuf,
    kit: Arc<Kit>,
    store: Arc<Sqlite>,
    audit: Arc<Audit>,
    epoch: Epoch,
    /// `<state>/blobs`: apps and models that came down, results that go up, by job.
    blobs: PathBuf,
    client: Client,
    workers: OnceLock<Workers>,
    jobs: Mutex<BTreeMap<JobId, Arc<Job>>>,
    nonces: Mutex<BTreeMap<Nonce, Spent>>,
    /// Jobs whose last files and rows are being removed: they are not begun anew before that is done.
    letting_go: Mutex<BTreeSet<JobId>>,
    /// Jobs whose stand the server has not heard.
    dirty: Mutex<BTreeSet<JobId>>,
    news: Notify,
    /// The server's run, once it was spoken to. Another one: everything is said again.
    server: watch::Sender<Option<Epoch>>,
    stop: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the site until `stop`.
///
/// # Errors
/// When its state cannot be read or the workers' room not be opened. A server that is away is no error.
pub(crate) async fn serve(ground: Ground, stop: CancellationToken) -> anyhow::Result<()> {
    let blobs = ground.state.folder("blobs")?;
    let client = Client::new(dialer(&ground)?);
    let setup = WorkersSetup {
        state: ground.state.path().to_owned(),
        site: ground.config.name.clone(),
        epoch: ground.epoch,
        store: Arc::clone(&ground.store),
        audit: Arc::clone(&ground.audit),
        launcher: Arc::clone(&ground.launcher),
        worker: ground.worker.clone(),
        poll: ground.config.idle.poll,
        heartbeat: ground.config.idle.heartbeat,
        reach: Reach::of(&ground.config.launcher),
        files: ground.config.launcher.file_way(),
    };
    let site = Arc::new(Site {
        config: ground.config,
        folder: ground.folder,
        kit: ground.kit,
        store: ground.store,
        audit: ground.audit,
        epoch: ground.epoch,
        blobs,
        client,
        workers: OnceLock::new(),
        jobs: Mutex::default(),
        nonces: Mutex::default(),
        letting_go: Mutex::default(),
        dirty: Mutex::default(),
        news: Notify::new(),
        server: watch::Sender::new(None),
        stop: stop.clone(),
    });
    site.remember().await?;
    let upstream = Arc::new(upstream::Room(Arc::clone(&site)));
    let workers = Workers::start(setup, upstream, stop.clone()).await?;
    site.workers.set(workers).map_err(|_| anyhow::anyhow!("the workers' room was opened twice"))?;
    site.resume();
    tracing::info!(site = %site.config.name, server = %site.client.target(), "site parent is ready");
    link::keep(&site).await;
    drop(ground.state);
    Ok(())
}

fn dialer(ground: &Ground) -> anyhow::Result<Dialer> {
    let url = ground.config.server.as_ref().context("parent.yaml: server: is missing")?;
    let endpoint = polder_transport::Endpoint::new(&url.host, url.port)?;
    let proxy = match &ground.config.proxy {
        Some(proxy) => Some(Proxy::parse(&proxy.to_text())?),
        None => None,
    };
    let tls = polder_transport::tls::client_config(&ground.kit)?;
    let server_name = ground.kit.info().server.host.clone();
    Ok(Dialer::to(&endpoint, tls)?.server_name(&server_name)?.proxy(proxy))
}

impl Site {
    fn workers(&self) -> &Workers {
        self.workers.get().expect("set before anything that asks for workers is started")
    }

    fn job(&self, id: JobId) -> Option<Arc<Job>> {
        lock(&self.jobs).get(&id).cloned()
    }

    /// Where a job's blobs lie.
    fn folder_of(&self, job: JobId) -> PathBuf {
        self.blobs.join(job.to_string())
    }

    /// Reads what was accepted before this parent was started.
    async fn remember(self: &Arc<Self>) -> anyhow::Result<()> {
        let now = now_ms() / 1000;
        for (key, body) in self.store.documents(NONCES).await? {
            let (nonce, spent): (Nonce, Spent) = (key.parse()?, serde_json::from_value(body)?);
            if spent.over && spent.expires <= now {
                self.store.remove_document(NONCES, &key).await?;
            } else {
                lock(&self.nonces).insert(nonce, spent);
            }
        }
        for (key, body) in self.store.documents(ORDERS).await? {
            let id: JobId = key.parse()?;
            let job = Job::new(Arc::clone(self), id, serde_json::from_value(body)?);
            lock(&self.jobs).insert(id, Arc::new(job));
        }
        Ok(())
    }

    /// Goes on with what was accepted: a job with a worker wants it still, until the server says otherwise.
    fn resume(self: &Arc<Self>) {
        for (id, job) in lock(&self.jobs).iter() {
            if self.workers().state(*id, Role::Client).is_some() {
                job.want(polder_api::site::Goal::Run, None);
            }
            job.start();
        }
    }

    /// Follows what the server wants.
    fn desire(self: &Arc<Self>, assignments: Vec<Assignment>, forgotten: Vec<JobId>, snapshot: bool) {
        let mut gone: BTreeSet<JobId> = forgotten.into_iter().collect();
        if snapshot {
            let wanted: BTreeSet<JobId> = assignments.iter().map(|assignment| assignment.job).collect();
            gone.extend(lock(&self.jobs).keys().filter(|id| !wanted.contains(id)));
            let strays = self.workers().run_dirs().into_iter().map(|(job, _)| job);
            for stray in strays.filter(|job| !wanted.contains(job) && self.job(*job).is_none()) {
                self.workers().forget(stray, Role::Client);
            }
        }
        for assignment in assignments {
            gone.remove(&assignment.job);
            let known = self.job(assignment.job);
            let job = match (known, assignment.order) {
                (Some(job), _) => job,
                (None, Some(order)) => {
                    let job = Arc::new(Job::new(Arc::clone(self), assignment.job, order));
                    lock(&self.jobs).insert(assignment.job, Arc::clone(&job));
                    job
                }
                (None, None) => {
                    tracing::warn!(job = %assignment.job, "the server changed a job it never ordered");
                    continue;
                }
            };
            if assignment.tasks_unknown {
                job.want_as_before(assignment.goal);
            } else {
                job.want(assignment.goal, assignment.task);
            }
            job.start();
        }
        for id in gone {
            if let Some(job) = lock(&self.jobs).remove(&id) {
                job.forget();
            }
        }
    }

    /// The server has to hear of this job.
    fn tell(&self, job: JobId) {
        lock(&self.dirty).insert(job);
        self.news.notify_one();
    }

    /// Another run of the server: everything is news to it.
    fn tell_everything(&self) {
        let all: Vec<JobId> = lock(&self.jobs).keys().copied().collect();
        lock(&self.dirty).extend(all);
        self.news.notify_one();
    }

    /// `authorization.json`, read again each time; FLARE's defaults when it is not there.
    fn policy(&self) -> anyhow::Result<Policy> {
        let path = self.folder.join(&self.config.authorization);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Policy::parse(&path.display().to_string(), &bytes)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Policy::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// What this site says about a study, read again each time; nothing when there is no file.
    fn runtime(&self, study: &StudyName) -> anyhow::Result<StudyRuntime> {
        let path = self.folder.join(&self.config.study_runtime);
        let shown = path.display().to_string();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tracing::warn!(%study, "{shown} is not there: the study gets an empty runtime");
                return Ok(StudyRuntime::empty(study.clone()));
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        let base = path.parent().map(Path::to_owned).unwrap_or_default();
        let files = |name: &str| std::fs::read(base.join(name)).map_err(|error| error.to_string());
        let reading = self.config.reading(&files);
        let runtimes = StudyRuntimes::parse(&shown, &bytes, &reading)?;
        let (runtime, warning) = runtimes.of(&shown, study);
        for warning in runtimes.warnings.iter().chain(&warning) {
            tracing::warn!("{warning}");
        }
        runtime.check_launch(&shown, self.config.launcher.mode(), self.config.slurm_sandbox())?;
        Ok(runtime)
    }

    /// What the site has, as the server is told.
    fn offer(&self) -> Offer {
        offer_of(&self.workers().standing())
    }

    fn write_audit(&self, what: &str, fields: &[(&str, serde_json::Value)]) {
        if let Err(error) = self.audit.write(now_ms(), what, fields) {
            tracing::error!(%error, "the audit log cannot be written");
        }
    }

    /// How a job stands, for `observed`.
    fn stand(&self, job: JobId) -> Option<Stand> {
        self.job(job).map(|job| job.stand())
    }
}

/// Messages count memory in MiB.
const MIB: u64 = 1 << 20;

fn offer_of(standing: &Standing) -> Offer {
    let amount = |pair: Option<(u64, u64)>, unit: u64| {
        pair.map(|(free, all)| Amount { free: free / unit, all: all / unit })
    };
    Offer {
        mode: standing.offer.mode,
        architectures: standing.offer.architectures.clone(),
        isolation: standing.offer.isolation,
        not_enforced: standing.offer.not_enforced.clone(),
        gpus: amount(standing.gpus, 1),
        cpus: amount(standing.cpus, 1),
        memory_mib: amount(standing.memory, MIB),
        down: standing.down.as_ref().map(|down| Down { since: down.since.0, why: down.why.to_string() }),
    }
}
