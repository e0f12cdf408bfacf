//! Processes as the kernel sees them: memory, processor time, who is there.
//!
//! Read from `/proc`, not asked of the product: peaks and counts in tests come from outside.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A process, told apart from a later one of the same number by its start time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// The kernel's number.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub started: u64,
}

/// Memory of one process, in KiB as the kernel gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Peak of the resident set, mapped files counted (`VmHWM`).
    pub peak: u64,
    /// Resident now (`VmRSS`).
    pub resident: u64,
    /// Of that, the process's own (`RssAnon`).
    pub own: u64,
    /// Of that, pages of mapped files (`RssFile`), which the kernel may drop.
    pub mapped: u64,
}

impl Process {
    /// The process that has this number now.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, started: stat_field(pid, 22)? })
    }

    /// This process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn this() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// Whether it runs still; a zombie does not.
    #[must_use]
    pub fn alive(&self) -> bool {
        matches!(stat(self.pid), Ok(fields)
            if fields.get(19).is_some_and(|s| *s == self.started.to_string())
            && !matches!(fields.first().map(String::as_str), Some("Z" | "X")))
    }

    /// Its memory.
    ///
    /// # Errors
    /// When it is gone.
    pub fn memory(&self) -> io::Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let field = |name: &str| {
            status
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
                .and_then(|v| v.split_whitespace().next()?.parse().ok())
                .ok_or_else(|| io::Error::other(format!("no {name}: process {} is ending", self.pid)))
        };
        Ok(Memory {
            peak: field("VmHWM")?,
            resident: field("VmRSS")?,
            own: field("RssAnon")?,
            mapped: field("RssFile")?,
        })
    }

    /// Processor time it has used itself, its threads that have ended too: in user code, and in the kernel.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu_own(&self) -> io::Result<(Duration, Duration)> {
        let ticks = |n| stat_field(self.pid, n).map(|ticks| Duration::from_millis(ticks * 10));
        Ok((ticks(14)?, ticks(15)?))
    }

    /// Processor time, user and system, of it and of the children it has waited for.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu(&self) -> io::Result<Duration> {
        let own: u64 =
            [14, 15, 16, 17].into_iter().map(|n| stat_field(self.pid, n)).sum::<io::Result<u64>>()?;
        // 100 ticks a second on every Linux that Rust runs on.
        Ok(Duration::from_millis(own * 10))
    }

    /// Processor time of its own threads in nanoseconds, finer than clock ticks.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu_fine(&self) -> io::Result<Duration> {
        let mut sum = 0u64;
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let path = task?.path().join("schedstat");
            // A thread may end between the listing and the reading; its time is lost to this count.
            if let Ok(text) = fs::read_to_string(path) {
                sum += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        Ok(Duration::from_nanos(sum))
    }

    /// Its command line.
    ///
    /// # Errors
    /// When it is gone.
    pub fn arguments(&self) -> io::Result<Vec<String>> {
        split(&fs::read(format!("/proc/{}/cmdline", self.pid))?)
    }

    /// The environment it was started with.
    ///
    /// # Errors
    /// When it is gone, or is not ours to read.
    pub fn environment(&self) -> io::Result<Vec<String>> {
        split(&fs::read(format!("/proc/{}/environ", self.pid))?)
    }

    /// Its parent.
    ///
    /// # Errors
    /// When it is gone.
    pub fn parent(&self) -> io::Result<u32> {
        Ok(u32::try_from(stat_field(self.pid, 4)?).expect("process numbers fit 32 bits"))
    }

    /// Waits for its end; false when the time ran out.
    #[must_use]
    pub fn ended_within(&self, limit: Duration) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw) else {
            return true;
        };
        let Ok(handle) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
            return true;
        };
        if !self.alive() {
            return true;
        }
        let mut fds = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        matches!(rustix::event::poll(&mut fds, Some(&limit)), Ok(n) if n > 0)
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn kill(&self) -> io::Result<()> {
        self.signal(rustix::process::Signal::KILL)
    }

    /// Sends a signal, to this process and never to a later one of the same number.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn signal(&self, signal: rustix::process::Signal) -> io::Result<()> {
        let raw = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = raw.ok_or_else(|| io::Error::other("not a process number"))?;
        let handle = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        if !self.alive() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        rustix::process::pidfd_send_signal(handle, signal)?;
        Ok(())
    }
}

/// Every process whose arguments, working directory or environment name this folder, this process
/// aside: what a federation in that folder left running.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn beneath(folder: &Path) -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    let needle = folder.as_os_str().as_encoded_bytes();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        let names_it = ["cmdline", "environ"].iter().any(|file| {
            fs::read(entry.path().join(file))
                .is_ok_and(|text| text.windows(needle.len()).any(|w| w == needle))
        });
        let lives_in_it = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
        if (names_it || lives_in_it)
            && let Ok(process) = Process::of(pid)
            && process.alive()
        {
            found.push(process);
        }
    }
    found.sort();
    Ok(found)
}

fn split(bytes: &[u8]) -> io::Result<Vec<String>> {
    Ok(bytes
        .split(|b| *b == 0)
        .filter(|s| !s.is_empty())
        .map(|s| String::from_utf8_lossy(s).into_owned())
        .collect())
}

/// Fields of `/proc/<pid>/stat` from the third on; the second may hold anything between its brackets.
fn stat(pid: u32) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(')').ok_or_else(|| io::Error::other("stat without a name"))?;
    Ok(rest.split_whitespace().map(str::to_owned).collect())
}

/// A field by its number in `proc(5)`, from 3 on.
fn stat_field(pid: u32, number: usize) -> io::Result<u64> {
    let fields = stat(pid)?;
    fields
        .get(number - 3)
        .and_then(|f| f.parse().ok())
        .ok_or_else(|| io::Error::other(format!("stat has no number in field {number}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_seen_and_its_end_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .current_dir(folder.path())
            .spawn()
            .expect("cat runs");
        let process = Process::of(child.id()).expect("it is there");
        assert_eq!(beneath(folder.path()).expect("a list"), vec![process.clone()]);
        assert!(!process.ended_within(Duration::ZERO));
        process.kill().expect("killed");
        assert!(process.ended_within(Duration::from_secs(10)));
        assert!(!process.alive(), "a zombie is not alive");
        child.wait().expect("reaped");
        assert!(beneath(folder.path()).expect("a list").is_empty());
    }

    #[test]
    fn memory_and_time_of_this_process_are_plausible() {
        let this = Process::this().expect("it is there");
        let memory = this.memory().expect("readable");
        assert!(memory.peak >= memory.resident.min(memory.own) && memory.own > 0, "{memory:?}");
        let mut x = 1u64;
        let before = this.cpu_fine().expect("readable");
        while this.cpu_fine().expect("readable") < before + Duration::from_millis(20) {
            x = x.wrapping_mul(3);
        }
        assert_ne!(x, 0);
    }
}
