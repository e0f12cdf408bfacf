//! One worker from claim to `exit.json`.

use super::files;
use super::groups::Groups;
use super::log::Log;
use super::stage::{Failure, Stage};
use super::tree;
use polder_api::rundir;
use polder_api::shim::{self, Claim, EndOrder, ExitRecord, How, Order, Running};
use polder_words::FailureClass;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a shim waits to be told to go: a parent that is away for longer makes a new attempt.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often orphans of a running worker are collected.
const REAP: Duration = Duration::from_secs(30);
/// How often the folder is looked at where nothing tells of changes.
const LOOK: Duration = Duration::from_millis(100);
/// Size of the pipe for output: a flood costs fewer turns.
const PIPE: usize = 1 << 20;

/// Supervises the attempt in this folder.
pub(super) fn run(dir: &Path) -> io::Result<()> {
    // Out of the parent's session, so that its terminal's signals do not come here.
    rustix::process::setsid()?;
    // Whoever has the same account may not look into it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let order: Order =
        files::read(&dir.join(shim::ORDER))?.ok_or_else(|| io::Error::other("there is no order"))?;
    let pid = std::process::id();
    let claim = Claim {
        launch: order.launch.clone(),
        boot: files::boot_id()?,
        pid,
        start: files::start_of(pid).ok_or_else(|| io::Error::other("/proc does not know this process"))?,
    };
    let mail = Mail::open(dir);
    if !files::claim(&dir.join(rundir::SHIM), &claim)? {
        return Err(io::Error::other("another shim has this attempt"));
    }
    if dir.join(shim::REMOVED).exists() {
        return Err(io::Error::other("the attempt is over"));
    }
    announce()?;
    Supervised { dir: dir.to_owned(), order, mail }.run()
}

/// Tells the parent, if it still listens, and lets go of it.
fn announce() -> io::Result<()> {
    let mut out = io::stdout();
    let _ = writeln!(out, "{}", shim::READY).and_then(|()| out.flush());
    rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    Ok(())
}

/// Files the parent leaves here, noticed as they appear.
struct Mail {
    dir: PathBuf,
    /// Absent where the account has used up its share of them: then the folder is looked at now and then.
    inotify: Option<OwnedFd>,
}

impl Mail {
    fn open(dir: &Path) -> Self {
        let watch = || {
            let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            inotify::add_watch(&inotify, dir, WatchFlags::MOVED_TO | WatchFlags::ONLYDIR)?;
            Ok(inotify)
        };
        let watched: rustix::io::Result<OwnedFd> = watch();
        if let Err(error) = &watched {
            eprintln!("inotify: {error}; looking every {LOOK:?} instead");
        }
        Self { dir: dir.to_owned(), inotify: watched.ok() }
    }

    /// Waits for one of these or for mail; answers whether to look for mail.
    fn wait<'a>(&'a self, mut fds: Vec<PollFd<'a>>, patience: Duration) -> io::Result<(Vec<bool>, bool)> {
        let others = fds.len();
        fds.extend(self.inotify.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        wait(&mut fds, if self.inotify.is_some() { patience } else { patience.min(LOOK) })?;
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mailed = ready.get(others).copied().unwrap_or(true);
        if mailed {
            self.clear();
        }
        Ok((ready, mailed))
    }

    /// Forgets what was noticed; the files themselves are looked at afterwards.
    fn clear(&self) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        while reader.next().is_ok() {}
    }

    fn end(&self) -> Option<EndOrder> {
        match files::read(&self.dir.join(shim::END)) {
            Ok(end) => end,
            // What cannot be read is still the wish to end it.
            Err(error) => Some(EndOrder { grace_ms: 0, why: format!("end.json: {error}") }),
        }
    }

    fn may_go(&self) -> bool {
        self.dir.join(shim::GO).exists()
    }
}

struct Supervised {
    dir: PathBuf,
    order: Order,
    mail: Mail,
}

impl Supervised {
    fn run(&self) -> io::Result<()> {
        let never = |how, asked| ExitRecord {
            launch: self.order.launch.clone(),
            at: files::now(),
            how,
            asked,
            oom_kills: 0,
            memory_peak: None,
            left: 0,
            log_bytes: 0,
            log_dropped: 0,
            isolation: self.order.fence.isolation,
            not_enforced: Vec::new(),
        };
        let exit = match self.wait_for_go() {
            Ok(()) => match self.start() {
                Ok(worker) => worker.supervise(&self.mail, &self.order, &self.dir)?,
                Err(Failure { class, cause }) => never(How::Failed { class, cause }, None),
            },
            Err(asked) => never(How::NeverStarted, asked),
        };
        // A disk that is full for a moment must not make a worker that ended well a lost one.
        let mut tries = 0;
        loop {
            match files::write(&self.dir.join(rundir::EXIT), &exit, true) {
                Err(error) if tries < 60 && self.dir.is_dir() => {
                    eprintln!("exit.json: {error}");
                    tries += 1;
                    std::thread::sleep(Duration::from_secs(1));
                }
                done => return done,
            }
        }
    }

    /// Waits to be told; `Err` when it shall not run.
    fn wait_for_go(&self) -> Result<(), Option<String>> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(end) = self.mail.end() {
                return Err(Some(end.why));
            }
            if self.mail.may_go() {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Some(format!("nobody let it run for {PATIENCE:?}")));
            }
            let _ = self.mail.wait(Vec::new(), left);
        }
    }

    /// Starts the worker: made, put into its groups, told what to become, and heard of.
    fn start(&self) -> Result<Worker, Failure> {
        let order = &self.order;
        let log = Log::create(&self.dir.join(rundir::LOG), order.log).map_err(|e| Failure::of("log", e))?;
        let mut groups = Groups::create(&order.cgroups, &order.limits);
        let started = self.stage(&mut groups);
        let (child, pidfd, output) = match started {
            Ok(started) => started,
            Err(failure) => {
                let _ = tree::kill(&groups);
                groups.remove();
                return Err(failure);
            }
        };
        let running = Running {
            pid: child.id(),
            start: files::start_of(child.id()).unwrap_or(0),
            since: files::now(),
            cgroups: groups.folders(),
            isolation: order.fence.isolation,
            not_enforced: groups.not_enforced.clone(),
        };
        // It runs, whether that can be written or not.
        if let Err(error) = files::write(&self.dir.join(shim::RUNNING), &running, false) {
            eprintln!("running.json: {error}");
        }
        Ok(Worker { child, pidfd, output, log, groups, asked: None, grace_ms: None, kill_at: None })
    }

    fn stage(&self, groups: &mut Groups) -> Result<(Child, OwnedFd, OwnedFd), Failure> {
        let order = &self.order;
        let failed = |error: io::Error| Failure::of("stage", error);
        let (output, their_output) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let _ = rustix::pipe::fcntl_setpipe_size(&output, PIPE);
        rustix::io::ioctl_fionbio(&output, true).map_err(|e| failed(e.into()))?;
        let their_errors = their_output.try_clone().map_err(failed)?;
        let (mut talk, their_talk) = UnixStream::pair().map_err(failed)?;

        // By descriptor: the account may not be let through to the path of this program.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("polder-worker")
            .args(["supervise", "--stage"])
            .env_clear()
            .envs(&order.env)
            .current_dir(&order.directory)
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(their_talk)))
            .stdout(Stdio::from(their_output))
            .stderr(Stdio::from(their_errors));
        if let Some(account) = order.account {
            command.gid(account.gid).uid(account.uid);
        }
        let mut child = command.spawn().map_err(failed)?;
        drop(command);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid.ok_or_else(|| Failure::of("stage", "no pid")).and_then(|pid| {
            pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Failure::of("pidfd", error))
        })?;
        groups.join(child.id());

        let program = order.command.first().map(PathBuf::from).unwrap_or_default();
        let mine = std::env::current_exe().and_then(|path| path.canonicalize());
        let stage = Stage {
            same_program: matches!((mine, program.canonicalize()), (Ok(mine), Ok(theirs)) if mine == theirs),
            command: order.command.clone(),
            shim: std::process::id(),
            fence: order.fence.clone(),
            limits: order.limits.clone(),
        };
        let mut line = serde_json::to_vec(&stage).map_err(|error| Failure::of("stage", error))?;
        line.push(b'\n');
        talk.write_all(&line).map_err(failed)?;
        let mut said = String::new();
        BufReader::new(&talk).read_line(&mut said).map_err(failed)?;
        if said.is_empty() {
            return Ok((child, pidfd, output));
        }
        let _ = child.wait();
        Err(serde_json::from_str(&said)
            .unwrap_or_else(|_| Failure { class: FailureClass::Infrastructure, cause: said.clone() }))
    }
}

struct Worker {
    child: Child,
    pidfd: OwnedFd,
    output: OwnedFd,
    log: Log,
    groups: Groups,
    asked: Option<String>,
    /// The parent's patience, as it said last.
    grace_ms: Option<u64>,
    kill_at: Option<Instant>,
}

impl Worker {
    fn supervise(mut self, mail: &Mail, order: &Order, dir: &Path) -> io::Result<ExitRecord> {
        let mut open = true;
        let mut reaped = Instant::now();
        // What came between the last look and the start has been noticed already, or lies there.
        self.ask_to_end(mail);
        loop {
            let mut fds = vec![PollFd::new(&self.pidfd, PollFlags::IN)];
            if open {
                fds.push(PollFd::new(&self.output, PollFlags::IN));
            }
            let patience = self.kill_at.map_or(REAP, |at| at.saturating_duration_since(Instant::now()));
            let (ready, mailed) = mail.wait(fds, patience.min(REAP))?;
            let (ended, written) = (ready[0], open && ready[1]);
            if written {
                open = self.read_some()?;
            }
            if ended {
                break;
            }
            if mailed {
                self.ask_to_end(mail);
            }
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.groups.kill();
                let _ = self.child.kill();
                let _ = self.signal_group(Signal::KILL);
                self.kill_at = Some(Instant::now() + Duration::from_secs(1));
            }
            if reaped.elapsed() >= REAP {
                tree::reap(Some(self.child.id()));
                reaped = Instant::now();
            }
        }
        let status = self.child.wait()?;
        let left = tree::kill(&self.groups);
        // Nobody is left who could write; what is in the pipe is all there is.
        while open && self.read_some()? {}
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => How::Exited { code },
            (None, signal) => How::Signaled { signal: signal.unwrap_or(0) },
        };
        let (oom_kills, memory_peak) = (self.groups.oom_kills(), self.groups.memory_peak());
        self.groups.remove();
        if let Err(error) = self.log.finish() {
            eprintln!("{}: {error}", dir.join(rundir::LOG).display());
        }
        let mut not_enforced = std::mem::take(&mut self.groups.not_enforced);
        if left.is_none() {
            not_enforced.push("the end of all its processes: some cannot be killed".to_owned());
        }
        Ok(ExitRecord {
            launch: order.launch.clone(),
            at: files::now(),
            how,
            asked: self.asked.take(),
            oom_kills,
            memory_peak,
            left: left.unwrap_or(1),
            log_bytes: self.log.bytes,
            log_dropped: self.log.dropped,
            isolation: order.fence.isolation,
            not_enforced,
        })
    }

    /// Reads what is there, at most a pipe's worth; `false` at its end.
    fn read_some(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 64 << 10];
        for _ in 0..PIPE / buffer.len() {
            match rustix::io::read(&self.output, &mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.log.take(&buffer[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Takes up the parent's wish to end it, also when it was said again with less patience.
    fn ask_to_end(&mut self, mail: &Mail) {
        let Some(end) = mail.end() else { return };
        let known = self.grace_ms.replace(end.grace_ms);
        if known.is_none() {
            let _ = self.signal_group(Signal::TERM);
            self.asked = Some(end.why);
        }
        if known.is_none_or(|known| end.grace_ms < known) {
            self.kill_at = Some(Instant::now() + Duration::from_millis(end.grace_ms));
        }
    }

    fn signal_group(&self, signal: Signal) -> rustix::io::Result<()> {
        match i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            Some(group) => kill_process_group(group, signal),
            None => Ok(()),
        }
    }
}

fn wait(fds: &mut [PollFd<'_>], patience: Duration) -> io::Result<()> {
    let patience = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(patience.subsec_nanos()),
    };
    match poll(fds, Some(&patience)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
