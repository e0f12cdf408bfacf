//! Workers as plain processes of the parent's host.
//!
//! Every worker has a *shim*, `polder-worker supervise`, started by the parent and in a session of its own. It outlives
//! the parent, starts the worker inside its limits and its fence, keeps its output bounded, and writes how it ended.
//! Parent and shim talk by files of the attempt's folder (`polder_api::shim`), so either may die and the other goes
//! on; the parent keeps nothing in memory that it could not read again from there.
//!
//! * [`settings`]: what a site says. [`facts`]: what the host can do.
//! * [`plan`]: pure, the request as JSON.
//! * [`attempt`]: one attempt's folder, and what it says about the attempt's fate.
//! * [`drive`]: `impl Launcher`; [`watch`]: one inotify descriptor and a pidfd a shim, idle while nothing happens.

pub mod account;
pub mod attempt;
pub mod drive;
pub mod facts;
pub mod gpu;
pub mod plan;
pub mod proc;
pub mod settings;
pub mod watch;

pub use drive::ProcessLauncher;
pub use facts::Facts;
pub use settings::{Gpus, Settings};
