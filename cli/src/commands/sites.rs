//! `sites` and `study`.

use crate::args::{SitesArgs, StudyCommand};
use crate::output::sites as text;
use crate::output::{Ending, Failure, Out};
use crate::server::{Server, now_millis};
use polder_api::ProblemCode;
use polder_api::user::{Study, StudyChange};
use polder_words::{OrgName, SiteName, StudyName};
use serde::Serialize;
use std::collections::BTreeMap;

pub(crate) async fn sites(args: &SitesArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let sites = server.sites().await?;
    out.result(&sites, |sites| text::sites(sites, now_millis()))
}

#[derive(Serialize)]
struct Removed {
    study: StudyName,
    removed: bool,
}

pub(crate) async fn study(command: StudyCommand, out: &mut Out) -> Result<(), Ending> {
    let (connect, change) = match command {
        StudyCommand::List(args) => {
            let studies = Server::connect(&args.connect).await?.studies().await?;
            return out.result(&studies, text::studies);
        }
        StudyCommand::Show(args) => {
            let studies = Server::connect(&args.connect).await?.studies().await?;
            let names: Vec<&str> = studies.studies.iter().map(|study| study.name.as_str()).collect();
            let names = names.join(", ");
            let study: Study =
                studies.studies.iter().find(|study| study.name == args.name).cloned().ok_or_else(|| {
                    Failure::new(ProblemCode::NotFound, "no such study, or not for you to see")
                        .found(args.name.to_string(), names)
                })?;
            return out.result(&study, text::study);
        }
        StudyCommand::Remove(args) => {
            let mut server = Server::connect(&args.connect).await?;
            server.change(&StudyChange::Remove { study: args.name.clone() }).await?;
            return out.result(&Removed { study: args.name, removed: true }, |removed| {
                format!("removed study {}", removed.study)
            });
        }
        StudyCommand::Register(args) => {
            let mut site_orgs: BTreeMap<OrgName, Vec<SiteName>> = BTreeMap::new();
            for site in args.sites {
                site_orgs.entry(site.org).or_default().push(site.site);
            }
            (args.connect, StudyChange::Register { study: args.name, site_orgs, users: args.users })
        }
        StudyCommand::AddSite(args) => (
            args.connect,
            StudyChange::AddSite { study: args.name, org: args.site.org, site: args.site.site },
        ),
        StudyCommand::RemoveSite(args) => {
            (args.connect, StudyChange::RemoveSite { study: args.name, site: args.site })
        }
        StudyCommand::AddUser(args) => {
            (args.connect, StudyChange::AddUser { study: args.name, user: args.user })
        }
        StudyCommand::RemoveUser(args) => {
            (args.connect, StudyChange::RemoveUser { study: args.name, user: args.user })
        }
    };
    let study = Server::connect(&connect).await?.change(&change).await?;
    out.result(&study, text::study)
}
