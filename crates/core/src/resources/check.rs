//! What a submission checks of `resource_spec` and `launcher_spec`.

use super::{
    DEFAULT, LAUNCHER_DEFAULT, LauncherSpec, MODE_KEYS, PORTABLE, Portable, ResourceSpec, View, is_nested,
};
use crate::error::Result;
use crate::launcher::DockerOptions;
use crate::scalars::Memory;
use crate::value::{At, Data, Int, Key, Map, Value, lookup};
use indexmap::IndexSet;
use polder_words::{Mode, SiteName};

/// Portable fields and their native counterparts. Slurm is not in the first row: it may hold both forms of GPUs
/// when the totals agree, which is checked when a site resolves them.
const NATIVE: [(Mode, &str, &[&str]); 8] = [
    (Mode::Docker, "num_of_gpus", &["device_requests", "num_of_gpus"]),
    (Mode::K8s, "num_of_gpus", &["num_of_gpus"]),
    (Mode::Docker, "num_of_cpus", &["nano_cpus"]),
    (Mode::K8s, "num_of_cpus", &["cpu", "cpu_request"]),
    (Mode::Slurm, "num_of_cpus", &["cpus_per_node"]),
    (Mode::Docker, "memory", &["mem_limit"]),
    (Mode::K8s, "memory", &["memory", "memory_request"]),
    (Mode::Slurm, "memory", &["mem_per_node"]),
];

/// The portable amounts in a block; other keys pass.
pub(super) fn portable(at: &At<'_>) -> Result<Portable> {
    let map = at.map()?;
    let field = |key: &str| lookup(map, key).map(|value| at.child(key, value));
    Ok(Portable {
        gpus: field("num_of_gpus")
            .map(|at| match at.value().is_null() {
                true => Err(at.refuse("is null", "an integer from 0; 0 for no GPU")),
                false => at.int(0).cloned(),
            })
            .transpose()?,
        cpus: field("num_of_cpus").map(|at| at.int(1).cloned()).transpose()?,
        memory: field("memory").map(|at| Memory::read(&at)).transpose()?,
    })
}

/// Checks `resource_spec`: a map of site blocks.
pub(super) fn resource_spec(at: &At<'_>) -> Result<()> {
    let entries = at.entries()?;
    let has_default = entries.iter().any(|(key, _)| *key == DEFAULT);
    for (site, block) in entries {
        if site == DEFAULT {
            block.fields(&PORTABLE)?;
            portable(&block)?;
            continue;
        }
        if !is_nested(block.map()?) {
            portable(&block)?;
            continue;
        }
        one_spelling(&block)?;
        for (key, mode) in MODE_KEYS {
            let Some(value) = lookup(block.map()?, key) else { continue };
            let options = block.child(key, value);
            options.map()?;
            match mode {
                Mode::Docker => {
                    // FLARE 2.9 lets the older form name devices; only their conflicts are checked there.
                    DockerOptions::read(&options)?;
                }
                Mode::Process if has_default => {
                    portable(&options)?;
                }
                Mode::Process | Mode::K8s | Mode::Slurm => {}
            }
        }
    }
    Ok(())
}

/// Checks `launcher_spec`: a map of site blocks of modes.
pub(super) fn launcher_spec(at: &At<'_>, sites: &[SiteName]) -> Result<()> {
    let modes: Vec<&str> = MODE_KEYS.iter().map(|(key, _)| *key).collect();
    for (site, block) in at.entries()? {
        block.fields(&modes)?;
        one_spelling(&block)?;
        let near = is_near_default(site) || (!sites.is_empty() && is_slip_of_default(site));
        if near && !sites.iter().any(|s| s.as_str() == site) {
            let message = "is not a site of deploy_map and nearly `default`; is `default` meant?";
            return Err(block.refuse(message, "`default`, or the names of sites"));
        }
        for (key, options) in block.entries()? {
            options.map()?;
            if key == "docker" {
                DockerOptions::read(&options)?;
            }
        }
    }
    Ok(())
}

/// Keys of `launcher_spec` that are nearly `default` and hold nothing but modes, in the order of the document.
#[must_use]
pub fn near_misses(launcher_spec: &Value) -> Vec<String> {
    let only_modes = |value: &Value| {
        let modes = |map: &Map| map.keys().all(|k| MODE_KEYS.iter().any(|(mode, _)| *mode == k.as_str()));
        value.as_map().is_some_and(modes)
    };
    let Some(map) = launcher_spec.as_map() else { return Vec::new() };
    map.iter()
        .filter(|(key, value)| key.is_text() && is_near_default(key.as_str()) && only_modes(value))
        .map(|(key, _)| key.as_str().to_owned())
        .collect()
}

/// Begins like `default` or is the beginning of it: what FLARE warns about.
fn is_near_default(key: &str) -> bool {
    key != LAUNCHER_DEFAULT && (key.starts_with(LAUNCHER_DEFAULT) || LAUNCHER_DEFAULT.starts_with(key))
}

/// At most two slips away from `default`, as `Default` and `defautl`; only asked where the sites are known.
fn is_slip_of_default(key: &str) -> bool {
    key != LAUNCHER_DEFAULT
        && key.len() < 16
        && strsim::damerau_levenshtein(&key.to_lowercase(), LAUNCHER_DEFAULT) <= 2
}

fn one_spelling(block: &At<'_>) -> Result<()> {
    let map = block.map()?;
    match (lookup(map, "k8s"), lookup(map, "kubernetes")) {
        (Some(_), Some(value)) => Err(block
            .child("kubernetes", value)
            .refuse("stands beside `k8s`, which is the same", "one of them")),
        _ => Ok(()),
    }
}

/// Refuses what is said portably and natively at once, site by site and between the default blocks.
pub(crate) fn check_conflicts(
    at: &At<'_>,
    resource_spec: &ResourceSpec,
    launcher_spec: &LauncherSpec,
) -> Result<()> {
    let view =
        View { file: at.file(), resource_spec: resource_spec.value(), launcher_spec: launcher_spec.value() };
    let empty = Map::new();
    let resources = resource_spec.value().as_map().unwrap_or(&empty);
    let launchers = launcher_spec.value().as_map().unwrap_or(&empty);
    let of_resources = resources.keys().map(Key::as_str).filter(|key| *key != DEFAULT);
    let of_launchers = launchers.keys().map(Key::as_str).filter(|key| *key != LAUNCHER_DEFAULT);
    for site in of_resources.chain(of_launchers).collect::<IndexSet<&str>>() {
        let block = lookup(resources, site).and_then(Value::as_map);
        let nested = block.filter(|map| is_nested(map));
        let old_gpus = nested.and_then(|map| lookup(map, "process")).and_then(|p| p.get("num_of_gpus"));
        if let Some(gpus) = old_gpus {
            old_gpu_count(at, &view, site, gpus)?;
        }
        let portable = view.portable(site)?.to_map();
        for (mode, field, natives) in NATIVE {
            if lookup(&portable, field).is_none() {
                continue;
            }
            let mut clash = Vec::new();
            for key in natives {
                if view.option(site, mode, key)?.is_some() {
                    clash.push(*key);
                }
            }
            // The older form states its GPUs twice; that they agree was checked above.
            let twice = old_gpus.is_some() && clash == ["num_of_gpus"];
            if !clash.is_empty() && !twice {
                return Err(conflict(at, site, mode, field, &clash));
            }
        }
    }
    let (Some(portable), Some(launcher)) = (lookup(resources, DEFAULT), lookup(launchers, LAUNCHER_DEFAULT))
    else {
        return Ok(());
    };
    for (mode, field, natives) in NATIVE {
        for (key, _) in MODE_KEYS.iter().filter(|(_, m)| *m == mode) {
            let native = launcher.get(key);
            let clash: Vec<&str> =
                natives.iter().copied().filter(|k| native.is_some_and(|n| n.get(k).is_some())).collect();
            if portable.get(field).is_some() && !clash.is_empty() {
                return Err(conflict(at, LAUNCHER_DEFAULT, mode, field, &clash));
            }
        }
    }
    Ok(())
}

fn conflict(at: &At<'_>, site: &str, mode: Mode, field: &str, natives: &[&str]) -> crate::Error {
    let natives = natives.join(", ");
    at.refuse_below(
        &format!("launcher_spec.{site}.{mode}"),
        &natives,
        &format!("says natively ({natives}) what resource_spec says portably ({field})"),
        &format!("`{field}` in resource_spec or {natives} in launcher_spec, not both"),
    )
}

/// The GPUs an old `process` block reserves have to be those that the launcher asks for.
fn old_gpu_count(at: &At<'_>, view: &View<'_>, site: &str, gpus: &Value) -> Result<()> {
    let differs = |mode: Mode, found: &str, allowed: &str| {
        at.refuse_below(
            &format!("launcher_spec.{site}.{mode}"),
            found,
            &format!("asks for other GPUs than resource_spec.{site}.process.num_of_gpus"),
            allowed,
        )
    };
    let count = crate::value::to_json(gpus);
    if view.option(site, Mode::Docker, "device_requests")?.is_some() {
        return Err(differs(Mode::Docker, "device_requests", &format!("num_of_gpus: {count}")));
    }
    for mode in [Mode::Docker, Mode::K8s] {
        if let Some(native) =
            view.option(site, mode, "num_of_gpus")?.filter(|native| !same_number(native, gpus))
        {
            return Err(differs(mode, &crate::value::to_json(native), &count));
        }
    }
    let one = Data::Int(Int::from(1i64)).into();
    let nodes = view.option(site, Mode::Slurm, "nodes")?.unwrap_or(&one);
    let each = view.option(site, Mode::Slurm, "gpus_per_node")?;
    if let (Some(reserved), Some(nodes), Some(each)) =
        (gpus.as_int(), nodes.as_int(), each.and_then(Value::as_int))
    {
        let total = nodes.times(each);
        if total != *reserved {
            return Err(differs(Mode::Slurm, &format!("{nodes} nodes of {each}"), &count));
        }
    }
    Ok(())
}

/// Equality as Python sees it: `2 == 2.0`, `True == 1`.
fn same_number(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| match &value.data {
        Data::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Data::Int(int) => Some(int.to_f64()),
        Data::Float(number) => Some(*number),
        _ => None,
    };
    match (number(a), number(b)) {
        _ if a == b => true,
        (Some(_), Some(_)) if a.as_int().is_some() && b.as_int().is_some() => false,
        (Some(x), Some(y)) => x == y,
        _ => false,
    }
}
