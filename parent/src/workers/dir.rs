//! Run directories: made, filled and removed by the parent alone. See [`polder_api::rundir`] for what is in one.
//!
//! Nothing here follows what a worker left behind: a worker may write `out/`, `state/` and `tmp/`, and these are
//! only ever removed here. What is copied out of them goes through [`super::take`].

use super::{App, RunError};
use anyhow::Context as _;
use polder_api::BlobRef;
use polder_api::rundir::{APP, ATTEMPTS, IN, OUT, STATE, TMP};
use polder_store::bundle;
use polder_words::{Hash, JobId, Role};
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The run directory of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunDir {
    path: PathBuf,
}

impl RunDir {
    pub(super) fn of(runs: &Path, job: JobId, role: Role) -> Self {
        Self { path: runs.join(format!("{job}-{role}")) }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The unpacked app.
    pub(crate) fn app(&self) -> PathBuf {
        self.path.join(APP)
    }

    /// Makes it with its folders and that of an attempt; what is there stays.
    pub(super) fn prepare(&self, attempt: Option<u32>) -> io::Result<()> {
        make(&self.path, 0o755)?;
        make(&self.path.join(IN), 0o755)?;
        for name in [OUT, STATE, TMP] {
            make(&self.path.join(name), 0o700)?;
        }
        let attempts = self.path.join(ATTEMPTS);
        make(&attempts, 0o711)?;
        match attempt {
            Some(n) => make(&attempts.join(n.to_string()), 0o711),
            None => Ok(()),
        }
    }

    /// Unpacks an app, unless one is there.
    pub(super) fn unpack(&self, app: &App) -> Result<(), RunError> {
        let dest = self.app();
        if dest.is_dir() {
            return Ok(());
        }
        let fresh = !self.path.exists();
        let failed = |error: io::Error| RunError::Failed(anyhow::Error::new(error).context("run directory"));
        self.prepare(None).map_err(failed)?;
        let done = File::open(&app.path)
            .with_context(|| format!("cannot open {}", app.path.display()))
            .map_err(RunError::Failed)
            .and_then(|archive| {
                bundle::unpack(archive, &dest, &bundle::Limits::default())
                    .map_err(|why| RunError::Bundle { blob: app.blob, why })
            });
        if done.is_err() && fresh {
            // The error that led here is the one worth telling.
            let _ = self.remove();
        }
        done
    }

    /// Puts a file into `in/` under its hash; gives the relative path.
    pub(super) fn give(&self, blob: &BlobRef, source: &Path) -> io::Result<String> {
        let relative = format!("{IN}/{}", blob.root);
        let dest = self.path.join(&relative);
        // A name is a hash, and only we write here: what is there is it, unless a crash cut the copy below, which
        // has another name until it is whole.
        if dest.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() == blob.size) {
            return Ok(relative);
        }
        make(&self.path.join(IN), 0o755)?;
        match fs::hard_link(source, &dest) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => copy(source, &dest)?,
            Err(error) => return Err(error),
        }
        fs::set_permissions(&dest, Permissions::from_mode(0o444))?;
        Ok(relative)
    }

    /// Removes what lies in `in/` beside these.
    pub(super) fn keep_only(&self, keep: &BTreeSet<Hash>) {
        let Ok(entries) = fs::read_dir(self.path.join(IN)) else { return };
        for entry in entries.flatten() {
            let wanted = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if wanted.is_none_or(|hash: Hash| !keep.contains(&hash)) {
                // What cannot be removed now goes with the directory.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Removes it all. What a worker took its rights from is given them back first.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                open_folders(&self.path, 0);
                gone(fs::remove_dir_all(&self.path))
            }
            done => gone(done),
        }
    }
}

fn gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Gives the owner its rights on folders back, following no link.
fn open_folders(path: &Path, depth: u32) {
    let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        if depth < 64 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_folders(&entry.path(), depth + 1);
        }
    }
}

fn copy(source: &Path, dest: &Path) -> io::Result<()> {
    let partial = dest.with_extension("part");
    fs::copy(source, &partial)?;
    fs::rename(&partial, dest)
}

/// Makes a folder with a mode, whatever the umask is; one that is there stays as it is.
pub(super) fn make(path: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Every run directory, by its name.
pub(super) fn list(runs: &Path) -> Vec<(JobId, Role)> {
    let Ok(entries) = fs::read_dir(runs) else { return Vec::new() };
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let (job, role) = name.split_once('-')?;
        Some((job.parse().ok()?, role.parse().ok()?))
    };
    entries.flatten().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(runs: &Path) -> RunDir {
        RunDir::of(runs, JobId([7; 16]), Role::Client)
    }

    fn blob(bytes: &[u8]) -> BlobRef {
        BlobRef { root: Hash(*blake3::hash(bytes).as_bytes()), size: bytes.len() as u64 }
    }

    #[test]
    fn a_refused_archive_leaves_nothing() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (runs, archive) = (root.path().join("runs"), root.path().join("app.tar.gz"));
        make(&runs, 0o711).expect("made");
        fs::write(&archive, b"no archive").expect("written");
        let app = App { path: archive.clone(), blob: blob(b"no archive") };
        assert!(matches!(dir(&runs).unpack(&app), Err(RunError::Bundle { .. })));
        assert_eq!(fs::read_dir(&runs).expect("there").count(), 0);

        let folder = root.path().join("src");
        fs::create_dir(&folder).expect("made");
        fs::write(folder.join("job.yaml"), "trainer: {command: [x]}").expect("written");
        bundle::pack(&folder, File::create(&archive).expect("made"), &bundle::Limits::default())
            .expect("packs");
        dir(&runs).unpack(&app).expect("unpacks");
        dir(&runs).unpack(&app).expect("again");
        assert!(dir(&runs).app().join("job.yaml").is_file());
        assert_eq!(list(&runs), [(JobId([7; 16]), Role::Client)]);
        dir(&runs).remove().expect("removed");
        dir(&runs).remove().expect("again");
        assert!(!dir(&runs).path().exists());
    }

    #[test]
    fn models_are_given_read_only_and_old_ones_go() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let dir = dir(root.path());
        dir.prepare(Some(1)).expect("made");
        let model = root.path().join("model");
        fs::write(&model, b"model").expect("written");
        let path = dir.give(&blob(b"model"), &model).expect("given");
        let meta = fs::metadata(dir.path().join(&path)).expect("there");
        assert_eq!(meta.permissions().mode() & 0o777, 0o444);
        dir.give(&blob(b"model"), &model).expect("again");
        dir.keep_only(&BTreeSet::from([blob(b"model").root]));
        assert!(dir.path().join(&path).exists());
        dir.keep_only(&BTreeSet::new());
        assert!(!dir.path().join(&path).exists() && model.exists());
    }

    #[test]
    fn a_worker_that_took_rights_away_does_not_keep_its_files() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let dir = dir(root.path());
        dir.prepare(None).expect("made");
        let deep = dir.path().join("out/a/b");
        fs::create_dir_all(&deep).expect("made");
        fs::write(deep.join("f"), "x").expect("written");
        fs::set_permissions(dir.path().join("out/a"), Permissions::from_mode(0o0)).expect("changed");
        dir.remove().expect("removed");
        assert!(!dir.path().exists());
    }
}
