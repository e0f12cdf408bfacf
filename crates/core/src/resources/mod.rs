//! `resource_spec` and `launcher_spec`: amounts of resources for everybody, options for one launcher.
//!
//! A job may state amounts portably (`num_of_gpus`, `num_of_cpus`, `memory`, under `@default` or a site) or
//! natively in `launcher_spec`; saying the same thing both ways is an error even when equal. The older nested
//! form of `resource_spec` (a site block that holds a mode) is an option of launchers and not portable, unless
//! `@default` stands beside it.
//!
//! [`ResourceSpec`] and [`LauncherSpec`] are checked documents; [`View`] answers questions about one site and
//! works on unchecked documents too, so that one mistake does not hide what else would come of a job.

mod check;
mod slurm;

pub(crate) use check::check_conflicts;
pub use check::near_misses;
pub use slurm::{SlurmResources, slurm_resources};

use crate::error::Result;
use crate::scalars::Memory;
use crate::value::{At, Data, Int, Map, Value, lookup};
use polder_words::{Mode, SiteName};

/// The key of `resource_spec` that speaks for every site.
pub const DEFAULT: &str = "@default";
/// The key of `launcher_spec` that speaks for every site.
pub const LAUNCHER_DEFAULT: &str = "default";
/// The portable fields.
pub const PORTABLE: [&str; 3] = ["num_of_gpus", "num_of_cpus", "memory"];

/// A checked `resource_spec`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceSpec {
    value: Value,
}

/// A checked `launcher_spec`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LauncherSpec {
    value: Value,
}

macro_rules! spec {
    ($type:ident) => {
        impl $type {
            /// Whether nothing is said.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.value.as_map().is_none_or(Map::is_empty)
            }

            /// As it was written.
            #[must_use]
            pub fn to_value(&self) -> Value {
                self.value.clone()
            }

            /// As it was written.
            #[must_use]
            pub fn value(&self) -> &Value {
                &self.value
            }
        }
    };
}
spec!(ResourceSpec);
spec!(LauncherSpec);

impl ResourceSpec {
    /// Checks `resource_spec` of a job.
    ///
    /// # Errors
    /// When it is not a map of site blocks, or an amount in it is not allowed.
    pub fn read(at: Option<&At<'_>>) -> Result<Self> {
        let Some(at) = at.filter(|at| !at.value().is_null()) else { return Ok(Self::default()) };
        check::resource_spec(at)?;
        Ok(Self { value: at.value().clone() })
    }
}

impl LauncherSpec {
    /// Checks `launcher_spec` of a job. `sites` are the sites that `deploy_map` names.
    ///
    /// # Errors
    /// When it is not a map of site blocks of known modes, an option of Docker is not a job's to set, or a key
    /// is a near miss of `default`.
    pub fn read(at: Option<&At<'_>>, sites: &[SiteName]) -> Result<Self> {
        let Some(at) = at.filter(|at| !at.value().is_null()) else { return Ok(Self::default()) };
        check::launcher_spec(at, sites)?;
        Ok(Self { value: at.value().clone() })
    }
}

/// The portable amounts of one site.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Portable {
    /// Whole GPUs, all nodes together.
    pub gpus: Option<Int>,
    /// CPUs, of a node.
    pub cpus: Option<Int>,
    /// Memory, of a node.
    pub memory: Option<Memory>,
}

impl Portable {
    /// As a map of what was said.
    #[must_use]
    pub fn to_map(&self) -> Map {
        let mut map = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                map.insert(key.into(), value);
            }
        };
        put("num_of_gpus", self.gpus.clone().map(|n| Data::Int(n).into()));
        put("num_of_cpus", self.cpus.clone().map(|n| Data::Int(n).into()));
        put("memory", self.memory.as_ref().map(|m| Value::from(m.as_str())));
        map
    }
}

/// What a job says about resources, seen for one site. Documents need not have been checked.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The file errors name.
    pub file: &'a str,
    /// `resource_spec`, null when absent.
    pub resource_spec: &'a Value,
    /// `launcher_spec`, null when absent.
    pub launcher_spec: &'a Value,
}

impl<'a> View<'a> {
    fn resources(&self) -> Result<Option<At<'a>>> {
        map_or_nothing(At::under(self.file, "resource_spec", self.resource_spec))
    }

    fn site(&self, site: &str) -> Result<Option<At<'a>>> {
        match self.resources()? {
            Some(at) => below(&at, site),
            None => Ok(None),
        }
    }

    /// The older nested block of a mode: nothing unless the site's block holds modes. A flat block is that of
    /// `process`.
    fn nested(&self, site: &str, mode: Mode) -> Result<Option<At<'a>>> {
        let Some(at) = self.site(site)? else { return Ok(None) };
        if is_nested(at.map()?) { below_mode(&at, mode) } else { Ok((mode == Mode::Process).then_some(at)) }
    }

    fn has_default(&self) -> Result<bool> {
        Ok(match self.resources()? {
            Some(at) => lookup(at.map()?, DEFAULT).is_some(),
            None => false,
        })
    }

    /// The effective block of a site: `@default`, then the site's own, key by key.
    ///
    /// # Errors
    /// When a part is no map.
    pub fn resolved(&self, site: &str) -> Result<Map> {
        let mut out = Map::new();
        if let Some(at) = self.resources()?
            && let Some(default) = below(&at, DEFAULT)?
        {
            out.extend(default.map()?.clone());
        }
        if let Some(own) = self.nested(site, Mode::Process)? {
            out.extend(own.map()?.clone());
        }
        Ok(out)
    }

    /// What admission sees: the effective block without CPUs and memory; zero GPUs are left out together with
    /// the memory of each.
    ///
    /// # Errors
    /// When a part is no map.
    pub fn admission(&self, site: &str) -> Result<Map> {
        let nested = match self.site(site)? {
            Some(at) => is_nested(at.map()?),
            None => false,
        };
        let mut out = if nested && !self.has_default()? {
            self.nested(site, Mode::Process)?.map_or_else(|| Ok(Map::new()), |at| at.map().cloned())?
        } else {
            let mut map = self.resolved(site)?;
            map.shift_remove("num_of_cpus");
            map.shift_remove("memory");
            map
        };
        let zero = match out.get("num_of_gpus").map(|value| &value.data) {
            Some(Data::Int(int)) => int.is_zero(),
            Some(Data::Float(number)) => *number == 0.0,
            Some(Data::Bool(value)) => !value,
            _ => false,
        };
        if zero {
            out.shift_remove("num_of_gpus");
            out.shift_remove("mem_per_gpu_in_GiB");
        }
        Ok(out)
    }

    /// The portable amounts of a site.
    ///
    /// # Errors
    /// When an amount is not allowed.
    pub fn portable(&self, site: &str) -> Result<Portable> {
        let block = if self.has_default()? {
            self.resolved(site)?
        } else {
            match self.site(site)? {
                // Not portable: options of launchers.
                Some(at) if is_nested(at.map()?) => Map::new(),
                Some(at) => at.map()?.clone(),
                None => Map::new(),
            }
        };
        let value = Data::Map(block).into();
        check::portable(&At::under(self.file, &format!("resource_spec.{site}"), &value))
    }

    /// The blocks that make the options for one launcher, the stronger first: `site[mode]` and `default[mode]`;
    /// only when neither is there, the older `resource_spec[site][mode]`.
    fn blocks(&self, site: &str, mode: Mode) -> Result<[Option<&'a Map>; 2]> {
        if let Some(at) = map_or_nothing(At::under(self.file, "launcher_spec", self.launcher_spec))? {
            let default = mode_of(&at, LAUNCHER_DEFAULT, mode)?.flatten();
            let own = mode_of(&at, site, mode)?;
            if default.is_some() || own.is_some() {
                return Ok([own.flatten(), default]);
            }
        }
        Ok([self.nested(site, mode)?.map(|at| at.map()).transpose()?, None])
    }

    /// The options for one launcher: `default[mode]` then `site[mode]`, the site's keys win; only when neither is
    /// there, the older `resource_spec[site][mode]`.
    ///
    /// # Errors
    /// When a part is no map.
    pub fn launcher(&self, site: &str, mode: Mode) -> Result<Map> {
        let [own, default] = self.blocks(site, mode)?;
        let pairs = default.into_iter().chain(own).flatten();
        Ok(pairs.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// One option for one launcher, as [`View::launcher`] would have it.
    ///
    /// # Errors
    /// When a part is no map.
    pub fn option(&self, site: &str, mode: Mode, key: &str) -> Result<Option<&'a Value>> {
        let [own, default] = self.blocks(site, mode)?;
        Ok([own, default].into_iter().flatten().find_map(|map| lookup(map, key)))
    }
}

/// Whether a site's block is of the older form that holds modes.
fn is_nested(map: &Map) -> bool {
    MODE_KEYS.iter().any(|(key, _)| lookup(map, key).is_some())
}

/// How modes are spelled in a job; `kubernetes` is another word for `k8s`.
const MODE_KEYS: [(&str, Mode); 5] = [
    ("process", Mode::Process),
    ("docker", Mode::Docker),
    ("k8s", Mode::K8s),
    ("kubernetes", Mode::K8s),
    ("slurm", Mode::Slurm),
];

/// Null, `false`, zero and whatever is empty count as nothing, as they do for FLARE.
fn map_or_nothing(at: At<'_>) -> Result<Option<At<'_>>> {
    let nothing = match &at.value().data {
        Data::Null | Data::Bool(false) => true,
        Data::Int(int) => int.is_zero(),
        Data::Float(number) => *number == 0.0,
        Data::Text(text) => text.is_empty(),
        Data::Seq(items) => items.is_empty(),
        Data::Map(map) => map.is_empty(),
        Data::Bool(true) => false,
    };
    if nothing {
        return Ok(None);
    }
    at.map()?;
    Ok(Some(at))
}

fn below<'a>(at: &At<'a>, key: &str) -> Result<Option<At<'a>>> {
    match lookup(at.map()?, key) {
        Some(value) => map_or_nothing(at.child(key, value)),
        None => Ok(None),
    }
}

fn below_mode<'a>(at: &At<'a>, mode: Mode) -> Result<Option<At<'a>>> {
    for (key, _) in MODE_KEYS.iter().filter(|(_, m)| *m == mode) {
        if let Some(found) = below(at, key)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// A mode's block of a site in `launcher_spec`: `None` when it is not there, `Some(None)` when it is empty.
fn mode_of<'a>(at: &At<'a>, site: &str, mode: Mode) -> Result<Option<Option<&'a Map>>> {
    let Some(site) = below(at, site)? else { return Ok(None) };
    for (key, _) in MODE_KEYS.iter().filter(|(_, m)| *m == mode) {
        if let Some(value) = lookup(site.map()?, key).filter(|value| !value.is_null()) {
            return map_or_nothing(site.child(key, value))?.map(|at| at.map()).transpose().map(Some);
        }
    }
    Ok(None)
}
