//! The launcher: two phases, each on disk before it is acted on, and one list of jobs for all workers.
//!
//! ```text
//! prepare:  handover, intent on disk -> submit held -> number on disk
//! start:    release -> released on disk
//! find:     number on disk, or the job with this comment; an intent without a job is waited for until no request can be
//!           on its way any more, then fenced off
//! ```
//! A second job of the same launch, which only a lost answer can bring, is cancelled while it is held and never released.

use crate::plan::{Host as _, SlurmPlan, ThisHost, comment, job_name, plan};
use crate::record::Folder;
use crate::slurm::{Job, JobNumber, Slurm, Submission, Trouble};
use crate::state::{Known, native, remembered};
use async_trait::async_trait;
use bytes::Bytes;
use polder_core::parent::SlurmLauncher as Site;
use polder_launch::{
    Allotted, Cause, Check, Clock, Down, End, Event, Exit, Fate, Handover, LaunchError, Launcher, Native,
    NativeId, Offer, Plan, Proof, Refusal, Resolved, Sighting, Time,
};
use polder_words::{FailureClass, Isolation, LaunchId, Mode, Outcome};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

/// Shortest time between two lists of jobs.
const BEAT: Duration = Duration::from_secs(1);
/// `MessageTimeout` while no controller has said another.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of output that go into an outcome.
const TAIL: usize = 4096;

/// What the launcher is made from.
pub struct Settings {
    /// The site's.
    pub site: Site,
    /// Whether a job may bring its image.
    pub job_images: bool,
    /// The folder of the run directories, shared with the nodes.
    pub runs: PathBuf,
    /// Time.
    pub clock: Clock,
}

/// Launches Slurm jobs.
pub struct SlurmLauncher {
    settings: Settings,
    slurm: Arc<dyn Slurm>,
    message_timeout: Mutex<Duration>,
    /// A launch was made or released: look soon.
    news: Notify,
}

impl SlurmLauncher {
    /// For a site and its cluster.
    #[must_use]
    pub fn new(settings: Settings, slurm: Arc<dyn Slurm>) -> Self {
        Self { settings, slurm, message_timeout: Mutex::new(MESSAGE_TIMEOUT), news: Notify::new() }
    }

    fn folder(&self, id: &LaunchId) -> Folder {
        Folder::of(&self.settings.runs, id)
    }

    fn now(&self) -> Time {
        self.settings.clock.now()
    }

    /// After a request of this age, none like it can be on its way any more.
    fn settled_after(&self) -> Duration {
        *self.message_timeout.lock().expect("no holder of this lock panics") * 2
    }

    async fn meet(&self) -> Result<crate::slurm::Cluster, Trouble> {
        let cluster = self.slurm.ping().await?;
        *self.message_timeout.lock().expect("no holder of this lock panics") = cluster.message_timeout;
        Ok(cluster)
    }

    /// All launches of this parent that the controller remembers: jobs in its own run directories, since other parents
    /// may use the same account.
    async fn list(&self) -> Result<BTreeMap<LaunchId, Vec<Job>>, Trouble> {
        let mut out: BTreeMap<LaunchId, Vec<Job>> = BTreeMap::new();
        for job in self.slurm.jobs().await? {
            let id = job.comment.strip_prefix("polder:").and_then(|text| text.parse::<LaunchId>().ok());
            let Some(id) = id else { continue };
            // Anybody may write a comment; the name and the folder have to agree.
            let run_dir = self.settings.runs.join(format!("{}-{}", id.job, id.role));
            if job.name == job_name(&id) && run_dir == std::path::Path::new(&job.work_dir) {
                out.entry(id).or_default().push(job);
            }
        }
        Ok(out)
    }

    /// The one job of a launch; others of it are cancelled. `None` when there is none.
    async fn one(&self, id: &LaunchId, mut jobs: Vec<Job>) -> Result<Option<Job>, Cause> {
        let folder = self.folder(id);
        let told = |error: io::Error| Cause(format!("{}: {error}", folder.path().display()));
        jobs.sort_by_key(|job| job.number);
        let recorded = folder.job().map_err(told)?;
        let chosen = match recorded {
            Some(number) => jobs.iter().position(|job| job.number == number),
            None if jobs.is_empty() => None,
            None => Some(0),
        };
        let Some(chosen) = chosen else {
            for job in &jobs {
                self.stray(job).await;
            }
            return Ok(None);
        };
        let job = jobs.swap_remove(chosen);
        for other in &jobs {
            self.stray(other).await;
        }
        if recorded.is_none() {
            if folder.fenced().map_err(told)? {
                // It came after all: a new attempt may run by now, so this one never does.
                self.stray(&job).await;
                return Err(Cause(format!("job {} came late and is being cancelled", job.number)));
            }
            folder.put_job(job.number).map_err(told)?;
        }
        Ok(Some(job))
    }

    async fn stray(&self, job: &Job) {
        if native(job, &Known::default(), self.now()).is_some_and(|state| matches!(state, Native::Exited(_)))
        {
            return;
        }
        // Whether it worked is seen in the next list.
        let _ = self.slurm.cancel(job.number).await;
    }

    fn sighting(&self, id: &LaunchId, job: &Job) -> Result<Sighting, Cause> {
        let folder = self.folder(id);
        let known = folder.known().map_err(|error| Cause(format!("{}: {error}", folder.path().display())))?;
        let state = native(job, &known, self.now());
        let state = state.ok_or_else(|| {
            Cause(format!("job {} is {:?}, which says nothing here", job.number, job.state))
        })?;
        Ok(Sighting { id: id.clone(), native: native_id(job.number), state: self.with_tail(&folder, state) })
    }

    fn with_tail(&self, folder: &Folder, mut state: Native) -> Native {
        if let Native::Exited(Exit { outcome: Outcome::Failed { tail, .. }, .. }) = &mut state {
            *tail = String::from_utf8_lossy(&folder.tail(TAIL).unwrap_or_default()).into_owned();
        }
        state
    }

    async fn fate(&self, id: &LaunchId, jobs: Vec<Job>) -> Fate {
        let folder = self.folder(id);
        let told = |error: io::Error| Fate::Unsure(Cause(format!("{}: {error}", folder.path().display())));
        match self.one(id, jobs).await {
            Err(cause) => return Fate::Unsure(cause),
            Ok(Some(job)) => return self.sighting(id, &job).map_or_else(Fate::Unsure, Fate::Seen),
            Ok(None) => {}
        }
        let (number, known, intent) = match (folder.job(), folder.known(), folder.intent()) {
            (Ok(number), Ok(known), Ok(intent)) => (number, known, intent),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => return told(error),
        };
        if let Some(number) = number {
            return match remembered(&known) {
                Some(exit) => {
                    let state = self.with_tail(&folder, Native::Exited(exit));
                    Fate::Seen(Sighting { id: id.clone(), native: native_id(number), state })
                }
                None => Fate::Gone(Proof(format!(
                    "Slurm does not know job {number} any more and it left no record of its end"
                ))),
            };
        }
        let Some(intent) = intent else { return Fate::Gone(Proof("no job was ever asked for".to_owned())) };
        let wait = self.settled_after();
        if self.now().since(intent.at) < wait {
            return Fate::Unsure(Cause(format!(
                "a submission without an answer may arrive within {} s",
                wait.as_secs()
            )));
        }
        match folder.put_fenced() {
            Ok(()) => Fate::Gone(Proof(format!("no job came of a submission within {} s", wait.as_secs()))),
            Err(error) => told(error),
        }
    }

    fn down(trouble: &Trouble) -> Down {
        Down::now(format!("slurm: {trouble}"))
    }

    fn sendable(&self, plan: &SlurmPlan) -> Submission {
        let mut environment: Vec<(String, String)> =
            plan.descriptor.environment.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        for name in &plan.forward_env {
            if let Ok(value) = std::env::var(name) {
                environment.push((name.clone(), value));
            }
        }
        Submission {
            descriptor: plan.descriptor.clone(),
            script: plan.script.clone(),
            environment,
            user: plan.user.clone(),
        }
    }
}

/// `job 4711`.
fn native_id(number: JobNumber) -> NativeId {
    NativeId(format!("job {number}"))
}

fn number_of(native: &NativeId) -> Option<JobNumber> {
    native.0.strip_prefix("job ")?.parse().ok()
}

/// What a controller's no means. Texts are the library's own and differ between releases; numbers do not.
fn refused(code: i32, text: &str) -> Refusal {
    let class = match code {
        // Partition, feature, account, time limit, reservation, quality of service that do not exist.
        2000 | 2029 | 2045 | 2051 | 2053 | 2066 => FailureClass::Config,
        // Access to a partition, a user nobody knows, limits of accounts, access to a reservation.
        2002 | 2003 | 2010 | 2050 | 2052 => FailureClass::Policy,
        // Nodes, CPUs, memory and generic resources that no node has.
        2004 | 2005 | 2006 | 2014 | 2015 | 2044 | 2072 => FailureClass::Resources,
        _ => FailureClass::Infrastructure,
    };
    Refusal::new(class, format!("slurm: {text} (error {code})"))
}

fn unclear(error: &io::Error, folder: &Folder) -> LaunchError {
    LaunchError::Unclear(Down::now(format!("{}: {error}", folder.path().display())))
}

fn not_sent(error: &io::Error, folder: &Folder) -> LaunchError {
    LaunchError::NotSent(Down::now(format!("{}: {error}", folder.path().display())))
}

#[async_trait]
impl Launcher for SlurmLauncher {
    fn mode(&self) -> Mode {
        Mode::Slurm
    }

    async fn offer(&self) -> Result<Offer, Down> {
        self.meet().await.map_err(|trouble| Self::down(&trouble))?;
        Ok(Offer {
            mode: Mode::Slurm,
            architectures: vec![std::env::consts::ARCH.to_owned()],
            isolation: if self.settings.site.sandbox.is_container() {
                Isolation::Container
            } else {
                Isolation::None
            },
            not_enforced: Vec::new(),
            devices: None,
            cpus: None,
            memory: None,
            expected_start: None,
        })
    }

    fn plan(&self, want: &Resolved, with: &Allotted) -> Result<Plan, Refusal> {
        let Settings { site, job_images, .. } = &self.settings;
        plan(site, *job_images, &ThisHost, want, with).map(|plan| plan.to_plan())
    }

    async fn prepare(&self, id: &LaunchId, plan: &Plan, hand: &Handover) -> Result<NativeId, LaunchError> {
        let plan = SlurmPlan::from_plan(plan).map_err(LaunchError::Refused)?;
        if plan.launch != *id || plan.descriptor.comment != comment(id) {
            let text = format!("a plan for {} reached launch {id}", plan.launch);
            return Err(LaunchError::Refused(Refusal::new(FailureClass::Infrastructure, text)));
        }
        if let Some(image) = plan.image.as_deref().filter(|image| image.starts_with('/'))
            && !ThisHost.exists(image)
        {
            let text = format!("the image {image} is not there any more");
            return Err(LaunchError::Refused(Refusal::new(FailureClass::Image, text)));
        }
        let folder = self.folder(id);
        let early = |error: io::Error| not_sent(&error, &folder);
        folder.make().map_err(early)?;
        if let Some(number) = folder.job().map_err(early)? {
            return Ok(native_id(number));
        }
        if folder.intent().map_err(early)?.is_some() {
            let why = "an earlier submission of this launch has no answer yet";
            return Err(LaunchError::Unclear(Down::now(why)));
        }
        folder.put_handover(hand.expose()).map_err(early)?;
        folder.put_intent(self.now()).map_err(early)?;
        match self.slurm.submit(&self.sendable(&plan)).await {
            Ok(number) => {
                folder.put_job(number).map_err(|error| unclear(&error, &folder))?;
                self.news.notify_one();
                Ok(native_id(number))
            }
            Err(Trouble::Unclear(why)) => Err(LaunchError::Unclear(Down::now(format!("slurm: {why}")))),
            Err(Trouble::NotSent(why)) => {
                folder.drop_intent().map_err(|error| unclear(&error, &folder))?;
                Err(LaunchError::NotSent(Down::now(format!("slurm: {why}"))))
            }
            Err(Trouble::Refused { code, text }) => {
                folder.drop_intent().map_err(|error| unclear(&error, &folder))?;
                Err(LaunchError::Refused(refused(code, &text)))
            }
        }
    }

    async fn start(&self, id: &LaunchId, native: &NativeId) -> Result<(), LaunchError> {
        let folder = self.folder(id);
        let Some(number) = number_of(native) else {
            let text = format!("{native} is no job of Slurm");
            return Err(LaunchError::Refused(Refusal::new(FailureClass::Infrastructure, text)));
        };
        match self.slurm.release(number).await {
            Ok(()) => {
                folder.put_released().map_err(|error| unclear(&error, &folder))?;
                self.news.notify_one();
                Ok(())
            }
            Err(Trouble::Refused { code, text }) => Err(LaunchError::Refused(refused(code, &text))),
            Err(Trouble::NotSent(why)) => Err(LaunchError::NotSent(Down::now(format!("slurm: {why}")))),
            Err(Trouble::Unclear(why)) => Err(LaunchError::Unclear(Down::now(format!("slurm: {why}")))),
        }
    }

    async fn find(&self, ids: &[LaunchId]) -> Result<BTreeMap<LaunchId, Fate>, Down> {
        let mut all = self.list().await.map_err(|trouble| Self::down(&trouble))?;
        let mut out = BTreeMap::new();
        for id in ids {
            let jobs = all.remove(id).unwrap_or_default();
            out.insert(id.clone(), self.fate(id, jobs).await);
        }
        Ok(out)
    }

    async fn watch(&self, out: Sender<Event>, stop: CancellationToken) {
        tokio::select! {
            () = Watch { launcher: self, out, seen: BTreeMap::new(), down: false }.run() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn end(&self, id: &LaunchId, how: End) -> Result<(), LaunchError> {
        let folder = self.folder(id);
        if folder.path().is_dir() {
            folder.put_end(&how.why).map_err(|error| not_sent(&error, &folder))?;
        }
        let mut jobs: Vec<JobNumber> =
            folder.job().map_err(|error| not_sent(&error, &folder))?.into_iter().collect();
        if jobs.is_empty() {
            let mut all = self.list().await.map_err(|trouble| LaunchError::NotSent(Self::down(&trouble)))?;
            jobs = all.remove(id).unwrap_or_default().iter().map(|job| job.number).collect();
        }
        for number in jobs {
            match self.slurm.cancel(number).await {
                // Refused: it ended already, or is not there.
                Ok(()) | Err(Trouble::Refused { .. }) => {}
                Err(Trouble::NotSent(why)) => {
                    return Err(LaunchError::NotSent(Down::now(format!("slurm: {why}"))));
                }
                Err(Trouble::Unclear(why)) => {
                    return Err(LaunchError::Unclear(Down::now(format!("slurm: {why}"))));
                }
            }
        }
        self.news.notify_one();
        Ok(())
    }

    async fn tail(&self, id: &LaunchId, max: usize) -> Result<Bytes, Down> {
        let folder = self.folder(id);
        let tail = folder.tail(max);
        tail.map(Bytes::from).map_err(|error| Down::now(format!("{}: {error}", folder.path().display())))
    }

    async fn remove(&self, id: &LaunchId) -> Result<(), LaunchError> {
        // Slurm forgets what ended by itself, and the folder is the ledger's. What it holds for ever is still there.
        let mut all = self.list().await.map_err(|trouble| LaunchError::NotSent(Self::down(&trouble)))?;
        for job in all.remove(id).unwrap_or_default() {
            self.stray(&job).await;
        }
        Ok(())
    }

    async fn preflight(&self) -> Vec<Check> {
        let what = "slurm".to_owned();
        vec![match self.meet().await {
            Ok(cluster) => {
                let text = format!("cluster {}, Slurm {}", cluster.name, cluster.version);
                Check { what, ok: true, text }
            }
            Err(trouble) => {
                Check { what, ok: false, text: format!("the controller does not answer: {trouble}") }
            }
        }]
    }
}

/// One list a beat while something is alive, else one a `poll_interval`.
struct Watch<'a> {
    launcher: &'a SlurmLauncher,
    out: Sender<Event>,
    seen: BTreeMap<LaunchId, Native>,
    down: bool,
}

impl Watch<'_> {
    async fn run(mut self) {
        let mut first = true;
        loop {
            let told = match self.launcher.list().await {
                Ok(all) => {
                    if std::mem::take(&mut self.down) && self.out.send(Event::Up).await.is_err() {
                        return;
                    }
                    self.tell(all, &mut first).await
                }
                Err(trouble) => {
                    first = true;
                    match std::mem::replace(&mut self.down, true) {
                        true => true,
                        false => self.out.send(Event::Down(SlurmLauncher::down(&trouble))).await.is_ok(),
                    }
                }
            };
            if !told {
                return;
            }
            tokio::time::sleep(BEAT).await;
            let alive = self.down || self.seen.values().any(|state| !matches!(state, Native::Exited(_)));
            if !alive {
                let rest = self.launcher.settings.site.poll_interval.saturating_sub(BEAT);
                tokio::select! {
                    () = tokio::time::sleep(rest) => {}
                    () = self.launcher.news.notified() => {}
                }
            }
        }
    }

    /// Says everything the first time, then what changed. A launch that left the list is asked for by itself.
    async fn tell(&mut self, mut all: BTreeMap<LaunchId, Vec<Job>>, first: &mut bool) -> bool {
        for (id, state) in &self.seen {
            if !matches!(state, Native::Exited(_)) {
                all.entry(id.clone()).or_default();
            }
        }
        let mut sightings = Vec::new();
        for (id, jobs) in all {
            if let Fate::Seen(sighting) = self.launcher.fate(&id, jobs).await {
                sightings.push(sighting);
            }
        }
        let now: BTreeMap<LaunchId, Native> =
            sightings.iter().map(|seen| (seen.id.clone(), seen.state.clone())).collect();
        // A launch that nobody can speak for any more makes a gap: the ledger then asks for it.
        let lost =
            self.seen.iter().any(|(id, state)| !matches!(state, Native::Exited(_)) && !now.contains_key(id));
        let before = std::mem::replace(&mut self.seen, now);
        if std::mem::take(first) || lost {
            return self.out.send(Event::Relisted { complete: sightings }).await.is_ok();
        }
        for sighting in sightings {
            if before.get(&sighting.id) != Some(&sighting.state)
                && self.out.send(Event::Seen(sighting)).await.is_err()
            {
                return false;
            }
        }
        true
    }
}
