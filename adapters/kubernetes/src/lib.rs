//! Workers as pods of a Kubernetes cluster.
//!
//! * [`plan`]: pure, the native request as JSON.

pub mod plan;
