//! Putting an archive on disk: whole, or not at all.

use super::read::{Member, walk};
use super::{BundleError, Limits};
use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Unpacks into a folder beside `dest` and renames it: `dest` is there whole or not at all. Files become
/// 0644 or 0755, folders 0755, owned by who runs this. What an earlier run left half done is removed first.
///
/// # Errors
/// When a rule is broken, when `dest` exists, or when the disk says no; nothing is left behind.
pub fn unpack(archive: impl Read, dest: &Path, limits: &Limits) -> Result<(), BundleError> {
    let partial = partial(dest)?;
    remove(&partial)?;
    let done = unpack_into(archive, &partial, limits).and_then(|()| {
        // A rename replaces an empty folder without a word.
        if dest.symlink_metadata().is_ok() {
            return Err(BundleError::io(dest)(io::ErrorKind::AlreadyExists.into()));
        }
        fs::rename(&partial, dest).map_err(BundleError::io(dest))
    });
    if done.is_err() {
        // The first error is the one worth telling.
        let _ = remove(&partial);
    }
    done
}

fn partial(dest: &Path) -> Result<PathBuf, BundleError> {
    let Some(name) = dest.file_name() else {
        return Err(BundleError::io(dest)(io::ErrorKind::InvalidInput.into()));
    };
    let mut partial = std::ffi::OsString::from(".");
    partial.push(name);
    partial.push(".partial");
    Ok(dest.with_file_name(partial))
}

fn remove(path: &Path) -> Result<(), BundleError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BundleError::io(path)(error)),
    }
}

fn unpack_into(archive: impl Read, root: &Path, limits: &Limits) -> Result<(), BundleError> {
    // Ours alone until it is whole.
    fs::DirBuilder::new().mode(0o700).create(root).map_err(BundleError::io(root))?;
    walk(archive, limits, |path, member| {
        let target = root.join(path);
        match member {
            Member::Folder => make_folders(root, &target),
            Member::File { size, executable, body } => {
                if let Some(above) = target.parent() {
                    make_folders(root, above)?;
                }
                let mode = if executable { 0o755 } else { 0o644 };
                let mut file = fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(&target)
                    .map_err(BundleError::io(&target))?;
                // Whatever the umask is: a worker with an account of its own has to read it.
                file.set_permissions(Permissions::from_mode(mode)).map_err(BundleError::io(&target))?;
                let copied =
                    io::copy(body, &mut file).map_err(|error| match error.downcast::<BundleError>() {
                        Ok(ours) => ours,
                        Err(source) => BundleError::Io { path: target.clone(), source },
                    })?;
                if copied != size {
                    return Err(BundleError::Unreadable { source: io::ErrorKind::UnexpectedEof.into() });
                }
                Ok(())
            }
        }
    })?;
    fs::set_permissions(root, Permissions::from_mode(0o755)).map_err(BundleError::io(root))
}

fn make_folders(root: &Path, path: &Path) -> Result<(), BundleError> {
    if path == root || path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        make_folders(root, above)?;
    }
    fs::create_dir(path).map_err(BundleError::io(path))?;
    fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(BundleError::io(path))
}
