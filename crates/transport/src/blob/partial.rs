//! A blob on its way to disk: a file under a temporary name, and what is known to be right of it.

use super::tree::hash_piece;
use super::{BlobError, PIECE, Tree, failed};
use blake3::Hasher;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another writer of the same file is waited for.
const LOCK_TIME: Duration = Duration::from_secs(2);

/// A partial file and its tree. Everything in it is right, but for the piece at its end, which is not
/// known until it is whole. All methods block.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    file: File,
    tree: Tree,
    /// Of the piece at the end, what is there of it.
    hasher: Hasher,
    at: u64,
}

impl Partial {
    /// Opens a partial file, or makes it. What is there is hashed again: it may be from before a crash. What
    /// is wrong is cut off, from the piece on.
    ///
    /// # Errors
    /// When the file cannot be opened, or another process writes it.
    pub fn open(path: &Path, tree: Tree) -> Result<Self, BlobError> {
        let file = Self::lock(path)?;
        let size = tree.blob().size;
        let found = file.metadata().map_err(failed(path, "read"))?.len();
        let mut partial = Self { path: path.to_owned(), file, hasher: Tree::hasher(0), tree, at: 0 };
        // No byte of an empty blob will ever be checked, so its name is, here.
        if size == 0 && !partial.tree.is_right(0, &partial.hasher) {
            return Err(BlobError::WrongPiece { root: partial.tree.blob().root, piece: 0 });
        }
        if found > size {
            partial.cut(0)?;
            return Ok(partial);
        }
        // The last piece, whole or not, is left to `load`, which keeps its hasher.
        for piece in 0..found.saturating_sub(1) / PIECE {
            let hasher = hash_piece(&partial.file, piece, PIECE).map_err(failed(path, "read"))?;
            if !partial.tree.is_right(piece, &hasher) {
                partial.cut(piece * PIECE)?;
                return Ok(partial);
            }
        }
        partial.load(found)?;
        Ok(partial)
    }

    fn lock(path: &Path) -> Result<File, BlobError> {
        let began = Instant::now();
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
                .map_err(failed(path, "open"))?;
            match file.try_lock() {
                Ok(()) => {}
                // A writer that was told to stop may still finish what it had in hand.
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIME => {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                Err(TryLockError::WouldBlock) => return Err(BlobError::Locked(path.to_owned())),
                Err(TryLockError::Error(source)) => return Err(failed(path, "lock")(source)),
            }
            // Whoever had the lock may have renamed the file away in between.
            let ours = file.metadata().map_err(failed(path, "read"))?;
            if fs::metadata(path).is_ok_and(|there| there.dev() == ours.dev() && there.ino() == ours.ino()) {
                return Ok(file);
            }
        }
    }

    /// Takes the last piece as it lies there, up to `found`.
    fn load(&mut self, found: u64) -> Result<(), BlobError> {
        let piece = found.saturating_sub(1) / PIECE;
        let there = found - piece * PIECE;
        self.hasher = hash_piece(&self.file, piece, there).map_err(failed(&self.path, "read"))?;
        self.at = found;
        if there == self.tree.piece_len(piece) && !self.tree.is_right(piece, &self.hasher) {
            self.cut(piece * PIECE)?;
        }
        Ok(())
    }

    /// Cuts at the beginning of a piece.
    fn cut(&mut self, at: u64) -> Result<(), BlobError> {
        self.file.set_len(at).map_err(failed(&self.path, "truncate"))?;
        self.hasher = Tree::hasher(at / PIECE);
        self.at = at;
        Ok(())
    }

    /// Goes back to an earlier place.
    ///
    /// # Errors
    /// When `at` is beyond what is there.
    pub fn rewind(&mut self, at: u64) -> Result<(), BlobError> {
        if at == self.at {
            return Ok(());
        }
        if at > self.at {
            return Err(BlobError::Gap { root: self.tree.blob().root, found: at, have: self.at });
        }
        self.file.set_len(at).map_err(failed(&self.path, "truncate"))?;
        self.load(at)
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Bytes that are there.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Whether all bytes are there, and right.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.at == self.tree.blob().size
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// When they are too many, or a piece turns out wrong: it is cut off then, and may be sent again.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), BlobError> {
        let blob = self.tree.blob();
        if bytes.len() as u64 > blob.size - self.at {
            return Err(BlobError::TooLong { blob });
        }
        while !bytes.is_empty() {
            let piece = self.at / PIECE;
            let in_piece = self.at % PIECE;
            if in_piece == 0 {
                self.hasher = Tree::hasher(piece);
            }
            let room = usize::try_from(PIECE - in_piece).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.put(now)?;
            bytes = later;
            if self.at - piece * PIECE == self.tree.piece_len(piece)
                && !self.tree.is_right(piece, &self.hasher)
            {
                self.cut(piece * PIECE)?;
                return Err(BlobError::WrongPiece { root: blob.root, piece });
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        use std::os::unix::fs::FileExt as _;
        self.file.write_all_at(bytes, self.at).map_err(failed(&self.path, "write"))?;
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Gives the file its name. With `sync` it is on disk when this returns.
    ///
    /// # Errors
    /// When bytes are missing.
    pub fn commit(mut self, dest: &Path, sync: bool) -> Result<(), BlobError> {
        if !self.is_complete() {
            return Err(BlobError::Incomplete { blob: self.tree.blob(), at: self.at });
        }
        self.file.flush().map_err(failed(&self.path, "write"))?;
        if sync {
            self.file.sync_all().map_err(failed(&self.path, "sync"))?;
        }
        fs::rename(&self.path, dest).map_err(failed(dest, "rename into place"))?;
        if sync {
            let dir = match dest.parent() {
                Some(dir) if !dir.as_os_str().is_empty() => dir,
                _ => Path::new("."),
            };
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed(dir, "sync directory"))?;
        }
        Ok(())
    }

    /// Removes the file.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn discard(self) -> Result<(), BlobError> {
        fs::remove_file(&self.path).map_err(failed(&self.path, "remove"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::TreeHasher;
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt as _;

    fn tree(bytes: &[u8]) -> Tree {
        let mut hasher = TreeHasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// What happens to a partial file.
    #[derive(Debug, Clone)]
    enum Step {
        /// The next bytes arrive, or some that are wrong from a place on.
        Write { len: usize, wrong: Option<usize> },
        /// The sender goes back.
        Rewind { to: prop::sample::Index },
        /// The process dies; some bytes on disk are not what was written.
        Crash { damage: Option<prop::sample::Index>, cut: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (1usize..6000, prop::option::weighted(0.1, 0usize..6000))
                .prop_map(|(len, wrong)| Step::Write { len, wrong }),
            1 => any::<prop::sample::Index>().prop_map(|to| Step::Rewind { to }),
            1 => (prop::option::of(any::<prop::sample::Index>()), 0usize..300)
                .prop_map(|(damage, cut)| Step::Crash { damage, cut }),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_only_the_blob_is_committed(
            len in 0usize..40_000,
            seed: u8,
            steps in prop::collection::vec(step(), 0..40),
        ) {
            let bytes: Vec<u8> = (0..len).map(|n| u8::try_from((n * 7 + n / 256) % 256).unwrap() ^ seed).collect();
            let tree = tree(&bytes);
            let dir = tempfile::tempdir().unwrap();
            let (path, dest) = (dir.path().join("part"), dir.path().join("dest"));
            let mut partial = Partial::open(&path, tree.clone()).unwrap();
            for step in steps {
                let at = usize::try_from(partial.at()).unwrap();
                match step {
                    Step::Write { len, wrong } => {
                        let mut now = bytes[at..bytes.len().min(at + len)].to_vec();
                        if let Some(byte) = wrong.and_then(|from| now.get_mut(from)) {
                            *byte ^= 0x80;
                        }
                        match partial.write(&now) {
                            Ok(()) => prop_assert_eq!(partial.at(), (at + now.len()) as u64),
                            Err(BlobError::WrongPiece { piece, .. }) => prop_assert_eq!(partial.at(), piece * PIECE),
                            Err(error) => panic!("{error}"),
                        }
                    }
                    Step::Rewind { to } => partial.rewind(to.index(at + 1) as u64).unwrap(),
                    Step::Crash { damage, cut } => {
                        drop(partial);
                        let file = File::options().read(true).write(true).open(&path).unwrap();
                        file.set_len(at.saturating_sub(cut) as u64).unwrap();
                        let left = at.saturating_sub(cut);
                        if let Some(damage) = damage && left > 0 {
                            let place = damage.index(left) as u64;
                            let mut byte = [0];
                            file.read_exact_at(&mut byte, place).unwrap();
                            file.write_all_at(&[byte[0] ^ 1], place).unwrap();
                        }
                        drop(file);
                        partial = Partial::open(&path, tree.clone()).unwrap();
                        prop_assert!(partial.at() <= left as u64);
                    }
                }
            }
            // At the end the right bytes come, from wherever it stands, and once more where a piece was wrong.
            for _ in 0..2 {
                let at = usize::try_from(partial.at()).unwrap();
                if partial.write(&bytes[at..]).is_ok() {
                    break;
                }
            }
            prop_assert!(partial.is_complete());
            partial.commit(&dest, false).unwrap();
            prop_assert_eq!(fs::read(&dest).unwrap(), bytes);
            prop_assert!(!path.exists());
        }
    }

    #[test]
    fn what_is_not_whole_is_not_committed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, dest) = (dir.path().join("part"), dir.path().join("dest"));
        let mut partial = Partial::open(&path, tree(b"twelve bytes")).unwrap();
        partial.write(b"twelve ").unwrap();
        let error = partial.rewind(8).unwrap_err();
        assert!(matches!(error, BlobError::Gap { found: 8, have: 7, .. }), "{error}");
        let error = partial.write(b"bytes and more").unwrap_err();
        assert!(matches!(error, BlobError::TooLong { .. }), "{error}");
        let error = partial.commit(&dest, true).unwrap_err();
        assert!(matches!(error, BlobError::Incomplete { at: 7, .. }), "{error}");
        assert!(!dest.exists());
        let partial = Partial::open(&path, tree(b"twelve bytes")).unwrap();
        assert_eq!(partial.at(), 7, "it goes on from there");
        partial.discard().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn two_do_not_write_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("part");
        let first = Partial::open(&path, tree(b"x")).unwrap();
        assert!(matches!(Partial::open(&path, tree(b"x")), Err(BlobError::Locked(_))));
        drop(first);
        Partial::open(&path, tree(b"x")).unwrap();
    }
}
