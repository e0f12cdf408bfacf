//! The global model: bytes in memory while it is small, a file in `out/` when it is not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use polder_api::payload::{INLINE_LIMIT, Payload};
use polder_api::rundir;
use polder_words::SiteName;
use polder_workflow::aggregate::{AggregateError, Part, aggregate, aggregate_in_memory};
use polder_workflow::checkpoint::Saved;
use polder_workflow::engine::Contribution;
use polder_workflow::tensors::check::all_finite;
use polder_workflow::tensors::model::OpenError;
use polder_workflow::tensors::{Header, Model};
use std::path::{Component, Path};
use std::sync::Arc;

/// Threads that add models up; more of them wait for memory, not for arithmetic.
const THREADS: usize = 4;

/// A global model.
#[derive(Debug)]
pub(crate) struct Global {
    pub(crate) header: Arc<Header>,
    place: Place,
}

/// What [`Global::mean`] and [`Global::adopt`] make.
pub(crate) type Made = Global;

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    /// Relative to the run directory.
    File(String),
}

/// Why a model was not made.
#[derive(Debug)]
pub(crate) enum MakeError {
    /// A site's model may not be used.
    Refused {
        /// Whose.
        site: SiteName,
        /// What is wrong with it.
        cause: String,
    },
    /// Something else: a disk, a file that is not there.
    Failed(String),
}

impl Global {
    /// The job's own model to begin with.
    pub(crate) fn initial(run: &Path, path: &str, attempt: u32) -> Result<Self, String> {
        let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if !plain {
            return Err("leaves the app folder".to_owned());
        }
        let from = run.join(rundir::APP).join(path);
        let model = Model::open(&from).map_err(|error| super::chain(&error))?;
        all_finite(&model).map_err(|error| error.to_string())?.map_err(|why| why.to_string())?;
        Self::keep(run, &model, &from, attempt)
    }

    /// The first model of a site.
    pub(crate) fn adopt(run: &Path, part: &Contribution, attempt: u32) -> Result<Self, MakeError> {
        let refused = |cause: String| MakeError::Refused { site: part.site.clone(), cause };
        let model = open(run, part)?;
        all_finite(&model)
            .map_err(|error| MakeError::Failed(error.to_string()))?
            .map_err(|why| refused(why.to_string()))?;
        match &part.model {
            Payload::Inline { data } => {
                let bytes = BASE64.decode(data).map_err(|error| refused(error.to_string()))?;
                Ok(Self { header: Arc::new(model.header().clone()), place: Place::Memory(bytes) })
            }
            Payload::File { path, .. } => {
                Self::keep(run, &model, &run.join(path), attempt).map_err(MakeError::Failed)
            }
            Payload::Blob { .. } => Err(not_shared()),
        }
    }

    fn keep(run: &Path, model: &Model, from: &Path, attempt: u32) -> Result<Self, String> {
        let header = Arc::new(model.header().clone());
        let place = if header.file_len() <= INLINE_LIMIT {
            Place::Memory(std::fs::read(from).map_err(|error| error.to_string())?)
        } else {
            let path = name(attempt, 0);
            std::fs::copy(from, run.join(&path)).map_err(|error| format!("cannot write {path}: {error}"))?;
            Place::File(path)
        };
        Ok(Self { header, place })
    }

    /// The model of a checkpoint.
    pub(crate) fn restore(run: &Path, saved: &Saved) -> Result<Self, String> {
        match saved {
            Saved::Inline(_) => {
                let bytes = saved.bytes().ok_or("the checkpoint's model is not base64")?;
                let model = Model::from_bytes(bytes.clone()).map_err(|error| super::chain(&error))?;
                Ok(Self { header: Arc::new(model.header().clone()), place: Place::Memory(bytes) })
            }
            Saved::File { path, size } => {
                let model = Model::open(&run.join(path))
                    .map_err(|error| format!("{path}: {}", super::chain(&error)))?;
                if model.header().file_len() != *size {
                    return Err(format!("{path} is not the checkpoint's model"));
                }
                Ok(Self { header: Arc::new(model.header().clone()), place: Place::File(path.clone()) })
            }
        }
    }

    /// The weighted mean of a round's models.
    pub(crate) fn mean(
        run: &Path,
        base: &Arc<Header>,
        parts: &[Contribution],
        attempt: u32,
        round: u32,
    ) -> Result<Self, MakeError> {
        let models = parts.iter().map(|part| open(run, part)).collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<_> = parts
            .iter()
            .zip(&models)
            .map(|(part, model)| Part { site: &part.site, model, weight: part.weight })
            .collect();
        let made = if base.file_len() <= INLINE_LIMIT {
            aggregate_in_memory(base, &parts).map(Place::Memory)
        } else {
            let path = name(attempt, round);
            let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS));
            aggregate(base, &parts, &run.join(&path), threads).map(|_| Place::File(path))
        };
        match made {
            Ok(place) => Ok(Self { header: base.clone(), place }),
            Err(AggregateError::Refused { site, why }) => {
                Err(MakeError::Refused { site, cause: why.to_string() })
            }
            Err(error) => Err(MakeError::Failed(super::chain(&error))),
        }
    }

    /// Whether it rides in messages.
    pub(crate) fn is_small(&self) -> bool {
        matches!(self.place, Place::Memory(_))
    }

    /// As it goes to the sites.
    pub(crate) fn payload(&self) -> Payload {
        match &self.place {
            Place::Memory(bytes) => Payload::Inline { data: BASE64.encode(bytes) },
            Place::File(path) => Payload::File { path: path.clone(), blob: None },
        }
    }

    /// As it stands in a checkpoint.
    pub(crate) fn saved(&self) -> Saved {
        match &self.place {
            Place::Memory(bytes) => Saved::inline(bytes),
            Place::File(path) => Saved::File { path: path.clone(), size: self.header.file_len() },
        }
    }

    /// As a result of the job: the file's path below the run directory.
    pub(crate) fn result(&self, run: &Path, file: &str) -> Result<String, String> {
        match &self.place {
            Place::Memory(bytes) => {
                let path = format!("{}/{file}", rundir::OUT);
                std::fs::write(run.join(&path), bytes)
                    .map_err(|error| format!("cannot write {path}: {error}"))?;
                Ok(path)
            }
            Place::File(path) => Ok(path.clone()),
        }
    }

    /// Removes its file.
    pub(crate) fn remove(&self, run: &Path) {
        if let Place::File(path) = &self.place {
            let _ = std::fs::remove_file(run.join(path));
        }
    }
}

fn name(attempt: u32, round: u32) -> String {
    format!("{}/model-{attempt}-{round}.safetensors", rundir::OUT)
}

fn not_shared() -> MakeError {
    MakeError::Failed("the parent shares no files with this worker, which this version needs".to_owned())
}

fn open(run: &Path, part: &Contribution) -> Result<Model, MakeError> {
    let refused = |cause: String| MakeError::Refused { site: part.site.clone(), cause };
    let opened = match &part.model {
        Payload::Inline { data } => Model::from_bytes(
            BASE64.decode(data).map_err(|error| refused(format!("its model is not base64: {error}")))?,
        ),
        Payload::File { path, .. } => Model::open(&run.join(path)),
        Payload::Blob { .. } => return Err(not_shared()),
    };
    opened.map_err(|error| match error {
        OpenError::Header(why) => refused(why.to_string()),
        OpenError::Read(error) => {
            MakeError::Failed(format!("cannot read the model of {}: {error}", part.site))
        }
    })
}

/// Removes what attempts before left of models, but the one to continue from.
pub(crate) fn clear(out: &Path, keep: Option<&Global>) {
    let keep = match keep.map(|global| &global.place) {
        Some(Place::File(path)) => path.rsplit('/').next().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    let Ok(entries) = std::fs::read_dir(out) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("model-") && *name != keep {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
