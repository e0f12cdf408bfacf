//! The words every part of Polder shares: names, ids, states and failure classes.
//!
//! This crate is linked into the SPANK plugin, so it holds no YAML, no regex, no I/O and no async:
//! only values, how they are spelt and how they are checked. Everything here is parsed once at the
//! edge and then carried as a type, so that a site's name can never be handed where a study's is meant.

pub mod id;
pub mod name;
pub mod state;

pub use id::{BlobRef, Epoch, Hash, JobId, LaunchId, Nonce, Role, TaskId, UserRole};
pub use name::{AppName, NameError, OrgName, SiteName, StudyName, UserName};
pub use state::{FailureClass, FileWay, Isolation, JobPhase, Mode, Outcome, WorkerPhase};
