//! The native request of a launch: pure, from what is wanted, what the site says and what is set aside.

use polder_core::parent::DockerLauncher;
use polder_launch::{Allotted, Refusal, Resolved};
use polder_words::FailureClass;
use serde::{Deserialize, Serialize};

/// What is printed by `polder plan`, stored in the ledger and sent: nothing else is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DockerPlan {}

/// Plans a launch. `job_images`: whether a job may bring its image here.
///
/// # Errors
/// When this site cannot do it, with the setting to change.
pub fn plan(
    _settings: &DockerLauncher,
    _job_images: bool,
    _want: &Resolved,
    _with: &Allotted,
) -> Result<DockerPlan, Refusal> {
    Err(Refusal {
        class: FailureClass::Config,
        message: "launching containers of a Docker or Podman engine is not in this build; allowed: process"
            .to_owned(),
        place: None,
    })
}
