//! All rows and the inventory: every decision of the ledger, still without clock, I/O or lock.
//!
//! The shell tells it what was seen and asks, row by row, what to do ([`Book::settle`]). Two rules live here: a row
//! that changed is written before anything else is done about it, and at most one request a row is on its way.

use crate::clock::Time;
use crate::inventory::{Ask, Inventory, Short};
use crate::launcher::{Allotted, End, Fate, NativeId, Plan, Refusal, Resolved, Sighting};
use crate::machine::{self, Mind, Next, Seen};
use crate::row::{Key, Row, State};
use polder_words::LaunchId;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// Turns what is wanted and set aside into the native request.
pub type Planner<'a> = &'a dyn Fn(&Resolved, &Allotted) -> Result<Plan, Refusal>;

/// A worker that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Denied {
    /// Not now.
    #[error("{0}")]
    Short(Short),
    /// Not at this site.
    #[error("{0}")]
    Refused(Refusal),
}

/// What the shell does about a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Todo {
    /// Write it, then [`Book::written`].
    Write,
    /// Call the adapter, then [`Book::done`].
    Call(Call),
    /// Nothing until something is seen or the time has come.
    Wait(Option<Time>),
}

/// A request to the adapter.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Hand over and `prepare`.
    Prepare(Box<Resolved>, Plan),
    /// `start`.
    Start(NativeId),
    /// `find`.
    Find,
    /// `end`.
    End(End),
    /// `remove`.
    Remove,
}

#[derive(Debug, Clone)]
struct Entry {
    row: Row,
    mind: Mind,
    /// Changed and not yet on disk.
    dirty: bool,
    /// A request is on its way.
    busy: bool,
    /// Never on disk.
    new: bool,
}

/// All rows.
#[derive(Debug, Clone, Default)]
pub struct Book {
    entries: BTreeMap<Key, Entry>,
    inventory: Inventory,
}

impl Book {
    /// From what is on disk.
    #[must_use]
    pub fn load(rows: Vec<Row>) -> Self {
        let mut book = Self::default();
        for row in rows {
            let key = row.key();
            if row.ended().is_none() {
                book.inventory.restore(key, Ask::from(&row.want), row.lease.clone());
            }
            book.entries
                .insert(key, Entry { row, mind: Mind::reborn(), dirty: false, busy: false, new: false });
        }
        book
    }

    /// What is free.
    #[must_use]
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// What is free, to change it.
    pub fn inventory_mut(&mut self) -> &mut Inventory {
        &mut self.inventory
    }

    /// A row.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&Row> {
        self.entries.get(&key).map(|entry| &entry.row)
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.entries.values().map(|entry| &entry.row)
    }

    /// All rows, and whether each is on disk as it is.
    pub fn rows_on_disk(&self) -> impl Iterator<Item = (&Row, bool)> {
        self.entries.values().map(|entry| (&entry.row, !entry.dirty))
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.entries.keys().copied().collect()
    }

    /// Wants a worker. One that is wanted already stays as it is.
    ///
    /// # Errors
    /// When there is not enough of something, or the adapter refuses to plan it; nothing is kept then.
    pub fn want(&mut self, want: Resolved, plan: Planner<'_>, now: Time) -> Result<(), Denied> {
        let key = Key::of(&want.id);
        if self.entries.contains_key(&key) {
            return Ok(());
        }
        let lease = self.inventory.take(key, Ask::from(&want)).map_err(Denied::Short)?;
        let planned = plan(&want, &lease).map_err(|refusal| {
            self.inventory.free(key);
            Denied::Refused(refusal)
        })?;
        let row = Row::new(want, lease, planned, now);
        self.entries.insert(key, Entry { row, mind: Mind::fresh(), dirty: true, busy: false, new: true });
        Ok(())
    }

    /// Something was seen of a launch. What is seen of another attempt than the current one is not about this row.
    pub fn observe(&mut self, id: &LaunchId, seen: Seen, now: Time) {
        let Some(entry) = self.entries.get_mut(&Key::of(id)).filter(|entry| entry.row.id() == id) else {
            return;
        };
        let before = entry.row.clone();
        machine::observe(&mut entry.row, &mut entry.mind, seen, now);
        Self::changed(&mut self.inventory, entry, &before);
    }

    /// A request came back.
    pub fn done(&mut self, id: &LaunchId, seen: Seen, now: Time) {
        if let Some(entry) = self.entries.get_mut(&Key::of(id)) {
            entry.busy = false;
        }
        self.observe(id, seen, now);
    }

    /// A full list. Answers with launches that no row speaks for: they are to be ended and removed.
    pub fn relisted(&mut self, complete: Vec<Sighting>, now: Time) -> Vec<LaunchId> {
        let listed: BTreeMap<_, _> =
            complete.into_iter().map(|sighting| (sighting.id.clone(), sighting)).collect();
        let missing: Vec<_> = self
            .rows()
            .filter(|row| row.is_live() && !matches!(row.state, State::Planned { .. }))
            .filter(|row| !listed.contains_key(row.id()))
            .map(|row| row.id().clone())
            .collect();
        for id in missing {
            self.observe(&id, Seen::Missing, now);
        }
        listed.into_values().filter_map(|sighting| self.sighted(sighting, now)).collect()
    }

    /// One launch is seen. Answers with its id when no row speaks for it.
    pub fn sighted(&mut self, sighting: Sighting, now: Time) -> Option<LaunchId> {
        let Sighting { id, native, state } = sighting;
        match self.get(Key::of(&id)) {
            Some(row) if *row.id() == id && !row.is_settled() => {
                self.observe(&id, Seen::Native(native, state), now);
                None
            }
            _ => Some(id),
        }
    }

    /// What was found out about a launch.
    #[must_use]
    pub fn fate(fate: Option<Fate>) -> Seen {
        match fate {
            Some(Fate::Seen(sighting)) => Seen::Native(sighting.native, sighting.state),
            Some(Fate::Gone(proof)) => Seen::Gone(proof),
            Some(Fate::Unsure(cause)) => Seen::Unsure(cause),
            None => Seen::Unsure(crate::launcher::Cause("the backend gave no answer for it".to_owned())),
        }
    }

    /// Launches whose state is worth asking for now and then: they live and no request is on its way.
    #[must_use]
    pub fn to_ask(&self) -> Vec<LaunchId> {
        let live = |entry: &&Entry| {
            entry.row.is_live() && !entry.busy && !matches!(entry.row.state, State::Planned { .. })
        };
        self.entries.values().filter(live).map(|entry| entry.row.id().clone()).collect()
    }

    /// Whether any row has work left.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.values().all(|entry| entry.row.is_settled() && !entry.dirty)
    }

    /// What to do about a row now.
    pub fn settle(&mut self, key: Key, plan: Planner<'_>, now: Time) -> Todo {
        let Some(entry) = self.entries.get_mut(&key) else { return Todo::Wait(None) };
        loop {
            if entry.dirty {
                return Todo::Write;
            }
            if entry.busy {
                return Todo::Wait(None);
            }
            let before = entry.row.clone();
            let call = match machine::next(&entry.row, &entry.mind, now) {
                Next::Wait(until) => return Todo::Wait(until),
                Next::Stop(stop) => {
                    machine::observe(&mut entry.row, &mut entry.mind, Seen::Stop(stop), now);
                    None
                }
                Next::Renew => {
                    let again = |row: &Row| plan(&row.want, &row.lease);
                    machine::renew(&mut entry.row, &mut entry.mind, again, now);
                    None
                }
                Next::Withdraw => {
                    machine::withdraw(&mut entry.row, &mut entry.mind, now);
                    None
                }
                Next::Prepare => {
                    // Until it says otherwise it may have been sent.
                    entry.mind.sent = machine::Sent::Maybe;
                    Some(Call::Prepare(Box::new(entry.row.want.clone()), entry.row.plan.clone()))
                }
                Next::Start(native) => Some(Call::Start(native)),
                Next::Find => Some(Call::Find),
                Next::End(end) => Some(Call::End(end)),
                Next::Remove => Some(Call::Remove),
            };
            Self::changed(&mut self.inventory, entry, &before);
            if let Some(call) = call {
                entry.busy = true;
                return Todo::Call(call);
            }
        }
    }

    /// The row is on disk as it is now.
    pub fn written(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.dirty, entry.new) = (false, false);
        }
    }

    /// Drops a row that never was on disk, and answers whether it was one.
    pub fn drop_new(&mut self, key: Key) -> bool {
        let new = self.entries.get(&key).is_some_and(|entry| entry.new);
        if new {
            self.entries.remove(&key);
            self.inventory.free(key);
        }
        new
    }

    /// Forgets a row that has ended, and answers whether it could.
    pub fn forget(&mut self, key: Key) -> bool {
        match self.entries.get(&key) {
            Some(entry) if entry.row.is_settled() && !entry.busy => {
                self.entries.remove(&key);
                self.inventory.free(key);
                true
            }
            Some(_) => false,
            None => {
                self.inventory.free(key);
                true
            }
        }
    }

    fn changed(inventory: &mut Inventory, entry: &mut Entry, before: &Row) {
        if entry.row == *before {
            return;
        }
        entry.dirty = true;
        if before.ended().is_none() && entry.row.ended().is_some() {
            inventory.free(entry.row.key());
        }
    }
}

/// How often rows that live are asked for, besides what the watcher says.
pub const ASK_EVERY: Duration = Duration::from_secs(10);
