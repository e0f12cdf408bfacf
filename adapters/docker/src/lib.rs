//! Workers as containers of a Docker or Podman engine.
//!
//! * [`plan`]: pure, the native request as JSON.

pub mod plan;
