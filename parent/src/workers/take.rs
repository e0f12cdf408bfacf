//! Taking a file a worker left: no path of a worker is believed.
//!
//! The run directory is opened by us; from there the file is opened with `openat2`, which follows no link and leaves
//! the directory on no way. Then the open file is looked at, not its name: regular, one name, owned by the worker (or
//! by us), within the cap. As many bytes as it has then are copied, and what is written is what is hashed; a file that
//! shrinks meanwhile is refused.

use super::{RunDir, TakeError};
use polder_transport::blob::{Tree, copy_file_hashing};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies `path` beneath a run directory to `into/<hash>`.
pub(super) fn take(dir: &RunDir, path: &str, cap: u64, into: &Path) -> Result<Tree, TakeError> {
    let file = open(dir, path)?;
    let shown: String = path.chars().take(200).collect();
    let failed = |source: io::Error| TakeError::Io { path: shown.clone(), source };
    let meta = file.metadata().map_err(failed)?;
    let refuse = |why| Err(TakeError::Path { path: shown.clone(), why });
    if !meta.is_file() {
        return refuse("not a regular file");
    }
    if meta.nlink() != 1 {
        return refuse("it has another name as well");
    }
    // `out/` was given to the worker's account, and to nobody else.
    let owner = fs::symlink_metadata(dir.path().join(polder_api::rundir::OUT)).map(|meta| meta.uid());
    if meta.uid() != rustix::process::geteuid().as_raw() && owner.ok() != Some(meta.uid()) {
        return refuse("it belongs to another account");
    }
    if meta.len() > cap {
        return Err(TakeError::TooLarge { path: shown, cap });
    }
    fs::create_dir_all(into).map_err(failed)?;
    let spool = Spool::new(into).map_err(failed)?;
    let out = spool.create().map_err(failed)?;
    let tree = copy_file_hashing(&file, meta.len(), &out).map_err(failed)?;
    spool.keep_as(&into.join(tree.blob().root.to_string())).map_err(failed)?;
    Ok(tree)
}

fn open(dir: &RunDir, path: &str) -> Result<File, TakeError> {
    let shown = || path.chars().take(200).collect();
    let refuse = |why| TakeError::Path { path: shown(), why };
    let good = !path.is_empty()
        && path.len() <= 1024
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && !path.contains('\0');
    if !good {
        return Err(refuse("allowed is a relative path without `.` and `..`"));
    }
    let failed = |errno: rustix::io::Errno| TakeError::Io { path: shown(), source: errno.into() };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, dir.path(), flags, Mode::empty()).map_err(failed)?;
    // Without NONBLOCK a pipe would hold us up before we could see that it is one.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let file = openat2(&root, path, flags, Mode::empty(), resolve).map_err(|errno| match errno {
        rustix::io::Errno::LOOP => refuse("there is a link on the way"),
        rustix::io::Errno::XDEV => refuse("it leaves the run directory"),
        rustix::io::Errno::NXIO => refuse("not a regular file"),
        other => failed(other),
    })?;
    Ok(File::from(file))
}

/// A copy on its way; removed unless it is kept.
struct Spool {
    path: std::path::PathBuf,
}

impl Spool {
    fn new(into: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { path: into.join(format!(".taking-{}-{n}", std::process::id())) })
    }

    fn create(&self) -> io::Result<File> {
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o444).open(&self.path)
    }

    fn keep_as(self, dest: &Path) -> io::Result<()> {
        fs::rename(&self.path, dest)?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polder_words::{JobId, Role};
    use std::os::unix::fs::symlink;

    fn run_dir(runs: &Path) -> RunDir {
        let dir = RunDir::of(runs, JobId([1; 16]), Role::Client);
        dir.prepare(None).expect("made");
        dir
    }

    #[test]
    fn a_plain_file_is_copied_and_named_by_its_hash() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (dir, into) = (run_dir(root.path()), root.path().join("spool"));
        let bytes = vec![7; 700_000];
        fs::write(dir.path().join("out/model"), &bytes).expect("written");
        let blob = take(&dir, "out/model", 1 << 20, &into).expect("taken");
        let blob = blob.blob();
        assert_eq!(blob.root.to_string(), blake3::hash(&bytes).to_hex().to_string());
        assert_eq!(fs::read(into.join(blob.root.to_string())).expect("there"), bytes);
        take(&dir, "out/model", 1 << 20, &into).expect("again");
        assert_eq!(fs::read_dir(&into).expect("there").count(), 1);
    }

    #[test]
    fn nothing_else_is_taken_and_nothing_is_left() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (dir, into) = (run_dir(root.path()), root.path().join("spool"));
        let secret = root.path().join("secret");
        fs::write(&secret, "key").expect("written");
        let out = dir.path().join("out");
        symlink(&secret, out.join("link")).expect("made");
        symlink(root.path(), out.join("folder")).expect("made");
        fs::hard_link(&secret, out.join("hard")).expect("made");
        fs::create_dir(out.join("dir")).expect("made");
        fs::write(out.join("big"), vec![0; 2000]).expect("written");
        rustix::fs::mknodat(CWD, out.join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("made");
        for (path, part) in [
            ("out/link", "a link on the way"),
            ("out/folder/secret", "a link on the way"),
            ("out/hard", "another name"),
            ("out/dir", "not a regular file"),
            ("out/pipe", "not a regular file"),
            ("out/big", "more than 1000 bytes"),
            ("out/none", "No such file"),
            ("../secret", "without `.` and `..`"),
            ("/etc/passwd", "without `.` and `..`"),
            ("", "without `.` and `..`"),
        ] {
            let error = take(&dir, path, 1000, &into).expect_err(path).to_string();
            assert!(error.contains(part), "{path}: {error}");
        }
        assert!(fs::read_dir(&into).map_or(0, Iterator::count) == 0);
    }
}
