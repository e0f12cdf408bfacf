//! `login`, `logout`, `sites`, `study`.

use super::Connect;
use clap::{Args, Subcommand};
use polder_words::{OrgName, SiteName, StudyName, UserName};

/// `polder login`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder login --study pathology --kit ~/kits/lead@org_a.com
  polder login --study cardiology        another study, with the same kit

The session is kept in $XDG_STATE_HOME/polder (or ~/.local/state/polder), readable
by you alone. It is bound to one study and to your certificate; when it has expired
a command opens a new one by itself.")]
pub(crate) struct LoginArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder logout`.
#[derive(Debug, Args)]
pub(crate) struct LogoutArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder sites`.
#[derive(Debug, Args)]
pub(crate) struct SitesArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder study`.
#[derive(Debug, Args)]
pub(crate) struct StudyArgs {
    #[command(subcommand)]
    pub(crate) command: StudyCommand,
}

/// What can be done with studies.
#[derive(Debug, Subcommand)]
pub(crate) enum StudyCommand {
    /// List the studies you may see
    List(ListStudiesArgs),
    /// Show one study: its sites and members
    Show(StudyNameArgs),
    /// Add a study to the federation
    Register(StudyRegisterArgs),
    /// Remove a study; refused while jobs of it run
    Remove(StudyNameArgs),
    /// Let a site take part in a study
    AddSite(StudySiteArgs),
    /// Take a site out of a study
    RemoveSite(StudyRemoveSiteArgs),
    /// Let a user work in a study
    AddUser(StudyUserArgs),
    /// Take a user out of a study; the user's sessions of it end at once
    RemoveUser(StudyUserArgs),
}

/// `polder study list`.
#[derive(Debug, Args)]
pub(crate) struct ListStudiesArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// A study.
#[derive(Debug, Args)]
pub(crate) struct StudyNameArgs {
    /// The study
    #[arg(value_name = "NAME")]
    pub(crate) name: StudyName,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// A site of an organisation, as typed: `ORG/SITE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrgSite {
    pub(crate) org: OrgName,
    pub(crate) site: SiteName,
}

impl std::str::FromStr for OrgSite {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (org, site) = text
            .split_once('/')
            .ok_or_else(|| "a site is written ORG/SITE, as in org_a/hospital-a".to_owned())?;
        Ok(Self {
            org: org.parse().map_err(|error: polder_words::NameError| error.to_string())?,
            site: site.parse().map_err(|error: polder_words::NameError| error.to_string())?,
        })
    }
}

/// `polder study register`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder study register cardiology --site org_a/hospital-a --site org_b/university --user lead@org_a.com")]
pub(crate) struct StudyRegisterArgs {
    /// The new study
    #[arg(value_name = "NAME")]
    pub(crate) name: StudyName,
    /// A site that takes part, with its organisation; may be given several times
    #[arg(long = "site", value_name = "ORG/SITE")]
    pub(crate) sites: Vec<OrgSite>,
    /// A user who may work in it; may be given several times
    #[arg(long = "user", value_name = "USER")]
    pub(crate) users: Vec<UserName>,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder study remove-site`.
#[derive(Debug, Args)]
pub(crate) struct StudyRemoveSiteArgs {
    /// The study
    #[arg(value_name = "NAME")]
    pub(crate) name: StudyName,
    /// The site
    #[arg(value_name = "SITE")]
    pub(crate) site: SiteName,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder study add-site`.
#[derive(Debug, Args)]
pub(crate) struct StudySiteArgs {
    /// The study
    #[arg(value_name = "NAME")]
    pub(crate) name: StudyName,
    /// The site, with its organisation
    #[arg(value_name = "ORG/SITE")]
    pub(crate) site: OrgSite,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// `polder study add-user`, `remove-user`.
#[derive(Debug, Args)]
pub(crate) struct StudyUserArgs {
    /// The study
    #[arg(value_name = "NAME")]
    pub(crate) name: StudyName,
    /// The user
    #[arg(value_name = "USER")]
    pub(crate) user: UserName,
    #[command(flatten)]
    pub(crate) connect: Connect,
}
