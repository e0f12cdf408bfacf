//! Where the workers' socket lies.
//!
//! Beside the rest of the state, unless the path is longer than the kernel takes (107 bytes): then in a folder of
//! `/tmp` that is ours alone to write, named after the state directory, so that a restarted parent opens the same.

use anyhow::Context as _;
use polder_words::Mode;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Longest path of a socket.
const LONGEST: usize = 107;

/// The socket for a state directory. Makes the folder it lies in, when that is another.
///
/// # Errors
/// When the other folder cannot be made, or somebody else made it.
pub(crate) fn socket_path(state: &Path, mode: Mode) -> anyhow::Result<PathBuf> {
    let beside = polder_adapters::socket_in(state, mode);
    if beside.as_os_str().len() <= LONGEST {
        if let Some(folder) = beside.parent().filter(|folder| *folder != state) {
            super::dir::make(folder, 0o711).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        return Ok(beside);
    }
    let hash = blake3::hash(state.as_os_str().as_encoded_bytes()).to_hex();
    let uid = rustix::process::geteuid().as_raw();
    let folder = PathBuf::from(format!("/tmp/polder-{uid}-{}", &hash[..16]));
    match std::fs::DirBuilder::new().mode(0o711).create(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("cannot make {}", folder.display())),
    }
    let meta = folder.symlink_metadata().with_context(|| format!("cannot look at {}", folder.display()))?;
    anyhow::ensure!(
        meta.is_dir() && meta.uid() == uid,
        "{}: belongs to somebody else; it is where the workers' socket of {} would lie",
        folder.display(),
        state.display()
    );
    // Also when a umask took away more than meant.
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711))
        .with_context(|| format!("cannot open {} to workers", folder.display()))?;
    Ok(folder.join("worker.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_gets_a_short_one_that_stays_the_same() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(socket_path(dir.path(), Mode::Process).expect("short"), dir.path().join("worker.sock"));
        let long = dir.path().join("x".repeat(100));
        let path = socket_path(&long, Mode::Process).expect("a folder in /tmp");
        assert!(path.as_os_str().len() <= LONGEST);
        assert_eq!(socket_path(&long, Mode::Process).expect("again"), path);
        std::fs::remove_dir(path.parent().expect("a folder")).expect("empty");
    }
}
