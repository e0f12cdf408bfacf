//! The study registry: `core` decides on changes, the database keeps them, everybody reads from memory.

use super::rights::Who;
use polder_api::user::{Study, StudyChange};
use polder_api::{Problem, ProblemCode};
use polder_core::project::{Project, RESERVED_STUDY};
use polder_core::registry::{Caller, Change, Directory, Registry as Studies, RegistryError};
use polder_store::Store;
use polder_words::{OrgName, SiteName, StudyName, UserName};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

/// The registry in force.
pub(super) struct Registry {
    now: RwLock<Arc<Studies>>,
    /// One change at a time; holds the version in the database.
    changing: tokio::sync::Mutex<u64>,
    store: Arc<dyn Store>,
    /// `project.yml` in the server's kit: the studies to begin with, and who takes part.
    project: PathBuf,
    /// As it was read last.
    parsed: Mutex<Parsed>,
}

#[derive(Default)]
struct Parsed {
    stamp: Option<(SystemTime, u64)>,
    project: Option<Arc<Project>>,
}

fn who<'a>(who: &'a Who) -> Caller<'a> {
    Caller { name: &who.name, org: &who.org, role: who.role }
}

fn shown(name: &StudyName, study: &polder_core::registry::Study) -> Study {
    Study {
        name: name.clone(),
        site_orgs: study.site_orgs.clone(),
        users: study.users.clone(),
        version: study.version,
    }
}

impl Registry {
    /// Reads the registry; the first time it is what `project.yml` says.
    pub(super) async fn open(store: Arc<dyn Store>, project: PathBuf) -> anyhow::Result<Self> {
        let (version, studies) = match store.registry().await? {
            Some(row) => (row.version, serde_json::from_value(row.body)?),
            None => {
                let studies = match read_project(&project)? {
                    Some(project) => Studies::of_project(&project),
                    None => {
                        tracing::warn!(file = %project.display(), "not there: the federation begins without studies");
                        Studies::default()
                    }
                };
                (store.put_registry(0, serde_json::to_value(&studies)?).await?, studies)
            }
        };
        Ok(Self {
            now: RwLock::new(Arc::new(studies)),
            changing: tokio::sync::Mutex::new(version),
            store,
            project,
            parsed: Mutex::default(),
        })
    }

    fn now(&self) -> Arc<Studies> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether somebody may have a session of this study.
    pub(super) fn may_enter(&self, caller: &Who, study: &StudyName) -> bool {
        study.as_str() == RESERVED_STUDY || self.now().is_visible(&who(caller), study)
    }

    /// The sites of a study, with their organisations. `default` is every site there is.
    pub(super) fn sites(
        &self,
        study: &StudyName,
        all: &BTreeMap<SiteName, OrgName>,
    ) -> BTreeMap<SiteName, OrgName> {
        if study.as_str() == RESERVED_STUDY {
            return all.clone();
        }
        let now = self.now();
        let Some(study) = now.studies.get(study) else { return BTreeMap::new() };
        let sites = study.site_orgs.iter();
        sites.flat_map(|(org, sites)| sites.iter().map(|site| (site.clone(), org.clone()))).collect()
    }

    /// Whether a site takes part in a study.
    pub(super) fn has_site(&self, study: &StudyName, site: &SiteName) -> bool {
        study.as_str() == RESERVED_STUDY
            || self.now().studies.get(study).is_some_and(|study| study.has_site(site))
    }

    /// The studies somebody may see.
    pub(super) fn list(&self, caller: &Who) -> Vec<Study> {
        self.now().list(&who(caller)).into_iter().map(|(name, study)| shown(name, study)).collect()
    }

    /// Makes a change. `jobs` is how many jobs the study has, for a removal.
    pub(super) async fn change(
        &self,
        caller: &Who,
        change: StudyChange,
        jobs: u64,
        sites: BTreeMap<SiteName, OrgName>,
    ) -> Result<Study, Problem> {
        let mut version = self.changing.lock().await;
        let mut next = Studies::clone(&self.now());
        let change = translated(change, jobs);
        let directory = self.directory(sites);
        let study = next.apply(&who(caller), &directory, &change, None).map_err(|error| refused(&error))?;
        let internal = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "the registry cannot be stored");
            Problem::new(ProblemCode::Internal, "the registry cannot be stored")
        };
        let body = serde_json::to_value(&next).map_err(|error| internal(&error))?;
        *version = self.store.put_registry(*version, body).await.map_err(|error| internal(&error))?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        Ok(shown(change.study(), &study))
    }

    /// Every site of the federation that is known here: of `project.yml` and of those that came.
    pub(super) fn all_sites(&self, seen: BTreeMap<SiteName, OrgName>) -> BTreeMap<SiteName, OrgName> {
        self.directory(seen).sites
    }

    fn directory(&self, mut sites: BTreeMap<SiteName, OrgName>) -> Directory {
        let project = self.project();
        let users = project.as_ref().map(|project| {
            let known: BTreeSet<UserName> = project.users.iter().map(|user| user.name.clone()).collect();
            let members = self.now().studies.values().flat_map(|study| study.users.clone()).collect();
            known.union(&members).cloned().collect()
        });
        if let Some(project) = project {
            sites.extend(project.sites.iter().map(|site| (site.name.clone(), site.org.clone())));
        }
        Directory { sites, users }
    }

    /// `project.yml` as it is now: a participant who is provisioned later stands in it then.
    fn project(&self) -> Option<Arc<Project>> {
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::fs::metadata(&self.project).and_then(|meta| Ok((meta.modified()?, meta.len()))).ok();
        if parsed.stamp != now {
            parsed.stamp = now;
            match read_project(&self.project) {
                Ok(project) => parsed.project = project.map(Arc::new),
                Err(error) => {
                    tracing::error!(%error, "project.yml is not accepted; what was read before counts");
                }
            }
        }
        parsed.project.clone()
    }
}

fn read_project(path: &PathBuf) -> anyhow::Result<Option<Project>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(Project::parse(&path.display().to_string(), &bytes)?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn translated(change: StudyChange, jobs: u64) -> Change {
    match change {
        StudyChange::Register { study, site_orgs, users } => Change::Register { study, site_orgs, users },
        StudyChange::Remove { study } => Change::Remove { study, jobs },
        StudyChange::AddSite { study, org, site } => Change::AddSite { study, org, site },
        StudyChange::RemoveSite { study, site } => Change::RemoveSite { study, site },
        StudyChange::AddUser { study, user } => Change::AddUser { study, user },
        StudyChange::RemoveUser { study, user } => Change::RemoveUser { study, user },
    }
}

fn refused(error: &RegistryError) -> Problem {
    let code = match error {
        RegistryError::NotFound { .. } | RegistryError::NotIn { .. } => ProblemCode::NotFound,
        RegistryError::Exists { .. }
        | RegistryError::AlreadyIn { .. }
        | RegistryError::HasJobs { .. }
        | RegistryError::Changed { .. } => ProblemCode::Conflict,
        RegistryError::NotAllowed { .. } => ProblemCode::Forbidden,
        RegistryError::Reserved { .. }
        | RegistryError::UnknownSite { .. }
        | RegistryError::WrongOrg { .. }
        | RegistryError::UnknownUser { .. } => ProblemCode::Invalid,
    };
    Problem::new(code, error.to_string())
}
