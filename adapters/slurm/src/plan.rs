//! The native request of a launch: pure, from what is wanted, what the site says and what is set aside.

use polder_core::parent::SlurmLauncher;
use polder_launch::{Allotted, Refusal, Resolved};
use polder_words::FailureClass;
use serde::{Deserialize, Serialize};

/// What is printed by `polder plan`, stored in the ledger and sent: nothing else is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlurmPlan {}

/// Plans a launch. `job_images`: whether a job may bring its image here.
///
/// # Errors
/// When this site cannot do it, with the setting to change.
pub fn plan(
    _settings: &SlurmLauncher,
    _job_images: bool,
    _want: &Resolved,
    _with: &Allotted,
) -> Result<SlurmPlan, Refusal> {
    Err(Refusal {
        class: FailureClass::Config,
        message: "launching Slurm jobs is not in this build; allowed: process".to_owned(),
        place: None,
    })
}
