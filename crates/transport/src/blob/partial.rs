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
