//! One study of the file, key by key.

use super::{
    Access, Approval, DOCKER_OWNED, Dataset, Egress, ImagePolicy, Limits, MountMode, Reading, SecretEnv,
    SecretMount, SlurmStudy, StudyRuntime, env_text, is_env_name, is_reserved_env,
};
use crate::error::{Error, Result};
use crate::export::Export;
use crate::launcher::SlurmSandbox;
use crate::value::{At, Data, Map, from_yaml, lookup};
use indexmap::IndexMap;
use polder_words::{Mode, StudyName};

const KEYS: [&str; 14] = [
    "container",
    "pod_template",
    "docker_kwargs",
    "datasets",
    "env",
    "secret_env",
    "secret_mounts",
    "slurm",
    "access",
    "export",
    "egress",
    "approval",
    "images",
    "limits",
];

/// The settings of the Docker SDK's `containers.run` that shape a container and are not the launcher's.
pub const DOCKER_SETTINGS: [&str; 75] = [
    "blkio_weight",
    "blkio_weight_device",
    "cap_add",
    "cap_drop",
    "cgroup_parent",
    "cgroupns",
    "cpu_count",
    "cpu_percent",
    "cpu_period",
    "cpu_quota",
    "cpu_rt_period",
    "cpu_rt_runtime",
    "cpu_shares",
    "cpuset_cpus",
    "cpuset_mems",
    "device_cgroup_rules",
    "device_read_bps",
    "device_read_iops",
    "device_requests",
    "device_write_bps",
    "device_write_iops",
    "devices",
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "entrypoint",
    "extra_hosts",
    "group_add",
    "healthcheck",
    "hostname",
    "init",
    "init_path",
    "ipc_mode",
    "isolation",
    "kernel_memory",
    "labels",
    "links",
    "log_config",
    "lxc_conf",
    "mac_address",
    "mem_limit",
    "mem_reservation",
    "mem_swappiness",
    "memswap_limit",
    "nano_cpus",
    "network_disabled",
    "network_mode",
    "networking_config",
    "oom_kill_disable",
    "oom_score_adj",
    "pid_mode",
    "pids_limit",
    "platform",
    "ports",
    "privileged",
    "publish_all_ports",
    "read_only",
    "restart_policy",
    "runtime",
    "security_opt",
    "shm_size",
    "stdin_open",
    "stop_signal",
    "storage_opt",
    "sysctls",
    "tmpfs",
    "tty",
    "ulimits",
    "use_config_proxy",
    "userns_mode",
    "uts_mode",
    "version",
    "volume_driver",
    "volumes_from",
];

pub(super) fn study(
    study: StudyName,
    at: &At<'_>,
    reading: &Reading<'_>,
    warnings: &mut Vec<String>,
) -> Result<StudyRuntime> {
    let fields = at.fields(&KEYS)?;
    let mode = reading.mode;
    let only_for = |key: &str, wanted: Mode, name: &str| match fields.get(key) {
        Some(at) if mode != wanted => Err(at.refuse(&format!("is only for {name}"), "nothing")),
        found => Ok(found),
    };
    let mut out = StudyRuntime::empty(study);
    if let Some(at) = fields.get("container") {
        out.container_image = Some(container(&at, reading)?);
    }
    if let Some(at) = only_for("pod_template", Mode::K8s, "Kubernetes")? {
        out.pod_template = Some(pod_template(&at, reading)?);
    }
    if let Some(at) = only_for("docker_kwargs", Mode::Docker, "Docker")? {
        out.docker_kwargs = docker_kwargs(&at)?;
    }
    if let Some(at) = fields.get("datasets") {
        out.datasets = at.entries()?.iter().map(|(n, at)| dataset(n, at, mode)).collect::<Result<_>>()?;
    }
    if let Some(at) = fields.get("env") {
        out.env = env(&at, mode)?;
    }
    if let Some(at) = fields.get("secret_env") {
        for (name, entry) in at.entries()? {
            if out.env.contains_key(name) {
                return Err(entry.refuse("is in env, too", "each variable once"));
            }
            out.secret_env.push(secret_env(name, &entry, mode, warnings)?);
        }
    }
    if let Some(at) = fields.get("secret_mounts") {
        out.secret_mounts =
            at.entries()?.iter().map(|(n, at)| secret_mount(n, at, mode)).collect::<Result<_>>()?;
    }
    if let Some(at) = only_for("slurm", Mode::Slurm, "Slurm")? {
        out.slurm = SlurmStudy::read(&at)?;
        if out.slurm.sandbox == Some(SlurmSandbox::None) {
            for key in ["container", "datasets", "secret_mounts"] {
                if let Some(at) = fields.get(key) {
                    return Err(
                        at.refuse("cannot be given with slurm.sandbox none", "nothing, or another sandbox")
                    );
                }
            }
        }
    }
    if let Some(at) = fields.given("access") {
        out.access = Some(Access::read(&at)?);
    }
    if let Some(at) = fields.given("export") {
        out.export = Export::parse(&at)?;
    }
    if let Some(at) = fields.given("egress") {
        out.egress = Some(at.seq()?.iter().map(Egress::read).collect::<Result<_>>()?);
    }
    if let Some(at) = fields.given("approval") {
        out.approval = Approval::read(&at)?;
    }
    if let Some(at) = fields.given("images") {
        out.images = ImagePolicy::read(&at)?;
    }
    if let Some(at) = fields.given("limits") {
        out.limits = Limits::read(&at)?;
    }
    Ok(out)
}

fn container(at: &At<'_>, reading: &Reading<'_>) -> Result<String> {
    let image = at.fields(&["image"])?.need("image", "a reference, or a file for Slurm")?;
    if reading.mode != Mode::Slurm {
        return image.clean_text().map(str::to_owned);
    }
    let text = image.clean_text()?;
    if reading.pyxis_pulls
        && !text.starts_with('/')
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        return Ok(text.to_owned());
    }
    slurm_path(&image, false)
}

/// An absolute path for Slurm; as part of a mount without `:` and `,`.
pub(super) fn slurm_path(at: &At<'_>, mount: bool) -> Result<String> {
    let text = at.clean_text()?;
    let allowed = if mount {
        "an absolute path without newline, `:` and `,`"
    } else {
        "an absolute path without newline"
    };
    if !text.starts_with('/') {
        return Err(at.refuse("is not an absolute path", allowed));
    }
    if text.contains(['\n', '\r']) || (mount && text.contains([':', ','])) {
        return Err(at.refuse("holds a character that Slurm paths cannot", allowed));
    }
    Ok(text.to_owned())
}

fn name(at: &At<'_>, name: &str, what: &str) -> Result<String> {
    // Datasets and secret mounts are named as studies are.
    StudyName::new(name)
        .map(|name| name.as_str().to_owned())
        .map_err(|error| at.refuse(&format!("is under a name that is not a {what}'s"), error.allowed))
}

fn dataset(key: &str, at: &At<'_>, mode: Mode) -> Result<Dataset> {
    let name = name(at, key, "dataset")?;
    if let Some(kind) = lookup(at.map()?, "type") {
        let kind = at.child("type", kind);
        match kind.value().as_text() {
            Some("mount") => {}
            Some("databricks") => return Err(kind.refuse("is not yet supported", "mount")),
            _ => return Err(kind.refuse("is not a type of dataset", "mount")),
        }
    }
    let fields = at.fields(&["type", "source", "mode"])?;
    let source = fields.need("source", "where the data is")?;
    let source =
        if mode == Mode::Slurm { slurm_path(&source, true)? } else { source.clean_text()?.to_owned() };
    let modes = [("ro", MountMode::Ro), ("rw", MountMode::Rw)];
    Ok(Dataset { name, source, mode: fields.need("mode", "ro, rw")?.word(&modes)? })
}

/// Checks the name of a variable a study sets.
fn env_name(at: &At<'_>, name: &str, mode: Mode) -> Result<()> {
    if mode == Mode::Slurm && !is_env_name(name) {
        return Err(at.refuse("is under a name no shell takes", "letters, digits and `_`, no digit first"));
    }
    if name.is_empty() || name.contains(|c: char| c == '=' || c.is_control()) {
        return Err(
            at.refuse("is under a name no environment takes", "text without `=` and control characters")
        );
    }
    if is_reserved_env(name, mode) {
        return Err(at.refuse("is under a name reserved for the launcher", "other names"));
    }
    Ok(())
}

fn env(at: &At<'_>, mode: Mode) -> Result<IndexMap<String, String>> {
    let mut out = IndexMap::new();
    for (name, value) in at.entries()? {
        env_name(&value, name, mode)?;
        let text = env_text(&value)?;
        if text.is_empty() && mode != Mode::Slurm {
            return Err(
                value.refuse("is empty, which launchers treat differently", "a value, or no such key")
            );
        }
        out.insert(name.to_owned(), text);
    }
    Ok(out)
}

fn secret_env(name: &str, at: &At<'_>, mode: Mode, warnings: &mut Vec<String>) -> Result<SecretEnv> {
    env_name(at, name, mode)?;
    let fields = at.fields(&["source", "key"])?;
    let source_at = fields.need("source", "where the secret is")?;
    let source = source_at.clean_text()?;
    let file = source.strip_prefix("file:");
    if let Some(path) = file {
        if mode == Mode::K8s {
            return Err(source_at.refuse("is a file, which pods do not see", "the name of a Secret"));
        }
        let parts = path.split('/').skip(1);
        if !path.starts_with('/')
            || parts.clone().any(|p| matches!(p, "" | "." | ".."))
            || path.contains(['\n', '\r'])
        {
            return Err(source_at
                .refuse("is not an absolute path", "file:/path of a file only root or the parent reads"));
        }
    } else if mode == Mode::Slurm && (!is_env_name(source) || is_reserved_env(source, mode)) {
        return Err(
            source_at.refuse("is not a variable of the parent", "the name of a variable, or file:/path")
        );
    } else if mode != Mode::K8s {
        warnings.push(format!(
            "{}: the secret is a variable of the parent's environment; a file is safer (source: file:/path)",
            at.path()
        ));
    }
    let key = match fields.get("key") {
        Some(key) if !key.value().is_null() || (mode != Mode::Slurm && file.is_none()) => {
            Some(key.clean_text()?.to_owned())
        }
        None if mode != Mode::Slurm && file.is_none() => {
            return Err(fields.need("key", "the key in the Secret").expect_err("it is not there"));
        }
        _ => None,
    };
    Ok(SecretEnv { name: name.to_owned(), source: source.to_owned(), key })
}

fn secret_mount(key: &str, at: &At<'_>, mode: Mode) -> Result<SecretMount> {
    let name = name(at, key, "secret mount")?;
    let fields = at.fields(&["source", "mount_path", "mode", "items"])?;
    if let Some(mode) = fields.get("mode").filter(|at| at.value().as_text() != Some("ro")) {
        return Err(mode.refuse("cannot be: secrets are read-only", "ro"));
    }
    let path_at = fields.need("mount_path", "an absolute path")?;
    let mount_path =
        if mode == Mode::Slurm { slurm_path(&path_at, true)? } else { path_at.clean_text()?.to_owned() };
    destination(&path_at, &mount_path)?;
    let items = match fields.given("items") {
        None => None,
        Some(at) if mode != Mode::K8s => {
            return Err(at.refuse("is only for Kubernetes", "a source that holds only what is wanted"));
        }
        Some(at) => Some(secret_items(&at)?),
    };
    let source = fields.need("source", "where the secret is")?;
    let source =
        if mode == Mode::Slurm { slurm_path(&source, true)? } else { source.clean_text()?.to_owned() };
    Ok(SecretMount { name, source, mount_path, items })
}

/// A place in a container where something may be mounted.
pub(super) fn destination(at: &At<'_>, path: &str) -> Result<()> {
    const ALLOWED: &str = "a normalised absolute path, not /, nor in /proc, /sys, /dev";
    let Some(rest) = path.strip_prefix('/') else {
        return Err(at.refuse("is not an absolute path", ALLOWED));
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(at.refuse("is not a place of its own", ALLOWED));
    }
    if rest.split('/').next().is_some_and(|first| matches!(first, "proc" | "sys" | "dev")) {
        return Err(at.refuse("is the system's", ALLOWED));
    }
    Ok(())
}

fn secret_items(at: &At<'_>) -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    for (key, path) in at.entries()? {
        if key.is_empty() {
            return Err(path.refuse("is under an empty key", "keys of the Secret"));
        }
        out.push((key.to_owned(), path.clean_text()?.to_owned()));
    }
    if out.is_empty() { Err(at.refuse("is empty", "keys and files, or no `items` for all")) } else { Ok(out) }
}

fn docker_kwargs(at: &At<'_>) -> Result<Map> {
    for (key, value) in at.entries()? {
        if DOCKER_OWNED.contains(&key) {
            return Err(value.refuse("is set by the launcher", "other settings of a container"));
        }
        if !DOCKER_SETTINGS.contains(&key) {
            return Err(crate::value::unknown_key(&value, key, &DOCKER_SETTINGS));
        }
    }
    at.map().cloned()
}

fn pod_template(at: &At<'_>, reading: &Reading<'_>) -> Result<Map> {
    let Data::Text(_) = &at.value().data else { return pod(at) };
    let path = relative(at)?;
    let bytes = reading
        .files
        .read(&path)
        .map_err(|why| at.refuse(&format!("cannot be read: {why}"), "a file beside study_runtime.yaml"))?;
    let value = from_yaml(&path, &bytes)?;
    pod(&At::root(&path, &value)).map_err(|error| {
        let place = if error.at().is_empty() { path.clone() } else { format!("{path}: {}", error.at()) };
        Error::new(
            at.file(),
            at.path(),
            error.found(),
            error.allowed(),
            &format!("{place} {}", error.message()),
        )
        .on_line(at.value().line)
    })
}

/// A pod, as far as it is looked at here: a map whose `kind`, if any, is Pod.
fn pod(at: &At<'_>) -> Result<Map> {
    let map = at.map()?;
    if let Some(kind) = lookup(map, "kind") {
        let nothing = match &kind.data {
            Data::Null | Data::Bool(false) => true,
            Data::Int(int) => int.is_zero(),
            Data::Float(number) => *number == 0.0,
            Data::Text(text) => text.is_empty() || text == "Pod",
            Data::Seq(items) => items.is_empty(),
            Data::Map(map) => map.is_empty(),
            Data::Bool(true) => false,
        };
        if !nothing {
            return Err(at.child("kind", kind).refuse("is not a pod", "Pod"));
        }
    }
    Ok(map.clone())
}

/// A path below the folder of the file, `a/../b` and the like resolved.
fn relative(at: &At<'_>) -> Result<String> {
    const ALLOWED: &str = "a relative path below the folder of study_runtime.yaml, or the pod itself";
    let text = at.clean_text()?;
    let mut parts: Vec<&str> = Vec::new();
    let mut outside = text.starts_with('/');
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => outside = true,
            ".." => {}
            part => parts.push(part),
        }
    }
    if outside || parts.is_empty() {
        return Err(at.refuse("is not below the folder of the file", ALLOWED));
    }
    Ok(parts.join("/"))
}
