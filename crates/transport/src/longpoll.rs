//! State that a reader follows: a snapshot, then changes, by asking again and again.
//!
//! ```text
//! reader: after = none       -> snapshot, cursor e:7
//! reader: after = e:7, wait  -> (nothing for 50 s) nothing changed, cursor e:7
//! reader: after = e:7, wait  -> k1 set, k2 removed, cursor e:9
//! reader: after = e:9        -> (the writer was restarted: another epoch) snapshot, cursor f:3
//! ```
//! Nothing queues: a key that changed ten times is told once, as it is now. Removed keys are remembered for
//! a while; who was away longer gets a snapshot.

use polder_words::Epoch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How far a reader has read: which run of the writer, and which change of it. Text: `epoch:n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
    /// The writer's run.
    pub epoch: Epoch,
    /// The last change that was read.
    pub n: u64,
}

/// A text is no cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a cursor: 16 lower-case hexadecimal digits, ':' and a number")]
pub struct CursorError {
    /// The text, cut to 80 characters.
    pub found: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.n)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;
    fn from_str(text: &str) -> Result<Self, CursorError> {
        let parse = || {
            let (epoch, n) = text.split_once(':')?;
            let canonical = n == "0" || !n.starts_with(['0', '+']);
            Some(Self { epoch: epoch.parse().ok()?, n: n.parse().ok().filter(|_| canonical)? })
        };
        parse().ok_or_else(|| CursorError { found: text.chars().take(80).collect() })
    }
}

impl TryFrom<String> for Cursor {
    type Error = CursorError;
    fn try_from(text: String) -> Result<Self, CursorError> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

/// A counter of changes that readers wait on, for state that is always told whole.
#[derive(Debug)]
pub struct Bell {
    epoch: Epoch,
    n: watch::Sender<u64>,
}

impl Bell {
    /// Of a writer's run.
    #[must_use]
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, n: watch::Sender::new(1) }
    }

    /// Says that something changed.
    pub fn ring(&self) {
        self.n.send_modify(|n| *n += 1);
    }

    /// Where it stands. Taken before the state is read, so that a change in between is told once more
    /// rather than missed.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, n: *self.n.borrow() }
    }

    /// Waits until there is something after `after`, at most for `wait`. Returns where it stands then.
    pub async fn wait(&self, after: Option<Cursor>, wait: Duration) -> Cursor {
        let Some(after) = after.filter(|after| after.epoch == self.epoch) else {
            return self.cursor();
        };
        let mut changes = self.n.subscribe();
        let _ = tokio::time::timeout(wait, changes.wait_for(|n| *n != after.n)).await;
        self.cursor()
    }
}

/// What a reader is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<K, V> {
    /// To ask with next.
    pub cursor: Cursor,
    /// Whether this is everything: keys that are not named are gone.
    pub snapshot: bool,
    /// Keys that are new or changed, by key.
    pub set: Vec<(K, V)>,
    /// Keys that are gone; never in a snapshot.
    pub removed: Vec<K>,
}

impl<K, V> Page<K, V> {
    /// Whether it tells nothing new.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.snapshot && self.set.is_empty() && self.removed.is_empty()
    }
}

/// How many removed keys are remembered.
const REMEMBERED: usize = 1024;

/// A map that readers follow.
#[derive(Debug)]
pub struct Feed<K, V> {
    epoch: Epoch,
    n: watch::Sender<u64>,
    state: Mutex<State<K, V>>,
}

#[derive(Debug)]
struct State<K, V> {
    entries: BTreeMap<K, (u64, V)>,
    /// Each key's last change, of those that are there and of those that are gone.
    by_change: BTreeMap<u64, K>,
    gone: BTreeMap<K, u64>,
    n: u64,
    /// Removals up to this change are forgotten.
    floor: u64,
}

impl<K: Ord + Clone, V: Clone + PartialEq> Feed<K, V> {
    /// An empty map of a writer's run.
    #[must_use]
    pub fn new(epoch: Epoch) -> Self {
        let state = State {
            entries: BTreeMap::new(),
            by_change: BTreeMap::new(),
            gone: BTreeMap::new(),
            n: 0,
            floor: 0,
        };
        Self { epoch, n: watch::Sender::new(0), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a key. The same value again is no change; says whether it was one.
    pub fn set(&self, key: K, value: V) -> bool {
        let mut state = self.lock();
        let changed = state.set(key, value);
        if changed {
            self.n.send_replace(state.n);
        }
        changed
    }

    /// Changes a key's value in place, if it is there; says whether it changed.
    pub fn update(&self, key: &K, change: impl FnOnce(&mut V)) -> bool {
        let mut state = self.lock();
        let Some(mut value) = state.entries.get(key).map(|(_, value)| value.clone()) else { return false };
        change(&mut value);
        let changed = state.set(key.clone(), value);
        if changed {
            self.n.send_replace(state.n);
        }
        changed
    }

    /// Removes a key; says whether it was there.
    pub fn remove(&self, key: &K) -> bool {
        let mut state = self.lock();
        let Some((at, _)) = state.entries.remove(key) else { return false };
        state.by_change.remove(&at);
        state.n += 1;
        let n = state.n;
        state.by_change.insert(n, key.clone());
        state.gone.insert(key.clone(), n);
        if state.gone.len() > REMEMBERED {
            state.forget_one();
        }
        self.n.send_replace(n);
        true
    }

    /// A key's value.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        self.lock().entries.get(key).map(|(_, value)| value.clone())
    }

    /// Everything, by key.
    #[must_use]
    pub fn all(&self) -> Vec<(K, V)> {
        self.lock().entries.iter().map(|(key, (_, value))| (key.clone(), value.clone())).collect()
    }

    /// Where it stands.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, n: self.lock().n }
    }

    /// What is new after a cursor; everything without one, or when it is of another run or too old.
    #[must_use]
    pub fn read(&self, after: Option<Cursor>) -> Page<K, V> {
        let state = self.lock();
        let cursor = Cursor { epoch: self.epoch, n: state.n };
        let known =
            after.filter(|after| after.epoch == self.epoch && (state.floor..=state.n).contains(&after.n));
        let Some(after) = known else {
            let set = state.entries.iter().map(|(key, (_, value))| (key.clone(), value.clone())).collect();
            return Page { cursor, snapshot: true, set, removed: Vec::new() };
        };
        let mut set = Vec::new();
        let mut removed = Vec::new();
        for key in state.by_change.range(after.n + 1..).map(|(_, key)| key) {
            match state.entries.get(key) {
                Some((_, value)) => set.push((key.clone(), value.clone())),
                None => removed.push(key.clone()),
            }
        }
        set.sort_by(|(a, _), (b, _)| a.cmp(b));
        removed.sort();
        Page { cursor, snapshot: false, set, removed }
    }

    /// The same, but waits for news, at most for `wait`; an empty page then.
    pub async fn wait(&self, after: Option<Cursor>, wait: Duration) -> Page<K, V> {
        let deadline = Instant::now() + wait;
        let mut changes = self.n.subscribe();
        loop {
            let page = self.read(after);
            if !page.is_empty() {
                return page;
            }
            let seen = page.cursor.n;
            let news = changes.wait_for(|n| *n > seen);
            if !matches!(tokio::time::timeout_at(deadline, news).await, Ok(Ok(_))) {
                return page;
            }
        }
    }
}

impl<K: Ord + Clone, V: PartialEq> State<K, V> {
    fn set(&mut self, key: K, value: V) -> bool {
        let last = match self.entries.get(&key) {
            Some((_, old)) if *old == value => return false,
            Some((at, _)) => Some(*at),
            None => self.gone.remove(&key),
        };
        if let Some(at) = last {
            self.by_change.remove(&at);
        }
        self.n += 1;
        self.by_change.insert(self.n, key.clone());
        self.entries.insert(key, (self.n, value));
        true
    }

    fn forget_one(&mut self) {
        let oldest = self.gone.iter().min_by_key(|(_, at)| **at).map(|(key, at)| (key.clone(), *at));
        if let Some((key, at)) = oldest {
            self.gone.remove(&key);
            self.by_change.remove(&at);
            self.floor = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn epoch(n: u8) -> Epoch {
        Epoch([n; 8])
    }

    /// A reader, as the other side of the wire keeps one.
    #[derive(Default)]
    struct Reader {
        after: Option<Cursor>,
        map: BTreeMap<u8, u32>,
    }

    impl Reader {
        fn take(&mut self, page: Page<u8, u32>) {
            if page.snapshot {
                self.map.clear();
            }
            for key in &page.removed {
                self.map.remove(key);
            }
            self.map.extend(page.set);
            self.after = Some(page.cursor);
        }
    }

    proptest! {
        #[test]
        fn cursors_print_back(e: [u8; 8], n: u64) {
            let cursor = Cursor { epoch: Epoch(e), n };
            prop_assert_eq!(cursor.to_string().parse::<Cursor>(), Ok(cursor));
        }

        #[test]
        fn one_spelling_each(text in "[0-9a-f]{16}:[0-9+]{1,20}") {
            if let Ok(cursor) = text.parse::<Cursor>() {
                prop_assert_eq!(cursor.to_string(), text);
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = text.parse::<Cursor>();
        }

        #[test]
        fn readers_see_what_is_there_however_seldom_they_ask(
            steps in prop::collection::vec((0u8..6, 0u8..12, 0u32..3), 1..200),
        ) {
            let mut feed = Feed::new(epoch(1));
            let mut runs = 1;
            let mut truth = BTreeMap::new();
            let mut readers = [Reader::default(), Reader::default()];
            for (what, key, value) in steps {
                match what {
                    0 | 1 => {
                        let changed = truth.insert(key, value) != Some(value);
                        prop_assert_eq!(feed.set(key, value), changed);
                    }
                    2 => prop_assert_eq!(feed.remove(&key), truth.remove(&key).is_some()),
                    3 if key == 0 => {
                        runs += 1;
                        feed = Feed::new(epoch(runs));
                        for (key, value) in &truth {
                            feed.set(*key, *value);
                        }
                    }
                    3 | 4 => {
                        readers[0].take(feed.read(readers[0].after));
                        prop_assert_eq!(&readers[0].map, &truth);
                        prop_assert!(feed.read(readers[0].after).is_empty());
                    }
                    _ => {
                        readers[1].take(feed.read(readers[1].after));
                        prop_assert_eq!(&readers[1].map, &truth);
                    }
                }
            }
        }
    }

    #[test]
    fn who_was_away_too_long_gets_everything() {
        let feed = Feed::new(epoch(1));
        feed.set(0_u32, 0);
        let old = feed.cursor();
        for key in 1..=u32::try_from(REMEMBERED).unwrap() + 1 {
            feed.set(key, 0);
            feed.remove(&key);
        }
        assert!(feed.read(Some(old)).snapshot);
        let recent = feed.cursor();
        feed.remove(&0);
        let page = feed.read(Some(recent));
        assert_eq!((page.snapshot, page.removed), (false, vec![0]));
        // A cursor from the future is nobody's.
        assert!(feed.read(Some(Cursor { n: u64::MAX, ..recent })).snapshot);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_reader_is_woken_by_a_change_and_by_the_end_of_its_time() {
        let feed = Arc::new(Feed::new(epoch(1)));
        feed.set("a", 1);
        let first = feed.wait(None, Duration::from_secs(50)).await;
        assert!(first.snapshot);
        let began = Instant::now();
        let nothing = feed.wait(Some(first.cursor), Duration::from_secs(50)).await;
        assert!(nothing.is_empty());
        assert_eq!((nothing.cursor, began.elapsed()), (first.cursor, Duration::from_secs(50)));

        let waiting = tokio::spawn({
            let feed = feed.clone();
            async move { feed.wait(Some(first.cursor), Duration::from_secs(50)).await }
        });
        tokio::task::yield_now().await;
        feed.set("a", 1);
        feed.set("b", 2);
        let page = waiting.await.unwrap();
        assert_eq!((page.set, page.snapshot), (vec![("b", 2)], false));
        assert_eq!(began.elapsed(), Duration::from_secs(50));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bell_is_heard_once_for_each_reader() {
        let bell = Arc::new(Bell::new(epoch(1)));
        let before = bell.cursor();
        let waiting = tokio::spawn({
            let bell = bell.clone();
            async move { bell.wait(Some(before), Duration::from_secs(50)).await }
        });
        tokio::task::yield_now().await;
        bell.ring();
        let now = waiting.await.unwrap();
        assert_ne!(now, before);
        assert_eq!(bell.wait(Some(now), Duration::from_secs(50)).await, now);
        // Rung while nobody listened.
        bell.ring();
        assert_ne!(bell.wait(Some(now), Duration::from_secs(50)).await, now);
        // A cursor of another run returns at once.
        let began = Instant::now();
        bell.wait(Some(Cursor { epoch: epoch(2), n: 1 }), Duration::from_secs(50)).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
