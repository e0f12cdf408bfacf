//! `check` and `plan`.

use clap::{Args, Subcommand};
use polder_words::{Mode, Role, SiteName};
use std::path::PathBuf;

fn mode(text: &str) -> Result<Mode, String> {
    let word = if text == "kubernetes" { "k8s" } else { text };
    Mode::from_word(word).ok_or_else(|| "allowed: process, docker, k8s, slurm".to_owned())
}

/// `polder check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(subcommand)]
    pub(crate) command: CheckCommand,
}

/// What can be checked.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckCommand {
    /// Check a job's folder as submission would
    Job(JobFolderArgs),
    /// Check a job's meta file and show what one site makes of it
    Meta(MetaArgs),
    /// Check a site's study_runtime.yaml for one launcher
    StudyRuntime(StudyRuntimeArgs),
}

/// `polder check job`.
#[derive(Debug, Args)]
pub(crate) struct JobFolderArgs {
    /// The job's folder
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// `polder check meta`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder check meta my-job/meta.json --site hospital-a
  polder check meta my-job/meta.json --site uni --slurm-sandbox none --json")]
pub(crate) struct MetaArgs {
    /// meta.json or meta.yml
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The site to resolve it for; `server` for the server
    #[arg(long, value_name = "SITE")]
    pub(crate) site: SiteName,
    /// The sandbox of the site's Slurm launcher: none, spank, apptainer or pyxis
    #[arg(long, value_name = "SANDBOX")]
    pub(crate) slurm_sandbox: Option<String>,
}

/// `polder check study-runtime`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder check study-runtime local/study_runtime.yaml --mode docker")]
pub(crate) struct StudyRuntimeArgs {
    /// The site's study_runtime.yaml; files it names are read beside it
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// What the site launches with: process, docker, k8s or slurm
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub(crate) mode: Mode,
}

/// `polder plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder plan --config parent.yaml --meta my-job/meta.json \\
      --study-runtime local/study_runtime.yaml --site hospital-a --json

Planning is pure: nothing is launched, nobody is asked. A launch sends what is
printed here, with the job's id in its names.")]
pub(crate) struct PlanArgs {
    /// The parent.yaml of the site
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// The job's meta.json or meta.yml
    #[arg(long, value_name = "FILE")]
    pub(crate) meta: PathBuf,
    /// The site's study_runtime.yaml
    #[arg(long, value_name = "FILE")]
    pub(crate) study_runtime: PathBuf,
    /// The site
    #[arg(long, value_name = "SITE")]
    pub(crate) site: SiteName,
    /// What the worker plays: server or client
    #[arg(long, value_name = "ROLE", default_value = "client")]
    pub(crate) role: Role,
    /// The study [default: the one in the meta file, else the only one in the study_runtime file]
    #[arg(long, value_name = "STUDY")]
    pub(crate) study: Option<polder_words::StudyName>,
}
