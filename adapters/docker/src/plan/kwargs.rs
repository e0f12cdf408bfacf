//! Container settings in the Docker SDK's names (`docker_kwargs`, `job_container_kwargs`), as Engine API fields.
//!
//! [`TABLE`] is the whole of it: a key that is not there is not a setting, and what is [`Kind::Never`] would undo what
//! keeps a worker apart, or is the launcher's. The table is printed in `docs/docker.md`.

use polder_core::scalars::{SHM_SIZE, ShmSize};
use polder_core::value::Int;
use polder_launch::Refusal;
use polder_words::FailureClass;
use serde_json::{Map, Value, json};

/// How a setting is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An integer.
    Int,
    /// Bytes: an integer, or text such as `512m`.
    Bytes,
    /// Text.
    Text,
    /// A boolean.
    Bool,
    /// A list of texts, or one.
    Texts,
    /// A map of scalars.
    Texted,
    /// `{host: address}` or `host:address`.
    Hosts,
    /// A list of names, or a map.
    Labels,
    /// `[{Path, Rate}]`.
    Rates,
    /// `[{Path, Weight}]`.
    Weights,
    /// `[{Name, Soft, Hard}]`.
    Ulimits,
    /// `/dev/x[:/dev/y[:rwm]]`.
    Devices,
    /// `[{Driver, Count, DeviceIDs, Capabilities, Options}]`.
    DeviceRequests,
    /// `{path: options}`, or a list of paths.
    Tmpfs,
    /// `{Test, Interval, Timeout, Retries, StartPeriod}`.
    Health,
    /// `{Type, Config}` of a driver the engine can read back.
    Log,
    /// A command: text is split as a shell would.
    Command,
    /// Capabilities that do not lead out of a container.
    CapAdd,
    /// `label=...`, `apparmor=...` and `seccomp=...`, as long as they restrict.
    Security,
    /// Text, but no other container and no part of the host's.
    Mode,
    /// Accepted with this value only, which is what a worker gets anyway.
    Only(Fixed),
    /// Accepted and without effect, for this reason.
    Moot(&'static str),
    /// Refused, for this reason.
    Never(&'static str),
}

/// What Polder sets itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixed {
    /// `true`.
    True,
    /// `false`.
    False,
    /// No restart.
    NoRestart,
}

/// Where a field stands in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum In {
    /// The container's configuration.
    Config,
    /// `HostConfig`.
    Host,
    /// Not in the body: a parameter of the request.
    Query,
}

/// One setting: its name in the SDK, where it goes, its field there, how it is read.
pub type Entry = (&'static str, In, &'static str, Kind);

/// All settings there are.
pub const TABLE: [Entry; 75] = {
    use In::{Config, Host, Query};
    use Kind::*;
    [
        ("blkio_weight", Host, "BlkioWeight", Int),
        ("blkio_weight_device", Host, "BlkioWeightDevice", Weights),
        ("cap_add", Host, "CapAdd", CapAdd),
        ("cap_drop", Host, "CapDrop", Moot("all capabilities are dropped")),
        ("cgroup_parent", Host, "CgroupParent", Text),
        ("cgroupns", Host, "CgroupnsMode", Mode),
        ("cpu_count", Host, "CpuCount", Int),
        ("cpu_percent", Host, "CpuPercent", Int),
        ("cpu_period", Host, "CpuPeriod", Int),
        ("cpu_quota", Host, "CpuQuota", Int),
        ("cpu_rt_period", Host, "CpuRealtimePeriod", Int),
        ("cpu_rt_runtime", Host, "CpuRealtimeRuntime", Int),
        ("cpu_shares", Host, "CpuShares", Int),
        ("cpuset_cpus", Host, "CpusetCpus", Text),
        ("cpuset_mems", Host, "CpusetMems", Text),
        ("device_cgroup_rules", Host, "DeviceCgroupRules", Never("it opens devices that are not named")),
        ("device_read_bps", Host, "BlkioDeviceReadBps", Rates),
        ("device_read_iops", Host, "BlkioDeviceReadIOps", Rates),
        ("device_requests", Host, "DeviceRequests", DeviceRequests),
        ("device_write_bps", Host, "BlkioDeviceWriteBps", Rates),
        ("device_write_iops", Host, "BlkioDeviceWriteIOps", Rates),
        ("devices", Host, "Devices", Devices),
        ("dns", Host, "Dns", Texts),
        ("dns_opt", Host, "DnsOptions", Texts),
        ("dns_search", Host, "DnsSearch", Texts),
        ("domainname", Config, "Domainname", Text),
        ("entrypoint", Config, "Entrypoint", Command),
        ("extra_hosts", Host, "ExtraHosts", Hosts),
        ("group_add", Host, "GroupAdd", Texts),
        ("healthcheck", Config, "Healthcheck", Health),
        ("hostname", Config, "Hostname", Text),
        ("init", Host, "Init", Bool),
        ("init_path", Host, "", Never("engines have it no more; `init: true` takes their own")),
        ("ipc_mode", Host, "IpcMode", Mode),
        ("isolation", Host, "Isolation", Text),
        ("kernel_memory", Host, "", Never("engines have it no more; `mem_limit` counts the kernel's, too")),
        ("labels", Config, "Labels", Labels),
        ("links", Host, "Links", Never("a worker reaches its parent alone")),
        ("log_config", Host, "LogConfig", Log),
        ("lxc_conf", Host, "", Never("engines have it no more")),
        ("mac_address", Host, "", Never("the network is the site's: launcher.docker.network")),
        ("mem_limit", Host, "Memory", Bytes),
        ("mem_reservation", Host, "MemoryReservation", Bytes),
        ("mem_swappiness", Host, "MemorySwappiness", Int),
        ("memswap_limit", Host, "MemorySwap", Bytes),
        ("nano_cpus", Host, "NanoCpus", Int),
        ("network_disabled", Config, "", Never("the network is the site's: launcher.docker.network")),
        ("network_mode", Host, "", Never("the network is the site's: launcher.docker.network")),
        ("networking_config", Host, "", Never("the network is the site's: launcher.docker.network")),
        ("oom_kill_disable", Host, "OomKillDisable", Only(Fixed::False)),
        ("oom_score_adj", Host, "OomScoreAdj", Int),
        ("pid_mode", Host, "PidMode", Never("a worker sees its own processes alone")),
        ("pids_limit", Host, "PidsLimit", Int),
        ("platform", Query, "platform", Text),
        ("ports", Host, "", Never("a worker opens no port of the host")),
        ("privileged", Host, "Privileged", Only(Fixed::False)),
        ("publish_all_ports", Host, "PublishAllPorts", Only(Fixed::False)),
        ("read_only", Host, "ReadonlyRootfs", Only(Fixed::True)),
        ("restart_policy", Host, "RestartPolicy", Only(Fixed::NoRestart)),
        ("runtime", Host, "Runtime", Text),
        ("security_opt", Host, "SecurityOpt", Security),
        ("shm_size", Host, "ShmSize", Bytes),
        ("stdin_open", Config, "", Only(Fixed::False)),
        ("stop_signal", Config, "StopSignal", Text),
        ("storage_opt", Host, "StorageOpt", Texted),
        ("sysctls", Host, "Sysctls", Texted),
        ("tmpfs", Host, "Tmpfs", Tmpfs),
        ("tty", Config, "Tty", Only(Fixed::False)),
        ("ulimits", Host, "Ulimits", Ulimits),
        ("use_config_proxy", Config, "", Only(Fixed::False)),
        ("userns_mode", Host, "UsernsMode", Never("it would give up the engine's user namespace")),
        ("uts_mode", Host, "UTSMode", Mode),
        ("version", Query, "", Never("the version of the API is agreed on with the engine")),
        ("volume_driver", Host, "VolumeDriver", Never("what a study sees are its datasets")),
        ("volumes_from", Host, "VolumesFrom", Never("what a study sees are its datasets")),
    ]
};

/// Capabilities a site may give back. They are in the bounding set only: a worker is not root.
const CAPABILITIES: [&str; 4] = ["IPC_LOCK", "NET_BIND_SERVICE", "SYS_NICE", "SYS_RESOURCE"];
/// Log drivers the engine reads back: the last lines of a worker are part of its outcome.
const LOG_DRIVERS: [&str; 3] = ["json-file", "local", "journald"];

/// Settings, read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Read {
    /// Fields of the configuration.
    pub(super) config: Map<String, Value>,
    /// Fields of `HostConfig`.
    pub(super) host: Map<String, Value>,
    /// The platform asked for.
    pub(super) platform: Option<String>,
}

/// Where a setting stands, for refusals.
struct Spot<'a> {
    file: &'a str,
    at: String,
    value: &'a Value,
}

impl Spot<'_> {
    fn refuse(&self, class: FailureClass, message: &str, allowed: &str) -> Refusal {
        let found: String = self.value.to_string().chars().take(120).collect();
        Refusal::new(class, message).at(self.file, &self.at, &found, allowed)
    }

    fn wrong(&self, allowed: &str) -> Refusal {
        self.refuse(FailureClass::Config, "is not what this setting takes", allowed)
    }
}

/// Reads settings into the fields they are. `at` is where they stand in `file`.
///
/// # Errors
/// For a key that is no setting, a value that is not allowed, and what would undo a worker's isolation.
pub(super) fn read(
    settings: &Map<String, Value>,
    file: &str,
    at: &str,
    out: &mut Read,
) -> Result<(), Refusal> {
    for (key, value) in settings {
        let spot = Spot { file, at: format!("{at}.{key}"), value };
        let Some((_, place, field, kind)) = TABLE.iter().find(|(name, ..)| name == key) else {
            let names: Vec<_> = TABLE.iter().map(|(name, ..)| *name).collect();
            return Err(spot.refuse(
                FailureClass::Config,
                "is not a setting of a container",
                &names.join(", "),
            ));
        };
        // Null is the SDK's way of not saying anything.
        if value.is_null() {
            continue;
        }
        let Some(read) = one(&spot, *kind)? else { continue };
        match place {
            In::Config => drop(out.config.insert((*field).to_owned(), read)),
            In::Host => drop(out.host.insert((*field).to_owned(), read)),
            In::Query => out.platform = read.as_str().map(str::to_owned),
        }
    }
    Ok(())
}

fn one(spot: &Spot<'_>, kind: Kind) -> Result<Option<Value>, Refusal> {
    let value = spot.value;
    Ok(Some(match kind {
        Kind::Int => value.as_i64().map(Value::from).ok_or_else(|| spot.wrong("an integer"))?,
        Kind::Bytes => bytes(value).map(Value::from).ok_or_else(|| spot.wrong(SHM_SIZE))?,
        Kind::Text => match value.as_str() {
            Some(text) if clean(text) => value.clone(),
            _ => return Err(spot.wrong("text that is not empty")),
        },
        Kind::Bool => match value {
            Value::Bool(_) => value.clone(),
            _ => return Err(spot.wrong("true or false")),
        },
        Kind::Texts => json!(texts(spot)?),
        Kind::Texted => Value::Object(texted(spot)?),
        Kind::Hosts => match value {
            Value::Object(_) => {
                let pairs = texted(spot)?;
                Value::from_iter(pairs.iter().map(|(host, to)| format!("{host}:{}", bare(to))))
            }
            _ => json!(texts(spot)?),
        },
        Kind::Labels => Value::Object(labels(spot)?),
        Kind::Rates => devices_with(spot, "Rate")?,
        Kind::Weights => devices_with(spot, "Weight")?,
        Kind::Ulimits => ulimits(spot)?,
        Kind::Devices => devices(spot)?,
        Kind::DeviceRequests => device_requests(spot)?,
        Kind::Tmpfs => tmpfs(spot)?,
        Kind::Health => health(spot)?,
        Kind::Log => log(spot)?,
        Kind::Command => match value {
            Value::String(text) => match shell_words::split(text) {
                Ok(words) => json!(words),
                Err(_) => return Err(spot.wrong("text in which every quote ends, or a list of texts")),
            },
            _ => json!(texts(spot)?),
        },
        Kind::CapAdd => capabilities(spot)?,
        Kind::Security => security(spot)?,
        Kind::Mode => match value.as_str() {
            Some("host" | "private" | "shareable" | "none") => value.clone(),
            _ => {
                return Err(spot.refuse(
                    FailureClass::Policy,
                    "would share what is another container's, or is no mode",
                    "private, shareable, none, host",
                ));
            }
        },
        Kind::Only(fixed) => {
            only(spot, fixed)?;
            return Ok(None);
        }
        Kind::Moot(_) => return Ok(None),
        Kind::Never(why) => {
            return Err(spot.refuse(FailureClass::Policy, &format!("cannot be set: {why}"), "no such key"));
        }
    }))
}

fn only(spot: &Spot<'_>, fixed: Fixed) -> Result<(), Refusal> {
    let (good, allowed) = match fixed {
        Fixed::True => (spot.value == &Value::Bool(true), "true"),
        Fixed::False => (spot.value == &Value::Bool(false), "false"),
        Fixed::NoRestart => (pick(spot.value, "Name").is_some_and(|name| name == "no"), "{Name: \"no\"}"),
    };
    if good {
        return Ok(());
    }
    let message = "would undo what keeps a worker apart from the host, or what the parent relies on";
    Err(spot.refuse(FailureClass::Policy, message, allowed))
}

fn clean(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_control())
}

/// A scalar as the text Python's SDK would make of it.
fn bare(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Bytes, as `shm_size` is read.
pub(super) fn bytes(value: &Value) -> Option<u64> {
    let value = match value {
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => polder_core::value::Data::Int(Int::from(number.as_i64()?)).into(),
        _ => return None,
    };
    ShmSize::of(&value).map(|size| size.bytes())
}

/// A field of a map in either spelling, `DeviceIDs` or `device_ids`.
fn pick<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let same = |key: &str| {
        let plain = |text: &str| text.replace('_', "").to_ascii_lowercase();
        plain(key) == plain(name)
    };
    value.as_object()?.iter().find(|(key, _)| same(key)).map(|(_, value)| value)
}

/// Whether a map has no other fields than these.
fn has_only(value: &Value, names: &[&str]) -> bool {
    let known = |key: &String| {
        let one = json!({key.as_str(): null});
        names.iter().any(|name| pick(&one, name).is_some())
    };
    value.as_object().is_some_and(|map| map.keys().all(known))
}

fn texts(spot: &Spot<'_>) -> Result<Vec<String>, Refusal> {
    let wrong = || spot.wrong("a list of texts");
    let text = |value: &Value| match value {
        Value::String(text) if clean(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match spot.value {
        Value::Array(items) => items.iter().map(|item| text(item).ok_or_else(wrong)).collect(),
        one => Ok(vec![text(one).ok_or_else(wrong)?]),
    }
}

fn texted(spot: &Spot<'_>) -> Result<Map<String, Value>, Refusal> {
    let map = spot.value.as_object().ok_or_else(|| spot.wrong("a map of texts"))?;
    if map.values().any(|value| value.is_object() || value.is_array() || value.is_null()) {
        return Err(spot.wrong("a map of texts"));
    }
    Ok(map.iter().map(|(key, value)| (key.clone(), Value::from(bare(value)))).collect())
}

fn labels(spot: &Spot<'_>) -> Result<Map<String, Value>, Refusal> {
    let map = match spot.value {
        Value::Array(_) => texts(spot)?.into_iter().map(|name| (name, Value::from(""))).collect(),
        _ => texted(spot)?,
    };
    match map.keys().find(|name| name.starts_with("polder.")) {
        Some(name) => {
            Err(spot.refuse(FailureClass::Config, &format!("names {name}"), "labels without `polder.`"))
        }
        None => Ok(map),
    }
}

fn items<'a>(spot: &Spot<'a>, allowed: &str) -> Result<Vec<&'a Value>, Refusal> {
    match spot.value {
        Value::Array(items) => Ok(items.iter().collect()),
        _ => Err(spot.wrong(allowed)),
    }
}

fn devices_with(spot: &Spot<'_>, what: &str) -> Result<Value, Refusal> {
    let allowed = format!("a list of {{Path, {what}}}");
    let mut out = Vec::new();
    for item in items(spot, &allowed)? {
        let path = pick(item, "Path").and_then(Value::as_str).filter(|path| path.starts_with("/dev/"));
        let amount =
            pick(item, what).and_then(|value| if what == "Rate" { bytes(value) } else { value.as_u64() });
        match (path, amount) {
            (Some(path), Some(amount)) if has_only(item, &["Path", what]) => {
                out.push(json!({"Path": path, what: amount}));
            }
            _ => return Err(spot.wrong(&allowed)),
        }
    }
    Ok(out.into())
}

fn ulimits(spot: &Spot<'_>) -> Result<Value, Refusal> {
    const ALLOWED: &str = "a list of {Name, Soft, Hard}";
    let mut out = Vec::new();
    for item in items(spot, ALLOWED)? {
        let number = |name| pick(item, name).map(|value| value.as_i64().ok_or_else(|| spot.wrong(ALLOWED)));
        let (soft, hard) = (number("Soft").transpose()?, number("Hard").transpose()?);
        match pick(item, "Name").and_then(Value::as_str) {
            Some(name) if clean(name) && has_only(item, &["Name", "Soft", "Hard"]) => {
                let soft = soft.or(hard).unwrap_or(0);
                out.push(json!({"Name": name, "Soft": soft, "Hard": hard.unwrap_or(soft)}));
            }
            _ => return Err(spot.wrong(ALLOWED)),
        }
    }
    Ok(out.into())
}

fn devices(spot: &Spot<'_>) -> Result<Value, Refusal> {
    const ALLOWED: &str = "a list of /dev/x, /dev/x:/dev/y or /dev/x:/dev/y:rwm";
    let mut out = Vec::new();
    for item in items(spot, ALLOWED)? {
        let (host, inside, rights) = if item.is_object() {
            let text = |name| pick(item, name).and_then(Value::as_str);
            let host = text("PathOnHost").unwrap_or_default();
            let inside = text("PathInContainer").unwrap_or(host);
            (host, inside, text("CgroupPermissions").unwrap_or("rwm"))
        } else {
            let parts: Vec<&str> = item.as_str().unwrap_or_default().split(':').collect();
            match parts.as_slice() {
                [host] => (*host, *host, "rwm"),
                // As the SDK has it: two parts may be a path and its rights.
                [host, rights] if !rights.starts_with('/') => (*host, *host, *rights),
                [host, inside] => (*host, *inside, "rwm"),
                [host, inside, rights] => (*host, *inside, *rights),
                _ => return Err(spot.wrong(ALLOWED)),
            }
        };
        let path =
            |path: &str| path.starts_with("/dev/") && clean(path) && !path.split('/').any(|p| p == "..");
        let good = path(host)
            && path(inside)
            && !rights.is_empty()
            && rights.chars().all(|c| matches!(c, 'r' | 'w' | 'm'));
        if !good {
            return Err(spot.wrong(ALLOWED));
        }
        out.push(json!({"PathOnHost": host, "PathInContainer": inside, "CgroupPermissions": rights}));
    }
    Ok(out.into())
}

fn device_requests(spot: &Spot<'_>) -> Result<Value, Refusal> {
    const ALLOWED: &str = "a list of {Driver, Count, DeviceIDs, Capabilities, Options}";
    const NAMES: [&str; 5] = ["Driver", "Count", "DeviceIDs", "Capabilities", "Options"];
    let mut out = Vec::new();
    for item in items(spot, ALLOWED)? {
        if !has_only(item, &NAMES) {
            return Err(spot.wrong(ALLOWED));
        }
        let mut request = Map::new();
        for name in NAMES {
            let Some(value) = pick(item, name).filter(|value| !value.is_null()) else { continue };
            let all_text = |value: &Value| value.as_array().is_some_and(|a| a.iter().all(Value::is_string));
            let good = match name {
                "Driver" => value.is_string(),
                "Count" => value.as_i64().is_some_and(|count| count >= -1),
                "DeviceIDs" => all_text(value),
                "Capabilities" => value.as_array().is_some_and(|lists| lists.iter().all(all_text)),
                _ => value.as_object().is_some_and(|map| map.values().all(Value::is_string)),
            };
            if !good {
                return Err(spot.wrong(ALLOWED));
            }
            request.insert(name.to_owned(), value.clone());
        }
        out.push(Value::Object(request));
    }
    Ok(out.into())
}

fn tmpfs(spot: &Spot<'_>) -> Result<Value, Refusal> {
    let pairs: Vec<(String, String)> = match spot.value {
        Value::Object(map) => map.iter().map(|(path, options)| (path.clone(), bare(options))).collect(),
        _ => texts(spot)?
            .into_iter()
            .map(|text| match text.split_once(':') {
                Some((path, options)) => (path.to_owned(), options.to_owned()),
                None => (text, String::new()),
            })
            .collect(),
    };
    let mut out = Map::new();
    for (path, options) in pairs {
        let ours = path == super::HOME || path.starts_with(&format!("{}/", super::HOME));
        let good =
            path.starts_with('/') && path != "/" && !path.split('/').any(|p| p == "..") && clean(&path);
        if !good || ours || (!options.is_empty() && !clean(&options)) {
            return Err(spot.wrong("{/absolute/path: options}, not / and not the launcher's /polder"));
        }
        out.insert(path, options.into());
    }
    Ok(Value::Object(out))
}

fn health(spot: &Spot<'_>) -> Result<Value, Refusal> {
    const ALLOWED: &str = "{test: [...], interval, timeout, start_period: nanoseconds, retries}";
    const NAMES: [&str; 5] = ["Test", "Interval", "Timeout", "StartPeriod", "Retries"];
    if !has_only(spot.value, &NAMES) {
        return Err(spot.wrong(ALLOWED));
    }
    let mut out = Map::new();
    for name in NAMES {
        let Some(value) = pick(spot.value, name) else { continue };
        let value = match (name, value) {
            ("Test", Value::String(text)) => json!(["CMD-SHELL", text]),
            ("Test", Value::Array(items)) if items.iter().all(Value::is_string) => value.clone(),
            ("Test", _) => return Err(spot.wrong(ALLOWED)),
            (_, Value::Number(number)) if number.is_i64() || number.is_u64() => value.clone(),
            _ => return Err(spot.wrong(ALLOWED)),
        };
        out.insert(name.to_owned(), value);
    }
    Ok(Value::Object(out))
}

fn log(spot: &Spot<'_>) -> Result<Value, Refusal> {
    let driver = pick(spot.value, "Type").and_then(Value::as_str).unwrap_or("json-file");
    if !LOG_DRIVERS.contains(&driver) || !has_only(spot.value, &["Type", "Config"]) {
        let message = "is a log the engine cannot read back, so a failure would have no last lines";
        let allowed = format!("{{Type, Config}} with a Type of {}", LOG_DRIVERS.join(", "));
        return Err(spot.refuse(FailureClass::Config, message, &allowed));
    }
    let mut config = Map::new();
    match pick(spot.value, "Config") {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) => {
            config.extend(map.iter().map(|(key, value)| (key.clone(), Value::from(bare(value)))));
        }
        Some(_) => return Err(spot.wrong("{Type, Config: {name: text}}")),
    }
    Ok(json!({"Type": driver, "Config": config}))
}

fn capabilities(spot: &Spot<'_>) -> Result<Value, Refusal> {
    let mut out = Vec::new();
    for name in texts(spot)? {
        let upper = name.to_ascii_uppercase();
        let plain = upper.strip_prefix("CAP_").unwrap_or(&upper).to_owned();
        if !CAPABILITIES.contains(&plain.as_str()) {
            let message = format!("adds {plain}, which leads out of a container or is none");
            return Err(spot.refuse(FailureClass::Policy, &message, &CAPABILITIES.join(", ")));
        }
        out.push(plain);
    }
    Ok(json!(out))
}

fn security(spot: &Spot<'_>) -> Result<Value, Refusal> {
    let mut out = Vec::new();
    for text in texts(spot)? {
        let split = text.split_once('=').or_else(|| text.split_once(':')).unwrap_or((&text, ""));
        match split {
            // Given anyway.
            ("no-new-privileges", "" | "true") => {}
            ("label", _) => out.push(text.clone()),
            ("apparmor" | "seccomp", value) if !matches!(value, "" | "unconfined") => out.push(text.clone()),
            _ => {
                return Err(spot.refuse(
                    FailureClass::Policy,
                    "would take restrictions away, or is none",
                    "label=..., apparmor=PROFILE, seccomp=PROFILE",
                ));
            }
        }
    }
    Ok(json!(out))
}
