//! The study registry: which sites and users belong to a study, and who may change that.
//!
//! It begins with the studies of `project.yml` and is run-time state of the server afterwards. A change is a pure
//! function from one registry to the next; each study carries a version, and a change may name the version it was
//! made from, so that two people do not undo each other unseen.
//!
//! A project admin may do everything. An org admin sees studies with a site of the own organisation, registers
//! studies for own sites, moves own sites in and out of visible studies and changes their users. Others see the
//! studies they belong to. What somebody may not see is not found.

use crate::project::{Project, RESERVED_STUDY};
use polder_words::{OrgName, SiteName, StudyName, UserName, UserRole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One study.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Study {
    /// Sites by organisation.
    pub site_orgs: BTreeMap<OrgName, Vec<SiteName>>,
    /// Members.
    pub users: Vec<UserName>,
    /// 1 when registered; grows with every change.
    pub version: u64,
}

impl Study {
    /// Every site, by name.
    #[must_use]
    pub fn sites(&self) -> Vec<SiteName> {
        let mut sites: Vec<SiteName> = self.site_orgs.values().flatten().cloned().collect();
        sites.sort();
        sites
    }

    /// Whether a site takes part.
    #[must_use]
    pub fn has_site(&self, site: &SiteName) -> bool {
        self.site_orgs.values().flatten().any(|s| s == site)
    }

    /// Whether a user is a member.
    #[must_use]
    pub fn has_user(&self, user: &UserName) -> bool {
        self.users.contains(user)
    }
}

/// All studies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Registry {
    /// By name.
    pub studies: BTreeMap<StudyName, Study>,
    /// Versions of studies that are gone: one registered again goes on from there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gone: BTreeMap<StudyName, u64>,
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// Name.
    pub name: &'a UserName,
    /// Organisation.
    pub org: &'a OrgName,
    /// Role.
    pub role: UserRole,
}

/// Who there is.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    /// Every site and its organisation.
    pub sites: BTreeMap<SiteName, OrgName>,
    /// Every user, where the server knows them all.
    pub users: Option<Vec<UserName>>,
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A new study.
    Register {
        /// Name.
        study: StudyName,
        /// Sites by organisation.
        site_orgs: BTreeMap<OrgName, Vec<SiteName>>,
        /// Members; whoever registers it is one, too.
        users: Vec<UserName>,
    },
    /// No more of it.
    Remove {
        /// Name.
        study: StudyName,
        /// How many jobs of it the server still has; only a study without jobs can go.
        jobs: u64,
    },
    /// A site joins.
    AddSite {
        /// Name.
        study: StudyName,
        /// Its organisation.
        org: OrgName,
        /// The site.
        site: SiteName,
    },
    /// A site leaves.
    RemoveSite {
        /// Name.
        study: StudyName,
        /// The site.
        site: SiteName,
    },
    /// A member joins.
    AddUser {
        /// Name.
        study: StudyName,
        /// The member.
        user: UserName,
    },
    /// A member leaves.
    RemoveUser {
        /// Name.
        study: StudyName,
        /// The member.
        user: UserName,
    },
}

impl Change {
    /// The study it is about.
    #[must_use]
    pub fn study(&self) -> &StudyName {
        match self {
            Self::Register { study, .. }
            | Self::Remove { study, .. }
            | Self::AddSite { study, .. }
            | Self::RemoveSite { study, .. }
            | Self::AddUser { study, .. }
            | Self::RemoveUser { study, .. } => study,
        }
    }
}

/// Why a change or question is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// There is none, or the caller may not see it.
    #[error("study {study} is not found")]
    NotFound {
        /// Which.
        study: StudyName,
    },
    /// There is one.
    #[error("study {study} exists already")]
    Exists {
        /// Which.
        study: StudyName,
    },
    /// `default`.
    #[error("study name {study} is reserved; allowed: other names")]
    Reserved {
        /// Which.
        study: StudyName,
    },
    /// The role does not allow it.
    #[error("{user} ({role}) may not {what}; allowed: {allowed}")]
    NotAllowed {
        /// Who.
        user: UserName,
        /// With which role.
        role: UserRole,
        /// What.
        what: &'static str,
        /// Who may.
        allowed: &'static str,
    },
    /// No such site.
    #[error("site {site} is not a site of the federation")]
    UnknownSite {
        /// Which.
        site: SiteName,
    },
    /// A site of somebody else.
    #[error("site {site} belongs to {org}, not to {named}")]
    WrongOrg {
        /// Which.
        site: SiteName,
        /// Its organisation.
        org: OrgName,
        /// The one that was named.
        named: OrgName,
    },
    /// No such user.
    #[error("user {user} is not a user of the federation")]
    UnknownUser {
        /// Which.
        user: UserName,
    },
    /// It is there.
    #[error("{what} is in study {study} already")]
    AlreadyIn {
        /// A site or user.
        what: String,
        /// The study.
        study: StudyName,
    },
    /// It is not there.
    #[error("{what} is not in study {study}")]
    NotIn {
        /// A site or user.
        what: String,
        /// The study.
        study: StudyName,
    },
    /// It has jobs.
    #[error("study {study} has {jobs} jobs and cannot be removed; delete them first")]
    HasJobs {
        /// Which.
        study: StudyName,
        /// How many.
        jobs: u64,
    },
    /// Somebody else was faster.
    #[error("study {study} was changed meanwhile: its version is {now}, not {from}")]
    Changed {
        /// Which.
        study: StudyName,
        /// The version named.
        from: u64,
        /// The version it has.
        now: u64,
    },
}

type Result<T> = std::result::Result<T, RegistryError>;

impl Registry {
    /// What a federation begins with.
    #[must_use]
    pub fn of_project(project: &Project) -> Self {
        let study = |study: &crate::project::Study| Study {
            site_orgs: study.site_orgs.clone().into_iter().collect(),
            users: study.admins.clone(),
            version: 1,
        };
        Self {
            studies: project.studies.iter().map(|(name, s)| (name.clone(), study(s))).collect(),
            gone: BTreeMap::new(),
        }
    }

    /// Whether somebody may see a study.
    #[must_use]
    pub fn is_visible(&self, caller: &Caller<'_>, study: &StudyName) -> bool {
        self.studies.get(study).is_some_and(|entry| visible(caller, entry))
    }

    /// One study.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub fn show(&self, caller: &Caller<'_>, study: &StudyName) -> Result<&Study> {
        let entry = self.studies.get(study).filter(|entry| visible(caller, entry));
        entry.ok_or_else(|| RegistryError::NotFound { study: study.clone() })
    }

    /// The studies the caller may see, by name.
    #[must_use]
    pub fn list(&self, caller: &Caller<'_>) -> Vec<(&StudyName, &Study)> {
        self.studies.iter().filter(|(_, entry)| visible(caller, entry)).collect()
    }

    /// Makes a change; the registry itself is left alone when it is refused. Returns the study as it is then, or as
    /// it was when it is gone.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn apply(
        &mut self,
        caller: &Caller<'_>,
        directory: &Directory,
        change: &Change,
        from_version: Option<u64>,
    ) -> Result<Study> {
        let name = change.study();
        if let Change::Register { site_orgs, users, .. } = change {
            return self.register(caller, directory, name, site_orgs, users);
        }
        let mut study = self.show(caller, name)?.clone();
        if let Some(from) = from_version.filter(|from| *from != study.version) {
            return Err(RegistryError::Changed { study: name.clone(), from, now: study.version });
        }
        may_administer(caller, "change a study")?;
        match change {
            Change::Register { .. } => {}
            Change::Remove { jobs, .. } => {
                if caller.role != UserRole::ProjectAdmin {
                    return Err(not_allowed(caller, "remove a study", "project_admin"));
                }
                if *jobs > 0 {
                    return Err(RegistryError::HasJobs { study: name.clone(), jobs: *jobs });
                }
                self.studies.remove(name);
                self.gone.insert(name.clone(), study.version);
                return Ok(study);
            }
            Change::AddSite { org, site, .. } => {
                own_org(caller, org)?;
                check_site(directory, site, org)?;
                if study.has_site(site) {
                    return Err(RegistryError::AlreadyIn {
                        what: format!("site {site}"),
                        study: name.clone(),
                    });
                }
                study.site_orgs.entry(org.clone()).or_default().push(site.clone());
            }
            Change::RemoveSite { site, .. } => {
                // The site need not exist any more.
                let holder = study.site_orgs.iter_mut().find(|(_, sites)| sites.contains(site));
                let Some((org, sites)) = holder else {
                    return Err(RegistryError::NotIn { what: format!("site {site}"), study: name.clone() });
                };
                own_org(caller, org)?;
                sites.retain(|s| s != site);
                // The organisation stays: its admin still sees the study.
            }
            Change::AddUser { user, .. } => {
                check_user(directory, user)?;
                if study.has_user(user) {
                    return Err(RegistryError::AlreadyIn {
                        what: format!("user {user}"),
                        study: name.clone(),
                    });
                }
                study.users.push(user.clone());
            }
            Change::RemoveUser { user, .. } => {
                if !study.has_user(user) {
                    return Err(RegistryError::NotIn { what: format!("user {user}"), study: name.clone() });
                }
                study.users.retain(|u| u != user);
            }
        }
        study.version += 1;
        self.studies.insert(name.clone(), study.clone());
        Ok(study)
    }

    fn register(
        &mut self,
        caller: &Caller<'_>,
        directory: &Directory,
        name: &StudyName,
        site_orgs: &BTreeMap<OrgName, Vec<SiteName>>,
        users: &[UserName],
    ) -> Result<Study> {
        may_administer(caller, "register a study")?;
        if name.as_str() == RESERVED_STUDY {
            return Err(RegistryError::Reserved { study: name.clone() });
        }
        if self.studies.contains_key(name) {
            return Err(RegistryError::Exists { study: name.clone() });
        }
        let mut study = Study { version: self.gone.get(name).copied().unwrap_or(0) + 1, ..Study::default() };
        for (org, sites) in site_orgs {
            own_org(caller, org)?;
            let list = study.site_orgs.entry(org.clone()).or_default();
            for site in sites {
                check_site(directory, site, org)?;
                if !list.contains(site) {
                    list.push(site.clone());
                }
            }
        }
        for user in users.iter().chain([caller.name]) {
            if user != caller.name {
                check_user(directory, user)?;
            }
            if !study.has_user(user) {
                study.users.push(user.clone());
            }
        }
        self.gone.remove(name);
        self.studies.insert(name.clone(), study.clone());
        Ok(study)
    }
}

fn visible(caller: &Caller<'_>, study: &Study) -> bool {
    match caller.role {
        UserRole::ProjectAdmin => true,
        UserRole::OrgAdmin => study.site_orgs.contains_key(caller.org) || study.has_user(caller.name),
        UserRole::Lead | UserRole::Member => study.has_user(caller.name),
    }
}

fn not_allowed(caller: &Caller<'_>, what: &'static str, allowed: &'static str) -> RegistryError {
    RegistryError::NotAllowed { user: caller.name.clone(), role: caller.role, what, allowed }
}

fn may_administer(caller: &Caller<'_>, what: &'static str) -> Result<()> {
    match caller.role {
        UserRole::ProjectAdmin | UserRole::OrgAdmin => Ok(()),
        UserRole::Lead | UserRole::Member => Err(not_allowed(caller, what, "project_admin, org_admin")),
    }
}

fn own_org(caller: &Caller<'_>, org: &OrgName) -> Result<()> {
    if caller.role == UserRole::ProjectAdmin || caller.org == org {
        Ok(())
    } else {
        Err(not_allowed(
            caller,
            "move sites of another organisation",
            "project_admin, or the organisation's org_admin",
        ))
    }
}

fn check_site(directory: &Directory, site: &SiteName, org: &OrgName) -> Result<()> {
    match directory.sites.get(site) {
        None => Err(RegistryError::UnknownSite { site: site.clone() }),
        Some(real) if real != org => {
            Err(RegistryError::WrongOrg { site: site.clone(), org: real.clone(), named: org.clone() })
        }
        Some(_) => Ok(()),
    }
}

fn check_user(directory: &Directory, user: &UserName) -> Result<()> {
    match &directory.users {
        Some(users) if !users.contains(user) => Err(RegistryError::UnknownUser { user: user.clone() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
