//! The state directory of a parent: 0700, and used by one process at a time.

use crate::error::{Result, StoreError};
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The state directory, locked while this value lives (also over a `kill -9`: the kernel lets go of the lock).
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Makes the directory if need be, closes it to others and locks it.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another process holds it.
    pub fn open(path: &Path) -> Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(StoreError::io(path))?;
        std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(StoreError::io(path))?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(StoreError::io(&lock_path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // For whoever finds it locked; a number of an earlier holder must not stay.
                lock.set_len(0)
                    .and_then(|()| writeln!(lock, "{}", std::process::id()))
                    .map_err(StoreError::io(&lock_path))?;
                Ok(Self { path: path.to_owned(), _lock: lock })
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // Only a hint: without it the error is as true.
                let _ = lock.take(32).read_to_string(&mut text);
                Err(StoreError::InUse { path: path.to_owned(), holder: text.trim().parse().ok() })
            }
            Err(error) => Err(StoreError::io(lock_path)(error.into())),
        }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder in it, made 0700 if need be.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(StoreError::io(&path))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("state");
        let first = StateDir::open(&path).expect("free");
        let second = StateDir::open(&path).expect_err("taken").to_string();
        let expected = format!(
            "{}: another parent (pid {}) is running on this state directory",
            path.display(),
            std::process::id()
        );
        assert_eq!(second, expected);
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o700);
        drop(first);
        StateDir::open(&path).expect("free again");
    }
}
