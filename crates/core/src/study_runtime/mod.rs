//! `local/study_runtime.yaml`, format version 2: what a site says about each study.
//!
//! FLARE's keys mean what they mean there, for each of the four launchers; Polder's own are in [`plus`] and
//! [`slurm`]. The file is read again at every launch. Reading is one thing, being able to launch another: a file
//! with datasets is readable for the process launcher, and [`StudyRuntime::check_launch`] says that a launch
//! without a container or a namespace of its own cannot give them.

mod plus;
mod print;
mod read;
mod slurm;

pub use plus::{Access, Approval, Egress, ImagePolicy, Limits};
pub use read::DOCKER_SETTINGS;
pub use slurm::{SlurmStudy, slurm_time};

use crate::error::{Error, Result};
use crate::export::Export;
use crate::launcher::SlurmSandbox;
use crate::value::{At, Data, Map, from_yaml, python_float};
use indexmap::IndexMap;
use polder_words::{Mode, StudyName};

/// Where the file is in a site's folder.
pub const FILE: &str = "local/study_runtime.yaml";

/// Container settings that are the launcher's, in the Docker SDK's names.
pub const DOCKER_OWNED: [&str; 11] = [
    "volumes",
    "mounts",
    "network",
    "environment",
    "command",
    "name",
    "detach",
    "auto_remove",
    "user",
    "working_dir",
    "image",
];

/// A file that a study names beside its document, such as a pod template. The path is relative to the folder of
/// `study_runtime.yaml` and does not leave it; `Err` says in words why it cannot be read.
pub trait Files {
    /// The bytes of the file.
    ///
    /// # Errors
    /// In words, why there are none.
    fn read(&self, path: &str) -> std::result::Result<Vec<u8>, String>;
}

impl<F: Fn(&str) -> std::result::Result<Vec<u8>, String>> Files for F {
    fn read(&self, path: &str) -> std::result::Result<Vec<u8>, String> {
        self(path)
    }
}

/// No files at all.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &str) -> std::result::Result<Vec<u8>, String> {
        Err("no files are at hand".to_owned())
    }
}

/// For whom the file is read.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// The launcher of the site.
    pub mode: Mode,
    /// The files beside it.
    pub files: &'a dyn Files,
    /// Whether the site's Pyxis may pull, so that an image may be a reference and not a file.
    pub pyxis_pulls: bool,
}

impl<'a> Reading<'a> {
    /// For a launcher, with the files beside the document.
    #[must_use]
    pub fn new(mode: Mode, files: &'a dyn Files) -> Self {
        Self { mode, files, pyxis_pulls: false }
    }
}

/// How a dataset is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MountMode {
    /// Read-only.
    Ro,
    /// Read and write.
    Rw,
}

impl MountMode {
    /// `ro` or `rw`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ro => "ro",
            Self::Rw => "rw",
        }
    }
}

/// Data of the site that a study may see, at `/data/<study>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Its name inside the study.
    pub name: String,
    /// A host path; the name of a PVC for Kubernetes.
    pub source: String,
    /// How it is mounted.
    pub mode: MountMode,
}

impl Dataset {
    /// Where a worker finds it.
    #[must_use]
    pub fn destination(&self, study: &StudyName) -> String {
        format!("/data/{study}/{}", self.name)
    }
}

/// A secret in a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretEnv {
    /// The variable.
    pub name: String,
    /// A variable of the parent, `file:/path` on the host or node, or the name of a Secret.
    pub source: String,
    /// The key in the Secret.
    pub key: Option<String>,
}

impl SecretEnv {
    /// The file it is in, when it is one.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.source.strip_prefix("file:")
    }
}

/// Secrets as files, always read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretMount {
    /// Its name inside the study.
    pub name: String,
    /// A host path; the name of a Secret for Kubernetes.
    pub source: String,
    /// Where a worker finds it.
    pub mount_path: String,
    /// Keys and the files they become; absent: all of them.
    pub items: Option<Vec<(String, String)>>,
}

/// What a site says about one study.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyRuntime {
    /// The study.
    pub study: StudyName,
    /// The image its workers run.
    pub container_image: Option<String>,
    /// Data it may see.
    pub datasets: Vec<Dataset>,
    /// Variables it gets.
    pub env: IndexMap<String, String>,
    /// Secrets in variables.
    pub secret_env: Vec<SecretEnv>,
    /// Secrets as files.
    pub secret_mounts: Vec<SecretMount>,
    /// The pod to begin with (Kubernetes).
    pub pod_template: Option<Map>,
    /// Further container settings (Docker).
    pub docker_kwargs: Map,
    /// Settings for Slurm.
    pub slurm: SlurmStudy,
    /// Who may use it on the cluster by themselves; absent: only `slurm.user`.
    pub access: Option<Access>,
    /// What may leave the site.
    pub export: Export,
    /// What workers may reach; absent: what the launcher's network lets them.
    pub egress: Option<Vec<Egress>>,
    /// Whether somebody has to agree to a job.
    pub approval: Approval,
    /// Which images may run.
    pub images: ImagePolicy,
    /// How much at once.
    pub limits: Limits,
}

impl StudyRuntime {
    /// A study nothing is said about.
    #[must_use]
    pub fn empty(study: StudyName) -> Self {
        Self {
            study,
            container_image: None,
            datasets: Vec::new(),
            env: IndexMap::new(),
            secret_env: Vec::new(),
            secret_mounts: Vec::new(),
            pod_template: None,
            docker_kwargs: Map::new(),
            slurm: SlurmStudy::default(),
            access: None,
            export: Export::default(),
            egress: None,
            approval: Approval::default(),
            images: ImagePolicy::default(),
            limits: Limits::default(),
        }
    }

    /// Whether a launcher can give the study what it says: without a container or a namespace of its own, there
    /// is no image, no dataset and no mounted secret.
    ///
    /// # Errors
    /// What the launcher cannot give.
    pub fn check_launch(&self, file: &str, mode: Mode, site_sandbox: SlurmSandbox) -> Result<()> {
        let sandbox = self.slurm.sandbox.unwrap_or(site_sandbox);
        let (bare, image) = match mode {
            Mode::Process => ("the process launcher", false),
            Mode::Slurm if sandbox == SlurmSandbox::None => ("Slurm with sandbox none", false),
            Mode::Slurm if sandbox == SlurmSandbox::Spank => ("Slurm with sandbox spank", true),
            Mode::Slurm | Mode::Docker | Mode::K8s => return Ok(()),
        };
        let refuse = |key: &str, what: &str| {
            let at = format!("studies.{}.{key}", self.study);
            let message = format!("cannot be given: {bare} has no {what}");
            Err(Error::new(file, &at, "", "another launcher or sandbox, or none of it", &message))
        };
        if self.container_image.is_some() {
            return refuse("container", "container");
        }
        if !image && !self.datasets.is_empty() {
            return refuse("datasets", "mounts of its own");
        }
        if !image && !self.secret_mounts.is_empty() {
            return refuse("secret_mounts", "mounts of its own");
        }
        Ok(())
    }
}

/// The file.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyRuntimes {
    /// Its studies, in the order of the file.
    pub studies: IndexMap<StudyName, StudyRuntime>,
    /// What people should know although it is allowed.
    pub warnings: Vec<String>,
}

impl StudyRuntimes {
    /// Reads the file for one launcher.
    ///
    /// # Errors
    /// When it is not YAML, a key is unknown or missing, or a value is not allowed for the launcher.
    pub fn parse(file: &str, bytes: &[u8], reading: &Reading<'_>) -> Result<Self> {
        let value = from_yaml(file, bytes)?;
        let at = At::root(file, &value);
        let fields = at.fields(&["format_version", "studies"])?;
        let version = fields.need("format_version", "2")?;
        let two = match &version.value().data {
            Data::Int(int) => int.as_i64() == Some(2),
            Data::Float(number) => *number == 2.0,
            _ => false,
        };
        if !two {
            return Err(version.refuse("is not a version this program reads", "2"));
        }
        let mut out = Self { studies: IndexMap::new(), warnings: Vec::new() };
        if let Some(studies) = fields.given("studies") {
            for (name, entry) in studies.entries()? {
                let study = StudyName::new(name)
                    .map_err(|error| entry.refuse("is under a name that is not a study's", error.allowed))?;
                let runtime = read::study(study.clone(), &entry, reading, &mut out.warnings)?;
                out.studies.insert(study, runtime);
            }
        }
        if out.studies.is_empty() {
            out.warnings.push(format!("{file} names no study: every study gets an empty runtime"));
        }
        Ok(out)
    }

    /// What is said about a study, and a warning when nothing is.
    #[must_use]
    pub fn of(&self, file: &str, study: &StudyName) -> (StudyRuntime, Option<String>) {
        match self.studies.get(study) {
            Some(runtime) => (runtime.clone(), None),
            None => {
                let warning = format!("{file} has no entry for study {study}: it gets an empty runtime");
                (StudyRuntime::empty(study.clone()), Some(warning))
            }
        }
    }
}

/// Whether a text can name a variable everywhere: `[A-Za-z_][A-Za-z0-9_]*`.
#[must_use]
pub fn is_env_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Whether a variable is the launcher's to set.
#[must_use]
pub fn is_reserved_env(name: &str, mode: Mode) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    name == "PYTHONPATH"
        || begins(&["POLDER_", "NVFL_", "NVFLARE_"])
        || (mode == Mode::Slurm
            && (matches!(name, "UID" | "EUID" | "BASHOPTS" | "SHELLOPTS")
                || begins(&["SLURM_", "APPTAINER", "SINGULARITY", "_nvfl_"])))
}

/// The text a scalar becomes in an environment, as Python's `str` has it; booleans in lower case.
pub(crate) fn env_text(at: &At<'_>) -> Result<String> {
    let text = match &at.value().data {
        Data::Bool(value) => value.to_string(),
        Data::Int(int) => int.to_string(),
        Data::Float(number) => python_float(*number),
        Data::Text(text) => text.clone(),
        _ => return Err(at.refuse(&format!("is {}", at.value().kind()), "text, a number or a boolean")),
    };
    if text.contains('\0') {
        return Err(at.refuse("holds a NUL, which no environment can", "text without NUL"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
