//! The native request of a launch: pure, from what is wanted, what the site says and what is set aside.
//!
//! One plan is said three times: as [`Descriptor`], which is what is sent; as [`SlurmPlan::sbatch`], the arguments by
//! which an admin makes the same request by hand; and as [`SlurmPlan::script`], the batch script byte by byte.

use crate::script;
use indexmap::IndexMap;
use polder_core::images::{Candidates, From, choose};
use polder_core::launcher::{SlurmOptions, SlurmSandbox};
use polder_core::parent::SlurmLauncher;
use polder_core::resources::{SlurmResources, View, slurm_resources};
use polder_core::study_runtime::{FILE, NoFiles, Reading, SlurmStudy, StudyRuntime, StudyRuntimes};
use polder_core::value::{At, Value, from_json};
use polder_launch::{Allotted, Place, Plan, Refusal, Resolved};
use polder_words::{FailureClass, LaunchId, Mode, Role};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The document with the site's settings, as refusals name it.
const PARENT: &str = "parent.yaml";
/// The job's document, as refusals name it.
const META: &str = "meta";
/// Most characters of a site's name in a job's name.
const SITE_CHARS: usize = 32;

/// What is printed by `polder plan`, stored in the ledger and sent: nothing else is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlurmPlan {
    /// The launch.
    pub launch: LaunchId,
    /// `none`, `spank`, `apptainer` or `pyxis`.
    pub sandbox: String,
    /// An absolute file, or a reference that Pyxis pulls.
    pub image: Option<String>,
    /// The account of the cluster to submit as; absent: the parent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What is sent.
    pub descriptor: Descriptor,
    /// The same as arguments of `sbatch`, for people.
    pub sbatch: Vec<String>,
    /// The study's data and secrets, as they appear to the worker.
    pub mounts: Vec<Mount>,
    /// The study's variables.
    pub env: IndexMap<String, String>,
    /// Variables with secrets. Their values are not here, not in the script and not on the file system: the worker asks
    /// its parent for them.
    pub secret_env: Vec<String>,
    /// Variables the worker gets as the parent has them.
    pub forward_env: Vec<String>,
    /// Lines of shell of the site's before the worker.
    pub setup: String,
    /// What the nodes beside the first run.
    pub additional_node_command: Vec<String>,
    /// How long it may wait in the queue, in seconds.
    pub pending_timeout: f64,
    /// The batch script.
    pub script: String,
}

/// A job, in the words of `sbatch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// `fl-<site>-<launch id>`.
    pub name: String,
    /// `polder:<launch id>`, by which a launch is found again.
    pub comment: String,
    /// The run directory.
    pub work_dir: String,
    /// Output and errors of the script.
    pub output: String,
    /// A requeued job would run a second time.
    pub requeue: bool,
    /// Submitted held, and released once its number is on disk.
    pub hold: bool,
    /// Nodes, exactly so many.
    pub nodes: u64,
    /// One for each node.
    pub tasks: u64,
    /// Always 1.
    pub tasks_per_node: u64,
    /// Generic resources of each node: `gpu:4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gres: Option<String>,
    /// CPUs of each task, that is of each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_per_task: Option<u64>,
    /// Memory of each node in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_per_node: Option<u64>,
    /// One, or several by comma, of which Slurm takes the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Quality of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    /// Time limit in minutes; absent: the partition's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<u64>,
    /// Features of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// A reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Variables of the job. Nothing of the parent's beside `forward_env` is added.
    pub environment: IndexMap<String, String>,
}

/// A folder or file of the host as the worker sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// On the host.
    pub source: String,
    /// For the worker.
    pub destination: String,
    /// `ro` or `rw`.
    pub mode: String,
}

/// What a plan has to know of the parent's host.
pub trait Host {
    /// Whether there is a file (or a folder, which Apptainer runs, too) of that name.
    fn exists(&self, path: &str) -> bool;
    /// Whether the parent was started with a variable.
    fn has_variable(&self, name: &str) -> bool;
}

/// The host this runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisHost;

impl Host for ThisHost {
    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }

    fn has_variable(&self, name: &str) -> bool {
        std::env::var_os(name).is_some()
    }
}

/// Plans a launch. `job_images`: whether a job may bring its image here.
///
/// # Errors
/// When this site cannot do it, with the setting to change.
pub fn plan(
    settings: &SlurmLauncher,
    job_images: bool,
    host: &dyn Host,
    want: &Resolved,
    _with: &Allotted,
) -> Result<SlurmPlan, Refusal> {
    let run_dir = own_path(&want.run_dir, "run directory")?;
    let worker = own_path(&want.worker, "worker program")?;
    let runtime = runtime_of(settings, want)?;
    let study = &runtime.slurm;
    let sandbox = study.sandbox.unwrap_or(settings.sandbox);
    runtime.check_launch(FILE, Mode::Slurm, settings.sandbox).map_err(|error| of(&error))?;

    let options = options(want)?;
    let (resources, job) = read_options(settings, want, sandbox, &options)?;
    let image = image(settings, job_images, host, &runtime, sandbox, &job)?;
    let descriptor = descriptor(settings, study, want, &resources, &job, &run_dir, sandbox)?;
    let setup = study.setup.clone().unwrap_or_else(|| settings.setup.clone());
    let mounts = mounts(&runtime, &run_dir)?;
    let secret_env = secrets(host, &runtime)?;
    forwarded_once(settings, &runtime)?;
    for (name, value) in &runtime.env {
        if value.contains('\0') {
            return Err(config("holds a NUL, which no environment can").at(
                FILE,
                &format!("studies.{}.env.{name}", want.study),
                "",
                "text without NUL",
            ));
        }
    }
    let python = study.python_path.as_deref().or(settings.python_path.as_deref());
    let time = resources.time_limit.as_deref().or(study.time.as_deref());
    let time = time.or_else(|| settings.directives.get("time").map(String::as_str));
    let script = script::render(&script::Parts {
        want,
        sandbox,
        image: image.as_deref(),
        run_dir: &run_dir,
        worker: &worker,
        descriptor: &descriptor,
        mounts: &mounts,
        env: &runtime.env,
        forward_env: &settings.forward_env,
        setup: &setup,
        python,
        node_command: &job.additional_node_command,
        ports: settings.multi_node_port_range,
        executables: &settings.executables,
    });
    Ok(SlurmPlan {
        launch: want.id.clone(),
        sandbox: sandbox.as_str().to_owned(),
        image,
        user: study.user.clone(),
        // As it was written: people look for what they wrote.
        sbatch: descriptor.to_sbatch(&settings.forward_env, time),
        descriptor,
        mounts,
        env: runtime.env.clone(),
        secret_env,
        forward_env: settings.forward_env.clone(),
        setup,
        additional_node_command: job.additional_node_command,
        pending_timeout: pending_seconds(want, resources.pending_timeout),
        script,
    })
}

/// The shorter of what the job may wait and what the ledger was told.
fn pending_seconds(want: &Resolved, seconds: f64) -> f64 {
    let told = want.pending_timeout_ms.map(|ms| Duration::from_millis(ms).as_secs_f64());
    told.map_or(seconds, |told| told.min(seconds))
}

fn config(message: impl Into<String>) -> Refusal {
    Refusal::new(FailureClass::Config, message)
}

fn of(error: &polder_core::Error) -> Refusal {
    Refusal {
        class: FailureClass::Config,
        message: error.message().to_owned(),
        place: Some(Box::new(Place {
            file: error.file().to_owned(),
            at: error.at().to_owned(),
            found: error.found().to_owned(),
            allowed: error.allowed().to_owned(),
        })),
    }
}

/// A path of Polder's own in the words of a bind: Slurm expands `%` and `\` in names of output files, and `:` and `,`
/// separate the parts of a bind.
fn own_path(path: &Path, what: &str) -> Result<String, Refusal> {
    const ALLOWED: &str =
        "an absolute path without white space at its ends, control characters, `:`, `,`, `%` and `\\`";
    let text = path.to_str().filter(|text| {
        text.starts_with('/')
            && !text.contains([':', ',', '%', '\\'])
            && !text.contains(char::is_control)
            && text.trim() == *text
    });
    text.map(str::to_owned).ok_or_else(|| {
        config(format!("the {what} cannot be named in a Slurm request")).at(
            PARENT,
            "state",
            &path.display().to_string(),
            ALLOWED,
        )
    })
}

/// The study's settings back from the launch.
fn runtime_of(settings: &SlurmLauncher, want: &Resolved) -> Result<StudyRuntime, Refusal> {
    if want.runtime.is_null() {
        return Ok(StudyRuntime::empty(want.study.clone()));
    }
    let study = want.study.as_str();
    let document = serde_json::json!({"format_version": 2, "studies": {study: want.runtime}});
    // JSON is YAML, and what was read once reads again.
    let mut reading = Reading::new(Mode::Slurm, &NoFiles);
    reading.pyxis_pulls = settings.pyxis_pulls;
    let text = document.to_string();
    let studies = StudyRuntimes::parse(FILE, text.as_bytes(), &reading).map_err(|error| of(&error))?;
    Ok(studies.of(FILE, &want.study).0)
}

/// The job's options as a document.
fn options(want: &Resolved) -> Result<Value, Refusal> {
    let text = serde_json::Value::Object(want.options.clone()).to_string();
    from_json(META, text.as_bytes()).map_err(|error| of(&error))
}

fn read_options(
    settings: &SlurmLauncher,
    want: &Resolved,
    sandbox: SlurmSandbox,
    options: &Value,
) -> Result<(SlurmResources, SlurmOptions), Refusal> {
    let site = want.id.site.as_str();
    let launcher_spec = Value::map([(site, Value::map([("slurm", options.clone())]))]);
    let mut block: Vec<(&str, Value)> = Vec::new();
    if want.gpus > 0 {
        block.push(("num_of_gpus", Value::from(want.gpus)));
    }
    if let Some(cpus) = want.cpus {
        block.push(("num_of_cpus", Value::from(cpus)));
    }
    if let Some(memory) = want.memory {
        block.push(("memory", Value::from(format!("{}Mi", memory.div_ceil(1 << 20)))));
    }
    let resource_spec = Value::map([(site, Value::map(block))]);
    let view = View { file: META, resource_spec: &resource_spec, launcher_spec: &launcher_spec };
    let longest = settings.pending_timeout.as_secs_f64();
    let resources = slurm_resources(&view, site, sandbox, longest).map_err(|error| of(&error))?;
    let path = format!("launcher_spec.{site}.slurm");
    let at = At::under(META, &path, options);
    let job = SlurmOptions::read(&at, want.id.role == Role::Client).map_err(|error| of(&error))?;
    if let Some(kind) = &job.gpu_type
        && !settings.gpu_types.contains(kind)
    {
        let allowed = match settings.gpu_types.as_slice() {
            [] => "no type: this site offers none".to_owned(),
            types => types.join(", "),
        };
        return Err(config("this site has no such type of GPU").at(
            META,
            &format!("{path}.gpu_type"),
            kind,
            &allowed,
        ));
    }
    Ok((resources, job))
}

fn image(
    settings: &SlurmLauncher,
    job_images: bool,
    host: &dyn Host,
    runtime: &StudyRuntime,
    sandbox: SlurmSandbox,
    job: &SlurmOptions,
) -> Result<Option<String>, Refusal> {
    let study = runtime.study.as_str();
    if !sandbox.is_container() {
        return match &job.image {
            None => Ok(None),
            Some(image) => Err(config(format!("sandbox {} runs no image", sandbox.as_str())).at(
                META,
                "launcher_spec.slurm.image",
                image,
                "no image, or sandbox apptainer or pyxis at this site",
            )),
        };
    }
    let candidates = Candidates {
        job: job.image.as_deref(),
        job_may: job_images,
        study: runtime.container_image.as_deref(),
        site: settings.image.as_deref(),
    };
    let chosen = choose(&candidates, &runtime.images, study, FILE).map_err(|error| {
        let found = job.image.as_deref().unwrap_or_default();
        let at = format!("studies.{study}.container.image");
        Refusal::new(FailureClass::Image, error.to_string()).at(FILE, &at, found, "an absolute file")
    })?;
    let (file, at) = match chosen.from {
        From::Job => (META, "launcher_spec.slurm.image".to_owned()),
        From::Study => (FILE, format!("studies.{study}.container.image")),
        From::Site => (PARENT, "launcher.slurm.image".to_owned()),
    };
    let image = chosen.image;
    let refuse = |text: &str, allowed: &str| {
        Err(Refusal::new(FailureClass::Image, text).at(file, &at, &image, allowed))
    };
    // A reference is Pyxis' to find; a file has to be there, on the file system the nodes share with this host.
    if image.starts_with('/') && !host.exists(&image) {
        return refuse("the image is not there", "a file on the file system that nodes and parent share");
    }
    if image.contains(char::is_control) || image.starts_with('-') {
        return refuse("this cannot name an image", "an absolute file");
    }
    Ok(Some(image))
}

fn mounts(runtime: &StudyRuntime, run_dir: &str) -> Result<Vec<Mount>, Refusal> {
    let study = &runtime.study;
    let datasets = runtime.datasets.iter().map(|dataset| {
        let at = format!("studies.{study}.datasets.{}", dataset.name);
        let mode = dataset.mode.as_str().to_owned();
        (at, Mount { source: dataset.source.clone(), destination: dataset.destination(study), mode })
    });
    let secrets = runtime.secret_mounts.iter().map(|secret| {
        let at = format!("studies.{study}.secret_mounts.{}", secret.name);
        let (source, destination) = (secret.source.clone(), secret.mount_path.clone());
        (at, Mount { source, destination, mode: "ro".to_owned() })
    });
    let mut out: Vec<Mount> = Vec::new();
    for (at, mount) in datasets.chain(secrets) {
        let own = [run_dir, script::HOME, script::RESOLV_CONF];
        let taken = out.iter().map(|other| other.destination.as_str()).chain(own);
        if let Some(other) = taken.into_iter().find(|other| overlap(other, &mount.destination)) {
            let text = format!("is mounted over or below {other}, which is mounted, too");
            return Err(config(text).at(FILE, &at, &mount.destination, "a place of its own"));
        }
        for path in [&mount.source, &mount.destination] {
            if !path.starts_with('/') || path.contains([':', ',']) || path.contains(char::is_control) {
                let allowed = "absolute paths without `:`, `,` and control characters";
                return Err(config("cannot be mounted on Slurm").at(FILE, &at, path, allowed));
            }
        }
        out.push(mount);
    }
    Ok(out)
}

/// Whether one path is the other or below it.
fn overlap(a: &str, b: &str) -> bool {
    Path::new(a).starts_with(b) || Path::new(b).starts_with(a)
}

fn secrets(host: &dyn Host, runtime: &StudyRuntime) -> Result<Vec<String>, Refusal> {
    let mut out = Vec::new();
    for secret in &runtime.secret_env {
        if secret.file().is_none() && !host.has_variable(&secret.source) {
            let at = format!("studies.{}.secret_env.{}.source", runtime.study, secret.name);
            let refusal = Refusal::new(FailureClass::Secret, "the parent has no such variable");
            return Err(refusal.at(FILE, &at, &secret.source, "a variable of the parent, or file:/path"));
        }
        out.push(secret.name.clone());
    }
    Ok(out)
}

/// A name the parent forwards cannot be the study's as well: nobody could say which value a worker gets.
fn forwarded_once(settings: &SlurmLauncher, runtime: &StudyRuntime) -> Result<(), Refusal> {
    let study = runtime.env.keys().map(|name| ("env", name));
    let secret = runtime.secret_env.iter().map(|secret| ("secret_env", &secret.name));
    for (key, name) in study.chain(secret) {
        if settings.forward_env.contains(name) {
            let at = format!("studies.{}.{key}.{name}", runtime.study);
            let text = "is a variable that parent.yaml forwards, too";
            return Err(config(text).at(FILE, &at, name, "a name that is not in launcher.slurm.forward_env"));
        }
    }
    Ok(())
}

fn descriptor(
    settings: &SlurmLauncher,
    study: &SlurmStudy,
    want: &Resolved,
    resources: &SlurmResources,
    job: &SlurmOptions,
    run_dir: &str,
    sandbox: SlurmSandbox,
) -> Result<Descriptor, Refusal> {
    let count = |what: &str, int: &polder_core::value::Int| {
        let small = int.as_u64().filter(|n| *n <= u64::from(u32::MAX >> 1));
        small.ok_or_else(|| {
            Refusal::new(FailureClass::Resources, format!("{what}: more is asked for than Slurm can count"))
        })
    };
    let nodes = count("nodes", &resources.nodes)?;
    let each = |what: &str, int: &Option<polder_core::value::Int>| {
        int.as_ref().map(|int| count(what, int)).transpose()
    };
    let gpus = each("gpus_per_node", &resources.gpus_per_node)?.filter(|gpus| *gpus > 0).map(|gpus| {
        let kind = job.gpu_type.as_ref().map(|kind| format!("{kind}:")).unwrap_or_default();
        format!("gpu:{kind}{gpus}")
    });
    let gres: Vec<String> = gpus.into_iter().chain(study.gres.clone()).collect();
    let directive = |key: &str| settings.directives.get(key).cloned();
    let partition = match study.partitions.as_slice() {
        [] => study.partition.clone().or_else(|| directive("partition")),
        several => Some(several.join(",")),
    };
    let attempt = attempt_dir(want);
    let time = time_limit(settings, study, want, resources)?;
    let mut environment = IndexMap::new();
    if sandbox == SlurmSandbox::Spank {
        // A submission by the library runs no plugin on this side; this is how `sbatch` hands over an option.
        environment.insert("_SLURM_SPANK_OPTION_polder_fl_study".to_owned(), want.study.to_string());
    }
    let out = Descriptor {
        name: job_name(&want.id),
        comment: comment(&want.id),
        work_dir: run_dir.to_owned(),
        output: attempt.join(script::OUTPUT).display().to_string(),
        requeue: false,
        hold: true,
        nodes,
        tasks: nodes,
        tasks_per_node: 1,
        gres: (!gres.is_empty()).then(|| gres.join(",")),
        cpus_per_task: each("cpus_per_node", &resources.cpus_per_node)?,
        mem_per_node: each("mem_per_node", &resources.mem_per_node)?,
        partition,
        account: study.account.clone().or_else(|| directive("account")),
        qos: study.qos.clone().or_else(|| directive("qos")),
        time_limit: time.map(|(_, minutes)| minutes),
        constraint: study.constraint.clone().or_else(|| directive("constraint")),
        reservation: study.reservation.clone().or_else(|| directive("reservation")),
        environment,
    };
    let texts = [&out.gres, &out.partition, &out.account, &out.qos, &out.constraint, &out.reservation];
    let wrong = |text: &&String| text.contains(|c: char| c.is_control() || c.is_whitespace());
    if let Some(text) = texts.into_iter().flatten().find(wrong) {
        let refusal = config("a value for sbatch holds white space or a control character");
        return Err(refusal.at(PARENT, "launcher.slurm", text, "text without white space"));
    }
    Ok(out)
}

/// The time limit as it was written and in minutes: the job's, else the study's, else the site's. What a study
/// sets is the most a job may ask for.
fn time_limit<'a>(
    settings: &'a SlurmLauncher,
    study: &'a SlurmStudy,
    want: &Resolved,
    resources: &'a SlurmResources,
) -> Result<Option<(&'a str, u64)>, Refusal> {
    const ALLOWED: &str = "a time limit as sbatch reads it: 90, 30:00, 12:00:00, 2-12";
    let read = |file: &str, at: &str, text: &'a str| match minutes(text) {
        Some(minutes) => Ok((text, minutes)),
        None => Err(config("is not a time limit").at(file, at, text, ALLOWED)),
    };
    let own_at = format!("launcher_spec.{}.slurm.time", want.id.site);
    let study_at = format!("studies.{}.slurm.time", want.study);
    let own = resources.time_limit.as_deref().map(|text| read(META, &own_at, text)).transpose()?;
    let most = study.time.as_deref().map(|text| read(FILE, &study_at, text)).transpose()?;
    if let (Some((text, asked)), Some((limit, most))) = (own, most)
        && asked > most
    {
        let refusal = Refusal::new(FailureClass::Policy, "is longer than the study may run here");
        return Err(refusal.at(META, &own_at, text, &format!("at most {limit}")));
    }
    let site = || settings.directives.get("time").map(|text| read(PARENT, "launcher.slurm.time", text));
    own.or(most).map(Ok).or_else(site).transpose()
}

/// Minutes of a time limit as `sbatch` reads it: `m`, `m:s`, `h:m:s`, `d-h`, `d-h:m`, `d-h:m:s`; begun minutes count.
#[must_use]
pub fn minutes(text: &str) -> Option<u64> {
    let number = |part: &str| {
        let good = (1..=9).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        good.then(|| part.parse::<u64>().ok()).flatten()
    };
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(number).collect::<Option<Vec<_>>>()?;
    let seconds = match (days, parts.as_slice()) {
        (None, [m]) => m * 60,
        (None, [m, s]) => m * 60 + s,
        (None, [h, m, s]) => h * 3600 + m * 60 + s,
        (Some(d), [h]) => d * 86_400 + h * 3600,
        (Some(d), [h, m]) => d * 86_400 + h * 3600 + m * 60,
        (Some(d), [h, m, s]) => d * 86_400 + h * 3600 + m * 60 + s,
        _ => return None,
    };
    (seconds > 0).then(|| seconds.div_ceil(60))
}

/// The folder of this attempt.
pub(crate) fn attempt_dir(want: &Resolved) -> PathBuf {
    want.run_dir.join("attempts").join(want.id.attempt.to_string())
}

/// What a job is called. It carries the whole launch id, since a lost submission is looked for by it.
#[must_use]
pub fn job_name(id: &LaunchId) -> String {
    let site: String = id.site.as_str().chars().take(SITE_CHARS).collect();
    format!("fl-{site}-{id}")
}

/// The comment by which a job is known to be a launch.
#[must_use]
pub fn comment(id: &LaunchId) -> String {
    format!("polder:{id}")
}

impl Descriptor {
    /// As arguments of `sbatch`; `time` as it was written, else in minutes.
    #[must_use]
    pub fn to_sbatch(&self, forward_env: &[String], time: Option<&str>) -> Vec<String> {
        let mut out = vec![
            "--no-requeue".to_owned(),
            format!("--nodes={}", self.nodes),
            format!("--ntasks={}", self.tasks),
            format!("--ntasks-per-node={}", self.tasks_per_node),
        ];
        let mut put = |flag: &str, value: Option<String>| {
            out.extend(value.map(|value| format!("--{flag}={value}")));
        };
        put("gres", self.gres.clone());
        put("cpus-per-task", self.cpus_per_task.map(|n| n.to_string()));
        put("mem", self.mem_per_node.map(|n| format!("{n}M")));
        put("partition", self.partition.clone());
        put("account", self.account.clone());
        put("qos", self.qos.clone());
        put("time", time.map(str::to_owned).or(self.time_limit.map(|minutes| minutes.to_string())));
        put("constraint", self.constraint.clone());
        put("reservation", self.reservation.clone());
        put("job-name", Some(self.name.clone()));
        put("comment", Some(self.comment.clone()));
        put("chdir", Some(self.work_dir.clone()));
        put("output", Some(self.output.clone()));
        let names: Vec<&str> = forward_env
            .iter()
            .map(String::as_str)
            .chain(self.environment.keys().map(String::as_str))
            .collect();
        put("export", Some(if names.is_empty() { "NIL".to_owned() } else { names.join(",") }));
        out.push("--hold".to_owned());
        out
    }
}

impl SlurmPlan {
    /// As the ledger has it.
    #[must_use]
    pub fn to_plan(&self) -> Plan {
        let value = serde_json::to_value(self).expect("a plan is plain data with text keys");
        let serde_json::Value::Object(native) = value else { unreachable!("a struct is an object") };
        Plan { mode: Mode::Slurm, native }
    }

    /// Back from the ledger.
    ///
    /// # Errors
    /// When it is no plan of this adapter.
    pub fn from_plan(plan: &Plan) -> Result<Self, Refusal> {
        let wrong = |text: String| Refusal::new(FailureClass::Infrastructure, text);
        if plan.mode != Mode::Slurm {
            return Err(wrong(format!("a plan for {} reached the Slurm launcher", plan.mode)));
        }
        serde_json::from_value(serde_json::Value::Object(plan.native.clone()))
            .map_err(|error| wrong(format!("a plan that cannot be read: {error}")))
    }
}
