//! Time as it is stored: milliseconds since 1970.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The machine's clock.
    #[must_use]
    pub fn now() -> Self {
        let span = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(millis(span))
    }

    /// Later by a span.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    /// How long after `earlier`; zero when it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A span in whole milliseconds.
#[must_use]
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Where the ledger gets its time from.
///
/// The default reads the machine's clock once and counts on from there, so a clock that is set while the parent runs
/// shortens or lengthens no back-off.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Time + Send + Sync>);

impl Clock {
    /// A clock of one's own; tests.
    pub fn new(read: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// What it says.
    #[must_use]
    pub fn now(&self) -> Time {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        let (wall, begun) = (Time::now(), Instant::now());
        Self::new(move || wall.plus(begun.elapsed()))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now().0)
    }
}
