//! `polder check`: what would come of a job's description at a site, and of a site's study file.
//!
//! The shapes are a contract. A part of [`CheckMeta`] is `{"ok": value}` or `{"refused": true}`; why a part is refused
//! stands under `refusals`, by the name of the part, as the same error object that `error` holds. Parts are worked
//! out one by one: a job that is not accepted still shows what can be said.

use crate::error::Error;
use crate::launcher::SlurmSandbox;
use crate::meta::{JobMeta, Need};
use crate::resources::{View, slurm_resources};
use crate::study_runtime::{Files, Reading, StudyRuntimes};
use crate::value::{At, Data, Map, Value, from_bytes};
use polder_words::Mode;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::collections::BTreeMap;

/// How long a job may be pending on Slurm where no site is named, in seconds.
pub const PENDING_TIMEOUT: f64 = 600.0;

/// One part of the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Its value.
    Ok(Value),
    /// It cannot be said; `refusals` has the reason.
    Refused,
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match self {
            Self::Ok(value) => map.serialize_entry("ok", value)?,
            Self::Refused => map.serialize_entry("refused", &true)?,
        }
        map.end()
    }
}

/// The options for each launcher.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Launchers {
    /// `process`.
    pub process: Part,
    /// `docker`.
    pub docker: Part,
    /// `k8s`.
    pub k8s: Part,
    /// `slurm`.
    pub slurm: Part,
}

/// What would come of a job's description at a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckMeta {
    /// Whether a submission would be accepted, as far as `resource_spec`, `launcher_spec` and what else is there go.
    pub accepted: bool,
    /// Why not.
    pub error: Option<Error>,
    /// The effective block of the site.
    pub resolved: Part,
    /// What admission sees.
    pub admission: Part,
    /// The portable amounts.
    pub portable: Part,
    /// The options for each launcher.
    pub launcher: Launchers,
    /// What Slurm would be asked for.
    pub slurm_resources: Part,
    /// Why a part is refused.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub refusals: BTreeMap<&'static str, Error>,
}

impl CheckMeta {
    /// As one line of JSON; integers of any size print as they are.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("only text keys")
    }
}

/// Looks at a job's description for one site. `deploy_map` may be missing.
#[must_use]
pub fn check_meta(meta: &[u8], file: &str, site: &str, sandbox: SlurmSandbox) -> CheckMeta {
    let document = from_bytes(file, meta);
    let accepted = document
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|value| JobMeta::read(&At::root(file, value), Need::Parts).map(|_| ()));
    let null = Value::default();
    let part_of = |key: &str| document.as_ref().ok().and_then(|value| value.get(key)).unwrap_or(&null);
    let view =
        View { file, resource_spec: part_of("resource_spec"), launcher_spec: part_of("launcher_spec") };
    let mut refusals = BTreeMap::new();
    let mut part = |name: &'static str, result: Result<Value, Error>| {
        // An unreadable document says nothing about anything.
        match document.as_ref().map_err(Clone::clone).and(result) {
            Ok(value) => Part::Ok(value),
            Err(error) => {
                refusals.insert(name, error);
                Part::Refused
            }
        }
    };
    let map = |result: Result<Map, Error>| result.map(|map| Value::from(Data::Map(map)));
    let resolved = part("resolved", map(view.resolved(site)));
    let admission = part("admission", map(view.admission(site)));
    let portable = part("portable", map(view.portable(site).map(|portable| portable.to_map())));
    let launcher = Launchers {
        process: part("launcher.process", map(view.launcher(site, Mode::Process))),
        docker: part("launcher.docker", map(view.launcher(site, Mode::Docker))),
        k8s: part("launcher.k8s", map(view.launcher(site, Mode::K8s))),
        slurm: part("launcher.slurm", map(view.launcher(site, Mode::Slurm))),
    };
    let slurm = slurm_resources(&view, site, sandbox, PENDING_TIMEOUT);
    let slurm_resources = part("slurm_resources", slurm.map(|resources| resources.to_value()));
    CheckMeta {
        accepted: accepted.is_ok(),
        error: accepted.err(),
        resolved,
        admission,
        portable,
        launcher,
        slurm_resources,
        refusals,
    }
}

/// Reads a study file for one launcher: the studies as the contract prints them, and warnings for people.
///
/// # Errors
/// Why the file is refused; [`Error::to_json`] has the contract's shape.
pub fn check_study_runtime(
    bytes: &[u8],
    file: &str,
    mode: Mode,
    files: &dyn Files,
) -> Result<(Value, Vec<String>), Error> {
    let read = StudyRuntimes::parse(file, bytes, &Reading::new(mode, files))?;
    Ok((read.to_json(), read.warnings))
}
