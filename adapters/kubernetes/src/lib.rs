//! Workers as pods of a Kubernetes cluster.
//!
//! * [`mod@plan`]: from what is wanted and the site's settings to the pod and the Secret, as `polder plan` prints them.
//! * [`template`]: the study's pod template, read and merged.
//! * [`quantity`]: Kubernetes' amounts.

pub mod plan;
pub mod quantity;
pub mod template;

pub use plan::{K8sPlan, plan};
