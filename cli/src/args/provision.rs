//! `provision`.

use clap::{Args, Subcommand};
use polder_words::OrgName;
use std::path::PathBuf;

/// `polder provision`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  polder provision project.yml --out fed    a CA, and a kit for each participant
  polder provision project.yml --out fed    after adding a site: makes its kit only

For a site whose key must never leave it:
  polder provision request hospital-a --org org_a --out my-key     at the site
  polder provision sign request.pem project.yml --out fed          by the operator
  polder provision complete my-key kits/hospital-a                 at the site

Each folder under fed/kits is one participant's: bring it to its owner, and keep
fed/ca to yourself. A parent starts with its parent.yaml:
  polder-parent --config fed/kits/hospital-a/parent.yaml"
)]
pub(crate) struct ProvisionArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ProvisionCommand>,
    /// The federation's project.yml
    #[arg(value_name = "PROJECT", required = true)]
    pub(crate) project: Option<PathBuf>,
    /// Folder of the federation: its CA and everybody's kit
    #[arg(long, value_name = "DIR", required = true)]
    pub(crate) out: Option<PathBuf>,
    /// Make no kit for this participant, who will send a request; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) except: Vec<String>,
}

/// For keys that never leave their site, and for those that got lost.
#[derive(Debug, Subcommand)]
pub(crate) enum ProvisionCommand {
    /// Make a key and a certificate request, where the key shall stay
    Request(RequestArgs),
    /// Make a kit from a certificate request
    Sign(SignArgs),
    /// Put the key into the kit that came back
    Complete(CompleteArgs),
    /// Take back every certificate a participant has
    Revoke(RevokeArgs),
}

/// `polder provision request`.
#[derive(Debug, Args)]
pub(crate) struct RequestArgs {
    /// Name of the participant, as in project.yml
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Its organisation
    #[arg(long, value_name = "ORG")]
    pub(crate) org: OrgName,
    /// Folder for key and request
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// `polder provision sign`.
#[derive(Debug, Args)]
pub(crate) struct SignArgs {
    /// The request
    #[arg(value_name = "REQUEST")]
    pub(crate) request: PathBuf,
    /// The federation's project.yml, which must list the participant
    #[arg(value_name = "PROJECT")]
    pub(crate) project: PathBuf,
    /// Folder of the federation
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

/// `polder provision complete`.
#[derive(Debug, Args)]
pub(crate) struct CompleteArgs {
    /// Folder in which `polder provision request` left the key
    #[arg(value_name = "REQUEST_DIR")]
    pub(crate) request_dir: PathBuf,
    /// The kit that came back
    #[arg(value_name = "KIT")]
    pub(crate) kit: PathBuf,
}

/// `polder provision revoke`.
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// Name of the participant
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
    /// Folder of the federation
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}
