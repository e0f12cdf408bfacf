//! Blob files of the server parent: what studies keep, and what passes through.
//!
//! ```text
//! blobs/<study>/<root>     apps and results: held by jobs, see `polder_store::JobStore::held`
//! relay/<job>/<of>/<root>  models of the current round by who made them, a site or `server`; gone with the
//!                          round, never in the database
//! ```
//! Beside a large one lies `<root>.tree` (its piece list); an upload on its way is `<root>.part`. Who may read what is
//! decided by the API above: a name alone opens nothing.

use polder_api::{Problem, ProblemCode};
use polder_transport::blob::{Have, Tree, Uploads, hash_file, serve_blob, serve_tree};
use polder_transport::server::{Call, Response, json};
use polder_words::{BlobRef, Hash, JobId, SiteName, StudyName};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an upload may wait for its order.
pub(super) const FRESH: Duration = Duration::from_secs(86_400);

/// Where blobs lie, and what is on its way there.
#[derive(Debug)]
pub(super) struct Blobs {
    studies: PathBuf,
    relay: PathBuf,
    uploads: Uploads,
}

/// One folder of blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Area(PathBuf);

impl Area {
    /// Where a blob of this area lies, or would.
    pub(super) fn path(&self, root: &Hash) -> PathBuf {
        self.0.join(root.to_string())
    }

    /// The folder, made if need be.
    pub(super) fn folder(&self) -> io::Result<&Path> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        Ok(&self.0)
    }

    /// Whether a blob is there, whole.
    pub(super) fn has(&self, blob: &BlobRef) -> bool {
        self.path(&blob.root).metadata().is_ok_and(|meta| meta.is_file() && meta.len() == blob.size)
    }

    fn beside(&self, root: &Hash, ending: &str) -> PathBuf {
        self.0.join(format!("{root}.{ending}"))
    }

    /// Removes a blob and what lies beside it.
    pub(super) fn remove(&self, root: &Hash) {
        for path in [
            self.path(root),
            self.beside(root, "tree"),
            self.beside(root, "part"),
            self.beside(root, "part.tree"),
        ] {
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove a blob");
            }
        }
    }

    /// Removes every blob that is not named, and what is left of uploads of others, unless it is as young as
    /// `fresh`: its order may be on its way.
    pub(super) fn keep_only(&self, keep: &BTreeSet<Hash>, fresh: Duration) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let root = name.to_str().and_then(|name| name.get(..64)).and_then(|root| root.parse().ok());
            let old = entry.metadata().and_then(|meta| meta.modified()).map(|at| at.elapsed());
            let old = matches!(old, Ok(Ok(age)) if age >= fresh);
            if old && root.is_none_or(|root| !keep.contains(&root)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Puts small bytes.
    pub(super) fn put(&self, bytes: &[u8]) -> io::Result<BlobRef> {
        let blob = BlobRef { root: Hash(*blake3::hash(bytes).as_bytes()), size: bytes.len() as u64 };
        if !self.has(&blob) {
            self.folder()?;
            let fresh = self.beside(&blob.root, "new");
            fs::write(&fresh, bytes)?;
            fs::rename(fresh, self.path(&blob.root))?;
        }
        Ok(blob)
    }

    /// Notes the piece list of a blob that was hashed here anyway.
    pub(super) fn note_tree(&self, tree: &Tree) -> io::Result<()> {
        let list = tree.list();
        if list.is_empty() {
            return Ok(());
        }
        let path = self.beside(&tree.blob().root, "tree");
        let fresh = self.beside(&tree.blob().root, "tree.new");
        fs::write(&fresh, list)?;
        fs::rename(fresh, path)
    }
}

/// What a refused or failed request about a blob is told.
fn not_there() -> Problem {
    Problem::new(ProblemCode::NotFound, "no such blob")
}

fn broken(error: &dyn std::fmt::Display) -> Problem {
    tracing::error!(%error, "a blob cannot be read");
    Problem::new(ProblemCode::Internal, "the blob cannot be read")
}

impl Blobs {
    /// Below the state directory.
    pub(super) fn new(state: &Path) -> Self {
        Self { studies: state.join("blobs"), relay: state.join("relay"), uploads: Uploads::new() }
    }

    /// What a study keeps.
    pub(super) fn study(&self, study: &StudyName) -> Area {
        Area(self.studies.join(study.as_str()))
    }

    /// What passes through for a job and was made by one of its sites, or by the server worker. Apart, so that nobody
    /// learns from a blob that is there already what another site sent.
    pub(super) fn relay(&self, job: JobId, of: &SiteName) -> Area {
        Area(self.relay_of(job).join(of.as_str()))
    }

    fn relay_of(&self, job: JobId) -> PathBuf {
        self.relay.join(job.to_string())
    }

    /// Removes what passed through for a job.
    pub(super) fn end_relay(&self, job: JobId) {
        let path = self.relay_of(job);
        if let Err(error) = fs::remove_dir_all(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove what passed through");
        }
    }

    /// Jobs and studies that have a folder.
    pub(super) fn folders(&self) -> (Vec<JobId>, Vec<StudyName>) {
        fn names<T: std::str::FromStr>(path: &Path) -> Vec<T> {
            let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        }
        (names(&self.relay), names(&self.studies))
    }

    /// `GET <root>`.
    pub(super) async fn serve(&self, call: &Call, area: &Area, root: &Hash) -> Result<Response, Problem> {
        let path = area.path(root);
        let opened = tokio::task::spawn_blocking(move || {
            let file = fs::File::open(path)?;
            let size = file.metadata()?.len();
            io::Result::Ok((file, size))
        });
        match opened.await {
            Ok(Ok((file, size))) => serve_blob(call.headers(), file, &BlobRef { root: *root, size }),
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Err(not_there()),
            Ok(Err(error)) => Err(broken(&error)),
            Err(error) => Err(broken(&error)),
        }
    }

    /// `GET <root>/tree`.
    pub(super) async fn serve_tree(&self, area: &Area, root: &Hash) -> Result<Response, Problem> {
        let (area, root) = (area.clone(), *root);
        let tree = tokio::task::spawn_blocking(move || {
            let path = area.path(&root);
            let blob = BlobRef { root, size: path.metadata().ok()?.len() };
            if let Some(tree) = Tree::of_one_piece(blob) {
                return Some(Ok(tree));
            }
            if let Ok(list) = fs::read(area.beside(&root, "tree"))
                && let Ok(tree) = Tree::from_list(blob, &list)
            {
                return Some(Ok(tree));
            }
            let tree = hash_file(&path);
            if let Ok(tree) = &tree
                && let Err(error) = area.note_tree(tree)
            {
                tracing::debug!(%error, "a piece list cannot be kept");
            }
            Some(tree)
        });
        match tree.await {
            Ok(Some(Ok(tree))) => Ok(serve_tree(&tree)),
            Ok(Some(Err(error))) => Err(broken(&error)),
            Ok(None) => Err(not_there()),
            Err(error) => Err(broken(&error)),
        }
    }

    /// `PUT <root>/tree?size=`.
    pub(super) async fn begin_upload(
        &self,
        call: &mut Call,
        area: &Area,
        blob: BlobRef,
    ) -> Result<Response, Problem> {
        if area.has(&blob) {
            return Ok(json(&Have { at: blob.size, complete: true }));
        }
        let partial = area.beside(&blob.root, "part");
        area.folder().map_err(|error| broken(&error))?;
        self.uploads.begin(call, &partial, blob).await.map(|have| json(&have))
    }

    /// `PUT <root>?size=&at=`. With `sync` the blob is on disk when this returns.
    pub(super) async fn upload(
        &self,
        call: &mut Call,
        area: &Area,
        blob: BlobRef,
        sync: bool,
    ) -> Result<Response, Problem> {
        if area.has(&blob) {
            return Ok(json(&Have { at: blob.size, complete: true }));
        }
        area.folder().map_err(|error| broken(&error))?;
        let (partial, dest) = (area.beside(&blob.root, "part"), area.path(&blob.root));
        self.uploads.put(call, &partial, &dest, blob, sync).await.map(|have| json(&have))
    }
}

/// Brings files and their folder to the disk.
pub(super) fn sync(files: &[PathBuf], folder: &Path) -> io::Result<()> {
    for path in files {
        fs::File::open(path)?.sync_all()?;
    }
    fs::File::open(folder)?.sync_all()
}

/// Bytes free on the disk of a path.
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
