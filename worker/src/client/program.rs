//! The trainer's process: started in a group of its own, watched, its output read, ended with all it started.

use crate::run::Desk;
use polder_api::rundir;
use polder_words::{FailureClass, Outcome};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// Bytes read from the pipe at a time.
const READ: usize = 64 << 10;
/// After the program's end, what others still hold of its output may keep coming for so long.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A running trainer.
pub(crate) struct Program {
    child: Child,
    group: Option<Pid>,
    reading: JoinHandle<()>,
    /// How often the group was asked or made to end: TERM, then KILL.
    signals: usize,
    oom_before: u64,
}

/// How the trainer ended.
#[derive(Debug)]
pub(crate) struct Exit {
    status: Option<ExitStatus>,
    out_of_memory: bool,
}

impl Exit {
    /// Exit 0.
    pub(crate) fn is_good(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Whose fault it is, as far as that can be told.
    pub(crate) fn class(&self) -> FailureClass {
        let outside = [Signal::KILL, Signal::TERM, Signal::HUP].map(Signal::as_raw);
        match self.status.and_then(|status| status.signal()) {
            _ if self.out_of_memory => FailureClass::OutOfMemory,
            // A program does not send these to itself: somebody else wanted it gone.
            Some(signal) if outside.contains(&signal) => FailureClass::Infrastructure,
            _ => FailureClass::UserCode,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => write!(f, "exit {code}")?,
            Some((None, Some(signal))) => write!(f, "signal {signal}{}", signal_name(signal))?,
            _ => f.write_str("no status")?,
        }
        if self.out_of_memory { f.write_str(", out of memory") } else { Ok(()) }
    }
}

fn signal_name(signal: i32) -> &'static str {
    let known = [
        (Signal::HUP, " (HUP)"),
        (Signal::INT, " (INT)"),
        (Signal::ILL, " (ILL)"),
        (Signal::ABORT, " (ABRT)"),
        (Signal::BUS, " (BUS)"),
        (Signal::FPE, " (FPE)"),
        (Signal::KILL, " (KILL)"),
        (Signal::SEGV, " (SEGV)"),
        (Signal::PIPE, " (PIPE)"),
        (Signal::TERM, " (TERM)"),
    ];
    known.iter().find(|(known, _)| known.as_raw() == signal).map_or("", |(_, name)| name)
}

impl Program {
    /// Starts the job's command in the app folder.
    pub(crate) fn start(
        desk: &Rc<Desk>,
        command: &[String],
        more: &[String],
        job: Vec<(String, String)>,
    ) -> Result<Self, Outcome> {
        let app = desk.run_dir.join(rundir::APP);
        let env = environment(desk, job);
        let path = env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        let program = find(&command[0], &app, path.as_deref()).map_err(|why| {
            let cause = format!("trainer.command: {:?} {why}", command[0]);
            Outcome::Failed { class: FailureClass::Config, cause, tail: desk.tail() }
        })?;
        Self::spawn(desk, &program, command, more, env, &app).map_err(|error| {
            let cause = format!("cannot start {}: {error}", program.display());
            Outcome::Failed { class: FailureClass::Infrastructure, cause, tail: desk.tail() }
        })
    }

    fn spawn(
        desk: &Rc<Desk>,
        program: &Path,
        command: &[String],
        more: &[String],
        env: Vec<(OsString, OsString)>,
        app: &Path,
    ) -> std::io::Result<Self> {
        // One pipe for both streams, so that lines keep the order in which they were written.
        let (output, input) = std::io::pipe()?;
        let child = Command::new("/proc/self/exe")
            .arg("exec-trainer")
            .arg(std::process::id().to_string())
            .arg(program)
            .args(&command[1..])
            .args(more)
            .env_clear()
            .envs(env)
            .current_dir(app)
            .stdin(Stdio::null())
            .stdout(input.try_clone()?)
            .stderr(input)
            .process_group(0)
            .spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let mut output = pipe::Receiver::from_owned_fd(output.into())?;
        let desk = desk.clone();
        let reading = tokio::task::spawn_local(async move {
            let mut buffer = vec![0; READ];
            while let Ok(length @ 1..) = output.read(&mut buffer).await {
                desk.log.borrow_mut().append(&buffer[..length]);
                desk.news.notify_one();
            }
        });
        Ok(Self { child, group, reading, signals: 0, oom_before: oom_kills() })
    }

    /// Waits for its end, and for the last of its output. May be dropped and called again.
    pub(crate) async fn exit(&mut self) -> Exit {
        let status = self.child.wait().await.ok();
        // What it started and left behind must not go on after it.
        self.signal_group(Signal::KILL);
        let _ = tokio::time::timeout(LAST_WORDS, &mut self.reading).await;
        let killed = status.and_then(|status| status.signal()) == Some(Signal::KILL.as_raw());
        Exit { status, out_of_memory: killed && oom_kills() > self.oom_before }
    }

    /// Ends it now, with all it started.
    pub(crate) async fn kill(&mut self) {
        self.signal_group(Signal::KILL);
        self.exit().await;
    }

    /// Asks it to end.
    pub(crate) fn signal_term(&mut self) {
        self.signals = self.signals.max(1);
        self.signal_group(Signal::TERM);
    }

    /// Makes it end.
    pub(crate) fn signal_kill(&mut self) {
        self.signals = 2;
        self.signal_group(Signal::KILL);
    }

    /// 0, 1 after TERM, 2 after KILL.
    pub(crate) fn signals_sent(&self) -> usize {
        self.signals
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.signal_group(Signal::KILL);
        self.reading.abort();
    }
}

/// What the launcher gave this worker, what the study says, what the job is.
fn environment(desk: &Desk, job: Vec<(String, String)>) -> Vec<(OsString, OsString)> {
    let assignment = &desk.assignment;
    let mut env: Vec<(OsString, OsString)> = Vec::new();
    // So that the last lines of a program that fails are there.
    env.push(("PYTHONUNBUFFERED".into(), "1".into()));
    env.extend(std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("POLDER_")));
    let named = |(name, value): (&String, &String)| (name.into(), value.into());
    env.extend(assignment.env.iter().map(named));
    env.extend(assignment.secret_env.iter().map(named));
    if !assignment.gpus.is_empty() {
        env.push(("CUDA_VISIBLE_DEVICES".into(), assignment.gpus.join(",").into()));
    }
    env.extend(job.into_iter().map(|(name, value)| (name.into(), value.into())));
    env
}

/// Where the program is: a path of the app folder, an absolute one, or a name in `PATH`.
fn find(program: &str, app: &Path, path: Option<&std::ffi::OsStr>) -> Result<PathBuf, String> {
    let executable = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        let path = app.join(program);
        return if executable(&path) {
            Ok(path)
        } else if path.exists() {
            Err("is not an executable file".to_owned())
        } else {
            Err("is not in the app folder or on this machine".to_owned())
        };
    }
    let path = path.map_or_else(|| "/usr/local/bin:/usr/bin:/bin".into(), OsString::from);
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|path| executable(path))
        .ok_or_else(|| format!("is not in PATH ({})", path.display()))
}

/// Processes of this worker's cgroup that the kernel killed for want of memory; 0 where that is not told.
fn oom_kills() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let counter = |file: PathBuf| {
        let text = std::fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
    };
    let of = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            counter(Path::new("/sys/fs/cgroup").join(path).join("memory.events"))
        } else if controllers.split(',').any(|name| name == "memory") {
            counter(Path::new("/sys/fs/cgroup/memory").join(path).join("memory.oom_control"))
        } else {
            None
        }
    };
    groups.lines().filter_map(of).sum()
}
