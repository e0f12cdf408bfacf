//! `meta.json` or `meta.yml`: what a job says about itself.
//!
//! Only what the job may decide is read. The study is the session's, who submitted is the signature's, whether
//! code comes along is the bundle's: keys of FLARE's job record that claim such things are accepted and ignored,
//! so that a downloaded job can be submitted again.

use crate::error::{Error, Result};
use crate::resources::{self, LauncherSpec, ResourceSpec};
use crate::value::{At, Data, Map, Value, from_bytes, to_yaml};
use indexmap::{IndexMap, IndexSet};
use polder_words::{AppName, SiteName};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;

/// The word for every site of the study.
pub const ALL: &str = "@ALL";
/// Most clients a job may ask for.
pub const MAX_CLIENTS: u32 = 1_000_000;
/// The files a job folder may describe itself in.
pub const FILES: [&str; 3] = ["meta.json", "meta.yml", "meta.yaml"];

/// Where the keys stand that a job sets.
const KEYS: [&str; 10] = [
    "name",
    "deploy_map",
    "min_clients",
    "mandatory_clients",
    "resource_spec",
    "launcher_spec",
    "scope",
    "custom_props",
    "study",
    "priority",
];

/// What FLARE's server writes into a job's record; ignored.
const RECORD: [&str; 26] = [
    "approvals",
    "byoc",
    "cloned_from",
    "content_location",
    "duration",
    "edge_simulation_service",
    "format_version",
    "from_hub_site",
    "hub_info",
    "job_deploy_detail",
    "job_folder_name",
    "job_id",
    "job_template",
    "last_schedule_time",
    "result_location",
    "schedule_count",
    "schedule_history",
    "start_time",
    "stats_pool_config",
    "status",
    "submit_time",
    "submit_time_iso",
    "submitter_name",
    "submitter_org",
    "submitter_role",
    "type",
];

/// How urgent a job is, within its study's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// After all others.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Before all others.
    High,
}

const PRIORITIES: [(&str, Priority); 3] =
    [("low", Priority::Low), ("normal", Priority::Normal), ("high", Priority::High)];

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(PRIORITIES.iter().find(|(_, p)| p == self).map_or("normal", |(word, _)| word))
    }
}

/// Where one app goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deploy {
    /// To the server and every site of the study that is connected.
    All,
    /// To these, `server` among them or not.
    Sites(Vec<SiteName>),
}

/// What a job says about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct JobMeta {
    /// Display name.
    pub name: Option<String>,
    /// Which app goes where; the server appears once, a site at most once.
    pub deploy_map: IndexMap<AppName, Deploy>,
    /// Sites without which the job does not run; 1 when not given.
    pub min_clients: u32,
    /// Sites that must take part.
    pub mandatory_clients: Vec<SiteName>,
    /// Amounts of resources.
    pub resource_spec: ResourceSpec,
    /// Options of the sites' launchers.
    pub launcher_spec: LauncherSpec,
    /// Privacy scope.
    pub scope: Option<String>,
    /// Free.
    pub custom_props: Map,
    /// How urgent.
    pub priority: Priority,
}

/// How much of a job's description has to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// All that a submission needs.
    Submission,
    /// Only what is there; for looking at resources alone. `deploy_map` may be missing.
    Parts,
}

impl JobMeta {
    /// Reads a job's description as a submission needs it.
    ///
    /// # Errors
    /// When it is not JSON or YAML, a key is unknown or missing, or a value is not allowed.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let value = from_bytes(file, bytes)?;
        Self::read(&At::root(file, &value), Need::Submission)
    }

    /// Reads a job's description from a value.
    ///
    /// # Errors
    /// When a key is unknown or missing, or a value is not allowed.
    pub fn read(at: &At<'_>, need: Need) -> Result<Self> {
        let mut known = KEYS.to_vec();
        known.extend(RECORD);
        let fields = at.fields(&known).map_err(|error| {
            // The list offered to people leaves out what is only tolerated.
            Error::new(error.file(), error.at(), error.found(), &KEYS.join(", "), error.message())
                .on_line(error.line().unwrap_or(0))
        })?;
        let deploy_map = match fields.get("deploy_map") {
            Some(map) => read_deploy_map(&map)?,
            None if need == Need::Parts => IndexMap::new(),
            None => return Err(fields.need("deploy_map", DEPLOY_MAP).expect_err("it is not there")),
        };
        let clients = clients_of(&deploy_map);
        let min_clients = match fields.given("min_clients") {
            None => 1,
            Some(min) => {
                let count = min.count(1, MAX_CLIENTS)?;
                if let Some(clients) = clients.as_ref().filter(|c| !c.is_empty() && c.len() < count as usize)
                {
                    let message = format!("is more than the {} clients of deploy_map", clients.len());
                    return Err(min.refuse(&message, &format!("at most {}", clients.len())));
                }
                count
            }
        };
        let mandatory_clients = match fields.given("mandatory_clients") {
            None => Vec::new(),
            Some(list) => read_mandatory(&list, clients.as_deref(), need)?,
        };
        let named: Vec<SiteName> = clients.unwrap_or_default();
        let resource_spec = ResourceSpec::read(fields.get("resource_spec").as_ref())?;
        let launcher_spec = LauncherSpec::read(fields.get("launcher_spec").as_ref(), &named)?;
        resources::check_conflicts(at, &resource_spec, &launcher_spec)?;
        let custom_props = match fields.given("custom_props") {
            None => Map::new(),
            Some(props) => props.map()?.clone(),
        };
        Ok(Self {
            name: fields.given("name").map(|name| name.any_text().map(str::to_owned)).transpose()?,
            deploy_map,
            min_clients,
            mandatory_clients,
            resource_spec,
            launcher_spec,
            scope: fields.given("scope").map(|scope| scope.any_text().map(str::to_owned)).transpose()?,
            custom_props,
            priority: fields.given("priority").map(|p| p.word(&PRIORITIES)).transpose()?.unwrap_or_default(),
        })
    }

    /// The named client sites; `None` for `@ALL`.
    #[must_use]
    pub fn clients(&self) -> Option<Vec<SiteName>> {
        clients_of(&self.deploy_map)
    }

    /// The app that goes to a site.
    #[must_use]
    pub fn app_for(&self, site: &SiteName) -> Option<&AppName> {
        self.deploy_map
            .iter()
            .find(|(_, deploy)| match deploy {
                Deploy::All => true,
                Deploy::Sites(sites) => sites.contains(site),
            })
            .map(|(app, _)| app)
    }

    /// Writes it back.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let names = |sites: &[SiteName]| Value::seq(sites.iter().map(|site| Value::from(site.as_str())));
        let mut pairs = Vec::new();
        if let Some(name) = &self.name {
            pairs.push(("name", Value::from(name.as_str())));
        }
        if !self.deploy_map.is_empty() {
            let map = self.deploy_map.iter().map(|(app, deploy)| {
                let sites = match deploy {
                    Deploy::All => Value::seq([Value::from(ALL)]),
                    Deploy::Sites(sites) => names(sites),
                };
                (app.as_str(), sites)
            });
            pairs.push(("deploy_map", Value::map(map)));
        }
        pairs.push(("min_clients", Value::from(self.min_clients)));
        if !self.mandatory_clients.is_empty() {
            pairs.push(("mandatory_clients", names(&self.mandatory_clients)));
        }
        if !self.resource_spec.is_empty() {
            pairs.push(("resource_spec", self.resource_spec.to_value()));
        }
        if !self.launcher_spec.is_empty() {
            pairs.push(("launcher_spec", self.launcher_spec.to_value()));
        }
        if let Some(scope) = &self.scope {
            pairs.push(("scope", Value::from(scope.as_str())));
        }
        if !self.custom_props.is_empty() {
            pairs.push(("custom_props", Data::Map(self.custom_props.clone()).into()));
        }
        pairs.push(("priority", Value::from(self.priority.to_string())));
        Value::map(pairs)
    }
}

impl fmt::Display for JobMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_yaml(&self.to_value()))
    }
}

const DEPLOY_MAP: &str = "a map of apps to lists of sites, such as {app: [\"@ALL\"]}";

fn clients_of(deploy_map: &IndexMap<AppName, Deploy>) -> Option<Vec<SiteName>> {
    let mut clients = Vec::new();
    for deploy in deploy_map.values() {
        match deploy {
            Deploy::All => return None,
            Deploy::Sites(sites) => clients.extend(sites.iter().filter(|site| !site.is_server()).cloned()),
        }
    }
    Some(clients)
}

fn read_deploy_map(at: &At<'_>) -> Result<IndexMap<AppName, Deploy>> {
    let entries = at.entries()?;
    if entries.is_empty() {
        return Err(at.refuse("is empty", DEPLOY_MAP));
    }
    let mut out: IndexMap<AppName, Deploy> = IndexMap::new();
    let mut seen: HashSet<SiteName> = HashSet::new();
    let mut all = 0usize;
    for (app, sites_at) in entries {
        let app = AppName::new(app).map_err(|error| {
            at.refuse_below(app, app, &format!("is not an {}", error.what), error.allowed)
        })?;
        let mut sites = Vec::new();
        let all_before = all;
        for site in site_list(&sites_at)? {
            if site.any_text()?.eq_ignore_ascii_case(ALL) {
                all += 1;
                continue;
            }
            let name: SiteName = site.name()?;
            if !seen.insert(name.clone()) {
                return Err(site.refuse("is a site that already has an app", "each site once"));
            }
            sites.push(name);
        }
        out.insert(app, if all > all_before { Deploy::All } else { Deploy::Sites(sites) });
    }
    if all > 1 || (all == 1 && !seen.is_empty()) {
        return Err(at.refuse("names `@ALL` beside other sites or apps", "`@ALL` alone"));
    }
    if all == 1 {
        return Ok(out);
    }
    if !seen.iter().any(SiteName::is_server) {
        return Err(at.refuse("does not name the server", "an app for `server`, or `@ALL`"));
    }
    if seen.len() < 2 {
        return Err(at.refuse("names no client", "at least one site beside `server`, or `@ALL`"));
    }
    Ok(out)
}

/// `[sites]`, `{sites: [...]}` or `{targets: [...]}`; an item of the list may be such a map again.
fn site_list<'a>(at: &At<'a>) -> Result<Vec<At<'a>>> {
    let from_map = |at: &At<'a>| {
        let fields = at.fields(&["sites", "targets"])?;
        let sites = fields.either("sites", "targets")?;
        sites.ok_or_else(|| at.refuse("names no sites", "{sites: [...]}"))?.seq()
    };
    match &at.value().data {
        Data::Map(_) => from_map(at),
        Data::Seq(_) => {
            let mut out = Vec::new();
            for item in at.seq()? {
                if item.value().as_map().is_some() {
                    out.extend(from_map(&item)?);
                } else {
                    out.push(item);
                }
            }
            Ok(out)
        }
        _ => Err(at.refuse(&format!("is {}", at.value().kind()), "a list of sites, or {sites: [...]}")),
    }
}

fn read_mandatory(at: &At<'_>, clients: Option<&[SiteName]>, need: Need) -> Result<Vec<SiteName>> {
    let mut out: IndexSet<SiteName> = IndexSet::new();
    let known: Option<HashSet<&SiteName>> = clients.map(|clients| clients.iter().collect());
    for item in at.seq()? {
        let site: SiteName = item.name()?;
        let deployed = match &known {
            None => !site.is_server(),
            Some(known) if known.is_empty() => need == Need::Parts,
            Some(known) => known.contains(&site),
        };
        if !deployed {
            return Err(item.refuse("is not a client of deploy_map", "sites that an app goes to"));
        }
        out.insert(site);
    }
    Ok(out.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> std::result::Result<JobMeta, String> {
        JobMeta::parse("meta.json", text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_job() {
        let meta = read(
            r#"{"name": "demo", "deploy_map": {"server_app": ["server"], "app": {"sites": ["a", "b"]}},
                "min_clients": 2, "mandatory_clients": ["a"], "study": "other", "priority": "high",
                "resource_spec": {"@default": {"num_of_gpus": 1}}, "submitter_name": "somebody else"}"#,
        )
        .expect("a job");
        assert_eq!(meta.clients().map(|c| c.len()), Some(2));
        assert_eq!(meta.app_for(&SiteName::server()).map(AppName::as_str), Some("server_app"));
        assert_eq!(meta.priority, Priority::High);
        let text = meta.to_string();
        assert!(!text.contains("somebody") && !text.contains("other"), "claims are not kept: {text}");
        assert_eq!(JobMeta::parse("meta.yml", text.as_bytes()), Ok(meta));
    }

    #[test]
    fn refusals() {
        for (text, part) in [
            ("{}", "deploy_map: is missing"),
            (r#"{"deploy_map": {}}"#, "deploy_map: is empty"),
            (r#"{"deploy_map": {"app": ["a"]}}"#, "does not name the server"),
            (r#"{"deploy_map": {"app": ["server"]}}"#, "names no client"),
            (r#"{"deploy_map": {"app": ["@ALL", "a"]}}"#, "beside other sites"),
            (r#"{"deploy_map": {"app": ["@ALL"], "b": ["@ALL"]}}"#, "beside other sites"),
            (r#"{"deploy_map": {"app": ["@ALL", "@all"]}}"#, "beside other sites"),
            (r#"{"deploy_map": {"app": ["server", "a", "a"]}}"#, "already has an app"),
            (r#"{"deploy_map": {"../x": ["@ALL"]}}"#, "is not an app name"),
            (r#"{"deploy_map": {"app": ["server", "a"]}, "min_clients": 2}"#, "is more than the 1 clients"),
            (r#"{"deploy_map": {"app": ["@ALL"]}, "min_clients": true}"#, "min_clients: is a boolean"),
            (r#"{"deploy_map": {"app": ["@ALL"]}, "min_clients": 1000001}"#, "is out of range"),
            (r#"{"deploy_map": {"app": ["server", "a"]}, "mandatory_clients": ["b"]}"#, "is not a client"),
            (r#"{"deploy_map": {"app": ["@ALL"]}, "minclients": 1}"#, "is `min_clients` meant?"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// A job with good and bad values mixed.
    fn any_meta() -> impl Strategy<Value = Value> {
        let sites = ["server", "a", "b-1", "c.d"];
        let list = prop::sample::subsequence(sites.to_vec(), 0..=4)
            .prop_map(|sites| Value::seq(sites.into_iter().map(Value::from)));
        let deploy = prop_oneof![
            3 => list.clone().prop_map(|sites| Value::map([("app", sites)])),
            1 => Just(Value::map([("app", Value::seq([Value::from("@ALL")]))])),
            1 => Just(Value::map([
                ("one", Value::seq([Value::from("server")])),
                ("two", Value::map([("sites", Value::seq([Value::from("a")]))])),
            ])),
        ];
        let amounts = (0i64..9, 1i64..9, "[1-9][0-9]{0,3}(Mi|Gi|Ti)").prop_map(|(gpus, cpus, memory)| {
            Value::map([
                ("num_of_gpus", Value::from(gpus)),
                ("num_of_cpus", Value::from(cpus)),
                ("memory", Value::from(memory)),
            ])
        });
        let resources = (amounts.clone(), amounts)
            .prop_map(|(default, site)| Value::map([("@default", default), ("a", site)]));
        let docker = (".{1,6}", 0u64..1 << 40).prop_map(|(image, shm)| {
            Value::map([("image", Value::from(image)), ("shm_size", Value::from(shm))])
        });
        let launchers = docker.prop_map(|docker| Value::map([("default", Value::map([("docker", docker)]))]));
        let some = |value: BoxedStrategy<Value>| prop::option::of(value);
        (
            deploy,
            some(".{0,8}".prop_map(Value::from).boxed()),
            some((0i64..4).prop_map(Value::from).boxed()),
            some(list.boxed()),
            some(resources.boxed()),
            some(launchers.boxed()),
            some(prop::sample::select(vec!["low", "high", "now"]).prop_map(Value::from).boxed()),
        )
            .prop_map(|(deploy, name, min, mandatory, resources, launchers, priority)| {
                let mut out = vec![("deploy_map", deploy)];
                for (key, value) in [
                    ("name", name),
                    ("min_clients", min),
                    ("mandatory_clients", mandatory),
                    ("resource_spec", resources),
                    ("launcher_spec", launchers),
                    ("priority", priority),
                ] {
                    out.extend(value.map(|value| (key, value)));
                }
                Value::map(out)
            })
    }

    proptest! {
        #[test]
        fn what_is_accepted_prints_back(value in any_meta()) {
            let text = crate::value::to_json(&value);
            if let Ok(meta) = JobMeta::parse("meta.json", text.as_bytes()) {
                prop_assert_eq!(JobMeta::parse("meta.yml", meta.to_string().as_bytes()), Ok(meta));
            }
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "(?s).{0,64}") {
            let _ = JobMeta::parse("meta.json", &bytes);
            let _ = JobMeta::parse("meta.yml", text.as_bytes());
        }
    }
}
