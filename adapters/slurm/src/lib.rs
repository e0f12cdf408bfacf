//! Workers as Slurm jobs.
//!
//! * [`plan`]: pure, the native request as JSON.

pub mod plan;
