//! Processes this program starts and must not leave behind.
//!
//! A process is named by pid and start time, so that a number that was given to somebody else meanwhile is
//! never hit. Workers are no children of ours (their shim outlives the parent on purpose): what is left of a
//! federation after its parents ended is found by its folder, in which nothing else runs.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};

/// How long a process may take to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// A process, told apart from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ident {
    pid: i32,
    /// Clock ticks after boot, as `/proc/PID/stat` says.
    start: u64,
}

impl Ident {
    /// The process with this number as it is now.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        let (state, start) = stat(pid)?;
        (state != 'Z').then_some(Self { pid, start })
    }

    /// This program.
    pub(crate) fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        stat(self.pid).is_some_and(|(state, start)| state != 'Z' && start == self.start)
    }

    /// Sends a signal; to nobody when it has ended.
    fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        // The descriptor pins the process; only then is its start time compared.
        if let Ok(fd) = pidfd_open(pid, PidfdFlags::empty())
            && self.is_alive()
        {
            let _ = pidfd_send_signal(&fd, signal);
        }
    }
}

/// State letter and start time of a process.
fn stat(pid: i32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything, also brackets.
    let rest = &text[text.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// A program we started; ended when dropped, unless released.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    log: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    /// Starts a program, its output going to a file. It gets a process group of its own: Ctrl-C is for us.
    pub(crate) fn start(name: &str, program: &Path, arguments: &[&Path], log: &Path) -> io::Result<Self> {
        let output = fs::File::create(log)?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()?;
        Ok(Self { name: name.to_owned(), log: log.to_owned(), child: Some(child) })
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How it ended, when it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// The last lines of its log.
    pub(crate) fn tail(&self, lines: usize) -> String {
        let text = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Which process it is.
    pub(crate) fn ident(&self) -> Option<Ident> {
        self.child.as_ref().and_then(|child| Ident::of(child.id()))
    }

    /// Lets it run on after this program.
    pub(crate) fn release(&mut self) {
        self.child = None;
    }

    /// Asks it to end.
    fn ask(&mut self) {
        if let Some(ident) = self.ident() {
            ident.signal(Signal::TERM);
        }
    }

    fn force(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.force();
    }
}

/// Ends programs: asks all of them, then ends those that did not.
pub(crate) fn stop(daemons: &mut [Daemon]) {
    for daemon in daemons.iter_mut() {
        daemon.ask();
    }
    until(GRACE, || daemons.iter_mut().all(|daemon| daemon.child.is_none() || daemon.ended().is_some()));
    for daemon in daemons {
        daemon.force();
    }
}

/// Ends processes that are no children of this one.
pub(crate) fn stop_foreign(idents: &[Ident]) {
    for ident in idents {
        ident.signal(Signal::TERM);
    }
    until(GRACE, || idents.iter().all(|ident| !ident.is_alive()));
    for ident in idents {
        ident.signal(Signal::KILL);
    }
}

/// Looks every few milliseconds until something holds or the time is over.
fn until(limit: Duration, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !holds() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every process of this user that works in a folder or was started with a path in it.
pub(crate) fn within(folder: &Path) -> Vec<Ident> {
    let own = getuid().as_raw();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let needle = folder.as_os_str().as_encoded_bytes();
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter_map(Ident::of)
        .filter(|ident| {
            use std::os::unix::fs::MetadataExt as _;
            let proc = PathBuf::from(format!("/proc/{}", ident.pid));
            // Root may have started workers under accounts of their own.
            let ours = own == 0 || fs::metadata(&proc).is_ok_and(|data| data.uid() == own);
            let works_there = fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
            let named = fs::read(proc.join("cmdline"))
                .is_ok_and(|line| line.split(|b| *b == 0).any(|word| begins_in(word, needle)));
            ours && (works_there || named)
        })
        .collect()
}

/// Whether a word is the folder or a path beneath it.
fn begins_in(word: &[u8], folder: &[u8]) -> bool {
    word.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Ends everything that runs in a folder; again, until nothing is found: what ends may start something.
pub(crate) fn sweep(folder: &Path) {
    until(GRACE, || {
        let left = within(folder);
        for ident in &left {
            ident.signal(Signal::KILL);
        }
        left.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_in_a_folder_is_found_and_ended_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let other = tempfile::tempdir().expect("a temporary folder");
        let sleep = |cwd: &Path| {
            Command::new("/bin/sleep").arg("600").current_dir(cwd).spawn().expect("sleep is there")
        };
        let mut inside = sleep(dir.path());
        let mut outside = sleep(other.path());
        let found = within(dir.path());
        assert_eq!(found, [Ident::of(inside.id()).expect("it runs")]);
        sweep(dir.path());
        assert!(!inside.wait().expect("it was ours").success());
        assert!(!found[0].is_alive());
        assert!(outside.try_wait().expect("it was ours").is_none());
        outside.kill().expect("it runs");
        outside.wait().expect("it was ours");
    }

    #[test]
    fn a_daemon_ends_when_dropped_and_its_log_stays() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let script = dir.path().join("program");
        fs::write(&script, "echo started; echo trouble >&2; exec sleep 600").expect("written");
        let log = dir.path().join("log");
        let mut daemon = Daemon::start("x", Path::new("/bin/sh"), &[&script], &log).expect("started");
        until(Duration::from_secs(20), || daemon.tail(5).contains("trouble"));
        assert_eq!(daemon.tail(1), "trouble");
        let ident = daemon.ident().expect("it runs");
        assert!(ident.is_alive() && daemon.ended().is_none());
        drop(daemon);
        assert!(!ident.is_alive());
    }

    #[test]
    fn paths_are_compared_whole() {
        assert!(begins_in(b"/tmp/a/b", b"/tmp/a"));
        assert!(begins_in(b"/tmp/a", b"/tmp/a"));
        assert!(!begins_in(b"/tmp/ab", b"/tmp/a"));
    }
}
