//! An attempt's folder: what the parent wrote before it acted, and what the script left.
//!
//! ```text
//! slurm-intent.json    a submission may have been sent            (parent, synced before it is)
//! slurm-job.json       the job's number                           (parent, synced before release)
//! slurm-released       it was released                            (parent, after it was)
//! slurm-end.json       it was told to end, and why                (parent, before it is)
//! slurm-fenced         nothing came of the intent and nothing can (parent)
//! slurm-exit.json      how the script ended                       (script; believed as far as a worker is)
//! ```

use crate::script::{EXIT, OUTPUT};
use crate::state::Known;
use polder_api::rundir;
use polder_launch::Time;
use polder_words::LaunchId;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Longest document that is read.
const MAX: u64 = 64 << 10;
const INTENT: &str = "slurm-intent.json";
const JOB: &str = "slurm-job.json";
const RELEASED: &str = "slurm-released.json";
const END: &str = "slurm-end.json";
const FENCED: &str = "slurm-fenced.json";

/// A submission that may have been sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// When, before it was.
    pub at: Time,
}

/// A job of this launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Its number.
    pub number: u32,
}

/// Why it was told to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EndRecord {
    why: String,
}

/// What a script left at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The job it was in.
    pub job: String,
    /// `setup` or `worker`.
    pub stage: String,
    /// Its exit code.
    pub code: i64,
    /// Seconds since 1970.
    pub at: u64,
}

/// The folder of one attempt, below the folder of all run directories.
#[derive(Debug, Clone)]
pub struct Folder {
    runs: PathBuf,
    below: PathBuf,
}

impl Folder {
    /// Of a launch.
    #[must_use]
    pub fn of(runs: &Path, id: &LaunchId) -> Self {
        let below = PathBuf::from(format!("{}-{}", id.job, id.role));
        let below = below.join(rundir::ATTEMPTS).join(id.attempt.to_string());
        Self { runs: runs.to_owned(), below }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.runs.join(&self.below)
    }

    /// Makes it.
    ///
    /// # Errors
    /// As the system says.
    pub fn make(&self) -> io::Result<()> {
        fs::create_dir_all(self.path())
    }

    /// A file in it, opened without following a link anywhere below the run directories: the worker's account may write
    /// there.
    fn open(&self, name: &str) -> io::Result<Option<fs::File>> {
        let runs = open(&self.runs, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let runs = match runs {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&runs, self.below.join(name), flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(file) => {
                let file = fs::File::from(file);
                if file.metadata()?.is_file() {
                    Ok(Some(file))
                } else {
                    Err(io::ErrorKind::InvalidData.into())
                }
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let Some(file) = self.open(name)? else { return Ok(None) };
        let mut text = Vec::new();
        file.take(MAX).read_to_end(&mut text)?;
        serde_json::from_slice(&text).map(Some).map_err(io::Error::other)
    }

    /// Writes a document whole or not at all, and to the disk before it returns.
    fn write(&self, name: &str, document: &impl Serialize) -> io::Result<()> {
        self.write_bytes(name, &serde_json::to_vec(document)?)
    }

    fn write_bytes(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let folder = self.path();
        let part = folder.join(format!("{name}.part"));
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, folder.join(name))?;
        fs::File::open(&folder)?.sync_all()
    }

    /// The handover, for the worker's account alone.
    ///
    /// # Errors
    /// As the system says.
    pub fn put_handover(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_bytes(rundir::HANDOVER, bytes)
    }

    /// Notes that a submission is about to be sent.
    ///
    /// # Errors
    /// As the system says.
    pub fn put_intent(&self, at: Time) -> io::Result<()> {
        self.write(INTENT, &Intent { at })
    }

    /// A submission that may have been sent.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn intent(&self) -> io::Result<Option<Intent>> {
        self.read(INTENT)
    }

    /// Forgets an intent that certainly came to nothing.
    ///
    /// # Errors
    /// As the system says.
    pub fn drop_intent(&self) -> io::Result<()> {
        match fs::remove_file(self.path().join(INTENT)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Notes the job.
    ///
    /// # Errors
    /// As the system says.
    pub fn put_job(&self, number: u32) -> io::Result<()> {
        self.write(JOB, &JobRecord { number })
    }

    /// The job.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn job(&self) -> io::Result<Option<u32>> {
        Ok(self.read::<JobRecord>(JOB)?.map(|job| job.number))
    }

    /// Notes that it was released.
    ///
    /// # Errors
    /// As the system says.
    pub fn put_released(&self) -> io::Result<()> {
        self.write(RELEASED, &serde_json::json!({}))
    }

    /// Notes that it is to end; the first reason stays.
    ///
    /// # Errors
    /// As the system says.
    pub fn put_end(&self, why: &str) -> io::Result<()> {
        if self.open(END)?.is_some() {
            return Ok(());
        }
        self.write(END, &EndRecord { why: why.to_owned() })
    }

    /// Notes that nothing came of the intent and nothing can.
    ///
    /// # Errors
    /// As the system says.
    pub fn put_fenced(&self) -> io::Result<()> {
        self.make()?;
        self.write(FENCED, &serde_json::json!({}))
    }

    /// Whether it was fenced off.
    ///
    /// # Errors
    /// As the system says.
    pub fn fenced(&self) -> io::Result<bool> {
        Ok(self.open(FENCED)?.is_some())
    }

    /// Everything that helps to read a native state. A record of the script that cannot be read is none.
    ///
    /// # Errors
    /// When a record of the parent's own cannot be read.
    pub fn known(&self) -> io::Result<Known> {
        Ok(Known {
            released: self.open(RELEASED)?.is_some(),
            asked: self.read::<EndRecord>(END)?.map(|end| end.why),
            exit: self.read(EXIT).unwrap_or_default(),
        })
    }

    /// The last bytes of the output.
    ///
    /// # Errors
    /// As the system says.
    pub fn tail(&self, max: usize) -> io::Result<Vec<u8>> {
        let Some(mut file) = self.open(OUTPUT)? else { return Ok(Vec::new()) };
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(max as u64)))?;
        let mut out = Vec::new();
        file.take(max as u64).read_to_end(&mut out)?;
        Ok(out)
    }

    /// Every attempt that has a record of ours.
    #[must_use]
    pub fn has_records(&self) -> bool {
        [INTENT, JOB].iter().any(|name| fs::symlink_metadata(self.path().join(name)).is_ok())
    }
}
