//! Files of identities: whole or absent, secrets readable by their owner alone.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// A file that could not be read, written or trusted.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system said no.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Others can read it.
    #[error("{}: mode {mode:04o} lets others read a private key: chmod 600 it", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

pub(crate) fn failed<'a>(
    path: &'a Path,
    action: &'static str,
) -> impl FnOnce(io::Error) -> FileError + use<'a> {
    move |source| FileError::Io { path: path.to_owned(), action, source }
}

/// Makes a directory (and those above it) that only its owner may enter; one that is there stays as it is.
pub(crate) fn private_dir(path: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path, "create directory"))
}

/// Writes a file whole: temporary name, synced, renamed, directory synced.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = parent.join(format!(".{name}.new"));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed(&temporary, "remove")(error));
        }
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed(&temporary, "create"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed(&temporary, "write"))?;
    fs::rename(&temporary, path).map_err(failed(path, "rename into place"))?;
    sync_dir(parent)
}

pub(crate) fn sync_dir(path: &Path) -> Result<(), FileError> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    fs::File::open(path).and_then(|dir| dir.sync_all()).map_err(failed(path, "sync directory"))
}

/// Reads a text.
pub(crate) fn read(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(failed(path, "read"))
}

/// Reads a secret, unless others can read it too.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<String>, FileError> {
    let mode = fs::metadata(path).map_err(failed(path, "read"))?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(FileError::Open { path: path.to_owned(), mode });
    }
    read(path).map(Zeroizing::new)
}
