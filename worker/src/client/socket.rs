//! The counter at which the trainer asks: line JSON over a Unix socket, a request a line, an answer a line.

use super::take;
use super::{Did, Work};
use crate::run::Desk;
use anyhow::{Context as _, Result};
use polder_api::rundir;
use polder_api::site::MetricPoint;
use polder_api::trainer::{Reply, Request, SOCKET_VARIABLE};
use polder_words::TaskId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc};

/// Longest path a socket's address can hold.
const LONGEST: usize = 107;
/// Longest request.
const LINE: u64 = 1 << 20;
/// Models up to this size are checked at once, larger ones beside the loop.
const AT_ONCE: u64 = 1 << 20;
/// Values of metrics that wait for the next report; more in one moment are left out.
const POINTS: usize = 2000;

/// Where the trainer asks.
pub(crate) struct Counter {
    desk: Rc<Desk>,
    rounds: u32,
    socket: PathBuf,
    /// Made when the run directory's own path is too long.
    folder: Option<PathBuf>,
    work: RefCell<Option<Work>>,
    over: Cell<bool>,
    changed: Notify,
    did: mpsc::Sender<Did>,
    /// The task last handed out, and whether its model was handed in.
    handed: Cell<Option<(TaskId, bool)>>,
    checking: Cell<usize>,
    checked: Notify,
}

impl Counter {
    /// Opens the socket and answers whoever connects.
    pub(crate) fn open(desk: &Rc<Desk>, rounds: u32, did: mpsc::Sender<Did>) -> Result<Rc<Self>> {
        let state = desk.run_dir.join(rundir::STATE);
        std::fs::create_dir_all(&state).with_context(|| format!("cannot make {}", state.display()))?;
        std::fs::create_dir_all(desk.run_dir.join(rundir::OUT)).context("cannot make out/")?;
        let (socket, folder) = place(&state)?;
        let _ = std::fs::remove_file(&socket);
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        let counter = Rc::new(Self {
            desk: desk.clone(),
            rounds,
            socket,
            folder,
            work: RefCell::new(None),
            over: Cell::new(false),
            changed: Notify::new(),
            did,
            handed: Cell::new(None),
            checking: Cell::new(0),
            checked: Notify::new(),
        });
        let accepting = counter.clone();
        tokio::task::spawn_local(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let counter = accepting.clone();
                        tokio::task::spawn_local(async move { counter.serve(stream).await });
                    }
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
                }
            }
        });
        Ok(counter)
    }

    /// What the trainer's environment says of the job.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let assignment = &self.desk.assignment;
        let launch = &assignment.launch;
        [
            (SOCKET_VARIABLE, self.socket.display().to_string()),
            ("POLDER_LAUNCH", launch.to_string()),
            ("POLDER_JOB", launch.job.to_string()),
            ("POLDER_SITE", launch.site.to_string()),
            ("POLDER_STUDY", assignment.study.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// The task the trainer should work on.
    pub(crate) fn put(&self, work: Option<Work>) {
        *self.work.borrow_mut() = work;
        self.changed.notify_waiters();
    }

    /// There will be no more tasks.
    pub(crate) fn done(&self) {
        self.over.set(true);
        self.changed.notify_waiters();
    }

    /// Waits until no model is being checked.
    pub(crate) async fn settled(&self) {
        while self.checking.get() > 0 {
            self.checked.notified().await;
        }
    }

    async fn serve(self: Rc<Self>, stream: UnixStream) {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut read).take(LINE).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let reply = if line.last() == Some(&b'\n') {
                match serde_json::from_slice(&line) {
                    Ok(request) => self.answer(request).await,
                    Err(error) => refuse(format!("not a request: {error}")),
                }
            } else if line.len() as u64 == LINE {
                let _ = write.write_all(&text(&refuse(format!("a request may have {LINE} bytes")))).await;
                return;
            } else {
                return;
            };
            if write.write_all(&text(&reply)).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Init => {
                let assignment = &self.desk.assignment;
                Reply::Welcome {
                    site: assignment.launch.site.to_string(),
                    study: assignment.study.to_string(),
                    job: assignment.launch.job.to_string(),
                    total_rounds: self.rounds,
                    out: self.desk.run_dir.join(rundir::OUT).display().to_string(),
                }
            }
            Request::Receive => self.receive().await,
            Request::Send { path, weight, metrics } => self.send(path, weight, metrics).await,
            Request::Metrics { step, metrics } => {
                if let Err(cause) = take::few(&metrics) {
                    return refuse(cause);
                }
                let round = self.handed.get().map_or(0, |(task, _)| task.round);
                let mut report = self.desk.report.borrow_mut();
                let waiting: usize = report.metrics.iter().map(|point| point.values.len()).sum();
                if waiting + metrics.len() <= POINTS {
                    report.metrics.push(MetricPoint { round, step, values: metrics });
                }
                drop(report);
                self.desk.news.notify_one();
                Reply::Ok
            }
            Request::Log { mut text } => {
                text.push('\n');
                self.desk.log.borrow_mut().append(text.as_bytes());
                self.desk.news.notify_one();
                Reply::Ok
            }
        }
    }

    async fn receive(&self) -> Reply {
        loop {
            let changed = self.changed.notified();
            if self.over.get() {
                return Reply::Done;
            }
            let last = self.handed.get();
            if let Some(work) = self.work.borrow().as_ref()
                && last.map(|(task, _)| task) != Some(work.task.id)
            {
                self.handed.set(Some((work.task.id, false)));
                let _ = self.did.try_send(Did::Received(work.task.id));
                return Reply::Task {
                    round: work.task.id.round,
                    total_rounds: work.task.total_rounds,
                    kind: work.task.kind.clone(),
                    path: work.path.as_ref().map(|path| path.display().to_string()),
                    params: work.task.params.clone(),
                };
            }
            if let Some((task, false)) = last {
                return refuse(format!("the model of round {} was not sent yet", task.round));
            }
            changed.await;
        }
    }

    async fn send(&self, path: String, weight: Option<f64>, metrics: BTreeMap<String, f64>) -> Reply {
        let task = match self.handed.get() {
            None => return refuse("there is nothing to be sent: no task was received".to_owned()),
            Some((task, true)) => {
                return refuse(format!("the model of round {} was sent already", task.round));
            }
            Some((task, false)) => task,
        };
        let current = self.work.borrow().clone().filter(|work| work.task.id == task);
        let Some(Work { header, .. }) = current else {
            // The round was closed without this site; the next `receive` brings the new one.
            self.handed.set(Some((task, true)));
            let model = Err("too late".to_owned());
            let _ = self.did.send(Did::Sent { task, model, weight, metrics }).await;
            return Reply::Ok;
        };
        self.checking.set(self.checking.get() + 1);
        let model = match take::few(&metrics) {
            Ok(()) => self.check(path, header).await,
            Err(cause) => Err(cause),
        };
        self.handed.set(Some((task, true)));
        let reply = match &model {
            Ok(_) => Reply::Ok,
            Err(cause) => refuse(cause.clone()),
        };
        let _ = self.did.send(Did::Sent { task, model, weight, metrics }).await;
        self.checking.set(self.checking.get() - 1);
        self.checked.notify_waiters();
        reply
    }

    async fn check(
        &self,
        path: String,
        header: Option<std::sync::Arc<polder_workflow::Header>>,
    ) -> Result<take::Taken, String> {
        let run_dir = self.desk.run_dir.clone();
        let size = std::fs::metadata(run_dir.join(&path)).map_or(0, |meta| meta.len());
        if size <= AT_ONCE {
            return take::take(&run_dir, &path, header.as_deref());
        }
        tokio::task::spawn_blocking(move || take::take(&run_dir, &path, header.as_deref()))
            .await
            .unwrap_or_else(|error| Err(format!("checking the model failed: {error}")))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

fn refuse(message: String) -> Reply {
    Reply::Error { message }
}

fn text(reply: &Reply) -> Vec<u8> {
    let mut line = serde_json::to_vec(reply)
        .unwrap_or_else(|_| br#"{"is":"error","message":"cannot be told"}"#.to_vec());
    line.push(b'\n');
    line
}

/// A place for the socket that any program can connect to: in the run directory, or where that path is
/// too long for a socket's address, in a private folder of its own.
fn place(state: &Path) -> Result<(PathBuf, Option<PathBuf>)> {
    let socket = state.join("t");
    if socket.as_os_str().len() <= LONGEST {
        return Ok((socket, None));
    }
    // The folder for temporary files often lies in the run directory, and is as long; shared memory is there in
    // containers and behind fences too.
    for place in [std::env::temp_dir(), PathBuf::from("/dev/shm"), PathBuf::from("/tmp")] {
        for n in 0..100 {
            let folder = place.join(format!("polder-{}-{n}", std::process::id()));
            if folder.as_os_str().len() + 2 > LONGEST {
                break;
            }
            match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => return Ok((folder.join("t"), Some(folder))),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(_) => break,
            }
        }
    }
    anyhow::bail!(
        "{} is too long for a socket's address, and there is no other place for it",
        socket.display()
    )
}
