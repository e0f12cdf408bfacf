//! The launcher of a parent: exactly one mode and its settings.

use super::channel::WorkerPort;
use crate::error::Result;
use crate::launcher::{SANDBOXES, SlurmSandbox};
use crate::scalars::Memory;
use crate::study_runtime::{DOCKER_OWNED, is_env_name, is_reserved_env};
use crate::value::{At, Data, Fields, Map, Value};
use indexmap::IndexMap;
use polder_words::{FileWay, Mode};
use std::path::PathBuf;
use std::time::Duration;

/// What `launcher` may hold, in words.
pub(super) const ONE_OF: &str = "exactly one of process, docker, kubernetes, slurm";
/// Ports for the other nodes of a Slurm launch.
const NODE_PORTS: (u16, u16) = (29400, 30399);

/// The launcher and its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum LauncherConfig {
    /// Processes of this host.
    Process(Box<ProcessLauncher>),
    /// A Docker or Podman engine.
    Docker(Box<DockerLauncher>),
    /// Pods.
    K8s(Box<K8sLauncher>),
    /// Slurm jobs.
    Slurm(Box<SlurmLauncher>),
}

/// The GPUs a parent hands out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Devices {
    /// Those the driver names.
    #[default]
    Auto,
    /// Those of these ids.
    Ids(Vec<String>),
}

/// When a worker has to be kept away from its parent's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IsolationRequired {
    /// For every job.
    Always,
    /// For jobs that bring code.
    #[default]
    Byoc,
    /// Never: the site trusts its jobs.
    Never,
}

/// Settings of `process`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessLauncher {
    /// `auto`, a list of ids, or a count. Default `auto`.
    pub gpus: Devices,
    /// CPUs to hand out; absent: those of the host.
    pub cpus: Option<u32>,
    /// Memory to hand out; absent: that of the host.
    pub memory: Option<Memory>,
    /// The account workers run as, where the parent may switch.
    pub user: Option<String>,
    /// Whether a job may run without isolation. `true`, `false` or `byoc`, the default.
    pub isolation_required: IsolationRequired,
    /// The interpreter offered to trainers.
    pub python_path: Option<String>,
    /// Variables of the parent that workers get.
    pub forward_env: Vec<String>,
    /// How long a worker may take to start. Default 1 min.
    pub pending_timeout: Duration,
    /// The worker program; absent: `polder-worker` beside the parent.
    pub worker: Option<PathBuf>,
    /// What workers may read besides the system and their own folders.
    pub read: Vec<PathBuf>,
    /// What workers may write besides their own folders.
    pub write: Vec<PathBuf>,
    /// A delegated folder of control groups version 2; absent: what the parent may use as it was started.
    pub cgroup: Option<PathBuf>,
    /// A port workers dial instead of the parent's socket; off unless `internal_port` or `parent_host` stands there.
    pub channel: Option<WorkerPort>,
    /// How files go between workers and parent. Default `shared`.
    pub files: FileWay,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pull {
    /// Never: it has to be there.
    #[default]
    Never,
    /// When it is not there.
    Missing,
    /// Before each launch.
    Always,
}

/// Settings of `docker`.
#[derive(Debug, Clone, PartialEq)]
pub struct DockerLauncher {
    /// The engine's socket. Default `/var/run/docker.sock`.
    pub socket: String,
    /// The image of studies that name none.
    pub image: Option<String>,
    /// Default `none`.
    pub network: String,
    /// Default `never`.
    pub pull: Pull,
    /// How long a container may take to run; absent or null waits for ever. Default 10 min.
    pub pending_timeout: Option<Duration>,
    /// `auto`, a list of ids, or a count. Default `auto`.
    pub gpus: Devices,
    /// CPUs to hand out; absent: those of the engine's host.
    pub cpus: Option<u32>,
    /// Memory to hand out; absent: that of the engine's host.
    pub memory: Option<Memory>,
    /// The interpreter in images.
    pub python_path: Option<String>,
    /// Variables every worker gets.
    pub job_env: IndexMap<String, String>,
    /// Container settings of every worker, in the Docker SDK's names.
    pub job_container_kwargs: Map,
    /// Where the state folder is on the engine's host, when the parent runs in a container itself.
    pub workspace: Option<String>,
    /// `uid:gid` of workers; absent: the parent's own, or 65534:65534 when that is root. `0:0` is for a rootless
    /// engine, whose root is the account it runs as.
    pub user: Option<(u32, u32)>,
    /// The worker program, linked statically; absent: `polder-worker` beside the parent.
    pub worker: Option<PathBuf>,
    /// A port workers dial instead of the parent's socket; off unless `internal_port` or `parent_host` stands there.
    pub channel: Option<WorkerPort>,
}

/// Settings of `kubernetes`.
#[derive(Debug, Clone, PartialEq)]
pub struct K8sLauncher {
    /// Default `default`.
    pub namespace: String,
    /// A kubeconfig file; absent: the pod's own service account.
    pub kubeconfig: Option<String>,
    /// A context of the kubeconfig.
    pub context: Option<String>,
    /// The image of studies that name none.
    pub image: Option<String>,
    /// Kubernetes' `imagePullPolicy`. Default `IfNotPresent`.
    pub image_pull_policy: String,
    /// Secrets to pull with.
    pub image_pull_secrets: Vec<String>,
    /// How long a pod may be pending: null waits, 0 fails at once. Default 2 min.
    pub pending_timeout: Option<Duration>,
    /// Size limit of the job's folder. Default `1Gi`.
    pub ephemeral_storage: String,
    /// The pod's `securityContext`; absent: a restricted one.
    pub pod_security_context: Option<Map>,
    /// The interpreter in images.
    pub python_path: Option<String>,
    /// Where the job's folder is in the pod. Default `/var/tmp/polder`.
    pub workspace: String,
    /// Where workers dial; `parent_host` is best a Service's. Default port 8102 on every address of this host.
    pub channel: WorkerPort,
    /// The name of the GPU resource. Default `nvidia.com/gpu`.
    pub gpu_resource: String,
    /// The image an init container takes `polder-worker` from. Default `polder-parent:<this version>`.
    pub worker_image: String,
}

/// Settings of `slurm`.
#[derive(Debug, Clone, PartialEq)]
pub struct SlurmLauncher {
    /// Default `none`; a study may choose another.
    pub sandbox: SlurmSandbox,
    /// The image of studies that name none; an absolute file.
    pub image: Option<String>,
    /// `partition`, `account`, `qos`, `time`, `constraint`, `reservation`, as `sbatch` takes them.
    pub directives: IndexMap<String, String>,
    /// Lines of shell before the worker.
    pub setup: String,
    /// The interpreter on the nodes.
    pub python_path: Option<String>,
    /// Absolute paths of programs on the nodes: `apptainer`, `srun`.
    pub executables: IndexMap<String, String>,
    /// Variables of the parent that workers get.
    pub forward_env: Vec<String>,
    /// Where workers dial. Default port 8102 of this host, by its name.
    pub channel: WorkerPort,
    /// How long a submission may take. Default 30 s.
    pub submit_timeout: Duration,
    /// How long a question to the controller may take. Default 10 s.
    pub query_timeout: Duration,
    /// How long a cancellation may take. Default 10 s.
    pub cancel_timeout: Duration,
    /// How often jobs are looked at without news. Default 10 s.
    pub poll_interval: Duration,
    /// How long a job may be pending. Default 10 min.
    pub pending_timeout: Duration,
    /// Ports for the other nodes of a launch. Default 29400-30399.
    pub multi_node_port_range: (u16, u16),
    /// The run directories, on a file system the nodes share; absent: below `state`.
    pub workspace: Option<String>,
    /// Types of GPU a job may ask for.
    pub gpu_types: Vec<String>,
    /// Whether Pyxis may pull, so that an image may be a reference. Default no.
    pub pyxis_pulls: bool,
}

/// The settings of `sbatch` a site fixes.
pub(super) const DIRECTIVES: [&str; 6] = ["partition", "account", "qos", "time", "constraint", "reservation"];

impl LauncherConfig {
    /// What it is.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Process(_) => Mode::Process,
            Self::Docker(_) => Mode::Docker,
            Self::K8s(_) => Mode::K8s,
            Self::Slurm(_) => Mode::Slurm,
        }
    }

    pub(super) fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&["process", "docker", "kubernetes", "k8s", "slurm"])?;
        let entries = at.entries()?;
        let [(mode, settings)] = entries.as_slice() else {
            return Err(at.refuse(&format!("holds {} launchers", entries.len()), ONE_OF));
        };
        // `process:` alone is a launcher without settings.
        let empty = Value::map::<&str>([]);
        let value = if settings.value().is_null() { &empty } else { settings.value() };
        let settings = fields.at().child(mode, value);
        Ok(match *mode {
            "process" => Self::Process(Box::new(process(&settings)?)),
            "docker" => Self::Docker(Box::new(docker(&settings)?)),
            "slurm" => Self::Slurm(Box::new(slurm(&settings)?)),
            _ => Self::K8s(Box::new(k8s(&settings)?)),
        })
    }
}

pub(super) fn text(fields: &Fields<'_>, key: &str) -> Result<Option<String>> {
    fields.given(key).map(|at| at.clean_text().map(str::to_owned)).transpose()
}

fn either_text(fields: &Fields<'_>, key: &str, older: &str) -> Result<Option<String>> {
    fields.either(key, older)?.map(|at| at.clean_text().map(str::to_owned)).transpose()
}

fn duration(fields: &Fields<'_>, key: &str, default: u64) -> Result<Duration> {
    let Some(at) = fields.given(key) else { return Ok(Duration::from_secs(default)) };
    let span = at.duration()?;
    if span.is_zero() { Err(at.refuse("is no time at all", "more than 0s")) } else { Ok(span) }
}

/// Null, written, waits for ever; 0 does not wait.
fn pending(fields: &Fields<'_>, default: u64) -> Result<Option<Duration>> {
    // FLARE's Docker launcher calls it `timeout`.
    match fields.either("pending_timeout", "timeout")?.or_else(|| fields.get("pending_timeout")) {
        None => Ok(Some(Duration::from_secs(default))),
        Some(at) if at.value().is_null() => Ok(None),
        Some(at) => at.duration().map(Some),
    }
}

fn devices(fields: &Fields<'_>) -> Result<Devices> {
    const ALLOWED: &str = "auto, a list of ids, or a count";
    let Some(at) = fields.given("gpus") else { return Ok(Devices::Auto) };
    match &at.value().data {
        Data::Text(text) if text == "auto" => Ok(Devices::Auto),
        Data::Int(_) => Ok(Devices::Ids((0..at.count(0, 1024)?).map(|id| id.to_string()).collect())),
        Data::Seq(_) => {
            let mut ids: Vec<String> = Vec::new();
            for item in at.seq()? {
                let id = match &item.value().data {
                    Data::Int(int) if !int.is_negative() => int.to_string(),
                    _ => item.text()?.to_owned(),
                };
                let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':' | '.' | '/');
                if !id.chars().all(good) || ids.contains(&id) {
                    return Err(item.refuse("is not a device id, or stands twice", ALLOWED));
                }
                ids.push(id);
            }
            Ok(Devices::Ids(ids))
        }
        _ => Err(at.refuse(&format!("is {}", at.value().kind()), ALLOWED)),
    }
}

fn cpus(fields: &Fields<'_>) -> Result<Option<u32>> {
    fields.given("cpus").map(|at| at.count(1, 65536)).transpose()
}

fn memory(fields: &Fields<'_>) -> Result<Option<Memory>> {
    fields.given("memory").map(|at| Memory::read(&at)).transpose()
}

fn forward_env(fields: &Fields<'_>, mode: Mode) -> Result<Vec<String>> {
    let Some(at) = fields.given("forward_env") else { return Ok(Vec::new()) };
    let mut out: Vec<String> = Vec::new();
    for item in at.seq()? {
        let name = item.text()?;
        if !is_env_name(name) {
            return Err(item.refuse("is not a name of a variable", "letters, digits and `_`, no digit first"));
        }
        if is_reserved_env(name, mode) {
            return Err(item.refuse("is reserved for the launcher", "other names"));
        }
        if out.iter().any(|n| n == name) {
            return Err(item.refuse("stands twice", "each name once"));
        }
        out.push(name.to_owned());
    }
    Ok(out)
}

fn absolute(at: &At<'_>) -> Result<PathBuf> {
    let path = PathBuf::from(at.clean_text()?);
    if path.is_absolute() { Ok(path) } else { Err(at.refuse("is not an absolute path", "an absolute path")) }
}

fn absolutes(fields: &Fields<'_>, key: &str) -> Result<Vec<PathBuf>> {
    fields.given(key).map_or(Ok(Vec::new()), |at| at.seq()?.iter().map(absolute).collect())
}

fn process(at: &At<'_>) -> Result<ProcessLauncher> {
    let fields = at.fields(&[
        "gpus",
        "cpus",
        "memory",
        "user",
        "isolation_required",
        "python_path",
        "forward_env",
        "pending_timeout",
        "worker",
        "read",
        "write",
        "cgroup",
        "parent_host",
        "internal_port",
        "internal_listen",
        "files",
    ])?;
    let isolation_required = match fields.given("isolation_required") {
        None => IsolationRequired::Byoc,
        Some(at) => match &at.value().data {
            Data::Bool(true) => IsolationRequired::Always,
            Data::Bool(false) => IsolationRequired::Never,
            Data::Text(text) if text == "byoc" => IsolationRequired::Byoc,
            _ => return Err(at.refuse("is not a rule", "true, false or byoc")),
        },
    };
    Ok(ProcessLauncher {
        gpus: devices(&fields)?,
        cpus: cpus(&fields)?,
        memory: memory(&fields)?,
        user: text(&fields, "user")?,
        isolation_required,
        python_path: text(&fields, "python_path")?,
        forward_env: forward_env(&fields, Mode::Process)?,
        pending_timeout: duration(&fields, "pending_timeout", 60)?,
        worker: fields.given("worker").map(|at| absolute(&at)).transpose()?,
        read: absolutes(&fields, "read")?,
        write: absolutes(&fields, "write")?,
        cgroup: fields.given("cgroup").map(|at| absolute(&at)).transpose()?,
        channel: WorkerPort::wanted(&fields)?,
        files: fields.given("files").map_or(Ok(FileWay::Shared), |at| {
            at.word(&[("shared", FileWay::Shared), ("channel", FileWay::Channel)])
        })?,
    })
}

/// `uid:gid`. Numbers, since names are the image's.
fn numeric_user(at: &At<'_>) -> Result<(u32, u32)> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (uid, gid) = at.value().as_text().and_then(|text| text.split_once(':')).unwrap_or_default();
    number(uid)
        .zip(number(gid))
        .ok_or_else(|| at.refuse("is not an account", "uid:gid, in numbers and quotes"))
}

fn docker(at: &At<'_>) -> Result<DockerLauncher> {
    let fields = at.fields(&[
        "socket",
        "image",
        "network",
        "pull",
        "pending_timeout",
        "timeout",
        "gpus",
        "cpus",
        "memory",
        "python_path",
        "default_python_path",
        "job_env",
        "default_job_env",
        "job_container_kwargs",
        "default_job_container_kwargs",
        "workspace",
        "user",
        "worker",
        "parent_host",
        "internal_port",
        "internal_listen",
    ])?;
    let mut job_env = IndexMap::new();
    if let Some(env) = fields.either("job_env", "default_job_env")? {
        for (name, value) in env.entries()? {
            if !is_env_name(name) {
                return Err(value.refuse("is not under a name of a variable", "letters, digits and `_`"));
            }
            job_env.insert(name.to_owned(), crate::study_runtime::env_text(&value)?);
        }
    }
    let mut job_container_kwargs = Map::new();
    if let Some(kwargs) = fields.either("job_container_kwargs", "default_job_container_kwargs")? {
        for (key, value) in kwargs.entries()? {
            if DOCKER_OWNED.contains(&key) {
                return Err(value.refuse("is set by the launcher", "other settings of a container"));
            }
        }
        job_container_kwargs = kwargs.map()?.clone();
    }
    let network = text(&fields, "network")?.unwrap_or_else(|| "none".to_owned());
    let channel = WorkerPort::wanted(&fields)?;
    if let Some(channel) = &channel {
        if network == "none" {
            let at = fields.given("internal_port").or_else(|| fields.given("parent_host"));
            return Err(at
                .as_ref()
                .unwrap_or(fields.at())
                .refuse("is of no use with network: none", "another network"));
        }
        if channel.host.is_none() {
            fields.need("parent_host", "the address of this host that containers reach")?;
        }
    }
    let pull = [("never", Pull::Never), ("missing", Pull::Missing), ("always", Pull::Always)];
    Ok(DockerLauncher {
        socket: text(&fields, "socket")?.unwrap_or_else(|| "/var/run/docker.sock".to_owned()),
        image: text(&fields, "image")?,
        network,
        pull: fields.given("pull").map_or(Ok(Pull::Never), |at| at.word(&pull))?,
        pending_timeout: pending(&fields, 600)?,
        gpus: devices(&fields)?,
        cpus: cpus(&fields)?,
        memory: memory(&fields)?,
        python_path: either_text(&fields, "python_path", "default_python_path")?,
        job_env,
        job_container_kwargs,
        workspace: text(&fields, "workspace")?,
        user: fields.given("user").map(|at| numeric_user(&at)).transpose()?,
        worker: fields.given("worker").map(|at| absolute(&at)).transpose()?,
        channel,
    })
}

fn k8s(at: &At<'_>) -> Result<K8sLauncher> {
    let fields = at.fields(&[
        "namespace",
        "kubeconfig",
        "config_file_path",
        "context",
        "image",
        "image_pull_policy",
        "image_pull_secrets",
        "pending_timeout",
        "ephemeral_storage",
        "pod_security_context",
        "security_context",
        "python_path",
        "default_python_path",
        "workspace",
        "workspace_mount_path",
        "parent_host",
        "internal_port",
        "internal_listen",
        "gpu_resource",
        "worker_image",
    ])?;
    let policy = [("IfNotPresent", "IfNotPresent"), ("Always", "Always"), ("Never", "Never")];
    let workspace = fields.either("workspace", "workspace_mount_path")?;
    if let Some(at) =
        workspace.as_ref().filter(|at| at.value().as_text().is_some_and(|t| !t.starts_with('/')))
    {
        return Err(at.refuse("is not an absolute path", "a path in the pod"));
    }
    Ok(K8sLauncher {
        namespace: text(&fields, "namespace")?.unwrap_or_else(|| "default".to_owned()),
        kubeconfig: either_text(&fields, "kubeconfig", "config_file_path")?,
        context: text(&fields, "context")?,
        image: text(&fields, "image")?,
        image_pull_policy: fields
            .given("image_pull_policy")
            .map_or(Ok("IfNotPresent"), |at| at.word(&policy))?
            .to_owned(),
        image_pull_secrets: fields.given("image_pull_secrets").map_or(Ok(Vec::new()), |at| at.texts())?,
        pending_timeout: pending(&fields, 120)?,
        ephemeral_storage: text(&fields, "ephemeral_storage")?.unwrap_or_else(|| "1Gi".to_owned()),
        pod_security_context: fields
            .either("pod_security_context", "security_context")?
            .map(|at| at.map().cloned())
            .transpose()?,
        python_path: either_text(&fields, "python_path", "default_python_path")?,
        workspace: workspace
            .map(|at| at.clean_text().map(str::to_owned))
            .transpose()?
            .unwrap_or_else(|| "/var/tmp/polder".to_owned()),
        channel: WorkerPort::read(&fields)?,
        gpu_resource: text(&fields, "gpu_resource")?.unwrap_or_else(|| "nvidia.com/gpu".to_owned()),
        worker_image: text(&fields, "worker_image")?
            .unwrap_or_else(|| concat!("polder-parent:", env!("CARGO_PKG_VERSION")).to_owned()),
    })
}

fn slurm(at: &At<'_>) -> Result<SlurmLauncher> {
    let mut known = vec![
        "sandbox",
        "image",
        "sbatch_directives",
        "setup",
        "python_path",
        "executables",
        "forward_env",
        "parent_host",
        "internal_port",
        "internal_listen",
        "submit_timeout",
        "query_timeout",
        "cancel_timeout",
        "poll_interval",
        "pending_timeout",
        "multi_node_port_range",
        "workspace",
        "workspace_path",
        "gpu_types",
        "pyxis_pulls",
    ];
    known.extend(DIRECTIVES);
    let fields = at.fields(&known)?;
    let mut directives = IndexMap::new();
    let nested = fields.given("sbatch_directives").map(|at| at.fields(&DIRECTIVES)).transpose()?;
    for key in DIRECTIVES {
        let inner = nested.as_ref().and_then(|nested| nested.given(key));
        if let (Some(at), Some(_)) = (fields.given(key), &inner) {
            return Err(at.refuse("stands in sbatch_directives, too", "one of them"));
        }
        if let Some(at) = fields.given(key).or(inner) {
            directives.insert(key.to_owned(), directive(&at)?);
        }
    }
    let sandbox = fields.given("sandbox").map_or(Ok(SlurmSandbox::None), |at| at.word(&SANDBOXES))?;
    let absolute = |at: &At<'_>| {
        let text = at.clean_text()?;
        if text.starts_with('/') && !text.contains(['\n', '\r']) {
            Ok(text.to_owned())
        } else {
            Err(at.refuse("is not an absolute path", "a path such as /opt/images/site.sif"))
        }
    };
    let mut executables = IndexMap::new();
    if let Some(at) = fields.given("executables") {
        // The commands of the login node are accepted and unused: Polder asks libslurm.
        at.fields(&["apptainer", "srun", "sbatch", "squeue", "sacct", "scancel"])?;
        for (name, path) in at.entries()? {
            if !path.value().is_null() {
                executables.insert(name.to_owned(), path.clean_text()?.to_owned());
            }
        }
    }
    let setup = match fields.given("setup") {
        None => String::new(),
        Some(at) => {
            let text = at.any_text()?;
            if text.contains('\0') {
                return Err(at.refuse("holds a NUL", "lines of shell"));
            }
            text.to_owned()
        }
    };
    Ok(SlurmLauncher {
        sandbox,
        image: fields.given("image").map(|at| absolute(&at)).transpose()?,
        directives,
        setup,
        python_path: fields.given("python_path").map(|at| absolute(&at)).transpose()?,
        executables,
        forward_env: forward_env(&fields, Mode::Slurm)?,
        channel: WorkerPort::read(&fields)?,
        submit_timeout: duration(&fields, "submit_timeout", 30)?,
        query_timeout: duration(&fields, "query_timeout", 10)?,
        cancel_timeout: duration(&fields, "cancel_timeout", 10)?,
        poll_interval: duration(&fields, "poll_interval", 10)?,
        pending_timeout: duration(&fields, "pending_timeout", 600)?,
        multi_node_port_range: fields
            .given("multi_node_port_range")
            .map_or(Ok(NODE_PORTS), |at| ports(&at))?,
        workspace: fields.either("workspace", "workspace_path")?.map(|at| absolute(&at)).transpose()?,
        gpu_types: fields.given("gpu_types").map_or(Ok(Vec::new()), |at| at.texts())?,
        pyxis_pulls: fields.given("pyxis_pulls").map_or(Ok(false), |at| at.bool())?,
    })
}

/// A value for `sbatch`: text or an integer, no white space.
pub(crate) fn directive(at: &At<'_>) -> Result<String> {
    let text = match &at.value().data {
        Data::Int(int) => int.to_string(),
        Data::Text(_) => at.clean_text()?.to_owned(),
        _ => return Err(at.refuse(&format!("is {}", at.value().kind()), "text or an integer")),
    };
    if text.contains(char::is_whitespace) {
        return Err(at.refuse("holds white space", "a value for sbatch, without white space"));
    }
    Ok(text)
}

/// `29400-30399` or `[29400, 30399]`.
fn ports(at: &At<'_>) -> Result<(u16, u16)> {
    let parsed = match &at.value().data {
        Data::Text(text) => text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?))),
        Data::Seq(_) => {
            let items = at.seq()?;
            let port = |at: &At<'_>| at.count(1, 65535).map(|p| u16::try_from(p).expect("bounded above"));
            match items.as_slice() {
                [a, b] => Some((port(a)?, port(b)?)),
                _ => None,
            }
        }
        _ => None,
    };
    parsed
        .filter(|(a, b)| *a > 0 && a <= b)
        .ok_or_else(|| at.refuse("is not a range of ports", "such as 29400-30399"))
}
