//! Waiting for what others write: woken by the write itself, not by looking again and again.

use crate::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest any wait of a test may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Reads something anew after each change beneath a folder until it says what is waited for.
///
/// `look` gets called at once, and again after each change of a file directly in `folder`.
///
/// # Errors
/// When the time is over, with the last thing seen, or the folder cannot be watched.
pub fn until<T, S: std::fmt::Display>(
    folder: &Path,
    limit: Duration,
    mut look: impl FnMut() -> Result<T, S>,
) -> io::Result<T> {
    let watcher = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let what = inotify::WatchFlags::MODIFY
        | inotify::WatchFlags::CREATE
        | inotify::WatchFlags::MOVED_TO
        | inotify::WatchFlags::DELETE
        | inotify::WatchFlags::CLOSE_WRITE;
    inotify::add_watch(&watcher, folder, what)?;
    let end = Instant::now() + limit;
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    loop {
        let seen = match look() {
            Ok(found) => return Ok(found),
            Err(seen) => seen,
        };
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        if left.is_zero() || poll(&mut [PollFd::new(&watcher, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("after {limit:?}: {seen}")));
        }
        let mut events = inotify::Reader::new(&watcher, &mut buffer);
        // Until there are no more: several changes are one reason to look.
        while events.next().is_ok() {}
    }
}

/// Waits until one of these processes has ended; which.
///
/// # Errors
/// When the time is over.
pub fn first(processes: &[&Process], limit: Duration) -> io::Result<usize> {
    let mut handles = Vec::new();
    for (n, process) in processes.iter().enumerate() {
        let raw = i32::try_from(process.pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = raw.ok_or_else(|| io::Error::other("not a process number"))?;
        match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            Ok(handle) if process.alive() => handles.push(handle),
            _ => return Ok(n),
        }
    }
    let mut fds: Vec<PollFd<'_>> = handles.iter().map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
    let timeout = Timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    poll(&mut fds, Some(&timeout))?;
    fds.iter().position(|fd| !fd.revents().is_empty()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::TimedOut, format!("after {limit:?}: all of {processes:?} run"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_wakes_and_the_last_thing_seen_is_told_when_time_is_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace");
        let writes = file.clone();
        let writer = std::thread::spawn(move || {
            for n in 0..3 {
                std::fs::write(&writes, n.to_string()).expect("written");
            }
        });
        let look = || match std::fs::read_to_string(&file) {
            Ok(text) if text == "2" => Ok(text),
            Ok(text) => Err(format!("it says {text:?}")),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(until(folder.path(), LIMIT, look).expect("seen"), "2");
        writer.join().expect("ended");
        let error =
            until(folder.path(), Duration::from_millis(20), || Err::<(), _>("it says 2")).expect_err("over");
        assert!(error.to_string().ends_with("it says 2"), "{error}");
    }
}
