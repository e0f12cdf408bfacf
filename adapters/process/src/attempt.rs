//! One attempt's folder: who has it, how far it is, and whether anything can still come of it.
//!
//! ```text
//! supervise.json -> shim.json -> go -> running.json -> exit.json -> removed
//!                   (claimed once)
//! ```
//!
//! Nothing here is remembered: whatever the parent wants to know it reads again.

use crate::proc;
use polder_api::rundir;
use polder_api::shim::{self, Claim, ExitRecord, How, Order, Running};
use polder_launch::{Exit, Native, NativeId, Proof, Time};
use polder_words::{FailureClass, LaunchId, Outcome};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes of the log's end that go into an outcome.
pub const TAIL: usize = 4096;
/// Largest file that is read whole.
const MAX: u64 = 1 << 20;

/// The folder of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Where it is.
    pub dir: PathBuf,
    /// Whose it is.
    pub id: LaunchId,
}

/// What a folder says.
#[derive(Debug, Clone, PartialEq)]
pub enum Look {
    /// Nobody was ever told to do anything here.
    Nothing,
    /// A shim was told to come; none has yet.
    Unclaimed,
    /// The launcher claimed it, no shim can.
    Fenced,
    /// A shim lives here; the worker does not run yet.
    Waiting(Claim),
    /// The worker runs.
    Running(Claim, Running),
    /// The shim is gone and did not say how the worker ended.
    Orphaned(Claim),
    /// Over.
    Exited(Box<ExitRecord>),
}

impl Attempt {
    /// Of a launch, below the folder of all run directories.
    #[must_use]
    pub fn of(runs: &Path, id: &LaunchId) -> Self {
        let run_dir = runs.join(format!("{}-{}", id.job, id.role));
        Self { dir: crate::plan::attempt_dir(&run_dir, id.attempt), id: id.clone() }
    }

    /// All that are not removed, below the folder of all run directories. A folder that is not one of ours is none.
    #[must_use]
    pub fn all(runs: &Path) -> Vec<Self> {
        let list = |dir: &Path| {
            let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let mut found = Vec::new();
        for run_dir in list(runs) {
            for dir in list(&run_dir.join(rundir::ATTEMPTS)) {
                let claim = read::<Claim>(&dir.join(rundir::SHIM));
                let order =
                    || read::<Named>(&dir.join(shim::ORDER)).map(|named| named.map(|named| named.launch));
                let id = claim.ok().flatten().map(|claim| claim.launch).or_else(|| order().ok().flatten());
                if let Some(id) = id.filter(|_| !dir.join(shim::REMOVED).exists()) {
                    found.push(Self { dir, id });
                }
            }
        }
        found
    }

    /// A file of it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Reads what the folder says.
    ///
    /// # Errors
    /// When something in it cannot be read.
    pub fn look(&self) -> io::Result<Look> {
        // The exit is looked for again after the shim was found dead: it may have been written in between.
        for last in [false, true] {
            if let Some(exit) = read::<ExitRecord>(&self.file(rundir::EXIT))? {
                return Ok(Look::Exited(Box::new(exit)));
            }
            let Some(claim) = read::<Claim>(&self.file(rundir::SHIM))? else {
                return Ok(if self.file(shim::ORDER).exists() { Look::Unclaimed } else { Look::Nothing });
            };
            if claim.pid == 0 {
                return Ok(Look::Fenced);
            }
            let running = read::<Running>(&self.file(shim::RUNNING))?;
            if claim.boot == proc::boot_id()? && proc::is_alive(claim.pid, claim.start) {
                return Ok(match running {
                    Some(running) => Look::Running(claim, running),
                    None => Look::Waiting(claim),
                });
            }
            if last {
                return Ok(Look::Orphaned(claim));
            }
        }
        unreachable!("the second look answers")
    }

    /// Claims an attempt that no shim has claimed, so that none can; `false` when one was faster.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn fence(&self) -> io::Result<bool> {
        let claim = Claim { launch: self.id.clone(), boot: proc::boot_id()?, pid: 0, start: 0 };
        claim_file(&self.dir, &claim)
    }

    /// Control groups of its worker, those that are there.
    #[must_use]
    pub fn groups(&self) -> Vec<PathBuf> {
        let order = read::<Order>(&self.file(shim::ORDER)).ok().flatten();
        let places = order.map(|order| order.cgroups).unwrap_or_default();
        let folders = [places.unified, places.memory, places.cpu, places.pids].into_iter().flatten();
        folders.map(|folder| folder.join(&places.name)).filter(|group| group.is_dir()).collect()
    }

    /// Kills what a dead shim left and says how much of it was there. Its control groups first, then its session.
    #[must_use]
    pub fn kill_left(&self, claim: &Claim) -> usize {
        if proc::boot_id().is_ok_and(|boot| boot != claim.boot) {
            return 0;
        }
        let mut left = BTreeSet::new();
        for group in self.groups() {
            let _ = fs::write(group.join("cgroup.kill"), "1");
            let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            left.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            // Succeeds once it is empty.
            let _ = fs::remove_dir(group);
        }
        // Another process with the shim's number: then the number was free, so its session has ended.
        if proc::stat(claim.pid).is_none() {
            left.extend(proc::session_of(claim.pid));
        }
        left.retain(|pid| proc::stat(*pid).is_some());
        for pid in &left {
            kill(*pid);
        }
        left.len()
    }

    /// The last bytes of the worker's own output.
    ///
    /// # Errors
    /// When there is a log that cannot be read.
    pub fn tail(&self, max: usize) -> io::Result<Vec<u8>> {
        // While it runs, what is beyond the head lies in two more files, see the shim.
        let mut out = Vec::new();
        let parts = [".new", ".old", ""].map(|suffix| self.file(&format!("{}{suffix}", rundir::LOG)));
        for part in parts {
            if out.len() < max {
                let mut before = last_bytes(&part, max - out.len())?;
                before.append(&mut out);
                out = before;
            }
        }
        Ok(out)
    }

    /// What the ledger wants to know.
    #[must_use]
    pub fn native(&self, look: &Look) -> Option<(NativeId, Native)> {
        let name = |claim: &Claim| NativeId(format!("pid {} in {}", claim.pid, self.dir.display()));
        match look {
            Look::Waiting(claim) => Some((name(claim), Native::Waiting)),
            Look::Running(claim, running) => {
                Some((name(claim), Native::Running { since: Time(running.since) }))
            }
            Look::Exited(exit) => {
                let claim = read::<Claim>(&self.file(rundir::SHIM)).ok().flatten();
                let native = claim.as_ref().map_or_else(|| NativeId(self.dir.display().to_string()), name);
                let exit = Exit { outcome: self.outcome(exit), at: Time(exit.at) };
                Some((native, Native::Exited(exit)))
            }
            Look::Nothing | Look::Unclaimed | Look::Fenced | Look::Orphaned(_) => None,
        }
    }

    /// The native end in the words of outcomes.
    #[must_use]
    pub fn outcome(&self, exit: &ExitRecord) -> Outcome {
        let memory = exit.oom_kills > 0;
        let (class, cause) = match &exit.how {
            How::Exited { code: 0 } => return Outcome::Completed,
            How::Exited { code } => (FailureClass::Infrastructure, format!("exit {code}")),
            How::Signaled { signal } => (FailureClass::Infrastructure, signal_name(*signal)),
            How::Failed { class, cause } => (*class, cause.clone()),
            How::NeverStarted => (FailureClass::Infrastructure, "ended before it ran".to_owned()),
        };
        let (class, cause) = match (&exit.asked, memory) {
            (_, true) => {
                let peak = exit.memory_peak.map(|peak| format!(", peak {} MiB", peak >> 20));
                let kills = exit.oom_kills;
                let text = format!("out of memory, {kills} killed{}; {cause}", peak.unwrap_or_default());
                (FailureClass::OutOfMemory, text)
            }
            (Some(why), false) => (FailureClass::Aborted, format!("{why} ({cause})")),
            (None, false) => (class, cause),
        };
        let tail = String::from_utf8_lossy(&self.tail(TAIL).unwrap_or_default()).into_owned();
        Outcome::Failed { class, cause, tail: whole_lines(&tail, TAIL) }
    }

    /// Why an attempt whose shim is dead is gone.
    #[must_use]
    pub fn proof(claim: &Claim) -> Proof {
        let boot = proc::boot_id().unwrap_or_default();
        Proof(if boot == claim.boot {
            format!(
                "the shim, pid {} started at tick {}, is not there and left nothing",
                claim.pid, claim.start
            )
        } else {
            "the host was started again since".to_owned()
        })
    }
}

/// Just the launch, of a document that has more.
#[derive(serde::Deserialize)]
struct Named {
    launch: LaunchId,
}

/// Without the first, cut line when the text was cut.
fn whole_lines(text: &str, max: usize) -> String {
    match text.split_once('\n') {
        Some((_, rest)) if text.len() >= max => rest.to_owned(),
        _ => text.to_owned(),
    }
}

fn last_bytes(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max as u64)))?;
    let mut out = Vec::new();
    file.take(max as u64).read_to_end(&mut out)?;
    Ok(out)
}

/// `signal 9 (KILL)`.
#[must_use]
pub fn signal_name(signal: i32) -> String {
    let names = [
        (1, "HUP"),
        (2, "INT"),
        (3, "QUIT"),
        (4, "ILL"),
        (6, "ABRT"),
        (7, "BUS"),
        (8, "FPE"),
        (9, "KILL"),
        (11, "SEGV"),
        (13, "PIPE"),
        (14, "ALRM"),
        (15, "TERM"),
        (24, "XCPU"),
        (25, "XFSZ"),
        (31, "SYS"),
    ];
    match names.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(fd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
        let _ = pidfd_send_signal(fd, Signal::KILL);
    }
}

/// Reads a document; `None` when it is not there.
///
/// # Errors
/// When it is there and cannot be read.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX).read_to_end(&mut text)?;
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    serde_json::from_slice(&text).map(Some).map_err(wrong)
}

/// Writes a document whole or not at all.
///
/// # Errors
/// As the system says.
pub fn write(path: &Path, document: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(document)?;
    write_bytes(path, &bytes, |_| Ok(()))
}

/// Writes bytes whole or not at all, readable for the owner only; `before` sees the file before it gets its name.
///
/// # Errors
/// As the system says.
pub fn write_bytes(
    path: &Path,
    bytes: &[u8],
    before: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let _ = fs::remove_file(&part);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(bytes)?;
    before(&part)?;
    fs::rename(&part, path)
}

/// Makes `shim.json` if it is not there: `false` when it is.
fn claim_file(dir: &Path, claim: &Claim) -> io::Result<bool> {
    let part = dir.join(format!("{}.{}", rundir::SHIM, std::process::id()));
    let _ = fs::remove_file(&part);
    fs::write(&part, serde_json::to_vec(claim)?)?;
    // A link, unlike a rename, fails when the name is taken.
    let linked = fs::hard_link(&part, dir.join(rundir::SHIM));
    fs::remove_file(&part)?;
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}
