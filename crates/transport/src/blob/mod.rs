//! Large bodies: named by their BLAKE3 hash, moved in pieces that are checked as they arrive.
//!
//! A blob's name is its plain BLAKE3 hash, what `b3sum` prints. BLAKE3 is a tree, and pieces of 16 MiB
//! are subtrees of it: their chaining values, 32 bytes each, hash to the root. Whoever has the list (checked
//! against the root) can check every piece on its own, as soon as its last byte is there.
//!
//! On the wire, below a prefix that says by what right one asks:
//!
//! | request | answer |
//! |---|---|
//! | `GET <root>/tree` | the chaining values, of blobs larger than a piece |
//! | `GET <root>` with `range: bytes=<at>-` | the bytes from there |
//! | `PUT <root>/tree?size=<n>` chaining values | [`Have`]: how far an earlier upload came |
//! | `PUT <root>?size=<n>&at=<m>` the bytes from there | [`Have`]; complete means committed |
//!
//! Both directions go on where they were cut, within a piece too: what lies in the partial file is hashed
//! again, and what turns out wrong at a piece's end is cut off and asked for anew. Bytes are moved by the
//! task of the connection, hashed and written by a blocking thread beside it, through a short queue: memory
//! grows neither with the blob nor with a slow disk.

mod client;
mod partial;
mod server;
mod stream;
mod tree;

pub use client::{Transfer, download, upload};
pub use partial::Partial;
pub use server::{Uploads, serve_blob, serve_tree};
pub use stream::{file_body, receive};
pub use tree::{Tree, TreeHasher, copy_file_hashing, copy_hashing, hash_file};

use crate::body::ReadError;
use crate::client::ClientError;
use polder_words::{BlobRef, Hash};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a piece. In unit tests a small one, which is as good a subtree.
pub const PIECE: u64 = if cfg!(test) { 4096 } else { 16 * 1024 * 1024 };
/// Largest blob there may be: its piece list has 2 MiB.
pub const LARGEST: u64 = 1 << 40;

/// Told how many bytes of a transfer are there.
pub type Progress = std::sync::Arc<dyn Fn(u64) + Send + Sync>;

/// How far an upload came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    /// Bytes that are there; go on from here.
    pub at: u64,
    /// Whether all are there, checked and in place.
    pub complete: bool,
}

/// Why a blob is not had.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// A file.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The list of chaining values does not hash to the blob's name.
    #[error("the piece list of blob {} does not belong to it: {why}", .blob.root)]
    WrongTree {
        /// Which blob.
        blob: BlobRef,
        /// What is wrong.
        why: String,
    },
    /// Bytes that are not the blob's.
    #[error("piece {piece} of blob {root} is not what its hash says")]
    WrongPiece {
        /// Which blob.
        root: Hash,
        /// Counted from 0.
        piece: u64,
    },
    /// More bytes than the blob has.
    #[error("blob {} has {} bytes and more were sent", .blob.root, .blob.size)]
    TooLong {
        /// Which blob.
        blob: BlobRef,
    },
    /// Fewer bytes than the blob has.
    #[error("blob {} has {} bytes; {at} are there", .blob.root, .blob.size)]
    Incomplete {
        /// Which blob.
        blob: BlobRef,
        /// Bytes that are there.
        at: u64,
    },
    /// The upload goes on from further on than where it stopped.
    #[error("upload of blob {root} goes on at {found}, but only {have} bytes are there")]
    Gap {
        /// Which blob.
        root: Hash,
        /// Where it wants to go on.
        found: u64,
        /// What is there.
        have: u64,
    },
    /// An upload without its piece list.
    #[error("the piece list of blob {0} was not sent yet")]
    NoList(Hash),
    /// Another process writes the same partial file.
    #[error("{}: another process writes it", .0.display())]
    Locked(PathBuf),
    /// The same blob came over a newer connection.
    #[error("another upload of blob {0} took over")]
    TakenOver(Hash),
    /// The body.
    #[error(transparent)]
    Body(#[from] ReadError),
    /// The other side.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A blocking task was cancelled: the program ends.
    #[error("interrupted")]
    Interrupted,
}

impl BlobError {
    /// Whether trying again may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Client(error) => error.is_transient(),
            Self::Body(ReadError::Idle(_) | ReadError::Broken(_)) | Self::Incomplete { .. } => true,
            _ => false,
        }
    }
}

fn failed<'a>(path: &'a Path, action: &'static str) -> impl FnOnce(io::Error) -> BlobError + use<'a> {
    move |source| BlobError::Io { path: path.to_owned(), action, source }
}

/// Runs what blocks beside the tasks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(join) if join.is_panic() => std::panic::resume_unwind(join.into_panic()),
        Err(_) => Err(BlobError::Interrupted),
    }
}
