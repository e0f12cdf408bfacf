//! The ledger's shell: one task that owns the [`Book`], writes rows, calls the adapter and hears its watcher.
//!
//! It takes no hints: after every event it asks the book about the rows concerned, and every few seconds, while
//! anything lives, about all of them. It may be killed between any two lines, because of this order:
//!
//! ```text
//! row planned on disk -> prepare -> native id on disk -> start -> ... -> exit seen -> outcome on disk -> remove
//! ```

mod shell;

use crate::book::Book;
use crate::clock::{Clock, millis};
use crate::inventory::{Ask, Short};
use crate::launcher::{Allotted, Check, Down, Handover, LaunchError, Launcher, Offer, Refusal, Resolved};
use crate::row::{Key, Row, Stop, VERSION, Why};
use crate::store::{LedgerStore, StoreError};
use async_trait::async_trait;
use polder_words::{JobId, LaunchId, Outcome, Role};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

/// What the parent does for a launch.
#[async_trait]
pub trait Host: Send + Sync {
    /// Makes the run directory and a fresh one-time token ready, durably, and says what the worker is handed. Called
    /// before each `prepare`; may be called again for the same launch when nothing was sent.
    ///
    /// # Errors
    /// [`LaunchError::Refused`] ends the launch, [`LaunchError::NotSent`] has it tried again later.
    async fn handover(&self, want: &Resolved) -> Result<Handover, LaunchError>;
}

/// How the ledger is set up.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Its time.
    pub clock: Clock,
}

/// The ledger does not answer any more, or its disk does not.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// The disk.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row that cannot be read: better not to start than to launch something twice.
    #[error("ledger row {key}: {source}")]
    Row {
        /// Its key.
        key: String,
        /// Why.
        source: serde_json::Error,
    },
    /// A row of a later version.
    #[error("ledger row {key} has version {found}, this program reads {VERSION}")]
    Version {
        /// Its key.
        key: String,
        /// Its version.
        found: u32,
    },
    /// It was closed.
    #[error("the ledger is closed")]
    Closed,
    /// The launch is not the current attempt.
    #[error("{0} is not a current launch")]
    NotCurrent(LaunchId),
}

/// A worker that cannot be had.
#[derive(Debug, Error)]
pub enum WantError {
    /// Not now.
    #[error("{0}")]
    Short(Short),
    /// Not at this site.
    #[error("{0}")]
    Refused(Refusal),
    /// The ledger itself.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What the site has and what is free of it: pairs of free and all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// As the adapter said it last.
    pub offer: Offer,
    /// GPUs.
    pub gpus: Option<(u64, u64)>,
    /// CPUs.
    pub cpus: Option<(u64, u64)>,
    /// Bytes of memory.
    pub memory: Option<(u64, u64)>,
    /// When the backend does not answer: since when and why.
    pub down: Option<Down>,
}

type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;

enum Command {
    Reserve(Key, Ask, oneshot::Sender<Result<Allotted, Short>>),
    Release(Key),
    Want(Box<Resolved>, oneshot::Sender<Result<Row, WantError>>),
    Stop(Key, Stop, Reply<()>),
    Word(LaunchId, Outcome, Reply<()>),
    Forget(Key, Reply<bool>),
    Refresh(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// What readers see without asking the task.
#[derive(Debug)]
struct Shown {
    rows: BTreeMap<Key, Row>,
    standing: Standing,
}

/// A handle on the ledger; cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    commands: mpsc::Sender<Command>,
    shown: Arc<Mutex<Shown>>,
    changes: watch::Receiver<u64>,
    launcher: Arc<dyn Launcher>,
    clock: Clock,
}

impl Ledger {
    /// Reads what is on disk, adopts what runs, and goes on with everything that was begun.
    ///
    /// # Errors
    /// When the store cannot be read, or a row in it.
    pub async fn open(
        store: Arc<dyn LedgerStore>,
        launcher: Arc<dyn Launcher>,
        host: Arc<dyn Host>,
        settings: Settings,
    ) -> Result<Self, LedgerError> {
        let mut rows = Vec::new();
        for (key, text) in store.load().await? {
            let row: Row = serde_json::from_str(&text)
                .map_err(|source| LedgerError::Row { key: key.clone(), source })?;
            if row.version != VERSION {
                return Err(LedgerError::Version { key, found: row.version });
            }
            rows.push(row);
        }
        let mut book = Book::load(rows);
        let (offer, down) = match launcher.offer().await {
            Ok(offer) => (offer, None),
            Err(down) => (unknown_offer(launcher.mode()), Some(down)),
        };
        if down.is_none() {
            book.inventory_mut().refresh(&offer);
        }
        let standing = Standing { offer, gpus: None, cpus: None, memory: None, down };
        let shown = Arc::new(Mutex::new(Shown { rows: BTreeMap::new(), standing }));
        let (commands, inbox) = mpsc::channel(64);
        let (version, changes) = watch::channel(0);
        let clock = settings.clock.clone();
        let shell =
            shell::Shell::new(book, store, Arc::clone(&launcher), host, clock, Arc::clone(&shown), version);
        tokio::spawn(shell.run(inbox));
        Ok(Self { commands, shown, changes, launcher, clock: settings.clock })
    }

    /// Sets resources aside for a worker that will be wanted; kept in memory, so a restarted parent asks again.
    ///
    /// # Errors
    /// What is missing; [`LedgerError::Closed`] counts as nothing free.
    pub async fn reserve(&self, job: JobId, role: Role, ask: Ask) -> Result<Allotted, Short> {
        let (reply, answer) = oneshot::channel();
        let closed = Short { what: "ledgers", free: 0, all: 0, asked: 1 };
        if self.commands.send(Command::Reserve(Key { job, role }, ask, reply)).await.is_err() {
            return Err(closed);
        }
        answer.await.unwrap_or(Err(closed))
    }

    /// Gives a reservation back; a worker that is wanted meanwhile keeps what it has.
    pub async fn release(&self, job: JobId, role: Role) {
        let _ = self.commands.send(Command::Release(Key { job, role })).await;
    }

    /// Wants a worker. When this returns the intent is on disk, and the worker will run or the row will say why not.
    /// One that is wanted already (same job and role) stays as it is and is answered.
    ///
    /// # Errors
    /// When there is not enough of something or the adapter refuses; nothing is kept then.
    pub async fn want(&self, want: Resolved) -> Result<Row, WantError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Want(Box::new(want), reply);
        self.commands.send(command).await.map_err(|_| LedgerError::Closed)?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// Ends a worker: one that runs may end by itself for `grace` (its parent tells it), anything else is ended at once.
    /// A worker nobody wants is none to end. On disk when this returns; its end shows in the row.
    ///
    /// # Errors
    /// When the ledger or its disk does not answer.
    pub async fn stop(
        &self,
        job: JobId,
        role: Role,
        why: impl Into<String>,
        grace: Duration,
    ) -> Result<(), LedgerError> {
        let stop =
            Stop { at: self.clock.now(), grace_ms: millis(grace), why: Why::Asked { text: why.into() } };
        self.ask(|reply| Command::Stop(Key { job, role }, stop, reply)).await
    }

    /// Takes down a worker's own word on how it ended; it counts once the exit is seen. On disk when this returns.
    ///
    /// # Errors
    /// [`LedgerError::NotCurrent`] for another attempt than the current one.
    pub async fn report_outcome(&self, id: &LaunchId, outcome: Outcome) -> Result<(), LedgerError> {
        self.ask(|reply| Command::Word(id.clone(), outcome, reply)).await
    }

    /// Forgets a launch that has ended and is cleaned up; `false` when it is not that far.
    ///
    /// # Errors
    /// When the ledger or its disk does not answer.
    pub async fn forget(&self, job: JobId, role: Role) -> Result<bool, LedgerError> {
        self.ask(|reply| Command::Forget(Key { job, role }, reply)).await
    }

    /// Where a worker stands.
    #[must_use]
    pub fn state(&self, job: JobId, role: Role) -> Option<Row> {
        self.shown().rows.get(&Key { job, role }).cloned()
    }

    /// All workers.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        self.shown().rows.values().cloned().collect()
    }

    /// What the site has and what is free.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.shown().standing.clone()
    }

    /// Changes whenever a row or what is free changes; read the state then. Nothing is missed: a reader that was slow
    /// sees the newest.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Asks the adapter again what the site has.
    pub async fn refresh(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Refresh(reply)).await.is_ok() {
            let _ = answer.await;
        }
    }

    /// The native request a launch would make, without making it.
    ///
    /// # Errors
    /// As the adapter refuses.
    pub fn plan(&self, want: &Resolved, with: &Allotted) -> Result<crate::launcher::Plan, Refusal> {
        self.launcher.plan(want, with)
    }

    /// The adapter's findings about this site.
    pub async fn preflight(&self) -> Vec<Check> {
        self.launcher.preflight().await
    }

    /// The last bytes of a worker's own output.
    ///
    /// # Errors
    /// When the backend does not answer.
    pub async fn tail(&self, id: &LaunchId, max: usize) -> Result<bytes::Bytes, Down> {
        self.launcher.tail(id, max).await
    }

    /// Ends the ledger's task, not the workers: the next parent adopts them.
    pub async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Close(reply)).await.is_ok() {
            let _ = answer.await;
        }
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| LedgerError::Closed)?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.shown.lock().expect("no holder of this lock panics")
    }
}

fn unknown_offer(mode: polder_words::Mode) -> Offer {
    Offer {
        mode,
        architectures: Vec::new(),
        isolation: polder_words::Isolation::None,
        not_enforced: Vec::new(),
        devices: None,
        cpus: None,
        memory: None,
        expected_start: None,
    }
}
