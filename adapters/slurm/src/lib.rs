//! Workers as Slurm jobs.
//!
//! * [`plan`](mod@plan): pure, the native request as JSON: descriptor, batch script, and the same as an `sbatch` line.
//! * [`script`]: the batch script, and how values are kept from breaking out of it.

pub mod plan;
pub mod script;
