//! The machine's clock, as messages and the database have it.

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    polder_launch::Time::now().0
}
