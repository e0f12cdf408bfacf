//! The run directory of a worker: one per job and role at a site, kept across attempts.
//!
//! ```text
//! <state>/runs/<job>-<role>/
//!     app/            the unpacked app, read-only for the worker; the trainer's working directory
//!     in/             models the parent hands down, named by hash; read-only for the worker. The worker may run
//!                     as another account: whoever puts a file there gives it mode 0644
//!     out/            what the worker hands up; the parent opens it beneath, without links
//!     state/          the worker's own: checkpoints survive an attempt
//!     tmp/            `TMPDIR` and `HOME` of the worker
//!     attempts/<n>/   handover.json, worker.log, shim.json, exit.json of one attempt
//! ```

/// The unpacked app.
pub const APP: &str = "app";
/// Models handed down.
pub const IN: &str = "in";
/// Files handed up.
pub const OUT: &str = "out";
/// Checkpoints.
pub const STATE: &str = "state";
/// Temporary files.
pub const TMP: &str = "tmp";
/// One folder an attempt.
pub const ATTEMPTS: &str = "attempts";
/// The handover (0600) inside an attempt's folder; [`crate::worker::Handover`] as JSON.
pub const HANDOVER: &str = "handover.json";
/// The worker's and trainer's output inside an attempt's folder.
pub const LOG: &str = "worker.log";
/// How the shim is found again: boot id, pid, start time.
pub const SHIM: &str = "shim.json";
/// How the worker ended, written by the shim.
pub const EXIT: &str = "exit.json";
