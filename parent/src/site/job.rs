//! One job at this site, and the task that drives it to what the server wants.
//!
//! ```text
//! goal reserve: order verified -> app fetched and inspected -> secrets there -> resources set aside: reserved
//!               busy (not enough now): tried again whenever something is given back
//! goal run:     the same, then a worker is wanted of the ledger; from then on its row is the stand
//! goal stop:    the worker is told and ended; without one the job has ended
//! ```
//! The driver takes no step by message: it compares goal and state, acts, and waits for a change of either.

use super::order::{self, Facts, Verified};
use super::outgoing::Outgoing;
use super::tasks::Shown;
use super::{NONCES, ORDERS, Site, Spent, lock};
use crate::time::now_ms;
use crate::workers::{App, RunError, Want};
use jiff::Timestamp;
use polder_api::order::SignedOrder;
use polder_api::site::{Goal, LogChunk, MetricPoint, Stand, Task, Terms};
use polder_api::worker::Stop;
use polder_core::job::JobConfig;
use polder_core::parent::{IsolationRequired, LauncherConfig};
use polder_core::study_runtime::{Approval, StudyRuntime};
use polder_core::value::{Value, from_bytes, to_json};
use polder_launch::{Ask, Resolved, Short};
use polder_store::{DocumentStore as _, bundle};
use polder_transport::blob::{BlobError, Transfer, download};
use polder_transport::identity::Revocations;
use polder_words::{FailureClass, Isolation, JobId, Nonce, Outcome, Role};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// First pause after a step that failed for a passing reason; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Smallest grace a worker gets that is not wanted any more.
const GRACE: Duration = Duration::from_secs(10);

/// What the server wants.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    pub(super) goal: Goal,
    pub(super) task: Option<Task>,
}

/// An order this site follows, and what it means here.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) verified: Verified,
    /// The app's `job.yaml` with defaults.
    pub(super) config: JobConfig,
    /// What the site says about the study, as it was when the job was accepted (or this parent was started).
    pub(super) runtime: StudyRuntime,
    /// The app's archive.
    app: App,
}

/// One job.
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) site: Arc<Site>,
    order: SignedOrder,
    pub(super) wanted: watch::Sender<Wanted>,
    stand: Mutex<Stand>,
    accepted: Mutex<Option<Arc<Accepted>>>,
    /// The current task as the worker sees it.
    pub(super) shown: Mutex<Shown>,
    /// The result of the current task, on its way up.
    pub(super) result: watch::Sender<Option<Arc<Outgoing>>>,
    pub(super) talk: Mutex<Talk>,
    pub(super) talks: Notify,
    started: AtomicBool,
    pub(super) over: CancellationToken,
}

/// Metrics and log lines on their way up.
#[derive(Debug, Default)]
pub(super) struct Talk {
    pub(super) metrics: VecDeque<MetricPoint>,
    pub(super) log: VecDeque<LogChunk>,
}

/// A step that did not come to its end.
enum Halt {
    /// Never.
    Refused { class: FailureClass, why: String },
    /// Not now: try again when something is given back.
    Busy(String),
    /// A passing trouble: try again soon.
    Trouble(String),
}

fn refused(class: FailureClass, why: impl Into<String>) -> Halt {
    Halt::Refused { class, why: why.into() }
}

fn trouble(why: impl std::fmt::Display) -> Halt {
    Halt::Trouble(format!("{why:#}"))
}

impl Job {
    pub(super) fn new(site: Arc<Site>, id: JobId, order: SignedOrder) -> Self {
        let over = site.stop.child_token();
        Self {
            id,
            site,
            order,
            wanted: watch::Sender::new(Wanted { goal: Goal::Reserve, task: None }),
            stand: Mutex::new(Stand::Preparing),
            accepted: Mutex::default(),
            shown: Mutex::default(),
            result: watch::Sender::new(None),
            talk: Mutex::default(),
            talks: Notify::new(),
            started: AtomicBool::new(false),
            over,
        }
    }

    /// Takes what the server wants.
    pub(super) fn want(&self, goal: Goal, task: Option<Task>) {
        let new = Wanted { goal, task };
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != new;
            *wanted = new;
            changed
        });
    }

    /// Takes what the server wants, while it does not know the tasks itself.
    pub(super) fn want_as_before(&self, goal: Goal) {
        let task = self.wanted.borrow().task.clone();
        self.want(goal, task);
    }

    /// Starts what drives the job, once.
    pub(super) fn start(self: &Arc<Self>) {
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let over = self.over.clone();
        let job = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = over.cancelled() => {}
                () = job.drive() => {}
                () = super::tasks::follow(&job) => {}
                () = super::outgoing::results(&job) => {}
                () = super::outgoing::talk(&job) => {}
            }
        });
    }

    pub(super) fn stand(&self) -> Stand {
        lock(&self.stand).clone()
    }

    /// Says how the job stands, when that is news.
    pub(super) fn set_stand(&self, stand: Stand) {
        let mut shown = lock(&self.stand);
        if *shown != stand {
            *shown = stand;
            drop(shown);
            self.site.tell(self.id);
        }
    }

    pub(super) fn accepted(&self) -> Option<Arc<Accepted>> {
        lock(&self.accepted).clone()
    }

    /// The server wants nothing of this job any more: its worker ends, its files go.
    pub(super) fn forget(self: Arc<Self>) {
        self.over.cancel();
        let site = Arc::clone(&self.site);
        lock(&site.letting_go).insert(self.id);
        tokio::spawn(async move {
            // An order that was followed is not followed twice; one that never got so far (its site was busy, say)
            // may come again.
            let ran = site.workers().state(self.id, Role::Client).is_some();
            let nonce = lock(&self.accepted).as_ref().map(|accepted| accepted.verified.order.nonce);
            if let Some(nonce) = nonce
                && let Err(error) = self.settle_nonce(nonce, ran).await
            {
                tracing::error!(%error, "a nonce cannot be marked");
            }
            if let Some(state) = site.workers().state(self.id, Role::Client)
                && state.ended.is_none()
            {
                let stop = Stop { why: "no longer wanted".to_owned(), grace_seconds: GRACE.as_secs() };
                if let Err(error) = site.workers().stop(self.id, Role::Client, stop).await {
                    tracing::error!(%error, job = %self.id, "a worker cannot be ended");
                }
                self.wait_for_end().await;
            }
            site.workers().forget(self.id, Role::Client);
            if let Err(error) = site.store.remove_document(ORDERS, &self.id.to_string()).await {
                tracing::error!(%error, "an order cannot be forgotten");
            }
            let folder = site.folder_of(self.id);
            let _ = tokio::fs::remove_dir_all(folder).await;
            lock(&site.letting_go).remove(&self.id);
        });
    }

    async fn settle_nonce(&self, nonce: Nonce, ran: bool) -> polder_store::Result<()> {
        let site = &self.site;
        if !ran {
            lock(&site.nonces).remove(&nonce);
            return site.store.remove_document(NONCES, &nonce.to_string()).await;
        }
        let spent = lock(&site.nonces).get_mut(&nonce).map(|spent| {
            spent.over = true;
            spent.clone()
        });
        match spent.and_then(|spent| serde_json::to_value(spent).ok()) {
            Some(body) => site.store.put_document(NONCES, &nonce.to_string(), body).await,
            None => Ok(()),
        }
    }

    async fn wait_for_end(&self) {
        let mut changes = self.site.workers().changes();
        let ended = async {
            while self.site.workers().state(self.id, Role::Client).is_some_and(|state| state.ended.is_none())
            {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(GRACE * 2, ended).await;
    }

    async fn drive(self: &Arc<Self>) {
        let mut wanted = self.wanted.subscribe();
        let mut changes = self.site.workers().changes();
        let mut pause = PAUSE;
        loop {
            let goal = wanted.borrow_and_update().goal.clone();
            changes.borrow_and_update();
            let (again, on_change) = match self.step(&goal).await {
                Ok(()) => (None, false),
                Err(Halt::Refused { class, why }) => {
                    self.refuse(class, why).await;
                    (None, false)
                }
                Err(Halt::Busy(reason)) => {
                    self.set_stand(Stand::Busy { reason });
                    (None, true)
                }
                Err(Halt::Trouble(why)) => {
                    tracing::warn!(job = %self.id.short(), "{why}; trying again");
                    (Some(pause), false)
                }
            };
            let wait = async {
                match again {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                changed = changes.changed(), if on_change => if changed.is_err() { return },
                () = wait => {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            }
            pause = PAUSE;
        }
    }

    async fn refuse(&self, class: FailureClass, why: String) {
        self.site.workers().release(self.id, Role::Client).await;
        // What was fetched before it was found out does not stay.
        if self.site.workers().state(self.id, Role::Client).is_none() {
            let _ = tokio::fs::remove_dir_all(self.site.folder_of(self.id)).await;
        }
        tracing::warn!(job = %self.id.short(), %class, "refused: {why}");
        self.site.write_audit(
            "job_refused",
            &[
                ("job", self.id.to_string().into()),
                ("class", class.as_str().into()),
                ("why", why.clone().into()),
            ],
        );
        self.set_stand(Stand::Refused { class, why });
    }

    async fn step(self: &Arc<Self>, goal: &Goal) -> Result<(), Halt> {
        let workers = self.site.workers();
        if lock(&self.site.letting_go).contains(&self.id) || workers.is_forgetting(self.id, Role::Client) {
            return Err(trouble("what is left of its last time here is still being cleared away"));
        }
        let state = workers.state(self.id, Role::Client);
        match goal {
            Goal::Reserve | Goal::Run if state.is_some() => {
                // It runs already (this parent was started again): what it needs is what it got.
                if self.accepted().is_none() {
                    self.accept(true).await?;
                }
                Ok(())
            }
            Goal::Reserve => {
                let accepted = self.accept(false).await?;
                self.reserve(&accepted).await?;
                self.set_stand(Stand::Reserved { terms: Some(self.terms(&accepted)) });
                Ok(())
            }
            Goal::Run => {
                let accepted = self.accept(false).await?;
                let launch = self.resolved(&accepted)?;
                let want = Want { launch, app: Some(accepted.app.clone()) };
                match workers.run(want).await {
                    Ok(()) => Ok(()),
                    Err(RunError::Short(short)) => Err(short_of(&short)),
                    Err(RunError::Refused(refusal)) => Err(refused(refusal.class, refusal.to_string())),
                    Err(error @ RunError::Bundle { .. }) => {
                        Err(refused(FailureClass::Config, error.to_string()))
                    }
                    Err(RunError::Failed(error)) => Err(trouble(error)),
                }
            }
            Goal::Stop { why, grace_seconds } => match state {
                Some(state) if state.ended.is_some() => Ok(()),
                Some(_) => {
                    let stop = Stop { why: why.clone(), grace_seconds: *grace_seconds };
                    workers.stop(self.id, Role::Client, stop).await.map_err(trouble)
                }
                None => {
                    workers.release(self.id, Role::Client).await;
                    if !matches!(self.stand(), Stand::Refused { .. }) {
                        let outcome = Outcome::failed(FailureClass::Aborted, why.as_str());
                        self.set_stand(Stand::Ended { attempts: 0, outcome });
                    }
                    Ok(())
                }
            },
        }
    }

    /// Checks the order and fetches what it needs; what is accepted is on disk when this returns.
    async fn accept(self: &Arc<Self>, again: bool) -> Result<Arc<Accepted>, Halt> {
        if let Some(accepted) = self.accepted() {
            return Ok(accepted);
        }
        let site = &self.site;
        let known = site.store.document(ORDERS, &self.id.to_string()).await.map_err(trouble)?.is_some();
        let policy = site.policy().map_err(|error| refused(FailureClass::Config, format!("{error:#}")))?;
        let revoked =
            site.kit.revocations().map_err(|error| refused(FailureClass::Config, error.to_string()))?;
        let revoked = Revocations::new(&revoked);
        let verified = order::verify(
            &self.order,
            &Facts {
                job: self.id,
                trust: site.kit.trust(),
                federation: &site.kit.info().federation,
                site: &site.config.name,
                org: &site.kit.info().org,
                policy: &policy,
                revoked: &revoked,
                now: (!known).then(Timestamp::now),
            },
        )
        .map_err(|error| refused(error.class(), error.to_string()))?;
        self.check_nonce(&verified)?;
        let study = &verified.order.study;
        let runtime = site.runtime(study).map_err(|e| refused(FailureClass::Config, format!("{e:#}")))?;
        if !again {
            self.judge(&runtime)?;
        }
        let app = self.fetch(&verified).await?;
        let config = inspect(app.clone()).await?;
        if !known {
            self.write_down(&verified).await?;
        }
        let accepted = Arc::new(Accepted { verified, config, runtime, app });
        *lock(&self.accepted) = Some(Arc::clone(&accepted));
        Ok(accepted)
    }

    fn check_nonce(&self, verified: &Verified) -> Result<(), Halt> {
        match lock(&self.site.nonces).get(&verified.order.nonce) {
            Some(spent) if spent.job != self.id => {
                let why = format!("the order's nonce was used by job {}", spent.job);
                Err(refused(FailureClass::Policy, why))
            }
            Some(spent) if spent.over => {
                Err(refused(FailureClass::Policy, "the order was followed before; it is not followed twice"))
            }
            _ => Ok(()),
        }
    }

    /// What the site's own rules say, the signer apart.
    fn judge(&self, runtime: &StudyRuntime) -> Result<(), Halt> {
        if runtime.approval != Approval::None {
            let why = format!(
                "study {} needs an approval here (approval: {}), which this version cannot ask for",
                runtime.study,
                runtime.approval.as_str()
            );
            return Err(refused(FailureClass::Policy, why));
        }
        let isolation = self.site.workers().standing().offer.isolation;
        let required = match &self.site.config.launcher {
            LauncherConfig::Process(process) => process.isolation_required != IsolationRequired::Never,
            _ => false,
        };
        if required && isolation == Isolation::None {
            let why = "the job brings code and this site cannot keep a worker from its parent's files \
                       (isolation: none); launcher.process.isolation_required: false would allow it";
            return Err(refused(FailureClass::Policy, why));
        }
        secrets(runtime)?;
        Ok(())
    }

    async fn fetch(&self, verified: &Verified) -> Result<App, Halt> {
        let folder = self.site.folder_of(self.id);
        let path = folder.join(verified.app.root.to_string());
        let app = App { path: path.clone(), blob: verified.app };
        if tokio::fs::try_exists(&path).await.unwrap_or(false) {
            return Ok(app);
        }
        if verified.app.size > bundle::Limits::default().bytes {
            let why = format!("the app's archive has {} bytes", verified.app.size);
            return Err(refused(FailureClass::Config, why));
        }
        make_folder(&folder).await.map_err(trouble)?;
        let prefix = format!("/v1/site/jobs/{}/blobs", self.id);
        match download(&self.site.client, &prefix, verified.app, &path, &Transfer::default()).await {
            Ok(()) => Ok(app),
            Err(error @ (BlobError::WrongPiece { .. } | BlobError::WrongTree { .. })) => {
                Err(refused(FailureClass::Policy, format!("the app is not the one that was signed: {error}")))
            }
            Err(error) => Err(trouble(format!("the app cannot be fetched: {error}"))),
        }
    }

    async fn write_down(&self, verified: &Verified) -> Result<(), Halt> {
        let site = &self.site;
        let nonce = verified.order.nonce;
        let spent = Spent { job: self.id, expires: verified.order.expires, over: false };
        let order = serde_json::to_value(&self.order).map_err(trouble)?;
        let body = serde_json::to_value(&spent).map_err(trouble)?;
        let (id, nonce_key) = (self.id.to_string(), nonce.to_string());
        // One group commit.
        let (a, b) = tokio::join!(
            site.store.put_document(NONCES, &nonce_key, body),
            site.store.put_document(ORDERS, &id, order),
        );
        a.and(b).map_err(trouble)?;
        lock(&site.nonces).insert(nonce, spent);
        site.write_audit(
            "order_accepted",
            &[
                ("job", self.id.to_string().into()),
                ("study", verified.order.study.to_string().into()),
                ("submitter", verified.order.submitter.to_string().into()),
                ("app", verified.app.root.to_string().into()),
            ],
        );
        Ok(())
    }

    async fn reserve(&self, accepted: &Accepted) -> Result<(), Halt> {
        let launch = self.resolved(accepted)?;
        self.within_limits(accepted)?;
        let workers = self.site.workers();
        let allotted = match workers.reserve(self.id, Role::Client, Ask::from(&launch)).await {
            Ok(allotted) => allotted,
            Err(short) => return Err(short_of(&short)),
        };
        // What the adapter refuses is better said now than when others wait.
        match workers.plan(&launch, &allotted) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(refused(refusal.class, refusal.to_string())),
        }
    }

    fn within_limits(&self, accepted: &Accepted) -> Result<(), Halt> {
        let limits = &accepted.runtime.limits;
        let study = &accepted.runtime.study;
        if let Some(max) = limits.jobs {
            let others: Vec<Arc<Job>> = lock(&self.site.jobs).values().cloned().collect();
            let running = others
                .iter()
                .filter(|job| job.id != self.id)
                .filter(|job| job.accepted().is_some_and(|other| other.runtime.study == *study))
                .filter(|job| matches!(job.stand(), Stand::Reserved { .. } | Stand::Worker { .. }))
                .count();
            if running >= max as usize {
                return Err(Halt::Busy(format!("study {study} may have {max} jobs at once here")));
            }
        }
        Ok(())
    }

    /// On what terms the job runs here, for the provenance of its result.
    fn terms(&self, accepted: &Accepted) -> Terms {
        let offer = self.site.workers().standing().offer;
        Terms {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: offer.mode,
            isolation: offer.isolation,
            image: accepted.runtime.container_image.clone(),
            app: Some(accepted.verified.app.root),
            export: json(&accepted.runtime.export.to_value()).unwrap_or_default(),
        }
    }

    /// The launch this job asks for, as `polder plan` would show it.
    fn resolved(&self, accepted: &Accepted) -> Result<Resolved, Halt> {
        let verified = &accepted.verified;
        let mut launch = self.site.workers().resolved(self.id, Role::Client, &verified.order.study);
        polder_adapters::ask(&mut launch, "meta.json", &verified.meta, &accepted.runtime, &self.site.config)
            .map_err(|refusal| refused(refusal.class, refusal.to_string()))?;
        Ok(launch)
    }
}

fn json(value: &Value) -> serde_json::Result<serde_json::Value> {
    serde_json::from_str(&to_json(value))
}

fn short_of(short: &Short) -> Halt {
    if short.is_for_ever() {
        refused(FailureClass::Resources, short.to_string())
    } else {
        Halt::Busy(short.to_string())
    }
}

/// Makes a folder only this parent reads.
pub(super) async fn make_folder(path: &std::path::Path) -> std::io::Result<()> {
    let mut builder = tokio::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(path).await
}

/// Checks every rule of the archive and reads its `job.yaml`.
async fn inspect(app: App) -> Result<JobConfig, Halt> {
    let work = move || {
        let file = std::fs::File::open(&app.path).map_err(trouble)?;
        bundle::inspect(std::io::BufReader::new(file), &bundle::Limits::default(), &["job.yaml"])
            .map_err(|error| refused(FailureClass::Config, format!("the app's archive: {error}")))
    };
    let found = tokio::task::spawn_blocking(work).await.map_err(trouble)??;
    let Some(text) = found.wanted.get("job.yaml") else {
        return Err(refused(FailureClass::Config, "the app has no job.yaml"));
    };
    from_bytes("job.yaml", text)
        .and_then(|_| JobConfig::parse("job.yaml", text))
        .map_err(|error| refused(FailureClass::Config, error.to_string()))
}

/// The values of a study's secret variables.
pub(super) fn secrets_of(runtime: &StudyRuntime) -> Result<BTreeMap<String, String>, String> {
    let mut out = BTreeMap::new();
    for secret in &runtime.secret_env {
        let at = format!("studies.{}.secret_env.{}", runtime.study, secret.name);
        let value = match secret.file() {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| format!("{at}: {path}: {error}"))?;
                text.strip_suffix('\n').map(str::to_owned).unwrap_or(text)
            }
            None => std::env::var(&secret.source)
                .map_err(|_| format!("{at}: the parent has no variable {}", secret.source))?,
        };
        out.insert(secret.name.clone(), value);
    }
    Ok(out)
}

/// Whether they are there, before anything is launched.
fn secrets(runtime: &StudyRuntime) -> Result<(), Halt> {
    secrets_of(runtime).map(drop).map_err(|why| refused(FailureClass::Secret, why))
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({} at {} ms)", self.id, now_ms())
    }
}
