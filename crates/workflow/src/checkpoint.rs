//! What is on disk of a job at the server's worker: the last round, its model, the history.
//!
//! ```text
//! state/checkpoint.json    round, where its model is, who is out; replaced whole, synced before
//! state/history.jsonl      a line a round; the checkpoint says how many bytes of it count
//! out/model-<n>.safetensors  the model, when it is too large to stand in the checkpoint
//! ```
//! The order on disk is model, history, checkpoint, each synced before the next, so that the checkpoint
//! never names what is not there. A small model stands in the checkpoint itself: one file, one sync.

use crate::engine::{Failure, Record};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use polder_words::SiteName;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const CHECKPOINT: &str = "checkpoint.json";
const HISTORY: &str = "history.jsonl";
const VERSION: u32 = 1;

/// Where a round's model is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Saved {
    /// In the checkpoint, base64.
    Inline(String),
    /// A file below the run directory.
    File {
        /// Relative path.
        path: String,
        /// Bytes.
        size: u64,
    },
}

/// The state after a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    version: u32,
    /// Rounds made.
    pub round: u32,
    /// The model of the last.
    pub model: Saved,
    /// Who was late in it.
    #[serde(default)]
    pub late: BTreeSet<SiteName>,
    /// Who has failed.
    #[serde(default)]
    pub lost: BTreeMap<SiteName, Failure>,
    history: u64,
}

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file cannot be read or written.
    #[error("cannot {verb} {}", path.display())]
    Io {
        /// `read`, `write`, ...
        verb: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was written by another version or is not what it should be.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// The checkpoints of one job, in its state folder.
#[derive(Debug)]
pub struct Checkpoints {
    state: PathBuf,
    run: PathBuf,
    history: File,
    /// Bytes of the history that count.
    length: u64,
}

fn io(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Io { verb, path, source }
}

impl Checkpoints {
    /// Opens the checkpoints in `<run>/<state>`, and the last one if there is one. What a killed worker
    /// wrote of the history beyond that is cut off.
    ///
    /// # Errors
    /// When a file cannot be read or is not what it should be.
    pub fn open(run: &Path, state: &str) -> Result<(Self, Option<Checkpoint>), CheckpointError> {
        let state = run.join(state);
        std::fs::create_dir_all(&state).map_err(io("create", &state))?;
        let path = state.join(CHECKPOINT);
        let last = match std::fs::read(&path) {
            Ok(bytes) => Some(read(&path, &bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io("read", &path)(error)),
        };
        let path = state.join(HISTORY);
        let mut history = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(io("open", &path))?;
        let there = history.metadata().map_err(io("read", &path))?.len();
        let length = last.as_ref().map_or(0, |last| last.history).min(there);
        history
            .set_len(length)
            .and_then(|()| history.seek(SeekFrom::Start(length)))
            .map_err(io("write", &path))?;
        Ok((Self { state, run: run.to_owned(), history, length }, last))
    }

    /// Writes the state after a round. Returns when it is on disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&mut self, record: &Record, model: Saved) -> Result<(), CheckpointError> {
        if let Saved::File { path, .. } = &model {
            let path = self.run.join(path);
            File::open(&path).and_then(|file| file.sync_all()).map_err(io("sync", &path))?;
            if let Some(folder) = path.parent() {
                sync_folder(folder)?;
            }
        }
        let path = self.state.join(HISTORY);
        let mut line = serde_json::to_vec(record)
            .map_err(|error| CheckpointError::Malformed { path: path.clone(), why: error.to_string() })?;
        line.push(b'\n');
        self.history.write_all(&line).and_then(|()| self.history.sync_data()).map_err(io("write", &path))?;
        self.length += line.len() as u64;
        let checkpoint = Checkpoint {
            version: VERSION,
            round: record.round,
            model,
            late: record.late.clone(),
            lost: record.lost.clone(),
            history: self.length,
        };
        let path = self.state.join(CHECKPOINT);
        let bytes = serde_json::to_vec(&checkpoint)
            .map_err(|error| CheckpointError::Malformed { path: path.clone(), why: error.to_string() })?;
        let partial = self.state.join("checkpoint.json.part");
        let write = || {
            let mut file = File::create(&partial)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&partial, &path)
        };
        write().map_err(io("write", &path))?;
        sync_folder(&self.state)
    }

    /// The rounds up to the last checkpoint.
    ///
    /// # Errors
    /// When the history cannot be read.
    pub fn history(&self) -> Result<Vec<Record>, CheckpointError> {
        let path = self.state.join(HISTORY);
        let text = std::fs::read_to_string(&path).map_err(io("read", &path))?;
        let wrong = |error: serde_json::Error| CheckpointError::Malformed {
            path: path.clone(),
            why: error.to_string(),
        };
        text.lines().map(|line| serde_json::from_str(line).map_err(wrong)).collect()
    }
}

impl Saved {
    /// A model as it stands in a checkpoint.
    #[must_use]
    pub fn inline(bytes: &[u8]) -> Self {
        Self::Inline(BASE64.encode(bytes))
    }

    /// The bytes of a model that stands in the checkpoint.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Inline(text) => BASE64.decode(text).ok(),
            Self::File { .. } => None,
        }
    }
}

fn read(path: &Path, bytes: &[u8]) -> Result<Checkpoint, CheckpointError> {
    let malformed = |why: String| CheckpointError::Malformed { path: path.to_owned(), why };
    let found: Checkpoint = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    if found.version != VERSION {
        return Err(malformed(format!("version {} where this worker reads {VERSION}", found.version)));
    }
    if matches!(&found.model, Saved::Inline(text) if BASE64.decode(text).is_err()) {
        return Err(malformed("its model is not base64".to_owned()));
    }
    Ok(found)
}

fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(round: u32) -> Record {
        Record {
            round,
            metrics: BTreeMap::from([("loss".to_owned(), 1.0 / f64::from(round))]),
            sites: BTreeMap::new(),
            late: BTreeSet::new(),
            lost: BTreeMap::new(),
            millis: 3,
        }
    }

    #[test]
    fn a_killed_worker_finds_its_last_round_and_its_history() {
        let dir = tempfile::tempdir().expect("a folder");
        let (mut checkpoints, last) = Checkpoints::open(dir.path(), "state").expect("opens");
        assert_eq!(last, None);
        for round in 1..=3 {
            checkpoints.save(&record(round), Saved::inline(&[7; 9])).expect("saved");
        }
        // Killed between the history and the checkpoint of round 4, in mid-line.
        let history = dir.path().join("state/history.jsonl");
        let mut file = OpenOptions::new().append(true).open(&history).expect("opens");
        file.write_all(b"{\"round\":4,").expect("written");
        std::fs::write(dir.path().join("state/checkpoint.json.part"), b"{").expect("written");

        let (mut checkpoints, last) = Checkpoints::open(dir.path(), "state").expect("opens");
        let last = last.expect("there is one");
        assert_eq!((last.round, last.model.bytes()), (3, Some(vec![7; 9])));
        checkpoints.save(&record(4), Saved::inline(&[8])).expect("saved");
        let rounds: Vec<_> =
            checkpoints.history().expect("reads").iter().map(|record| record.round).collect();
        assert_eq!(rounds, [1, 2, 3, 4]);
    }

    #[test]
    fn a_model_file_is_named_and_must_be_there() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("out")).expect("made");
        let (mut checkpoints, _) = Checkpoints::open(dir.path(), "state").expect("opens");
        let model = Saved::File { path: "out/m".to_owned(), size: 2 };
        assert!(matches!(
            checkpoints.save(&record(1), model.clone()),
            Err(CheckpointError::Io { verb: "sync", .. })
        ));
        std::fs::write(dir.path().join("out/m"), b"ab").expect("written");
        checkpoints.save(&record(1), model.clone()).expect("saved");
        let (_, last) = Checkpoints::open(dir.path(), "state").expect("opens");
        assert_eq!(last.expect("there is one").model, model);
    }

    #[test]
    fn what_is_not_a_checkpoint_is_said_with_its_path() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("state")).expect("made");
        let path = dir.path().join("state/checkpoint.json");
        for (text, part) in [
            ("{", "EOF"),
            (r#"{"version":2,"round":1,"model":{"inline":""},"history":0}"#, "version 2"),
            (r#"{"version":1,"round":1,"model":{"inline":"?"},"history":0}"#, "not base64"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = Checkpoints::open(dir.path(), "state").expect_err(part).to_string();
            assert!(error.contains("checkpoint.json") && error.contains(part), "{error}");
        }
    }
}
