//! `impl Launcher` for one engine.
//!
//! ```text
//! prepare  (pull) -> POST containers/create        409: look whose it is, adopt ours
//! start    POST containers/ID/start                 refused: the container that was left is removed
//! find     GET containers/json?label -> GET containers/ID/json -> GET containers/ID/logs (ended ones)
//! end      created: DELETE; else POST stop (grace) or kill
//! remove   DELETE containers/NAME, the handover
//! watch    GET events?label, one connection         see `watch`
//! ```
//! Nothing is kept in memory that could not be read from the engine again: a container says by its labels which launch
//! it is and whose.

use crate::engine::{Engine, Trouble, trouble};
use crate::files;
use crate::outcome::{self, state_of};
use crate::plan::{self, DockerPlan, LABEL_GPUS, LABEL_LAUNCH, LABEL_PARENT, Settings};
use async_trait::async_trait;
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse, ContainerSummaryStateEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptions,
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use polder_launch::{
    Allotted, Cause, Check, DeviceId, Down, End, Event, Exit, Fate, Handover, LaunchError, Launcher, Native,
    NativeId, Offer, Plan, Proof, Refusal, Resolved, Sighting, Time,
};
use polder_words::{FailureClass, Isolation, LaunchId, Mode, Outcome};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

/// How long a request that an earlier run of the parent sent may still become a container.
const SETTLE: Duration = Duration::from_secs(5);
/// Lines of a worker's output that go with its outcome.
const TAIL_LINES: &str = "40";
/// Bytes of them.
const TAIL_BYTES: usize = 8 << 10;

/// What a site has to hand out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stock {
    /// GPUs by id.
    pub gpus: Vec<String>,
    /// CPUs; `None`: those of the engine's host.
    pub cpus: Option<u32>,
    /// Bytes of memory; `None`: those of the engine's host.
    pub memory: Option<u64>,
}

/// Launches containers.
#[derive(Debug)]
pub struct DockerLauncher {
    pub(crate) settings: Settings,
    stock: Stock,
    pub(crate) engine: Engine,
    label: String,
    began: Instant,
    /// When the outcome of a request was last unclear.
    unclear: Mutex<BTreeMap<LaunchId, Instant>>,
    /// Containers this run removes: that they are gone is no news.
    pub(crate) removing: Mutex<BTreeSet<LaunchId>>,
}

impl DockerLauncher {
    /// For a site.
    #[must_use]
    pub fn new(settings: Settings, stock: Stock) -> Self {
        Self {
            engine: Engine::new(&settings.socket),
            label: plan::parent_label(&settings.sockets),
            settings,
            stock,
            began: Instant::now(),
            unclear: Mutex::default(),
            removing: Mutex::default(),
        }
    }

    /// What the site says.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What filters this parent's containers, in lists and events alike.
    pub(crate) fn filter(&self) -> HashMap<String, Vec<String>> {
        HashMap::from([("label".to_owned(), vec![format!("{LABEL_PARENT}={}", self.label)])])
    }

    fn note_unclear(&self, id: &LaunchId) {
        self.unclear.lock().expect("no holder of this lock panics").insert(id.clone(), Instant::now());
    }

    /// Whether nothing that was sent can still become a container.
    fn is_settled(&self, id: &LaunchId) -> bool {
        let last = self.unclear.lock().expect("no holder of this lock panics").get(id).copied();
        last.unwrap_or(self.began).elapsed() >= SETTLE
    }

    /// An error of a request that may have changed something.
    fn failed(&self, id: &LaunchId, what: &str, error: &bollard::errors::Error) -> LaunchError {
        match trouble(error) {
            Trouble::NotSent => LaunchError::NotSent(Down::now(format!("{what}: {error}"))),
            _ => {
                self.note_unclear(id);
                LaunchError::Unclear(Down::now(format!("{what}: {error}")))
            }
        }
    }

    /// One container as it is now; `None` when there is none, or it is another parent's.
    async fn inspect(&self, docker: &Docker, which: &str) -> Result<Option<ContainerInspectResponse>, Down> {
        match docker.inspect_container(which, None::<InspectContainerOptions>).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if matches!(trouble(&error), Trouble::Said(404, _)) => Ok(None),
            Err(error) => Err(Down::now(format!("inspect {which}: {error}"))),
        }
    }

    fn launch_of(&self, found: &ContainerInspectResponse) -> Option<LaunchId> {
        let labels = found.config.as_ref()?.labels.as_ref()?;
        (labels.get(LABEL_PARENT) == Some(&self.label)).then_some(())?;
        labels.get(LABEL_LAUNCH)?.parse().ok()
    }

    /// What one container shows; the last lines are read when it ended, while it is still there.
    pub(crate) async fn sight(&self, docker: &Docker, which: &str) -> Result<Option<Sighting>, Down> {
        let Some(found) = self.inspect(docker, which).await? else { return Ok(None) };
        let Some(id) = self.launch_of(&found) else { return Ok(None) };
        let Some(state) = found.state.as_ref() else { return Ok(None) };
        let native = NativeId(found.id.clone().unwrap_or_else(|| which.to_owned()));
        let mut state = state_of(state);
        if let Native::Exited(Exit { outcome: Outcome::Failed { tail, .. }, .. }) = &mut state {
            *tail = String::from_utf8_lossy(&self.logs(docker, which, TAIL_BYTES).await?).into_owned();
        }
        Ok(Some(Sighting { id, native, state }))
    }

    async fn logs(&self, docker: &Docker, which: &str, max: usize) -> Result<Vec<u8>, Down> {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(true).tail(TAIL_LINES).build();
        let mut lines = docker.logs(which, Some(options));
        let mut out = Vec::new();
        while let Some(line) = lines.next().await {
            match line {
                Ok(
                    LogOutput::StdOut { message }
                    | LogOutput::StdErr { message }
                    | LogOutput::Console { message },
                ) => {
                    out.extend_from_slice(&message);
                    // Lines are as long as a worker likes.
                    if out.len() > 2 * max {
                        out.drain(..out.len() - max);
                    }
                }
                Ok(LogOutput::StdIn { .. }) => {}
                Err(error) if matches!(trouble(&error), Trouble::Said(..)) => break,
                Err(error) => return Err(Down::now(format!("logs of {which}: {error}"))),
            }
        }
        out.drain(..out.len().saturating_sub(max));
        Ok(out)
    }

    /// Ids of this parent's containers.
    pub(crate) async fn list(&self, docker: &Docker) -> Result<BTreeMap<LaunchId, String>, Down> {
        let options = ListContainersOptionsBuilder::default().all(true).filters(&self.filter()).build();
        let all = docker.list_containers(Some(options)).await;
        let all = all.map_err(|error| Down::now(format!("list: {error}")))?;
        let one = |found: bollard::models::ContainerSummary| {
            let launch = found.labels?.get(LABEL_LAUNCH)?.parse().ok()?;
            Some((launch, found.id?))
        };
        Ok(all.into_iter().filter_map(one).collect())
    }

    /// Everything there is.
    pub(crate) async fn relist(&self, docker: &Docker) -> Result<Vec<Sighting>, Down> {
        let mut complete = Vec::new();
        for container in self.list(docker).await?.values() {
            complete.extend(self.sight(docker, container).await?);
        }
        Ok(complete)
    }

    async fn pull(&self, docker: &Docker, plan: &DockerPlan, image: &str) -> Result<(), LaunchError> {
        let there = match plan.pull.as_str() {
            "always" => false,
            "missing" => docker.inspect_image(image).await.is_ok(),
            _ => true,
        };
        if there {
            return Ok(());
        }
        let options = CreateImageOptionsBuilder::default()
            .from_image(image)
            .platform(plan.platform.as_deref().unwrap_or_default())
            .build();
        let credentials = files::credentials(image);
        let mut steps = docker.create_image(Some(options), None, credentials);
        while let Some(step) = steps.next().await {
            let step = step.map_err(|error| match trouble(&error) {
                Trouble::Said(code, message) if code < 500 => {
                    LaunchError::Refused(Refusal::new(FailureClass::Image, format!("{image}: {message}")))
                }
                _ => LaunchError::NotSent(Down::now(format!("pull {image}: {error}"))),
            })?;
            if let Some(detail) = step.error_detail.and_then(|detail| detail.message) {
                let text = format!("{image} cannot be pulled: {detail}");
                return Err(LaunchError::Refused(Refusal::new(FailureClass::Image, text)));
            }
            tracing::debug!(image, status = step.status.as_deref().unwrap_or_default(), "pulling");
        }
        Ok(())
    }

    /// What another parent of this engine has of the devices of a launch. A container holds its devices from when it is
    /// made until it ended; of two that were made at once the older keeps them.
    async fn held_elsewhere(
        &self,
        docker: &Docker,
        own: Option<&str>,
        gpus: &[&str],
    ) -> Result<Option<String>, Down> {
        if gpus.is_empty() {
            return Ok(None);
        }
        let filter = HashMap::from([("label".to_owned(), vec![LABEL_GPUS.to_owned()])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filter).build();
        let all = docker.list_containers(Some(options)).await;
        let all = all.map_err(|error| Down::now(format!("list: {error}")))?;
        let age = |found: &bollard::models::ContainerSummary| (found.created, found.id.clone());
        let mine = all.iter().find(|found| found.id.as_deref() == own && own.is_some()).map(age);
        for found in &all {
            let Some(labels) = &found.labels else { continue };
            let ended = matches!(
                found.state,
                Some(ContainerSummaryStateEnum::EXITED | ContainerSummaryStateEnum::DEAD)
            );
            let theirs = labels.get(LABEL_PARENT) != Some(&self.label);
            let shared = labels.get(LABEL_GPUS).and_then(|held| held.split(',').find(|id| gpus.contains(id)));
            if let (true, false, Some(gpu)) = (theirs, ended, shared)
                && mine.as_ref().is_none_or(|mine| age(found) < *mine)
            {
                let name = found.names.as_ref().and_then(|names| names.first()).cloned().unwrap_or_default();
                return Ok(Some(format!("GPU {gpu} is held by container {name} of another parent")));
            }
        }
        Ok(None)
    }

    async fn delete(&self, docker: &Docker, which: &str) -> Result<(), bollard::errors::Error> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match docker.remove_container(which, Some(options)).await {
            // Gone, or going.
            Err(error) if matches!(trouble(&error), Trouble::Said(404 | 409, _)) => Ok(()),
            done => done,
        }
    }

    /// A start the engine refused: the container that was left is removed, so that the name is free.
    async fn never_ran(&self, docker: &Docker, native: &NativeId, message: &str) -> LaunchError {
        if let Err(error) = self.delete(docker, &native.0).await {
            tracing::warn!(%error, container = %native, "a container that never ran is left");
        }
        LaunchError::Refused(outcome::start_refused(message))
    }
}

#[async_trait]
impl Launcher for DockerLauncher {
    fn mode(&self) -> Mode {
        Mode::Docker
    }

    async fn offer(&self) -> Result<Offer, Down> {
        let docker = self.engine.get().await?;
        let info = docker.info().await.map_err(|error| Down::now(format!("info: {error}")))?;
        let lacks = [
            (info.memory_limit, "the engine cannot limit memory"),
            (info.cpu_cfs_quota, "the engine cannot limit CPU time"),
            (info.pids_limit, "the engine cannot limit the number of processes"),
        ];
        Ok(Offer {
            mode: Mode::Docker,
            architectures: info.architecture.into_iter().collect(),
            isolation: Isolation::Container,
            not_enforced: lacks
                .iter()
                .filter(|(has, _)| *has == Some(false))
                .map(|(_, text)| (*text).to_owned())
                .collect(),
            devices: Some(self.stock.gpus.iter().cloned().map(DeviceId).collect()),
            cpus: self.stock.cpus.or(info.ncpu.and_then(|n| u32::try_from(n).ok())),
            memory: self.stock.memory.or(info.mem_total.and_then(|n| u64::try_from(n).ok())),
            expected_start: None,
        })
    }

    fn plan(&self, want: &Resolved, with: &Allotted) -> Result<Plan, Refusal> {
        Ok(plan::plan(&self.settings, want, with)?.to_plan())
    }

    async fn prepare(&self, id: &LaunchId, plan: &Plan, hand: &Handover) -> Result<NativeId, LaunchError> {
        let plan = DockerPlan::from_plan(plan).map_err(LaunchError::Refused)?;
        let body = serde_json::Value::Object(plan.create.clone());
        let body: ContainerCreateBody = serde_json::from_value(body).map_err(|error| {
            let text = format!("a plan that is no request of this engine's API: {error}");
            LaunchError::Refused(Refusal::new(FailureClass::Config, text))
        })?;
        files::lay_out(&self.settings, &plan, hand)
            .map_err(|error| LaunchError::NotSent(Down::now(format!("the run directory: {error}"))))?;
        let docker = self.engine.get().await.map_err(LaunchError::NotSent)?;
        let image = body.image.clone().unwrap_or_default();
        self.pull(&docker, &plan, &image).await?;
        let gpus =
            body.labels.as_ref().and_then(|labels| labels.get(LABEL_GPUS)).cloned().unwrap_or_default();
        let gpus: Vec<&str> = gpus.split(',').filter(|id| !id.is_empty()).collect();
        if let Some(why) = self.held_elsewhere(&docker, None, &gpus).await.map_err(LaunchError::NotSent)? {
            return Err(LaunchError::NotSent(Down::now(why)));
        }
        let mut options = CreateContainerOptionsBuilder::default().name(&plan.name);
        if let Some(platform) = &plan.platform {
            options = options.platform(platform);
        }
        let native = match docker.create_container(Some(options.build()), body).await {
            Ok(made) => {
                for warning in &made.warnings {
                    tracing::warn!(launch = %id, "the engine says: {warning}");
                }
                NativeId(made.id)
            }
            Err(error) => match trouble(&error) {
                Trouble::Said(404, message) => {
                    return Err(LaunchError::Refused(Refusal::new(FailureClass::Image, message)));
                }
                Trouble::Said(409, _) => {
                    // An earlier run made it, or an answer was lost.
                    let found = self.inspect(&docker, &plan.name).await.map_err(LaunchError::Unclear)?;
                    match found.filter(|found| self.launch_of(found).as_ref() == Some(id)) {
                        Some(found) => NativeId(found.id.unwrap_or_else(|| plan.name.clone())),
                        None => {
                            let text = format!("the engine has another container named {}", plan.name);
                            return Err(LaunchError::Refused(Refusal::new(
                                FailureClass::Infrastructure,
                                text,
                            )));
                        }
                    }
                }
                Trouble::Said(code, message) if code < 500 => {
                    return Err(LaunchError::Refused(Refusal::new(FailureClass::Config, message)));
                }
                _ => return Err(self.failed(id, "create", &error)),
            },
        };
        if let Some(why) =
            self.held_elsewhere(&docker, Some(&native.0), &gpus).await.map_err(LaunchError::Unclear)?
        {
            self.delete(&docker, &native.0).await.map_err(|error| self.failed(id, "remove", &error))?;
            return Err(LaunchError::NotSent(Down::now(why)));
        }
        Ok(native)
    }

    async fn start(&self, id: &LaunchId, native: &NativeId) -> Result<(), LaunchError> {
        let docker = self.engine.get().await.map_err(LaunchError::NotSent)?;
        let Err(error) = docker.start_container(&native.0, None).await else { return Ok(()) };
        match trouble(&error) {
            // Started already; one that ended is not started again, since nobody calls this for it.
            Trouble::Said(304, _) => Ok(()),
            Trouble::Said(404, message) if message.contains("No such container") => {
                let text = "its container was removed by somebody else before it ran";
                Err(LaunchError::Refused(Refusal::new(FailureClass::Infrastructure, text)))
            }
            Trouble::Said(code, message) => {
                let found = self.inspect(&docker, &native.0).await.map_err(LaunchError::Unclear)?;
                let state = found.and_then(|found| found.state);
                let said = state.as_ref().and_then(|state| state.error.clone()).unwrap_or_default();
                if code < 500 || !said.is_empty() {
                    return Err(self.never_ran(&docker, native, &message).await);
                }
                Err(self.failed(id, "start", &error))
            }
            _ => Err(self.failed(id, "start", &error)),
        }
    }

    async fn find(&self, ids: &[LaunchId]) -> Result<BTreeMap<LaunchId, Fate>, Down> {
        let docker = self.engine.get().await?;
        let there = self.list(&docker).await?;
        let mut out = BTreeMap::new();
        for id in ids {
            let sighting = match there.get(id) {
                Some(container) => self.sight(&docker, container).await?,
                None => None,
            };
            let fate = match sighting {
                Some(sighting) => Fate::Seen(sighting),
                None if self.is_settled(id) => {
                    let text = "the engine has no container of this launch; it was removed, or never made";
                    Fate::Gone(Proof(text.to_owned()))
                }
                None => Fate::Unsure(Cause("a request that was on its way may still be followed".to_owned())),
            };
            out.insert(id.clone(), fate);
        }
        Ok(out)
    }

    async fn watch(&self, out: Sender<Event>, stop: CancellationToken) {
        tokio::select! {
            () = crate::watch::watch(self, &out) => {}
            () = stop.cancelled() => {}
        }
    }

    async fn end(&self, id: &LaunchId, how: End) -> Result<(), LaunchError> {
        let docker = self.engine.get().await.map_err(LaunchError::NotSent)?;
        let name = plan::name(id);
        let found = self.inspect(&docker, &name).await.map_err(LaunchError::NotSent)?;
        let Some(found) = found.filter(|found| self.launch_of(found).as_ref() == Some(id)) else {
            return Ok(());
        };
        let state = found.state.as_ref().map(state_of);
        let done = match state {
            Some(Native::Exited(_)) => Ok(()),
            Some(Native::Waiting) => self.delete(&docker, &name).await,
            _ if how.grace.is_zero() => {
                let options = KillContainerOptionsBuilder::default().signal("KILL").build();
                docker.kill_container(&name, Some(options)).await
            }
            _ => {
                let seconds = i32::try_from(how.grace.as_secs().max(1)).unwrap_or(i32::MAX);
                let options = StopContainerOptionsBuilder::default().t(seconds).build();
                // Answered only when it has ended, which the watcher sees.
                tokio::spawn(async move {
                    if let Err(error) = docker.stop_container(&name, Some(options)).await {
                        tracing::debug!(%error, container = name, "stop");
                    }
                });
                Ok(())
            }
        };
        match done {
            Err(error) if matches!(trouble(&error), Trouble::Said(304 | 404 | 409, _)) => Ok(()),
            done => done.map_err(|error| self.failed(id, "end", &error)),
        }
    }

    async fn tail(&self, id: &LaunchId, max: usize) -> Result<Bytes, Down> {
        let docker = self.engine.get().await?;
        self.logs(&docker, &plan::name(id), max).await.map(Bytes::from)
    }

    async fn remove(&self, id: &LaunchId) -> Result<(), LaunchError> {
        let docker = self.engine.get().await.map_err(LaunchError::NotSent)?;
        self.removing.lock().expect("no holder of this lock panics").insert(id.clone());
        let name = plan::name(id);
        let found = self.inspect(&docker, &name).await.map_err(LaunchError::NotSent)?;
        if let Some(found) = found.filter(|found| self.launch_of(found).as_ref() == Some(id)) {
            files::forget(&self.settings, &found);
            self.delete(&docker, &name).await.map_err(|error| self.failed(id, "remove", &error))?;
        }
        self.unclear.lock().expect("no holder of this lock panics").remove(id);
        Ok(())
    }

    async fn preflight(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        let mut check =
            |what: &str, ok: bool, text: String| checks.push(Check { what: what.to_owned(), ok, text });
        let user = self.settings.user;
        check("account", true, format!("workers run as {}:{}", user.uid, user.gid));
        match self.offer().await {
            Ok(offer) => {
                let text = format!("{} answers; {}", self.settings.socket, offer.architectures.join(", "));
                check("engine", true, text);
                check("isolation", true, format!("workers are kept apart by: {}", offer.isolation));
                let limits = offer.not_enforced.join("; ");
                let good = limits.is_empty();
                check(
                    "limits",
                    good,
                    if good { "memory, CPU time and processes are enforced".into() } else { limits },
                );
                check("gpus", true, format!("{} GPUs", self.stock.gpus.len()));
            }
            Err(down) => check("engine", false, format!("{}: {down}", self.settings.socket)),
        }
        checks
    }
}

/// When something was, as the engine says it.
pub(crate) fn time(text: Option<&str>) -> Time {
    let moment = text.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    moment.and_then(|moment| u64::try_from(moment.as_millisecond()).ok()).map_or_else(Time::now, Time)
}
