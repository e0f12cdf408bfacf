//! The launcher: writes an attempt's folder, starts its shim, and reads the folder again.

use crate::attempt::{Attempt, Look, read, write, write_bytes};
use crate::facts::Facts;
use crate::plan::{ProcessPlan, plan};
use crate::settings::Settings;
use crate::watch::Watched;
use crate::{account, gpu};
use async_trait::async_trait;
use bytes::Bytes;
use polder_api::rundir;
use polder_api::shim::{self, Account, Cgroups, Claim, EndOrder, Order};
use polder_launch::{
    Allotted, Cause, Check, Down, End, Event, Fate, Handover, LaunchError, Launcher, NativeId, Offer, Plan,
    Proof, Refusal, Resolved, Sighting,
};
use polder_words::{FailureClass, Isolation, LaunchId, Mode};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

/// How long a shim may take to say that it waits.
const SHIM_PATIENCE: Duration = Duration::from_secs(20);

/// Launches plain processes.
#[derive(Debug)]
pub struct ProcessLauncher {
    settings: Settings,
    facts: Facts,
    /// Shims this run started, to be collected when they end; the next run has init do it.
    children: Mutex<BTreeMap<LaunchId, Child>>,
    pub(crate) watched: Arc<Watched>,
}

impl ProcessLauncher {
    /// For a site.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let facts = Facts::find(&settings);
        // Whatever this process was started with stays its own: a shim would hold it for as long as it lives.
        close_fds::set_fds_cloexec_threadsafe(3, &[]);
        Self { settings, facts, children: Mutex::new(BTreeMap::new()), watched: Arc::default() }
    }

    /// What the host can do.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn runs(&self) -> &Path {
        &self.settings.runs
    }

    fn attempt(&self, id: &LaunchId) -> Attempt {
        Attempt::of(&self.settings.runs, id)
    }

    /// Collects a shim that ended.
    pub(crate) fn collect(&self, id: &LaunchId) {
        let mut children = self.children.lock().expect("no holder of this lock panics");
        if let Some(child) = children.get_mut(id)
            && !matches!(child.try_wait(), Ok(None))
        {
            children.remove(id);
        }
    }

    /// What became of one launch; fences what nobody claimed, ends what a dead shim left.
    pub(crate) fn fate(&self, id: &LaunchId) -> Fate {
        self.collect(id);
        let attempt = self.attempt(id);
        // Twice, since a shim may claim it between the look and the fence.
        for _ in 0..2 {
            let look = match attempt.look() {
                Ok(look) => look,
                Err(error) => return Fate::Unsure(Cause(format!("{}: {error}", attempt.dir.display()))),
            };
            if let Some((native, state)) = attempt.native(&look) {
                return Fate::Seen(Sighting { id: id.clone(), native, state });
            }
            match look {
                Look::Nothing => return Fate::Gone(Proof("no shim was ever asked for".to_owned())),
                Look::Fenced => return Fate::Gone(Proof("no shim came before it was fenced off".to_owned())),
                Look::Unclaimed => match attempt.fence() {
                    Ok(true) => {
                        return Fate::Gone(Proof("no shim came before it was fenced off".to_owned()));
                    }
                    Ok(false) => {}
                    Err(error) => return Fate::Unsure(Cause(format!("{}: {error}", attempt.dir.display()))),
                },
                Look::Orphaned(claim) => {
                    let left = attempt.kill_left(&claim);
                    if left > 0 {
                        let text =
                            format!("its shim is gone and left {left} processes, which are being ended");
                        return Fate::Unsure(Cause(text));
                    }
                    return Fate::Gone(Attempt::proof(&claim));
                }
                Look::Waiting(_) | Look::Running(..) | Look::Exited(_) => {}
            }
        }
        Fate::Unsure(Cause("a shim claims it just now".to_owned()))
    }

    /// Folders and files a shim and its worker need.
    fn lay_out(&self, attempt: &Attempt, plan: &ProcessPlan, hand: &Handover) -> io::Result<()> {
        let run_dir = &plan.directory;
        fs::create_dir_all(&attempt.dir)?;
        for name in [rundir::OUT, rundir::STATE, rundir::TMP, rundir::APP, rundir::IN] {
            fs::create_dir_all(run_dir.join(name))?;
        }
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        if let Some(account) = plan.account {
            let mut open: Vec<&Path> = self.settings.sockets.iter().map(PathBuf::as_path).collect();
            open.push(&self.settings.runs);
            for folder in self.settings.hide.iter().filter(|folder| folder.is_dir()) {
                account::close(folder, &open).map_err(|error| {
                    let text = format!("{} cannot be closed to other accounts: {error}", folder.display());
                    io::Error::new(error.kind(), text)
                })?;
            }
            for socket in self.settings.sockets.iter().filter(|socket| socket.exists()) {
                mode(socket, 0o666)?;
                account::let_through(socket, account).map_err(io::Error::other)?;
            }
            for name in [rundir::OUT, rundir::STATE, rundir::TMP] {
                account::give(&run_dir.join(name), account)?;
            }
            for name in [rundir::APP, rundir::IN] {
                account::let_read(&run_dir.join(name), account)?;
            }
            account::let_through(&attempt.file(rundir::HANDOVER), account).map_err(io::Error::other)?;
        } else {
            mode(run_dir, 0o700)?;
        }
        let give = |path: &Path| plan.account.map_or(Ok(()), |account: Account| account::give(path, account));
        write_bytes(&attempt.file(rundir::HANDOVER), hand.expose(), give)?;
        let mut env: BTreeMap<String, String> = plan
            .forward_env
            .iter()
            .filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)))
            .collect();
        env.extend(plan.env.clone());
        let order = Order {
            launch: attempt.id.clone(),
            command: plan.command.clone(),
            directory: plan.directory.clone(),
            env,
            account: plan.account,
            fence: plan.fence.clone(),
            limits: plan.limits.clone(),
            cgroups: Cgroups { name: plan.name.clone(), ..self.facts.cgroups.clone() },
            log: plan.log,
        };
        write(&attempt.file(shim::ORDER), &order)
    }

    fn spawn(&self, attempt: &Attempt, plan: &ProcessPlan) -> io::Result<pipe::Receiver> {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let errors = fs::OpenOptions::new().create(true).append(true).open(attempt.file("shim.log"))?;
        let child = Command::new(&plan.shim)
            .arg("supervise")
            .arg("--dir")
            .arg(&attempt.dir)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::from(errors))
            .spawn()?;
        self.children.lock().expect("no holder of this lock panics").insert(attempt.id.clone(), child);
        pipe::Receiver::from_owned_fd(ours)
    }

    fn sight(&self, attempt: &Attempt) -> Option<Sighting> {
        if attempt.file(shim::REMOVED).exists() {
            return None;
        }
        let look = attempt.look().ok()?;
        let (native, state) = attempt.native(&look)?;
        Some(Sighting { id: attempt.id.clone(), native, state })
    }

    /// One launch, as its folder shows it.
    pub(crate) fn sighting(&self, id: &LaunchId) -> Option<Sighting> {
        self.sight(&self.attempt(id))
    }

    /// All launches there are.
    pub(crate) fn sightings(&self) -> Vec<Sighting> {
        Attempt::all(&self.settings.runs).iter().filter_map(|attempt| self.sight(attempt)).collect()
    }
}

fn unclear(what: &str, error: impl std::fmt::Display) -> LaunchError {
    LaunchError::Unclear(Down::now(format!("{what}: {error}")))
}

fn not_sent(what: impl std::fmt::Display, error: impl std::fmt::Display) -> LaunchError {
    LaunchError::NotSent(Down::now(format!("{what}: {error}")))
}

#[async_trait]
impl Launcher for ProcessLauncher {
    fn mode(&self) -> Mode {
        Mode::Process
    }

    async fn offer(&self) -> Result<Offer, Down> {
        let (devices, wrong) = gpu::list(&self.settings.gpus).await;
        if let Some(wrong) = wrong {
            tracing::warn!(%wrong, "no GPU is offered");
        }
        Ok(Offer {
            mode: Mode::Process,
            architectures: vec![self.facts.architecture.clone()],
            isolation: self.facts.isolation,
            not_enforced: self.facts.not_enforced.clone(),
            devices: Some(devices),
            cpus: Some(self.settings.cpus.unwrap_or(self.facts.cpus)),
            memory: Some(self.settings.memory.unwrap_or(self.facts.memory)),
            expected_start: None,
        })
    }

    fn plan(&self, want: &Resolved, with: &Allotted) -> Result<Plan, Refusal> {
        Ok(plan(&self.settings, &self.facts, want, with)?.to_plan())
    }

    async fn prepare(&self, id: &LaunchId, plan: &Plan, hand: &Handover) -> Result<NativeId, LaunchError> {
        let plan = ProcessPlan::from_plan(plan).map_err(LaunchError::Refused)?;
        let attempt = self.attempt(id);
        if attempt.dir != plan.attempt {
            let text = format!("{} is not below {}", plan.attempt.display(), self.settings.runs.display());
            return Err(LaunchError::Refused(Refusal::new(FailureClass::Config, text)));
        }
        if !plan.shim.is_file() {
            let text = format!("there is no worker program at {}", plan.shim.display());
            let refusal = Refusal::new(FailureClass::Config, text);
            return Err(LaunchError::Refused(refusal));
        }
        self.lay_out(&attempt, &plan, hand).map_err(|error| not_sent(attempt.dir.display(), error))?;
        let said = self.spawn(&attempt, &plan).map_err(|error| not_sent(plan.shim.display(), error))?;
        let mut lines = BufReader::new(said).lines();
        match tokio::time::timeout(SHIM_PATIENCE, lines.next_line()).await {
            Ok(Ok(Some(line))) if line == shim::READY => {}
            Ok(Ok(line)) => {
                let log = fs::read_to_string(attempt.file("shim.log")).unwrap_or_default();
                let text = line.unwrap_or_else(|| log.lines().last().unwrap_or("it ended").to_owned());
                return Err(unclear("the shim", text));
            }
            Ok(Err(error)) => return Err(unclear("the shim", error)),
            Err(_) => return Err(unclear("the shim", format!("said nothing for {SHIM_PATIENCE:?}"))),
        }
        let claim: Claim = read(&attempt.file(rundir::SHIM))
            .and_then(|claim| claim.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .map_err(|error| unclear("shim.json", error))?;
        self.watched.add(id.clone());
        Ok(NativeId(format!("pid {} in {}", claim.pid, attempt.dir.display())))
    }

    async fn start(&self, id: &LaunchId, _native: &NativeId) -> Result<(), LaunchError> {
        let attempt = self.attempt(id);
        write_bytes(&attempt.file(shim::GO), b"", |_| Ok(())).map_err(|error| unclear("go", error))
    }

    async fn find(&self, ids: &[LaunchId]) -> Result<BTreeMap<LaunchId, Fate>, Down> {
        Ok(ids.iter().map(|id| (id.clone(), self.fate(id))).collect())
    }

    async fn watch(&self, out: Sender<Event>, stop: CancellationToken) {
        crate::watch::watch(self, out, stop).await;
    }

    async fn end(&self, id: &LaunchId, how: End) -> Result<(), LaunchError> {
        let attempt = self.attempt(id);
        let look = attempt.look().map_err(|error| unclear("end", error))?;
        match look {
            Look::Nothing | Look::Fenced | Look::Exited(_) => Ok(()),
            Look::Unclaimed => match attempt.fence() {
                Ok(true) => Ok(()),
                Ok(false) => Err(unclear("end", "a shim claims it just now")),
                Err(error) => Err(unclear("end", error)),
            },
            Look::Orphaned(claim) => {
                let _ = attempt.kill_left(&claim);
                Ok(())
            }
            Look::Waiting(_) | Look::Running(..) => {
                let grace_ms = u64::try_from(how.grace.as_millis()).unwrap_or(u64::MAX);
                write(&attempt.file(shim::END), &EndOrder { grace_ms, why: how.why })
                    .map_err(|error| unclear("end", error))
            }
        }
    }

    async fn tail(&self, id: &LaunchId, max: usize) -> Result<Bytes, Down> {
        self.attempt(id).tail(max).map(Bytes::from).map_err(Down::now)
    }

    async fn remove(&self, id: &LaunchId) -> Result<(), LaunchError> {
        let attempt = self.attempt(id);
        self.watched.leave(id);
        self.collect(id);
        if !attempt.dir.exists() {
            return Ok(());
        }
        let failed = |error: io::Error| not_sent(attempt.dir.display(), error);
        // What a shim that was killed could not remove; empty, since it has ended.
        for group in attempt.groups() {
            let _ = fs::remove_dir(group);
        }
        // From here on no shim may claim it; then its secret goes, and what the shim and this side told each other.
        fs::write(attempt.file(shim::REMOVED), "").map_err(failed)?;
        let names =
            [rundir::HANDOVER, shim::ORDER, shim::GO, shim::END, shim::RUNNING, "shim.log", rundir::SHIM];
        for name in names {
            match fs::remove_file(attempt.file(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        Ok(())
    }

    async fn preflight(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        let mut check = |what: &str, ok: bool, text: String| {
            checks.push(Check { what: what.to_owned(), ok, text });
        };
        match &self.facts.unmet {
            Some(unmet) => check("account", false, unmet.clone()),
            None => {
                let account = self.facts.account.map_or_else(
                    || "workers run as the parent's account".to_owned(),
                    |account| format!("workers run as user {} and group {}", account.uid, account.gid),
                );
                let root = rustix::process::geteuid().is_root() && self.facts.account.is_none();
                let text = if root { format!("{account}, root: name a `user` for them") } else { account };
                check("account", !root, text);
            }
        }
        let isolation = self.facts.isolation;
        check("isolation", isolation != Isolation::None, format!("workers are kept apart by: {isolation}"));
        if self.facts.not_enforced.is_empty() {
            check("limits", true, "memory, CPU time and number of processes are enforced".to_owned());
        }
        for text in &self.facts.not_enforced {
            check("limits", false, format!("not enforced: {text}"));
        }
        let (devices, wrong) = gpu::list(&self.settings.gpus).await;
        let text = wrong.clone().unwrap_or_else(|| format!("{} GPUs", devices.len()));
        check("gpus", wrong.is_none(), text);
        checks
    }
}
