//! The native request of a launch: the body of `POST /containers/create`, pure.
//!
//! Order of what a setting is taken from, the later wins: the site's `job_container_kwargs`, the study's
//! `docker_kwargs`, the job's options and portable amounts, and last what Polder sets itself, which nobody changes:
//! no capability, no new privileges, a read-only root, no restart, no removal by the engine, no `Binds`, the user.

mod kwargs;
mod mounts;
mod study;

pub use kwargs::{Entry, Fixed, In, Kind, TABLE};

use polder_core::images::{Candidates, ImageError, choose};
use polder_core::launcher::DockerOptions;
use polder_core::parent::Pull;
use polder_core::value::{At, from_json};
use polder_launch::{Allotted, Plan, Refusal, Resolved};
use polder_words::{FailureClass, LaunchId, Mode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use study::Study;

/// Where everything of Polder is inside a container.
pub const HOME: &str = "/polder";
/// The run directory inside.
pub const RUN: &str = "/polder/run";
/// The folder of the attempt, with the handover, inside.
pub const ATTEMPT: &str = "/polder/attempt";
/// The folder of the parent's socket inside: short, whatever it is on the host (a socket's path has 107 bytes).
pub const SOCKETS: &str = "/polder/sock";
/// The worker inside.
pub const WORKER: &str = "/polder/worker";
/// The label by which a container says which launch it is.
pub const LABEL_LAUNCH: &str = "polder.launch";
/// The label of the parent that made it: two parents on one engine leave each other's alone.
pub const LABEL_PARENT: &str = "polder.parent";
/// The label with the GPUs it was given.
pub const LABEL_GPUS: &str = "polder.gpus";
/// Processes a container may have, where nobody says otherwise.
const PIDS: i64 = 4096;
/// The document with the site's settings.
const PARENT_FILE: &str = "parent.yaml";
/// The study document, as refusals name it.
const STUDY_FILE: &str = polder_core::study_runtime::FILE;

/// Whose rights a worker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a site says about its containers.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The engine's socket.
    pub socket: String,
    /// The image of studies that name none.
    pub image: Option<String>,
    /// Whether a job may bring its image here.
    pub job_images: bool,
    /// `none`, or a network of the engine's.
    pub network: String,
    /// When images are pulled.
    pub pull: Pull,
    /// Whether the parent hands out GPUs by id, so that a count of a study's would take the same ones twice.
    pub inventory: bool,
    /// The interpreter in images.
    pub python_path: Option<String>,
    /// Variables every worker gets.
    pub job_env: BTreeMap<String, String>,
    /// Settings of every container, in the SDK's names.
    pub kwargs: Map<String, Value>,
    /// The user of workers.
    pub user: User,
    /// What a container must not see: the parent's state, kit and configuration. Run directories are below.
    pub hide: Vec<PathBuf>,
    /// The folder of the socket workers dial.
    pub sockets: PathBuf,
    /// The state folder here and on the engine's host, when the parent is in a container itself.
    pub workspace: Option<(PathBuf, PathBuf)>,
}

/// What `polder plan` prints, the ledger stores and the launcher sends: nothing else is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DockerPlan {
    /// The container's name.
    pub name: String,
    /// A parameter of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Whether the image is pulled first: `never`, `missing`, `always`.
    pub pull: String,
    /// The body of the request.
    pub create: Map<String, Value>,
    /// Names of secret variables. The worker gets them over its own channel: they are in no configuration that
    /// `docker inspect` shows.
    pub secret_env: Vec<String>,
}

/// Plans a launch.
///
/// # Errors
/// When the site, the study or the job says what cannot or may not be, with the place to look at.
pub fn plan(settings: &Settings, want: &Resolved, with: &Allotted) -> Result<DockerPlan, Refusal> {
    let options = options(want)?;
    let study = Study::of(want)?;
    let mut read = kwargs::Read::default();
    kwargs::read(&settings.kwargs, PARENT_FILE, "launcher.docker.job_container_kwargs", &mut read)?;
    let at = format!("studies.{}.docker_kwargs", want.study);
    kwargs::read(&study.docker_kwargs, STUDY_FILE, &at, &mut read)?;
    let kwargs::Read { mut config, mut host, platform } = read;

    amounts(settings, want, with, &options, &study, &mut host)?;
    if let Some(size) = &options.shm_size {
        host.insert("ShmSize".to_owned(), size.bytes().into());
    }
    if let Some(command) = &options.entrypoint {
        config.insert("Entrypoint".to_owned(), json!(command));
    }
    config.insert("Image".to_owned(), image(settings, want, &options, &study)?.into());
    config.insert("Cmd".to_owned(), json!([WORKER, "run", "--handover", format!("{ATTEMPT}/handover.json")]));
    config.insert("Env".to_owned(), env(settings, want, &options, &study));
    config.insert("User".to_owned(), format!("{}:{}", settings.user.uid, settings.user.gid).into());
    config.insert("WorkingDir".to_owned(), RUN.into());
    let labels = labels(settings, want, with, config.remove("Labels"));
    config.insert("Labels".to_owned(), labels);
    own(settings, &study, &mut host)?;
    host.insert("Mounts".to_owned(), mounts::mounts(settings, want, &study)?);
    config.insert("HostConfig".to_owned(), Value::Object(host));
    let pull = match settings.pull {
        Pull::Never => "never",
        Pull::Missing => "missing",
        Pull::Always => "always",
    };
    Ok(DockerPlan {
        name: name(&want.id),
        platform,
        pull: pull.to_owned(),
        create: config,
        secret_env: study.secret_env.keys().cloned().collect(),
    })
}

/// The job's options, read again by the rules of a submission.
fn options(want: &Resolved) -> Result<DockerOptions, Refusal> {
    let at = format!("launcher_spec.{}.docker", want.id.site);
    let text = Value::Object(want.options.clone()).to_string();
    from_json("meta", text.as_bytes())
        .and_then(|value| DockerOptions::read(&At::under("meta", &at, &value)))
        .map_err(|error| {
            Refusal::new(FailureClass::Config, error.message()).at(
                error.file(),
                error.at(),
                error.found(),
                error.allowed(),
            )
        })
}

fn image(
    settings: &Settings,
    want: &Resolved,
    options: &DockerOptions,
    study: &Study,
) -> Result<String, Refusal> {
    let candidates = Candidates {
        job: options.image.as_deref(),
        job_may: settings.job_images,
        study: study.container.as_ref().map(|container| container.image.as_str()),
        site: settings.image.as_deref(),
    };
    let policy = study.images.policy();
    if policy.pin
        && candidates.job.or(candidates.study).is_some_and(|i| polder_core::images::digest(i).is_none())
    {
        return Err(Refusal::new(
            FailureClass::Policy,
            "a tag cannot be pinned by this launcher yet; name the digest",
        )
        .at(
            STUDY_FILE,
            &format!("studies.{}.images.pin", want.study),
            "true",
            "images as name@sha256:...",
        ));
    }
    choose(&candidates, &policy, want.study.as_str(), STUDY_FILE)
        .map(|chosen| chosen.image)
        .map_err(|error| image_refused(&error, want))
}

/// Why no image may run, with the place in the study file.
fn image_refused(error: &ImageError, want: &Resolved) -> Refusal {
    let refuse = |message: &str, at: &str, found: &str, allowed: &str| {
        let at = format!("studies.{}.{at}", want.study);
        Refusal::new(FailureClass::Image, message).at(STUDY_FILE, &at, found, allowed)
    };
    match error {
        ImageError::None { job, .. } => {
            let message = format!("there is no image for the study's workers, and the job brings {job}");
            refuse(
                &message,
                "container.image",
                "none",
                "a reference, or launcher.docker.image in parent.yaml",
            )
        }
        ImageError::NotAllowed { image, allowed, .. } => {
            refuse("does not let this image run", "images.allow", image, &allowed.join(", "))
        }
        ImageError::NoDigest { image, .. } => {
            refuse("requires a digest", "images.require_digest", image, "name@sha256:<64 digits>")
        }
        ImageError::Moved { image, .. } => {
            refuse(&error.to_string(), "images.pin", image, "the pinned image")
        }
    }
}

/// GPUs, CPUs and memory. What a job asks for wins over the settings of site and study; a limit is a limit, so swap
/// does not come on top; where nobody asks, the study's own limit holds.
fn amounts(
    settings: &Settings,
    want: &Resolved,
    with: &Allotted,
    options: &DockerOptions,
    study: &Study,
    host: &mut Map<String, Value>,
) -> Result<(), Refusal> {
    let too_much =
        |what: &str| Refusal::new(FailureClass::Resources, format!("{what} is more than any host has"));
    if options.num_of_gpus.is_some() || want.gpus > 0 {
        host.remove("DeviceRequests");
        if want.gpus > 0 {
            let ids: Vec<&str> = with.devices.iter().map(|id| id.0.as_str()).collect();
            if ids.len() != want.gpus as usize {
                let text = format!("{} GPUs are asked for and {} are set aside", want.gpus, ids.len());
                return Err(Refusal::new(FailureClass::Resources, text));
            }
            host.insert("DeviceRequests".to_owned(), json!([{"Capabilities": [["gpu"]], "DeviceIDs": ids}]));
        }
    } else if let Some(requests) = host.get("DeviceRequests").filter(|_| settings.inventory) {
        return Err(Refusal::new(
            FailureClass::Policy,
            "takes GPUs that this parent hands out by id, so two jobs would get the same",
        )
        .at(
            STUDY_FILE,
            &format!("studies.{}.docker_kwargs.device_requests", want.study),
            &requests.to_string(),
            "num_of_gpus in the job, or a site without launcher.docker.gpus",
        ));
    }
    let nano = |cpus: u32| i64::from(cpus) * 1_000_000_000;
    if let Some(cpus) = want.cpus {
        host.insert("NanoCpus".to_owned(), nano(cpus).into());
    }
    if let Some(most) = study.limits.cpus.map(nano)
        && !host.get("NanoCpus").and_then(Value::as_i64).is_some_and(|cpus| cpus > 0 && cpus <= most)
    {
        host.insert("NanoCpus".to_owned(), most.into());
    }
    if host.contains_key("NanoCpus") {
        // The engine takes one or the other.
        host.remove("CpuPeriod");
        host.remove("CpuQuota");
    }
    let mut memory = match want.memory {
        Some(memory) => {
            host.remove("MemorySwap");
            Some(memory)
        }
        None => host.get("Memory").and_then(Value::as_u64).filter(|memory| *memory > 0),
    };
    if let Some(most) = study.memory()
        && memory.is_none_or(|memory| memory > most)
    {
        host.remove("MemorySwap");
        memory = Some(most);
    }
    if let Some(memory) = memory {
        let memory = i64::try_from(memory).map_err(|_| too_much("memory"))?;
        host.insert("Memory".to_owned(), memory.into());
        host.entry("MemorySwap").or_insert_with(|| memory.into());
        if host.get("MemoryReservation").and_then(Value::as_i64).is_some_and(|soft| soft > memory) {
            host.remove("MemoryReservation");
        }
    }
    if host.get("PidsLimit").and_then(Value::as_i64).is_none_or(|pids| pids <= 0) {
        host.insert("PidsLimit".to_owned(), PIDS.into());
    }
    Ok(())
}

fn env(settings: &Settings, want: &Resolved, options: &DockerOptions, study: &Study) -> Value {
    let tmp = format!("{RUN}/tmp");
    // A user without an entry in the image's passwd has neither a home nor a name.
    let mut env = BTreeMap::from([
        ("HOME".to_owned(), tmp.clone()),
        ("TMPDIR".to_owned(), tmp),
        ("USER".to_owned(), "polder".to_owned()),
    ]);
    let free = |name: &&String| !polder_core::study_runtime::is_reserved_env(name, Mode::Docker);
    for (name, value) in settings.job_env.iter().chain(&study.env).filter(|(name, _)| free(name)) {
        if name != "USER" {
            env.insert(name.clone(), value.clone());
        }
    }
    // The worker passes a secret to the trainer; a variable of that name must not stand here as well.
    env.retain(|name, _| !study.secret_env.contains_key(name));
    env.insert("POLDER_LAUNCH".to_owned(), want.id.to_string());
    if let Some(python) = options.python_path.as_ref().or(settings.python_path.as_ref()) {
        env.insert("POLDER_PYTHON".to_owned(), python.clone());
    }
    Value::from_iter(env.iter().map(|(name, value)| format!("{name}={value}")))
}

fn labels(settings: &Settings, want: &Resolved, with: &Allotted, others: Option<Value>) -> Value {
    let mut labels = match others {
        Some(Value::Object(labels)) => labels,
        _ => Map::new(),
    };
    let id = &want.id;
    let gpus: Vec<_> = with.devices.iter().map(|id| id.0.as_str()).collect();
    for (name, value) in [
        (LABEL_LAUNCH, id.to_string()),
        (LABEL_PARENT, parent_label(&settings.sockets)),
        (LABEL_GPUS, gpus.join(",")),
        ("polder.job", id.job.to_string()),
        ("polder.site", id.site.to_string()),
        ("polder.study", want.study.to_string()),
        ("polder.role", id.role.to_string()),
        ("polder.attempt", id.attempt.to_string()),
    ] {
        labels.insert(name.to_owned(), value.into());
    }
    Value::Object(labels)
}

/// What Polder sets whatever anybody says.
fn own(settings: &Settings, study: &Study, host: &mut Map<String, Value>) -> Result<(), Refusal> {
    let network = settings.network.as_str();
    if network.starts_with("container:") || network.is_empty() {
        return Err(Refusal::new(FailureClass::Policy, "would share another container's network").at(
            PARENT_FILE,
            "launcher.docker.network",
            network,
            "none, or the name of a network",
        ));
    }
    let network = match study.egress.as_deref() {
        None => network,
        // What reaches nothing needs no filter.
        Some([]) => "none",
        Some(places) => {
            return Err(Refusal::new(
                FailureClass::Policy,
                "this launcher has no network that reaches these places and no others",
            )
            .at(
                STUDY_FILE,
                &format!("studies.{}.egress", study.name),
                &places.join(", "),
                "[] (nothing is reached), or no `egress`, for what launcher.docker.network reaches",
            ));
        }
    };
    let mut security = vec![json!("no-new-privileges")];
    if let Some(Value::Array(more)) = host.remove("SecurityOpt") {
        security.extend(more);
    }
    // The user's own, since an image's folder keeps its rights when something is mounted there.
    let user = format!("uid={},gid={}", settings.user.uid, settings.user.gid);
    let work = |options: &str| json!(format!("rw,nosuid,nodev,{options},mode=1777,{user}"));
    let mut tmpfs = Map::from_iter([
        ("/run".to_owned(), work("noexec,size=16m")),
        ("/tmp".to_owned(), work("exec,size=256m")),
        ("/var/tmp".to_owned(), work("exec,size=256m")),
    ]);
    if let Some(Value::Object(more)) = host.remove("Tmpfs") {
        tmpfs.extend(more);
    }
    let log = json!({"Type": "json-file", "Config": {"max-size": "8m", "max-file": "2"}});
    host.entry("LogConfig").or_insert(log);
    for (field, value) in [
        ("AutoRemove", json!(false)),
        ("CapDrop", json!(["ALL"])),
        ("NetworkMode", json!(network)),
        ("ReadonlyRootfs", json!(true)),
        ("RestartPolicy", json!({"Name": "no"})),
        ("SecurityOpt", security.into()),
        ("Tmpfs", Value::Object(tmpfs)),
    ] {
        host.insert(field.to_owned(), value);
    }
    Ok(())
}

/// The name of a launch's container, the second guard against doubles: an engine gives a name once.
#[must_use]
pub fn name(id: &LaunchId) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') { c } else { '-' };
    let site: String = id.site.as_str().chars().map(safe).collect();
    let site = site.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let site = if site.is_empty() { "site" } else { site };
    format!("{site}-{}-{}-{}", id.job, id.role, id.attempt)
}

/// What a parent calls itself in labels: a hash of the folder of its socket, which no other parent of the host has.
#[must_use]
pub fn parent_label(sockets: &Path) -> String {
    // FNV-1a: the same in every version of this program, and need not be hard to guess.
    let hash = sockets.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

impl DockerPlan {
    /// As the ledger has it.
    #[must_use]
    pub fn to_plan(&self) -> Plan {
        let value = serde_json::to_value(self).expect("a plan is plain data with text keys");
        let Value::Object(native) = value else { unreachable!("a struct is an object") };
        Plan { mode: Mode::Docker, native }
    }

    /// Back from the ledger.
    ///
    /// # Errors
    /// When it is no plan of this adapter.
    pub fn from_plan(plan: &Plan) -> Result<Self, Refusal> {
        let wrong = |text: String| Refusal::new(FailureClass::Infrastructure, text);
        if plan.mode != Mode::Docker {
            return Err(wrong(format!("a plan for {} reached the Docker launcher", plan.mode)));
        }
        serde_json::from_value(Value::Object(plan.native.clone()))
            .map_err(|error| wrong(format!("a plan that cannot be read: {error}")))
    }
}
