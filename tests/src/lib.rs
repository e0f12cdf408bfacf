//! What end-to-end tests stand on: real processes in a folder of their own, and what can be read of them.
//!
//! Scenarios live in `tests/end_to_end/`, a module each; everything here knows how to run and observe a
//! federation, nothing here asserts.

pub mod federation;
pub mod job;
pub mod light;
pub mod log;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod raw;
pub mod trace;
pub mod villain;
pub mod watch;
