//! The options a job may set for each launcher, read for use.
//!
//! Docker's are checked when a job is submitted; those of Kubernetes and Slurm when a site plans the launch, as
//! FLARE does, because a job may carry options for launchers that no site of it has.

use crate::error::Result;
use crate::scalars::ShmSize;
use crate::value::{At, Data, Int, Value};

/// What Docker options a job may set.
pub const DOCKER_KEYS: [&str; 5] = ["image", "python_path", "entrypoint", "num_of_gpus", "shm_size"];
/// What Kubernetes options a job may set.
pub const K8S_KEYS: [&str; 9] = [
    "image",
    "python_path",
    "cpu",
    "memory",
    "cpu_request",
    "memory_request",
    "ephemeral_storage",
    "num_of_gpus",
    "pending_timeout",
];
/// What Slurm options a job may set.
pub const SLURM_KEYS: [&str; 9] = [
    "image",
    "nodes",
    "gpus_per_node",
    "cpus_per_node",
    "mem_per_node",
    "time",
    "pending_timeout",
    "additional_node_command",
    "gpu_type",
];

/// How a Slurm step is closed off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlurmSandbox {
    /// Not at all.
    None,
    /// A private mount namespace by the SPANK plugin.
    Spank,
    /// Apptainer.
    Apptainer,
    /// Pyxis and Enroot.
    Pyxis,
}

/// How sandboxes are spelled.
pub const SANDBOXES: [(&str, SlurmSandbox); 4] = [
    ("none", SlurmSandbox::None),
    ("spank", SlurmSandbox::Spank),
    ("apptainer", SlurmSandbox::Apptainer),
    ("pyxis", SlurmSandbox::Pyxis),
];

impl SlurmSandbox {
    /// Whether it runs an image.
    #[must_use]
    pub fn is_container(self) -> bool {
        matches!(self, Self::Apptainer | Self::Pyxis)
    }

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        SANDBOXES.iter().find(|(_, value)| *value == self).map_or("none", |(word, _)| word)
    }

    /// Reads the word back.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        SANDBOXES.iter().find(|(text, _)| *text == word).map(|(_, value)| *value)
    }
}

/// A job's options for Docker.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DockerOptions {
    /// Counts as bringing code.
    pub image: Option<String>,
    /// Counts as bringing code.
    pub python_path: Option<String>,
    /// Counts as bringing code; text is split as a shell would.
    pub entrypoint: Option<Vec<String>>,
    /// GPUs.
    pub num_of_gpus: Option<Int>,
    /// Shared memory.
    pub shm_size: Option<ShmSize>,
}

impl DockerOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// When there is one that a job may not set, or a value is not allowed.
    pub fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&DOCKER_KEYS)?;
        Ok(Self {
            image: fields.given("image").map(|at| at.any_text().map(str::to_owned)).transpose()?,
            python_path: fields.get("python_path").map(|at| filled(&at).map(str::to_owned)).transpose()?,
            entrypoint: fields.get("entrypoint").map(|at| entrypoint(&at)).transpose()?,
            num_of_gpus: fields.get("num_of_gpus").map(|at| at.int(0).cloned()).transpose()?,
            shm_size: fields.get("shm_size").map(|at| ShmSize::read(&at)).transpose()?,
        })
    }

    /// Whether they bring code of the job's choosing.
    #[must_use]
    pub fn brings_code(&self) -> bool {
        self.image.is_some() || self.python_path.is_some() || self.entrypoint.is_some()
    }
}

fn filled<'a>(at: &At<'a>) -> Result<&'a str> {
    let text = at.any_text()?;
    if text.trim().is_empty() { Err(at.refuse("is empty", "text that is not empty")) } else { Ok(text) }
}

fn entrypoint(at: &At<'_>) -> Result<Vec<String>> {
    const ALLOWED: &str = "a program and its arguments, as text or as a list of texts that are not empty";
    match &at.value().data {
        Data::Text(_) => {
            shell_words::split(filled(at)?).map_err(|_| at.refuse("has a quote that does not end", ALLOWED))
        }
        Data::Seq(items) if !items.is_empty() => {
            at.seq()?.iter().map(|item| filled(item).map(str::to_owned)).collect()
        }
        _ => Err(at.refuse("is not a command", ALLOWED)),
    }
}

/// A job's options for Kubernetes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct K8sOptions {
    /// Counts as bringing code.
    pub image: Option<String>,
    /// Counts as bringing code.
    pub python_path: Option<String>,
    /// Limit, as a Kubernetes quantity.
    pub cpu: Option<String>,
    /// Limit, as a Kubernetes quantity.
    pub memory: Option<String>,
    /// Request, where it differs from the limit.
    pub cpu_request: Option<String>,
    /// Request, where it differs from the limit.
    pub memory_request: Option<String>,
    /// Size limit of the job's folder.
    pub ephemeral_storage: Option<String>,
    /// GPUs.
    pub num_of_gpus: Option<Int>,
    /// Seconds a pod may be pending: absent, the site's; `Some(None)`, for ever; 0, not at all.
    pub pending_timeout: Option<Option<f64>>,
}

impl K8sOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// When there is one that a job may not set, or a value is not allowed.
    pub fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&K8S_KEYS)?;
        let text = |key: &str| fields.given(key).map(|at| at.clean_text().map(str::to_owned)).transpose();
        Ok(Self {
            image: text("image")?,
            python_path: fields
                .get("python_path")
                .map(|at| at.clean_text().map(str::to_owned))
                .transpose()?,
            cpu: fields.given("cpu").map(|at| quantity(&at)).transpose()?,
            memory: fields.given("memory").map(|at| quantity(&at)).transpose()?,
            cpu_request: fields.given("cpu_request").map(|at| quantity(&at)).transpose()?,
            memory_request: fields.given("memory_request").map(|at| quantity(&at)).transpose()?,
            ephemeral_storage: text("ephemeral_storage")?,
            num_of_gpus: fields.given("num_of_gpus").map(|at| at.int(0).cloned()).transpose()?,
            pending_timeout: fields.get("pending_timeout").map(|at| pending_seconds(&at)).transpose()?,
        })
    }

    /// Whether they bring code of the job's choosing.
    #[must_use]
    pub fn brings_code(&self) -> bool {
        self.image.is_some() || self.python_path.is_some()
    }
}

/// A Kubernetes quantity; integers and numbers are taken as they print.
fn quantity(at: &At<'_>) -> Result<String> {
    match &at.value().data {
        Data::Int(int) if !int.is_negative() => Ok(int.to_string()),
        Data::Float(number) if number.is_finite() && *number >= 0.0 => {
            Ok(crate::value::python_float(*number))
        }
        Data::Text(_) => at.clean_text().map(str::to_owned),
        _ => Err(at.refuse("is not a quantity", "a Kubernetes quantity such as 4, 500m or 8Gi")),
    }
}

/// Seconds from 0; null waits for ever.
fn pending_seconds(at: &At<'_>) -> Result<Option<f64>> {
    if at.value().is_null() {
        return Ok(None);
    }
    let seconds = at.number()?;
    if seconds < 0.0 {
        return Err(at.refuse("is below zero", "seconds from 0, or null to wait for ever"));
    }
    Ok(Some(seconds))
}

/// A job's options for Slurm that are not amounts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlurmOptions {
    /// An absolute file; counts as bringing code.
    pub image: Option<String>,
    /// The command of the nodes beside the first, split as a shell would.
    pub additional_node_command: Vec<String>,
    /// The type of GPU, where the site offers types.
    pub gpu_type: Option<String>,
}

impl SlurmOptions {
    /// Reads the options. `client` says whether the worker is a site's: the server's has no further nodes.
    ///
    /// # Errors
    /// When there is one that a job may not set, or a value is not allowed.
    pub fn read(at: &At<'_>, client: bool) -> Result<Self> {
        let fields = at.fields(&SLURM_KEYS)?;
        let image = fields.given("image").map(|at| absolute_file(&at)).transpose()?;
        let gpu_type = fields.given("gpu_type").map(|at| {
            let text = at.text()?;
            let good = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
            if good {
                Ok(text.to_owned())
            } else {
                Err(at.refuse("is not a type of GPU", "letters, digits, `_`, `-`, `.`"))
            }
        });
        let additional_node_command = match fields.given("additional_node_command") {
            None => Vec::new(),
            Some(command) => {
                let nodes = fields.get("nodes").and_then(|n| n.value().as_int().cloned());
                if !nodes.is_some_and(|n| n.at_least(2)) {
                    return Err(command.refuse("has no further node to run on", "nodes: 2 or more beside it"));
                }
                if !client {
                    return Err(command.refuse("is set for the server's worker", "sites that are clients"));
                }
                node_command(&command)?
            }
        };
        Ok(Self { image, additional_node_command, gpu_type: gpu_type.transpose()? })
    }

    /// Whether they bring code of the job's choosing.
    #[must_use]
    pub fn brings_code(&self) -> bool {
        self.image.is_some()
    }
}

fn absolute_file(at: &At<'_>) -> Result<String> {
    let text = at.clean_text()?;
    if !text.starts_with('/') || text.contains(['\n', '\r']) {
        return Err(at.refuse("is not an absolute file", "a path such as /images/study.sif"));
    }
    Ok(text.to_owned())
}

fn node_command(at: &At<'_>) -> Result<Vec<String>> {
    const ALLOWED: &str = "one line of program and arguments";
    let text = at.clean_text()?;
    if text.contains(['\n', '\r']) {
        return Err(at.refuse("has more than one line", ALLOWED));
    }
    if has_secret_reference(text) {
        return Err(at.refuse("refers to a secret, which further nodes do not get", ALLOWED));
    }
    match shell_words::split(text) {
        Ok(words) if !words.is_empty() => Ok(words),
        Ok(_) => Err(at.refuse("is empty", ALLOWED)),
        Err(_) => Err(at.refuse("has a quote that does not end", ALLOWED)),
    }
}

/// FLARE's secret references, `${secret:NAME}` and `${secret:file:/path}`; one that is broken counts, too.
fn has_secret_reference(text: &str) -> bool {
    text.contains("${secret:")
}

/// Reads the options of a block that is known to be a map.
///
/// # Errors
/// As [`SlurmOptions::read`].
pub fn slurm_options(file: &str, site: &str, block: &Value, client: bool) -> Result<SlurmOptions> {
    SlurmOptions::read(&At::under(file, &format!("launcher_spec.{site}.slurm"), block), client)
}
