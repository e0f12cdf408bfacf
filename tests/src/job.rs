//! Job folders for tests, written file by file.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A job's folder in the making.
#[derive(Debug, Clone)]
pub struct Job {
    /// `meta.json`.
    pub meta: Value,
    /// `job.yaml` of the one app.
    pub job: Value,
    /// Further files of the app: path and content.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Job {
    /// One app for everybody, trained by `command`.
    #[must_use]
    pub fn new<S: AsRef<str>>(name: &str, command: impl IntoIterator<Item = S>) -> Self {
        let command: Vec<String> = command.into_iter().map(|word| word.as_ref().to_owned()).collect();
        Self {
            meta: json!({"name": name, "deploy_map": {"app": ["@ALL"]}, "min_clients": 1}),
            job: json!({"rounds": 1, "trainer": {"command": command}}),
            files: Vec::new(),
        }
    }

    /// With this many rounds.
    #[must_use]
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.job["rounds"] = json!(rounds);
        self
    }

    /// Waits for this many sites, and needs as many results.
    #[must_use]
    pub fn min_clients(mut self, n: usize) -> Self {
        self.meta["min_clients"] = json!(n);
        self
    }

    /// With a key of `job.yaml`.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.job[key] = value;
        self
    }

    /// With a key of `meta.json`.
    #[must_use]
    pub fn meta(mut self, key: &str, value: Value) -> Self {
        self.meta[key] = value;
        self
    }

    /// With a file in the app.
    #[must_use]
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.to_owned(), content.into()));
        self
    }

    /// Writes it beneath `folder`, under its name; its path.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn write(&self, folder: &Path) -> PathBuf {
        let root = folder.join(self.meta["name"].as_str().expect("a job has a name"));
        let app = root.join("app");
        fs::create_dir_all(&app).expect("a folder");
        fs::write(root.join("meta.json"), self.meta.to_string()).expect("written");
        // JSON is YAML.
        fs::write(app.join("job.yaml"), self.job.to_string()).expect("written");
        for (path, content) in &self.files {
            let path = app.join(path);
            fs::create_dir_all(path.parent().expect("beneath the app")).expect("a folder");
            fs::write(path, content).expect("written");
        }
        root
    }
}

/// A safetensors file with one f32 tensor `w` of this many elements, all of one value.
#[must_use]
pub fn model(elements: usize, value: f32) -> Vec<u8> {
    let header =
        format!(r#"{{"w":{{"dtype":"F32","shape":[{elements}],"data_offsets":[0,{}]}}}}"#, elements * 4);
    let padded = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let mut bytes = (padded.len() as u64).to_le_bytes().to_vec();
    bytes.extend(padded.as_bytes());
    bytes.extend(value.to_le_bytes().repeat(elements));
    bytes
}

/// The f32 values of a safetensors file that holds nothing else.
///
/// # Panics
/// When it is shorter than it says.
#[must_use]
pub fn values(model: &[u8]) -> Vec<f32> {
    let length = u64::from_le_bytes(model[..8].try_into().expect("eight bytes"));
    let body = 8 + usize::try_from(length).expect("a header in memory");
    model[body..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
