//! One watcher for all workers: an inotify descriptor over the attempts' folders, and a pidfd a shim for the case that
//! one dies without a word. While nothing happens nothing runs.

use crate::attempt::{Attempt, Look};
use crate::drive::ProcessLauncher;
use polder_api::rundir;
use polder_api::shim;
use polder_launch::{Down, Event, Native};
use polder_words::LaunchId;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Launches the watcher has to look after; shared with those who make and remove them.
#[derive(Debug, Default)]
pub struct Watched {
    new: Mutex<Vec<LaunchId>>,
    gone: Mutex<Vec<LaunchId>>,
    news: Notify,
}

impl Watched {
    /// A launch was prepared.
    pub(crate) fn add(&self, id: LaunchId) {
        self.new.lock().expect("no holder of this lock panics").push(id);
        self.news.notify_one();
    }

    /// A launch is removed.
    pub(crate) fn leave(&self, id: &LaunchId) {
        self.gone.lock().expect("no holder of this lock panics").push(id.clone());
        self.news.notify_one();
    }

    fn take(&self) -> (Vec<LaunchId>, Vec<LaunchId>) {
        let new = std::mem::take(&mut *self.new.lock().expect("no holder of this lock panics"));
        let gone = std::mem::take(&mut *self.gone.lock().expect("no holder of this lock panics"));
        (new, gone)
    }
}

struct Watch<'a> {
    launcher: &'a ProcessLauncher,
    out: Sender<Event>,
    inotify: AsyncFd<OwnedFd>,
    by_watch: BTreeMap<i32, LaunchId>,
    by_launch: BTreeMap<LaunchId, i32>,
    /// Ends when a shim does.
    shims: JoinSet<LaunchId>,
}

/// Watches until it is told to stop, or nobody listens.
pub(crate) async fn watch(launcher: &ProcessLauncher, out: Sender<Event>, stop: CancellationToken) {
    let fd = match inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
        .map_err(io::Error::from)
        .and_then(wakeful)
    {
        Ok(fd) => fd,
        Err(error) => {
            let _ = out.send(Event::Down(Down::now(format!("inotify: {error}")))).await;
            // The ledger starts the watcher again when it ends; not faster than once a second.
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            return;
        }
    };
    let mut watch = Watch {
        launcher,
        out,
        inotify: fd,
        by_watch: BTreeMap::new(),
        by_launch: BTreeMap::new(),
        shims: JoinSet::new(),
    };
    tokio::select! {
        () = watch.run() => {}
        () = stop.cancelled() => {}
    }
}

impl Watch<'_> {
    async fn run(&mut self) {
        let _ = self.launcher.watched.take();
        // Watches first, then the list: what happens in between is seen twice rather than not at all.
        for attempt in Attempt::all(self.launcher.runs()) {
            self.add(attempt.id);
        }
        if !self.relist().await {
            return;
        }
        let mut buffer = [MaybeUninit::uninit(); 4096];
        loop {
            let changed: Result<BTreeSet<LaunchId>, io::Error> = tokio::select! {
                ready = self.inotify.readable() => match ready {
                    Ok(mut ready) => {
                        let changed = drain(&self.inotify, &mut buffer, &self.by_watch);
                        ready.clear_ready();
                        changed
                    }
                    Err(error) => Err(error),
                },
                Some(ended) = self.shims.join_next(), if !self.shims.is_empty() => {
                    ended.map(|id| BTreeSet::from([id])).map_err(io::Error::other)
                }
                () = self.launcher.watched.news.notified() => {
                    let (new, gone) = self.launcher.watched.take();
                    for id in &gone {
                        self.leave(id);
                    }
                    for id in &new {
                        self.add(id.clone());
                    }
                    Ok(new.into_iter().collect())
                }
            };
            let goes_on = match changed {
                Ok(changed) => self.tell(changed).await,
                // The queue ran over: look at everything.
                Err(_) => self.relist().await,
            };
            if !goes_on {
                return;
            }
        }
    }

    async fn relist(&mut self) -> bool {
        self.out.send(Event::Relisted { complete: self.launcher.sightings() }).await.is_ok()
    }

    /// Says what changed; a shim that died without a word is found out by a full list.
    async fn tell(&mut self, changed: BTreeSet<LaunchId>) -> bool {
        for id in changed {
            match self.launcher.sighting(&id) {
                Some(sighting) => {
                    if matches!(sighting.state, Native::Exited(_)) {
                        self.leave(&id);
                    }
                    if self.out.send(Event::Seen(sighting)).await.is_err() {
                        return false;
                    }
                }
                None if self.by_launch.contains_key(&id) => {
                    self.launcher.collect(&id);
                    self.leave(&id);
                    if !self.relist().await {
                        return false;
                    }
                }
                None => {}
            }
            self.launcher.collect(&id);
        }
        true
    }

    fn add(&mut self, id: LaunchId) {
        if self.by_launch.contains_key(&id) {
            return;
        }
        let attempt = Attempt::of(self.launcher.runs(), &id);
        let flags = WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        let Ok(number) = inotify::add_watch(&self.inotify, &attempt.dir, flags) else { return };
        self.by_watch.insert(number, id.clone());
        self.by_launch.insert(id.clone(), number);
        let claim = match attempt.look() {
            Ok(Look::Waiting(claim) | Look::Running(claim, _)) => claim,
            _ => return,
        };
        let pid = i32::try_from(claim.pid).ok().and_then(Pid::from_raw);
        let fd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        let fd = fd.and_then(|fd| wakeful(fd).ok());
        self.shims.spawn(async move {
            if let Some(fd) = fd {
                let _ = fd.readable().await;
            }
            id
        });
    }

    fn leave(&mut self, id: &LaunchId) {
        if let Some(number) = self.by_launch.remove(id) {
            self.by_watch.remove(&number);
            let _ = inotify::remove_watch(&self.inotify, number);
        }
    }
}

/// A descriptor the runtime waits for. The constructor is deprecated because it takes any `AsRawFd`, whose number may
/// be a lie; an `OwnedFd` is what its successor demands, which is `unsafe` for everybody.
#[allow(deprecated)]
fn wakeful(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Reads what inotify has: launches where a file appeared that says something.
fn drain(
    fd: &AsyncFd<OwnedFd>,
    buffer: &mut [MaybeUninit<u8>],
    by_watch: &BTreeMap<i32, LaunchId>,
) -> io::Result<BTreeSet<LaunchId>> {
    let mut changed = BTreeSet::new();
    let mut reader = inotify::Reader::new(fd.get_ref(), buffer);
    loop {
        match reader.next() {
            Ok(event) => {
                if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                    return Err(io::Error::other("the inotify queue ran over"));
                }
                let name = event.file_name().map(std::ffi::CStr::to_bytes).unwrap_or_default();
                let speaks = [rundir::EXIT, shim::RUNNING].iter().any(|file| file.as_bytes() == name);
                if let Some(id) = by_watch.get(&event.wd()).filter(|_| speaks) {
                    changed.insert(id.clone());
                }
            }
            Err(error) if error == rustix::io::Errno::AGAIN => return Ok(changed),
            Err(error) => return Err(error.into()),
        }
    }
}
