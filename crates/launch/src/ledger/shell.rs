//! The one task that owns the book: it writes, calls and hears.

use super::{Command, Host, LedgerError, Shown, WantError};
use crate::book::{ASK_EVERY, Book, Call, Denied, Todo};
use crate::clock::{Clock, Time};
use crate::crash;
use crate::launcher::{Cause, Down, End, Event, LaunchError, Launcher};
use crate::machine::Seen;
use crate::row::{Key, Row};
use crate::store::{LedgerStore, StoreError};
use polder_words::LaunchId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// What a spawned request comes back with.
enum Back {
    Done(LaunchId, Seen),
    Asked(Vec<(LaunchId, Seen)>),
    Stray(LaunchId, Result<(), LaunchError>),
}

pub(super) struct Shell {
    book: Book,
    store: Arc<dyn LedgerStore>,
    launcher: Arc<dyn Launcher>,
    host: Arc<dyn Host>,
    clock: Clock,
    shown: Arc<Mutex<Shown>>,
    version: watch::Sender<u64>,
    calls: JoinSet<Back>,
    /// Which launch each request on its way is about.
    asking: HashMap<tokio::task::Id, LaunchId>,
    /// When each row wants to be looked at again.
    timers: BTreeMap<Key, Time>,
    /// Native objects no row speaks for, being ended.
    strays: BTreeSet<LaunchId>,
    /// Who waits for a row to be on disk.
    replies: Vec<(Key, Waiter)>,
    stop: CancellationToken,
}

enum Waiter {
    Unit(super::Reply<()>),
    Want(oneshot::Sender<Result<Row, WantError>>),
}

impl Shell {
    pub(super) fn new(
        book: Book,
        store: Arc<dyn LedgerStore>,
        launcher: Arc<dyn Launcher>,
        host: Arc<dyn Host>,
        clock: Clock,
        shown: Arc<Mutex<Shown>>,
        version: watch::Sender<u64>,
    ) -> Self {
        Self {
            book,
            store,
            launcher,
            host,
            clock,
            shown,
            version,
            calls: JoinSet::new(),
            asking: HashMap::new(),
            timers: BTreeMap::new(),
            strays: BTreeSet::new(),
            replies: Vec::new(),
            stop: CancellationToken::new(),
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        let (events_in, mut events) = mpsc::channel(256);
        let mut watcher = self.start_watch(&events_in);
        for key in self.book.keys() {
            self.settle(key).await;
        }
        self.publish();
        let mut ask_at: Option<Time> = None;
        loop {
            let now = self.clock.now();
            if self.book.is_idle() {
                ask_at = None;
            } else if ask_at.is_none() {
                ask_at = Some(now.plus(ASK_EVERY));
            }
            let due = self.timers.values().copied().chain(ask_at).min();
            tokio::select! {
                command = inbox.recv() => match command {
                    Some(Command::Close(reply)) => {
                        self.shut(&watcher);
                        let _ = reply.send(());
                        return;
                    }
                    Some(command) => self.command(command).await,
                    // Every handle is gone: nobody can want anything, but what runs is still looked after by the next.
                    None => return self.shut(&watcher),
                },
                event = events.recv() => if let Some(event) = event {
                    self.event(event).await;
                },
                Some(back) = self.calls.join_next_with_id(), if !self.calls.is_empty() => match back {
                    Ok((task, back)) => {
                        self.asking.remove(&task);
                        self.back(back).await;
                    }
                    // An adapter that panics is an adapter that did not answer.
                    Err(error) => {
                        tracing::error!(%error, "a request to the launcher failed");
                        if let Some(id) = self.asking.remove(&error.id()) {
                            self.back(Back::Done(id, Seen::Unsure(Cause("the launcher failed".to_owned())))).await;
                        }
                    }
                },
                () = sleep_until(due, now) => {
                    let now = self.clock.now();
                    let keys: Vec<_> = self.timers.iter().filter(|(_, at)| **at <= now).map(|(key, _)| *key).collect();
                    for key in keys {
                        self.settle(key).await;
                    }
                    if ask_at.is_some_and(|at| at <= now) {
                        ask_at = None;
                        self.ask_all();
                    }
                }
            }
            if watcher.is_finished() {
                watcher = self.start_watch(&events_in);
            }
            self.publish();
        }
    }

    fn start_watch(&self, events: &mpsc::Sender<Event>) -> AbortHandle {
        let (launcher, events, stop) = (Arc::clone(&self.launcher), events.clone(), self.stop.clone());
        tokio::spawn(async move { launcher.watch(events, stop).await }).abort_handle()
    }

    fn shut(&mut self, watcher: &AbortHandle) {
        self.stop.cancel();
        watcher.abort();
        self.calls.abort_all();
    }

    async fn command(&mut self, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Reserve(key, ask, reply) => {
                let answer = match self.book.get(key) {
                    Some(row) if row.ended().is_none() => Ok(row.lease.clone()),
                    _ => self.book.inventory_mut().take(key, ask),
                };
                let _ = reply.send(answer);
            }
            Command::Release(key) => {
                if self.book.get(key).is_none() {
                    self.book.inventory_mut().free(key);
                }
            }
            Command::Want(want, reply) => {
                let key = Key::of(&want.id);
                let launcher = Arc::clone(&self.launcher);
                match self.book.want(*want, &|want, with| launcher.plan(want, with), now) {
                    Ok(()) => {
                        self.replies.push((key, Waiter::Want(reply)));
                        self.settle(key).await;
                    }
                    Err(Denied::Short(short)) => drop(reply.send(Err(WantError::Short(short)))),
                    Err(Denied::Refused(refusal)) => drop(reply.send(Err(WantError::Refused(refusal)))),
                }
            }
            Command::Stop(key, stop, reply) => {
                if let Some(id) = self.book.get(key).map(|row| row.id().clone()) {
                    self.book.observe(&id, Seen::Stop(stop), now);
                }
                self.replies.push((key, Waiter::Unit(reply)));
                self.settle(key).await;
            }
            Command::Word(id, outcome, reply) => {
                let key = Key::of(&id);
                if self.book.get(key).is_none_or(|row| *row.id() != id) {
                    let _ = reply.send(Err(LedgerError::NotCurrent(id)));
                    return;
                }
                self.book.observe(&id, Seen::Word(outcome), now);
                self.replies.push((key, Waiter::Unit(reply)));
                self.settle(key).await;
            }
            Command::Forget(key, reply) => {
                let answer = if self.book.get(key).is_none_or(Row::is_settled) {
                    match self.store.delete(&key.to_string()).await {
                        Ok(()) => Ok(self.book.forget(key)),
                        Err(error) => Err(error.into()),
                    }
                } else {
                    Ok(false)
                };
                self.timers.remove(&key);
                let _ = reply.send(answer);
            }
            Command::Refresh(reply) => {
                self.refresh().await;
                let _ = reply.send(());
            }
            // Handled by the loop.
            Command::Close(reply) => drop(reply),
        }
    }

    async fn event(&mut self, event: Event) {
        let now = self.clock.now();
        match event {
            Event::Seen(sighting) => {
                let key = Key::of(&sighting.id);
                if let Some(id) = self.book.sighted(sighting, now) {
                    self.stray(id);
                }
                self.settle(key).await;
            }
            Event::Relisted { complete } => {
                for id in self.book.relisted(complete, now) {
                    self.stray(id);
                }
                let was_down =
                    self.shown.lock().expect("no holder of this lock panics").standing.down.is_some();
                if was_down {
                    self.refresh().await;
                }
                self.settle_all().await;
            }
            Event::Down(down) => {
                for id in self.book.to_ask() {
                    self.book.observe(&id, Seen::Unsure(down.why.clone()), now);
                }
                self.set_down(Some(down));
                self.settle_all().await;
            }
            Event::Up => self.set_down(None),
        }
    }

    async fn back(&mut self, back: Back) {
        let now = self.clock.now();
        match back {
            Back::Done(id, seen) => {
                crash::point("after a call of the launcher");
                self.book.done(&id, seen, now);
                self.settle(Key::of(&id)).await;
            }
            Back::Asked(fates) => {
                for (id, seen) in fates {
                    self.book.observe(&id, seen, now);
                    self.settle(Key::of(&id)).await;
                }
            }
            Back::Stray(id, result) => {
                self.strays.remove(&id);
                match result {
                    Ok(()) => tracing::info!(launch = %id, "removed a worker that no launch speaks for"),
                    Err(error) => tracing::warn!(launch = %id, %error, "a worker that no launch speaks for"),
                }
            }
        }
    }

    async fn settle_all(&mut self) {
        for key in self.book.keys() {
            self.settle(key).await;
        }
    }

    /// Does what the book says about one row, writes first.
    async fn settle(&mut self, key: Key) {
        loop {
            let now = self.clock.now();
            let launcher = Arc::clone(&self.launcher);
            self.timers.remove(&key);
            match self.book.settle(key, &|want, with| launcher.plan(want, with), now) {
                Todo::Write => {
                    let Some(row) = self.book.get(key) else { return };
                    let text = serde_json::to_string(row).expect("a row is plain data with text keys");
                    crash::point("before a row is written");
                    if let Err(error) = self.store.put(&key.to_string(), &text).await {
                        self.not_written(key, &error, now).await;
                        return;
                    }
                    crash::point("after a row is written");
                    self.book.written(key);
                }
                Todo::Call(call) => {
                    self.answer(key, || Ok(()));
                    self.call(key, call);
                }
                Todo::Wait(until) => {
                    self.answer(key, || Ok(()));
                    if let Some(until) = until {
                        self.timers.insert(key, until);
                    }
                    return;
                }
            }
        }
    }

    /// A row is not on disk: nothing is done about it meanwhile. One that never was is dropped, since whoever wants it
    /// is told no.
    async fn not_written(&mut self, key: Key, error: &StoreError, now: Time) {
        let why = error.chain();
        tracing::error!(row = %key, why, "the ledger cannot be written; nothing is launched meanwhile");
        if self.book.drop_new(key) {
            // It may be there nevertheless; what cannot be deleted now shows after a restart as a worker nobody wants.
            let _ = self.store.delete(&key.to_string()).await;
        } else {
            self.timers.insert(key, now.plus(Duration::from_secs(1)));
        }
        self.answer(key, || Err(StoreError { what: why.clone(), source: None }));
    }

    /// Tells everybody who waited for this row to be on disk.
    fn answer(&mut self, key: Key, result: impl Fn() -> Result<(), StoreError>) {
        let row = self.book.get(key).cloned();
        let mut index = 0;
        while index < self.replies.len() {
            if self.replies[index].0 != key {
                index += 1;
                continue;
            }
            match self.replies.swap_remove(index).1 {
                Waiter::Unit(reply) => drop(reply.send(result().map_err(LedgerError::from))),
                Waiter::Want(reply) => {
                    let answer = result().map_err(LedgerError::from).map_err(WantError::from);
                    let answer =
                        answer.and_then(|()| row.clone().ok_or(WantError::Ledger(LedgerError::Closed)));
                    drop(reply.send(answer));
                }
            }
        }
    }

    fn call(&mut self, key: Key, call: Call) {
        let Some(id) = self.book.get(key).map(|row| row.id().clone()) else { return };
        let (launcher, host) = (Arc::clone(&self.launcher), Arc::clone(&self.host));
        crash::point("before a call of the launcher");
        let about = id.clone();
        let task = self.calls.spawn(async move {
            let seen = match call {
                Call::Prepare(want, plan) => Seen::Prepared(match host.handover(&want).await {
                    Ok(hand) => launcher.prepare(&id, &plan, &hand).await,
                    Err(error) => Err(error),
                }),
                Call::Start(native) => Seen::Started(launcher.start(&id, &native).await),
                Call::Find => match launcher.find(std::slice::from_ref(&id)).await {
                    Ok(mut fates) => Book::fate(fates.remove(&id)),
                    Err(down) => Seen::Unsure(down.why),
                },
                Call::End(end) => Seen::Ended(launcher.end(&id, end).await),
                Call::Remove => Seen::Removed(launcher.remove(&id).await),
            };
            Back::Done(id, seen)
        });
        self.asking.insert(task.id(), about);
    }

    /// Asks for everything that lives, in one request.
    fn ask_all(&mut self) {
        let ids = self.book.to_ask();
        if ids.is_empty() {
            return;
        }
        let launcher = Arc::clone(&self.launcher);
        self.calls.spawn(async move {
            let fates = launcher.find(&ids).await;
            let told = |id: LaunchId| match &fates {
                Ok(fates) => {
                    let seen = Book::fate(fates.get(&id).cloned());
                    (id, seen)
                }
                Err(down) => (id, Seen::Unsure(down.why.clone())),
            };
            Back::Asked(ids.into_iter().map(told).collect())
        });
    }

    /// Ends and removes what no row speaks for: an earlier attempt that came late, or a launch forgotten meanwhile.
    fn stray(&mut self, id: LaunchId) {
        if !self.strays.insert(id.clone()) {
            return;
        }
        let launcher = Arc::clone(&self.launcher);
        self.calls.spawn(async move {
            let how = End { grace: Duration::ZERO, why: "no launch speaks for it".to_owned() };
            let result = match launcher.end(&id, how).await {
                Ok(()) => launcher.remove(&id).await,
                Err(error) => Err(error),
            };
            Back::Stray(id, result)
        });
    }

    async fn refresh(&mut self) {
        match self.launcher.offer().await {
            Ok(offer) => {
                self.book.inventory_mut().refresh(&offer);
                let mut shown = self.shown.lock().expect("no holder of this lock panics");
                (shown.standing.offer, shown.standing.down) = (offer, None);
            }
            Err(down) => self.set_down(Some(down)),
        }
    }

    fn set_down(&self, down: Option<Down>) {
        self.shown.lock().expect("no holder of this lock panics").standing.down = down;
    }

    /// Shows readers what is on disk now, and wakes them when it differs.
    fn publish(&self) {
        let inventory = self.book.inventory();
        let changed = {
            let mut shown = self.shown.lock().expect("no holder of this lock panics");
            let before = shown.standing.clone();
            let standing = &mut shown.standing;
            (standing.gpus, standing.cpus, standing.memory) =
                (inventory.gpus(), inventory.cpus(), inventory.memory());
            let differs = *standing != before;
            // What is not on disk yet is not shown either.
            let mut rows = BTreeMap::new();
            let mut same = true;
            for (row, on_disk) in self.book.rows_on_disk() {
                let old = shown.rows.get(&row.key());
                if on_disk && old != Some(row) {
                    same = false;
                    rows.insert(row.key(), row.clone());
                } else if let Some(old) = old {
                    rows.insert(row.key(), old.clone());
                }
            }
            same &= rows.len() == shown.rows.len();
            if !same {
                shown.rows = rows;
            }
            differs || !same
        };
        if changed {
            self.version.send_modify(|version| *version += 1);
        }
    }
}

async fn sleep_until(due: Option<Time>, now: Time) {
    match due {
        Some(due) => tokio::time::sleep(due.since(now)).await,
        None => std::future::pending().await,
    }
}
