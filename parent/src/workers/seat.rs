//! What this run of the parent knows about each worker beside its row: whether it came home, when it was heard last,
//! what wakes its long poll, how fast it may ask. All of it may be forgotten.

use polder_launch::Key;
use polder_transport::longpoll::Bell;
use polder_words::{Epoch, Hash};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Requests a second a worker may make on the long run: far above what rounds of a millisecond need.
const RATE: f64 = 4000.0;
/// Requests it may make at once.
const BURST: f64 = 8000.0;

/// One worker's, over all its attempts.
pub(super) struct Seat {
    /// Rung when what `next` says changed.
    pub(super) bell: Bell,
    notes: Mutex<Notes>,
}

/// What is known about the attempt that spoke last.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes {
    /// Which.
    pub(super) attempt: u32,
    /// It asked for what to do.
    pub(super) ready: bool,
    /// Milliseconds since 1970.
    pub(super) heard: Option<u64>,
    /// In its words.
    pub(super) doing: Option<String>,
    /// The key its token is bound to, once looked up.
    pub(super) key: Option<Hash>,
    budget: Option<(f64, Instant)>,
}

impl Seat {
    fn new(epoch: Epoch) -> Self {
        Self { bell: Bell::new(epoch), notes: Mutex::default() }
    }

    /// Reads or changes what is known of an attempt; another attempt starts from nothing.
    pub(super) fn with<T>(&self, attempt: u32, change: impl FnOnce(&mut Notes) -> T) -> T {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.attempt != attempt {
            *notes = Notes { attempt, ..Notes::default() };
        }
        change(&mut notes)
    }

    /// Takes one request out of the worker's budget; `false` when it asks too much.
    pub(super) fn spend(&self, attempt: u32) -> bool {
        self.with(attempt, |notes| {
            let now = Instant::now();
            let (left, at) = notes.budget.unwrap_or((BURST, now));
            let left = (left + now.duration_since(at).as_secs_f64() * RATE).min(BURST);
            notes.budget = Some(((left - 1.0).max(0.0), now));
            left >= 1.0
        })
    }
}

/// All of them.
pub(super) struct Seats {
    epoch: Epoch,
    seats: Mutex<BTreeMap<Key, Arc<Seat>>>,
}

impl Seats {
    pub(super) fn new(epoch: Epoch) -> Self {
        Self { epoch, seats: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Arc<Seat>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker's; made when there is none.
    pub(super) fn of(&self, key: Key) -> Arc<Seat> {
        Arc::clone(self.lock().entry(key).or_insert_with(|| Arc::new(Seat::new(self.epoch))))
    }

    /// A worker's, if it ever spoke.
    pub(super) fn get(&self, key: Key) -> Option<Arc<Seat>> {
        self.lock().get(&key).cloned()
    }

    /// What is known about an attempt; nothing when another one spoke last.
    pub(super) fn look(&self, key: Key, attempt: u32) -> Notes {
        let seat = self.get(key);
        let notes = seat.map(|seat| seat.notes.lock().unwrap_or_else(PoisonError::into_inner).clone());
        notes.filter(|notes| notes.attempt == attempt).unwrap_or_default()
    }

    pub(super) fn remove(&self, key: Key) {
        self.lock().remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_refused_and_another_attempt_begins_anew() {
        let seat = Seat::new(Epoch([1; 8]));
        let allowed = (0..20_000).filter(|_| seat.spend(1)).count();
        assert!((8000..20_000).contains(&allowed), "{allowed}");
        assert!(seat.spend(2));
        seat.with(2, |notes| notes.ready = true);
        assert!(!seat.with(3, |notes| notes.ready));
    }
}
