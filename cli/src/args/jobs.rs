//! `submit` and everything that names a job.

use super::Connect;
use clap::Args;
use polder_words::{Role, SiteName};
use std::path::PathBuf;

/// `polder submit`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder submit examples/breast-cancer                  returns at once with its id
  polder submit examples/breast-cancer --wait           shows rounds until it ends
  polder submit my-job --study cardiology --site uni    one site of another study

The folder holds meta.json (or meta.yml) and one folder per app named in its
deploy_map. It is checked here by the same rules as on the server and at the sites,
packed, uploaded and signed with your key. Ctrl-C while waiting ends the waiting,
not the job.")]
pub(crate) struct SubmitArgs {
    /// The job's folder
    #[arg(value_name = "JOB")]
    pub(crate) job: PathBuf,
    /// Follow the job until it ends; exit 1 when it does not complete
    #[arg(long)]
    pub(crate) wait: bool,
    /// Send it to this site only; may be given several times [default: what deploy_map says]
    #[arg(long = "site", value_name = "SITE")]
    pub(crate) sites: Vec<SiteName>,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder jobs`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only jobs that have not ended
    #[arg(long)]
    pub(crate) active: bool,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// A job's id as typed: whole or its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobPrefix(String);

impl JobPrefix {
    /// The digits.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for JobPrefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if (4..=32).contains(&text.len()) && text.bytes().all(digits) {
            Ok(Self(text.to_owned()))
        } else {
            Err("a job id is 32 hexadecimal digits, or at least the first 4 of them".to_owned())
        }
    }
}

/// `polder show`, `watch`, `abort`, `delete`.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// The job's id, or the beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: JobPrefix,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder logs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder logs 3f2a                       every worker's log, each line with its site
  polder logs 3f2a --site hospital-a -f  one site's, as it grows

A study's export policy at each site decides how much of a log leaves it.")]
pub(crate) struct LogsArgs {
    /// The job's id, or the beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: JobPrefix,
    /// Keep printing as the logs grow, until the job ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only this site; `server` for the server's worker
    #[arg(long, value_name = "SITE")]
    pub(crate) site: Option<SiteName>,
    /// Only this role: server or client
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Option<Role>,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder download`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder download 3f2a                 into ./NAME-3f2a...
  polder download 3f2a -o results      into ./results

Every file is verified against its BLAKE3 hash, as `b3sum` prints it; an interrupted
download goes on where it stopped.")]
pub(crate) struct DownloadArgs {
    /// The job's id, or the beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: JobPrefix,
    /// Folder to write into [default: the job's name and id]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder clone`.
#[derive(Debug, Args)]
pub(crate) struct CloneArgs {
    /// The job's id, or the beginning of it
    #[arg(value_name = "JOB")]
    pub(crate) job: JobPrefix,
    /// Follow the new job until it ends; exit 1 when it does not complete
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) connect: Connect,
}
