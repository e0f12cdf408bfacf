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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn study(name: &str) -> StudyName {
        StudyName::new(name).expect("study")
    }
    fn site(name: &str) -> SiteName {
        SiteName::new(name).expect("site")
    }
    fn org(name: &str) -> OrgName {
        OrgName::new(name).expect("org")
    }
    fn user(name: &str) -> UserName {
        UserName::new(name).expect("user")
    }

    fn directory() -> Directory {
        Directory {
            sites: [("a1", "a"), ("a2", "a"), ("b1", "b")].map(|(s, o)| (site(s), org(o))).into(),
            users: Some(["boss", "admin-a", "admin-b", "lead"].map(user).to_vec()),
        }
    }

    struct Person(UserName, OrgName, UserRole);
    impl Person {
        fn new(name: &str, of: &str, role: UserRole) -> Self {
            Self(user(name), org(of), role)
        }
        fn caller(&self) -> Caller<'_> {
            Caller { name: &self.0, org: &self.1, role: self.2 }
        }
    }

    fn register(name: &str, of: &str, sites: &[&str]) -> Change {
        Change::Register {
            study: study(name),
            site_orgs: [(org(of), sites.iter().map(|s| site(s)).collect())].into(),
            users: vec![],
        }
    }

    #[test]
    fn an_org_admin_stays_at_home() {
        let mut registry = Registry::default();
        let (a, b) = (
            Person::new("admin-a", "a", UserRole::OrgAdmin),
            Person::new("admin-b", "b", UserRole::OrgAdmin),
        );
        registry.apply(&a.caller(), &directory(), &register("s", "a", &["a1"]), None).expect("own sites");
        let s = study("s");
        assert_eq!(registry.show(&b.caller(), &s), Err(RegistryError::NotFound { study: s.clone() }));
        let foreign = Change::AddSite { study: s.clone(), org: org("b"), site: site("b1") };
        assert!(matches!(
            registry.apply(&a.caller(), &directory(), &foreign, None),
            Err(RegistryError::NotAllowed { .. })
        ));
        let boss = Person::new("boss", "host", UserRole::ProjectAdmin);
        registry.apply(&boss.caller(), &directory(), &foreign, Some(1)).expect("a project admin may");
        assert_eq!(registry.show(&b.caller(), &s).map(|s| s.version), Ok(2), "visible by the own site");
        let take = Change::RemoveSite { study: s.clone(), site: site("a1") };
        assert!(registry.apply(&b.caller(), &directory(), &take, None).is_err());
        let remove = Change::Remove { study: s, jobs: 0 };
        assert!(matches!(
            registry.apply(&a.caller(), &directory(), &remove, None),
            Err(RegistryError::NotAllowed { allowed: "project_admin", .. })
        ));
    }

    #[test]
    fn refusals_leave_everything_as_it_was() {
        let mut registry = Registry::default();
        let boss = Person::new("boss", "host", UserRole::ProjectAdmin);
        registry.apply(&boss.caller(), &directory(), &register("s", "a", &["a1"]), None).expect("registered");
        let before = registry.clone();
        let s = study("s");
        let mut refuse = |change: Change, from: Option<u64>| {
            registry.apply(&boss.caller(), &directory(), &change, from).expect_err("refused").to_string()
        };
        assert_eq!(refuse(register("s", "a", &[]), None), "study s exists already");
        assert_eq!(
            refuse(register("default", "a", &[]), None),
            "study name default is reserved; allowed: other names"
        );
        assert_eq!(refuse(register("t", "a", &["b1"]), None), "site b1 belongs to b, not to a");
        assert_eq!(refuse(register("t", "a", &["x"]), None), "site x is not a site of the federation");
        let add = |name: &str| Change::AddUser { study: s.clone(), user: user(name) };
        assert_eq!(refuse(add("eve"), None), "user eve is not a user of the federation");
        assert_eq!(refuse(add("boss"), None), "user boss is in study s already");
        assert_eq!(refuse(add("lead"), Some(7)), "study s was changed meanwhile: its version is 1, not 7");
        assert_eq!(
            refuse(Change::Remove { study: s.clone(), jobs: 3 }, None),
            "study s has 3 jobs and cannot be removed; delete them first"
        );
        assert_eq!(
            refuse(Change::RemoveUser { study: study("none"), user: user("lead") }, None),
            "study none is not found"
        );
        assert_eq!(registry, before);
    }

    #[test]
    fn a_removed_study_comes_back_with_a_higher_version() {
        let mut registry = Registry::default();
        let boss = Person::new("boss", "host", UserRole::ProjectAdmin);
        let (caller, directory) = (boss.caller(), directory());
        registry.apply(&caller, &directory, &register("s", "a", &[]), None).expect("registered");
        registry
            .apply(&caller, &directory, &Change::Remove { study: study("s"), jobs: 0 }, None)
            .expect("removed");
        let again = registry.apply(&caller, &directory, &register("s", "a", &[]), None).expect("again");
        assert_eq!(again.version, 2);
    }

    #[test]
    fn members_see_their_studies_and_change_nothing() {
        let mut registry = Registry::default();
        let boss = Person::new("boss", "host", UserRole::ProjectAdmin);
        let lead = Person::new("lead", "a", UserRole::Lead);
        let (s, directory) = (study("s"), directory());
        registry.apply(&boss.caller(), &directory, &register("s", "a", &["a1"]), None).expect("registered");
        registry.apply(&boss.caller(), &directory, &register("t", "a", &["a1"]), None).expect("registered");
        let add = Change::AddUser { study: s.clone(), user: user("lead") };
        registry.apply(&boss.caller(), &directory, &add, None).expect("added");
        let seen: Vec<&str> =
            registry.list(&lead.caller()).into_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(seen, ["s"]);
        let leave = Change::RemoveUser { study: s, user: user("boss") };
        assert!(matches!(
            registry.apply(&lead.caller(), &directory, &leave, None),
            Err(RegistryError::NotAllowed { .. })
        ));
    }

    proptest! {
        #[test]
        fn a_site_is_in_a_study_once_and_under_its_own_organisation(
            steps in prop::collection::vec((0usize..3, 0usize..4, 0usize..3, 0usize..3, 0usize..3), 0..40)
        ) {
            let people = [
                Person::new("boss", "host", UserRole::ProjectAdmin),
                Person::new("admin-a", "a", UserRole::OrgAdmin),
                Person::new("lead", "b", UserRole::Lead),
            ];
            let (sites, orgs, directory) = (["a1", "a2", "b1"], ["a", "b", "host"], directory());
            let mut registry = Registry::default();
            for (who, what, which_site, which_org, which_study) in steps {
                let name = study(["s", "t", "u"][which_study]);
                let (s, o) = (site(sites[which_site]), org(orgs[which_org]));
                let change = match what {
                    0 => Change::Register { study: name.clone(), site_orgs: [(o, vec![s])].into(), users: vec![] },
                    1 => Change::AddSite { study: name.clone(), org: o, site: s },
                    2 => Change::RemoveSite { study: name.clone(), site: s },
                    _ => Change::Remove { study: name.clone(), jobs: 0 },
                };
                let before = registry.studies.get(&name).map_or(0, |s| s.version);
                if registry.apply(&people[who].caller(), &directory, &change, None).is_ok() {
                    prop_assert!(people[who].2 != UserRole::Lead);
                    if let Some(after) = registry.studies.get(&name) {
                        prop_assert!(after.version > before);
                    }
                }
                for entry in registry.studies.values() {
                    for (org, sites) in &entry.site_orgs {
                        for site in sites {
                            prop_assert_eq!(directory.sites.get(site), Some(org));
                        }
                    }
                    let mut all = entry.sites();
                    let count = all.len();
                    all.dedup();
                    prop_assert_eq!(all.len(), count);
                }
            }
            let text = serde_json::to_string(&registry).expect("JSON");
            prop_assert_eq!(serde_json::from_str::<Registry>(&text).expect("reads back"), registry);
        }
    }
}
