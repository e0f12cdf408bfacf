//! Workers as Slurm jobs.
//!
//! * [`plan`](mod@plan): pure, the native request as JSON: descriptor, batch script, and the same as an `sbatch` line.
//! * [`script`]: the batch script, and how values are kept from breaking out of it.
//! * [`slurm`]: what is asked of a cluster, behind a trait. [`state`]: pure, what its states mean.
//! * [`record`]: an attempt's folder, written before anything is done. [`drive`]: `impl Launcher`.

pub mod drive;
pub mod plan;
pub mod record;
pub mod script;
pub mod slurm;
pub mod state;

pub use drive::{Settings, SlurmLauncher};
