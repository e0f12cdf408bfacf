//! The tree of a blob: its name, its size and the chaining values of its pieces.

use super::{BlobError, PIECE, failed};
use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt as _, Mode, merge_subtrees_non_root, merge_subtrees_root};
use polder_words::{BlobRef, Hash};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a piece list of a blob is made of.
const CV: usize = 32;
/// Bytes read at a time.
const CHUNK: usize = 1024 * 1024;

/// A blob and the chaining values of its pieces, which belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    blob: BlobRef,
    /// Empty for a blob of one piece: its only check is the root itself.
    cvs: Vec<ChainingValue>,
}

/// How many pieces a size has; an empty blob has one, of no bytes.
fn pieces_of(size: u64) -> u64 {
    size.div_ceil(PIECE).max(1)
}

impl Tree {
    /// The blob.
    #[must_use]
    pub fn blob(&self) -> BlobRef {
        self.blob
    }

    /// How many pieces it has.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        pieces_of(self.blob.size)
    }

    /// The tree of a blob that is one piece: nothing has to be known beyond its name.
    #[must_use]
    pub fn of_one_piece(blob: BlobRef) -> Option<Self> {
        (blob.size <= PIECE).then_some(Self { blob, cvs: Vec::new() })
    }

    /// The piece list as bytes; empty for a blob of one piece.
    #[must_use]
    pub fn list(&self) -> Vec<u8> {
        self.cvs.concat()
    }

    /// How long the list of a blob is.
    #[must_use]
    pub fn list_len(size: u64) -> u64 {
        if size <= PIECE { 0 } else { pieces_of(size) * CV as u64 }
    }

    /// Takes a piece list from somebody who is not believed: it must hash to the blob's name.
    ///
    /// # Errors
    /// When it has another length or another root.
    pub fn from_list(blob: BlobRef, list: &[u8]) -> Result<Self, BlobError> {
        let wrong = |why| BlobError::WrongTree { blob, why };
        let expected = Self::list_len(blob.size);
        if list.len() as u64 != expected {
            return Err(wrong(format!("it has {} bytes instead of {expected}", list.len())));
        }
        let cvs: Vec<ChainingValue> = list.as_chunks::<CV>().0.to_vec();
        if !cvs.is_empty() && root(&cvs) != blob.root {
            return Err(wrong("it hashes to another root".to_owned()));
        }
        Ok(Self { blob, cvs })
    }

    /// The length of a piece.
    pub(super) fn piece_len(&self, piece: u64) -> u64 {
        (self.blob.size - piece * PIECE).min(PIECE)
    }

    /// A hasher for a piece.
    pub(super) fn hasher(piece: u64) -> Hasher {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(piece * PIECE);
        hasher
    }

    /// Whether a piece that was hashed whole is the right one.
    pub(super) fn is_right(&self, piece: u64, hasher: &Hasher) -> bool {
        match usize::try_from(piece).ok().and_then(|n| self.cvs.get(n)) {
            Some(cv) => hasher.finalize_non_root() == *cv,
            None => *hasher.finalize().as_bytes() == self.blob.root.0,
        }
    }
}

/// The root over two or more pieces: the left side of each parent is the largest power of two of pieces
/// that leaves something for the right.
fn root(cvs: &[ChainingValue]) -> Hash {
    let (left, right) = cvs.split_at(left_len(cvs.len()));
    Hash(*merge_subtrees_root(&merged(left), &merged(right), Mode::Hash).as_bytes())
}

fn merged(cvs: &[ChainingValue]) -> ChainingValue {
    match cvs {
        [one] => *one,
        _ => {
            let (left, right) = cvs.split_at(left_len(cvs.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

fn left_len(n: usize) -> usize {
    debug_assert!(n > 1, "a single piece has no parent");
    1 << (n - 1).ilog2()
}

/// Hashes bytes in order into a [`Tree`].
#[derive(Debug, Clone)]
pub struct TreeHasher {
    hasher: Hasher,
    in_piece: u64,
    size: u64,
    cvs: Vec<ChainingValue>,
}

impl Default for TreeHasher {
    fn default() -> Self {
        Self { hasher: Hasher::new(), in_piece: 0, size: 0, cvs: Vec::new() }
    }
}

impl TreeHasher {
    /// Nothing hashed yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // A piece is closed only when another byte follows: a blob of exactly one piece is its root.
            if self.in_piece == PIECE {
                self.cvs.push(self.hasher.finalize_non_root());
                self.hasher = Tree::hasher(self.cvs.len() as u64);
                self.in_piece = 0;
            }
            let room = usize::try_from(PIECE - self.in_piece).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.hasher.update(now);
            self.in_piece += now.len() as u64;
            self.size += now.len() as u64;
            bytes = later;
        }
    }

    /// The tree of all bytes taken.
    #[must_use]
    pub fn finish(mut self) -> Tree {
        if self.cvs.is_empty() {
            let root = Hash(*self.hasher.finalize().as_bytes());
            return Tree { blob: BlobRef { root, size: self.size }, cvs: Vec::new() };
        }
        self.cvs.push(self.hasher.finalize_non_root());
        Tree { blob: BlobRef { root: root(&self.cvs), size: self.size }, cvs: self.cvs }
    }
}

/// Hashes a file; blocks. Pieces are hashed side by side where there are cores.
///
/// # Errors
/// When it cannot be read, or shrinks meanwhile.
pub fn hash_file(path: &Path) -> Result<Tree, BlobError> {
    let file = File::open(path).map_err(failed(path, "open"))?;
    let size = file.metadata().map_err(failed(path, "read"))?.len();
    hash_open(&file, size, None).map_err(failed(path, "read"))
}

/// Copies the first `size` bytes of a file to another, which is empty, and hashes what it writes; blocks. Pieces go
/// side by side where there are cores, each byte is read once.
///
/// # Errors
/// When reading or writing fails, or the file has fewer bytes.
pub fn copy_file_hashing(from: &File, size: u64, to: &File) -> io::Result<Tree> {
    hash_open(from, size, Some(to))
}

fn hash_open(file: &File, size: u64, copy: Option<&File>) -> io::Result<Tree> {
    if size <= PIECE {
        let hasher = pass_piece(file, 0, size, copy)?;
        return Ok(Tree {
            blob: BlobRef { root: Hash(*hasher.finalize().as_bytes()), size },
            cvs: Vec::new(),
        });
    }
    let pieces = pieces_of(size);
    let count = usize::try_from(pieces).map_err(io::Error::other)?;
    let cvs = Mutex::new(vec![[0; CV]; count]);
    let next = AtomicU64::new(0);
    let work = || -> io::Result<()> {
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return Ok(());
            }
            let hasher = pass_piece(file, piece, (size - piece * PIECE).min(PIECE), copy)?;
            let cv = hasher.finalize_non_root();
            let at = usize::try_from(piece).map_err(io::Error::other)?;
            cvs.lock().unwrap_or_else(PoisonError::into_inner)[at] = cv;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4).min(count);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut outcome = work();
        for other in others {
            outcome = outcome.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        outcome
    })?;
    let cvs = cvs.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Tree { blob: BlobRef { root: root(&cvs), size }, cvs })
}

/// Hashes a piece of a file, `len` bytes of it.
pub(super) fn hash_piece(file: &File, piece: u64, len: u64) -> io::Result<Hasher> {
    pass_piece(file, piece, len, None)
}

/// Hashes a piece of a file, and puts what was hashed at the same place of another.
fn pass_piece(file: &File, piece: u64, len: u64, copy: Option<&File>) -> io::Result<Hasher> {
    let mut hasher = Tree::hasher(piece);
    let mut buffer = vec![0; CHUNK.min(usize::try_from(len).unwrap_or(CHUNK))];
    let mut at = piece * PIECE;
    let end = at + len;
    while at < end {
        let now = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut buffer[..now], at)?;
        hasher.update(&buffer[..now]);
        if let Some(copy) = copy {
            copy.write_all_at(&buffer[..now], at)?;
        }
        at += now as u64;
    }
    Ok(hasher)
}

/// Copies and hashes in one go; blocks.
///
/// # Errors
/// When reading or writing fails.
pub fn copy_hashing(reader: &mut impl Read, writer: &mut impl Write) -> io::Result<Tree> {
    let mut hasher = TreeHasher::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(n) => {
                writer.write_all(&buffer[..n])?;
                hasher.update(&buffer[..n]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(len: u64) -> Vec<u8> {
        (0..len).map(|n| u8::try_from((n * 31 + n / 1021) % 251).unwrap()).collect()
    }

    #[test]
    fn the_root_is_the_plain_hash_at_every_border() {
        let all = bytes(9 * PIECE + 7);
        for size in [
            0,
            1,
            1024,
            PIECE - 1,
            PIECE,
            PIECE + 1,
            2 * PIECE - 1,
            2 * PIECE,
            2 * PIECE + 1,
            3 * PIECE,
            4 * PIECE,
            4 * PIECE + 1,
            5 * PIECE,
            5 * PIECE + 7,
            8 * PIECE,
            9 * PIECE + 7,
        ] {
            let part = &all[..usize::try_from(size).unwrap()];
            let mut hasher = TreeHasher::new();
            for piece in part.chunks(701) {
                hasher.update(piece);
            }
            let tree = hasher.finish();
            assert_eq!(tree.blob().root.0, *blake3::hash(part).as_bytes(), "{size}");
            assert_eq!(tree.blob().size, size);
            assert_eq!(Tree::from_list(tree.blob(), &tree.list()).unwrap(), tree);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), part).unwrap();
            assert_eq!(hash_file(file.path()).unwrap(), tree);
            let to = tempfile::NamedTempFile::new().unwrap();
            assert_eq!(copy_file_hashing(file.as_file(), size, to.as_file()).unwrap(), tree);
            assert!(std::fs::read(to.path()).unwrap() == part);
            assert!(copy_file_hashing(file.as_file(), size + 1, to.as_file()).is_err());
            let mut copy = Vec::new();
            assert_eq!(copy_hashing(&mut &part[..], &mut copy).unwrap(), tree);
            assert!(copy == part);
        }
    }

    #[test]
    fn a_list_of_another_blob_is_refused() {
        let mut hasher = TreeHasher::new();
        hasher.update(&bytes(2 * PIECE + 5));
        let tree = hasher.finish();
        let good = tree.list();
        for at in [0, 31, 32, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(matches!(Tree::from_list(tree.blob(), &bad), Err(BlobError::WrongTree { .. })));
        }
        assert!(Tree::from_list(tree.blob(), &good[32..]).is_err());
        assert!(Tree::from_list(tree.blob(), &[]).is_err());
        // Another size with as many pieces: the list fits, the last piece will not.
        let other = BlobRef { size: tree.blob().size - 1, ..tree.blob() };
        assert!(Tree::from_list(other, &good).is_ok());
    }

    proptest! {
        #[test]
        fn the_root_is_the_plain_hash_however_it_is_cut(len in 0..20 * PIECE, cuts in prop::collection::vec(1usize..9000, 1..9)) {
            let all = bytes(len);
            let mut hasher = TreeHasher::new();
            let mut rest = &all[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                hasher.update(now);
                rest = later;
            }
            let tree = hasher.finish();
            prop_assert_eq!(tree.blob().root.0, *blake3::hash(&all).as_bytes());
            prop_assert_eq!(tree.list().len() as u64, Tree::list_len(len));
        }

        #[test]
        fn lists_of_any_bytes_are_refused_without_panic(list: Vec<u8>, size in 0u64..1 << 30) {
            let blob = BlobRef { root: Hash([7; 32]), size };
            prop_assert_eq!(Tree::from_list(blob, &list).is_ok(), size <= PIECE && list.is_empty());
        }
    }
}
