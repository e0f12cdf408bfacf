//! The server's role: it keeps the federation's jobs, decides, relays, and launches the workflow's workers.
//!
//! ```text
//! user, site_api   requests --> checks --> state (jobs, sites) --> effects: database, then desired sets and workers
//! upstream         server workers --> the same
//! job              the state machine of one job, pure; which sites it starts with is `core::schedule`'s
//! scheduler        the one task that looks: connections, deadlines, the queue
//! state            what is in memory, and how effects are carried out in order
//! ```
//! What must survive is in the database before anything follows from it. What sites and workers say of themselves is
//! said again when they see another epoch, so a restarted server goes on from the database and listens.

mod blobs;
mod facts;
mod job;
mod launches;
mod logs;
mod provenance;
mod registry;
mod revoked;
mod rights;
mod scheduler;
mod site_api;
mod sites;
mod state;
#[cfg(test)]
mod tests;
mod upstream;
mod user;

use self::job::{Job, Keep};
use self::launches::Launches;
use self::state::Server;
use crate::boot::Ground;
use crate::workers::{Reach, Workers, WorkersSetup};
use anyhow::Context as _;
use polder_api::Order;
use polder_core::meta::JobMeta;
use polder_launch::Clock;
use polder_store::{JobRow, Store};
use polder_transport::identity::Kit;
use polder_transport::server::{self as http, Limits, Listener, Router};
use polder_transport::tls::Acceptor;
use polder_words::{Epoch, JobId, JobPhase, SiteName, StudyName};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use tokio_util::sync::CancellationToken;

/// How often studies' folders are swept at most, milliseconds.
const SWEEP_EVERY: u64 = 3600 * 1000;

/// Runs the role until `stop`.
pub(crate) async fn serve(ground: Ground, stop: CancellationToken) -> anyhow::Result<()> {
    let listen = ground.config.listen.context("parent.yaml: listen: is missing")?;
    let setup = Setup {
        kit: Arc::clone(&ground.kit),
        epoch: ground.epoch,
        clock: Clock::default(),
        store: Arc::clone(&ground.store) as Arc<dyn Store>,
        audit: Arc::clone(&ground.audit),
        state: ground.state.path().to_owned(),
        authorization: ground.folder.join(&ground.config.authorization),
        project: ground.kit.dir().join(polder_core::project::FILE),
        max_restarts: ground.config.max_restarts,
    };
    let (server, news) = Setup::open(setup, stop.clone()).await?;
    let listener = Listener::tcp(&listen.to_string()).await?;
    let address = listener.local_addr().context("the listener has no address")?;
    let workers = WorkersSetup {
        state: ground.state.path().to_owned(),
        site: SiteName::server(),
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
    let upstream = Arc::new(upstream::ServerUpstream(Arc::clone(&server)));
    let workers = Workers::start(workers, upstream, stop.clone()).await?;
    server.begin(Arc::new(workers), news).await?;
    let acceptor = Acceptor::participants(&ground.kit, Arc::clone(server.revoked.list()))?;
    tracing::info!(%address, federation = server.federation, "ready");
    http::serve(listener, acceptor, router(&server), Limits::default(), stop).await;
    // What is still in the database's queue is written before the process ends.
    server.store.purge_nonces(server.now() / 1000).await?;
    Ok(())
}

fn router(server: &Arc<Server>) -> Arc<Router<Server>> {
    Arc::new(site_api::routes(user::routes(Router::new(Arc::clone(server)))))
}

/// What the role is built from.
struct Setup {
    kit: Arc<Kit>,
    epoch: Epoch,
    clock: Clock,
    store: Arc<dyn Store>,
    audit: Arc<polder_store::Audit>,
    state: PathBuf,
    authorization: PathBuf,
    project: PathBuf,
    max_restarts: u32,
}

type News = tokio::sync::mpsc::UnboundedReceiver<(JobId, job::ServerWorker)>;

impl Setup {
    async fn open(self, stop: CancellationToken) -> anyhow::Result<(Arc<Server>, News)> {
        let (worker_news, news) = tokio::sync::mpsc::unbounded_channel();
        let server = Server {
            federation: self.kit.info().federation.clone(),
            epoch: self.epoch,
            clock: self.clock,
            revoked: revoked::Revoked::open(&self.kit)?,
            audit: self.audit,
            blobs: blobs::Blobs::new(&self.state),
            logs: Arc::new(logs::Logs::new(&self.state)),
            registry: registry::Registry::open(Arc::clone(&self.store), self.project).await?,
            rights: rights::Rights::open(self.authorization, self.kit.identity().org.clone())?,
            sites: sites::Sites::open(self.store.as_ref(), self.epoch).await?,
            blobs_in_use: tokio::sync::RwLock::default(),
            swept: std::sync::atomic::AtomicU64::new(0),
            launches: OnceLock::new(),
            jobs: std::sync::RwLock::default(),
            wake: tokio::sync::Notify::new(),
            worker_news,
            stop,
            max_restarts: self.max_restarts,
            state_dir: self.state,
            kit: self.kit,
            store: self.store,
        };
        Ok((Arc::new(server), news))
    }
}

impl Server {
    /// Takes up every job that has not ended where it was, and starts looking.
    async fn begin(self: &Arc<Self>, launches: Arc<dyn Launches>, news: News) -> anyhow::Result<()> {
        let known: BTreeSet<JobId> = launches.jobs().into_iter().collect();
        self.launches.set(launches).map_err(|_| anyhow::anyhow!("the server was begun twice"))?;
        let now = self.now();
        let mut live = BTreeSet::new();
        let mut cells = Vec::new();
        for (row, signed) in self.store.live_jobs().await? {
            let id = row.id;
            let job = restored(&row, signed, self.max_restarts, now)
                .with_context(|| format!("job {} in the database", id.short()))?;
            live.insert(id);
            cells.push(self.add(job));
        }
        for id in known.difference(&live) {
            self.launches().forget(*id);
        }
        self.sweep_disk(&live).await?;
        for cell in &cells {
            let mut job = cell.job.lock().await;
            if job.phase == JobPhase::Deploying
                && let Err(why) = self.launches().reserve(&cell.facts).await
            {
                tracing::warn!(job = %cell.facts.id.short(), why, "the server has no room for a worker any more");
            }
            let effects = job.resume(now);
            self.carry_out(cell, &mut job, effects).await;
            // Nobody is connected yet; who does not come back is not waited for.
            for site in job.keep.sites.clone() {
                let effects = job.site_connected(&site, false, now);
                self.carry_out(cell, &mut job, effects).await;
            }
        }
        if !cells.is_empty() {
            tracing::info!(jobs = cells.len(), "took up the jobs that had not ended");
        }
        tokio::spawn(Arc::clone(self).follow_workers(news));
        tokio::spawn(scheduler::run(Arc::clone(self)));
        Ok(())
    }

    /// Removes from the disk what no job holds: what a crash between a deletion and its files left.
    async fn sweep_disk(&self, live: &BTreeSet<JobId>) -> anyhow::Result<()> {
        let (relays, studies) = self.blobs.folders();
        for id in relays.into_iter().filter(|id| !live.contains(id)) {
            self.blobs.end_relay(id);
        }
        for study in studies {
            self.sweep_study(&study).await?;
        }
        self.swept.store(self.now(), Ordering::Relaxed);
        Ok(())
    }

    /// Now and then, when something happens anyway.
    async fn sweep_now_and_then(&self) {
        let now = self.now();
        if now.saturating_sub(self.swept.load(Ordering::Relaxed)) < SWEEP_EVERY {
            return;
        }
        self.swept.store(now, Ordering::Relaxed);
        for study in self.blobs.folders().1 {
            if let Err(error) = self.sweep_study(&study).await {
                tracing::warn!(%study, %error, "what nobody holds cannot be removed");
            }
        }
    }

    /// Removes what no job of the study holds: deleted, or uploaded long ago and never ordered.
    async fn sweep_study(&self, study: &StudyName) -> anyhow::Result<()> {
        let _alone = self.blobs_in_use.write().await;
        let held = self.store.held(study).await?;
        let area = self.blobs.study(study);
        tokio::task::spawn_blocking(move || area.keep_only(&held, blobs::FRESH)).await?;
        Ok(())
    }
}

/// A job as it is stored, put together again.
fn restored(
    row: &JobRow,
    signed: polder_api::SignedOrder,
    max_restarts: u32,
    now: u64,
) -> anyhow::Result<Job> {
    let order: Order = serde_json::from_str(&signed.order)?;
    let meta = JobMeta::parse("meta.json", order.meta.as_bytes())?;
    let keep: Keep = serde_json::from_value(row.state.clone())?;
    let facts = facts::of(row, signed, order, meta, max_restarts);
    let mut job = Job::new(Arc::new(facts), keep, row.phase, row.reason.clone(), now);
    job.started = row.started;
    Ok(job)
}
