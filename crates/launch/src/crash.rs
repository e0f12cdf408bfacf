//! Dying on purpose, in test builds: `POLDER_CRASH_AT=n` kills the process at the n-th transition of the ledger.
//!
//! A point stands before and after each write of a row and around each call of the adapter, so a test that lets `n`
//! run from 1 upwards stops a parent between any two lines that matter. Without the feature `crash-points` (on in
//! debug builds) this is nothing.

/// A place where a test may kill this process.
#[cfg(debug_assertions)]
pub fn point(place: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static AT: OnceLock<Option<u64>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(at) = *AT.get_or_init(|| std::env::var("POLDER_CRASH_AT").ok()?.parse().ok()) else { return };
    if COUNT.fetch_add(1, Ordering::SeqCst) + 1 == at {
        eprintln!("POLDER_CRASH_AT={at}: dying {place}");
        // Nothing may run after this: no destructor, no handler, as if the machine had taken the process.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        std::process::abort();
    }
}

/// Nothing, in release builds.
#[cfg(not(debug_assertions))]
#[inline]
pub fn point(_place: &str) {}
