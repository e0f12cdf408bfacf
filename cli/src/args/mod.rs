//! What may be typed: the command line as types, with help that teaches by example.
//!
//! One file a group of commands; what a command does stands in `commands` under the same name.

mod check;
mod jobs;
mod local;
mod provision;
mod study;

pub(crate) use check::{CheckArgs, CheckCommand, JobFolderArgs, MetaArgs, PlanArgs, StudyRuntimeArgs};
pub(crate) use jobs::{CloneArgs, DownloadArgs, JobArgs, ListArgs, LogsArgs, SubmitArgs};
pub(crate) use local::{CompletionsArgs, DemoArgs, SimulateArgs, TrainerKind};
pub(crate) use provision::{
    CompleteArgs, ProvisionArgs, ProvisionCommand, RequestArgs, RevokeArgs, SignArgs,
};
pub(crate) use study::{LoginArgs, LogoutArgs, SitesArgs, StudyArgs, StudyCommand};

use clap::{Args, Parser, Subcommand};
use polder_words::StudyName;
use std::path::PathBuf;

/// Polder: federated learning across organisations that share no infrastructure.
#[derive(Debug, Parser)]
#[command(name = "polder", version, max_term_width = 100, after_help = AFTER, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "\
Examples:
  polder demo                                  three sites train, on this machine
  polder login --study pathology --kit ./kit   log in once
  polder submit my-job --wait                  check, sign, submit, and watch it
  polder download 3f2a                         fetch its model; an id may be abbreviated

Exit codes: 0 ok, 1 the job or request failed, 2 usage, 3 not authorised,
4 cannot reach, 5 internal.";

/// Everything `polder` does.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Log in to a study
    Login(LoginArgs),
    /// End the session and forget the kit
    Logout(LogoutArgs),
    /// Check, sign and submit a job
    Submit(SubmitArgs),
    /// List the jobs of the study
    Jobs(ListArgs),
    /// Show one job: where it stands, its workers, its metrics
    Show(JobArgs),
    /// Follow a job until it ends
    Watch(JobArgs),
    /// Print the logs of a job's workers
    Logs(LogsArgs),
    /// End a job
    Abort(JobArgs),
    /// Fetch what a job left: model, metrics, provenance
    Download(DownloadArgs),
    /// Submit a job again, as it is
    Clone(CloneArgs),
    /// Remove a finished job and what it left
    Delete(JobArgs),
    /// List the sites of the study: connected or not, what is free
    Sites(SitesArgs),
    /// List and change the studies of the federation
    Study(StudyArgs),
    /// Check a file before anybody else does
    Check(CheckArgs),
    /// Print the native request a job would make at a site
    Plan(PlanArgs),
    /// Run a job on this machine, with sites that are processes
    Simulate(SimulateArgs),
    /// See it work: three sites, one study, real training, on this machine
    Demo(DemoArgs),
    /// Make certificates and kits for a federation
    Provision(ProvisionArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
}

/// How to reach the server, and as whom.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connect {
    /// Study to work in [default: POLDER_STUDY, else the one of the last login]
    #[arg(long, value_name = "STUDY")]
    pub(crate) study: Option<StudyName>,
    /// Your kit [default: POLDER_KIT, else the one of the last login]
    #[arg(long, value_name = "DIR")]
    pub(crate) kit: Option<PathBuf>,
}

#[cfg(test)]
mod tests;
