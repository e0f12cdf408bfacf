//! Workers as containers of one Docker (or Podman) engine.
//!
//! * [`mod@plan`]: pure, from what is wanted and what the site says to the request the engine gets, byte for byte.
//! * `drive` (feature `drive`): `impl Launcher`, the engine's API through `bollard`; one events connection watches
//!   all workers.
//!
//! Nothing of Polder has to be in an image: the static worker is mounted into any, read-only, and reaches its parent
//! through a socket in a mounted folder, so that a container needs no network.

#[cfg(feature = "drive")]
pub mod drive;
#[cfg(feature = "drive")]
mod engine;
#[cfg(feature = "drive")]
mod files;
#[cfg(feature = "drive")]
mod outcome;
pub mod plan;
#[cfg(feature = "drive")]
mod watch;

#[cfg(feature = "drive")]
pub use drive::{DockerLauncher, Stock};
pub use plan::{DockerPlan, Settings, plan};
