//! An app as an archive: a gzip-compressed tar with a narrow idea of what may be in it.
//!
//! [`pack`] makes one from a folder, the same bytes for the same folder. [`inspect`] reads one to the end
//! and stores nothing; [`unpack`] puts it on disk, whole or not at all. All three refuse what a reader
//! could be hurt by: absolute paths, `..`, links, devices, sparse files, names that come twice, more entries or
//! bytes than allowed, and archives that swell (a zip bomb is found while it swells, not after). The
//! tar library is asked for raw entries only: what it does by itself with long names and extended
//! headers reads them into memory whole.

mod pack;
mod read;
mod unpack;

pub use pack::pack;
pub use read::{Inspected, inspect};
pub use unpack::unpack;

use std::path::PathBuf;

/// What an archive may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files and folders.
    pub entries: u64,
    /// Bytes after decompression, headers counted.
    pub bytes: u64,
    /// Bytes out per byte in; looked at once [`Limits::FREE_BYTES`] came out, so that a small file of zeros is fine.
    pub ratio: u64,
    /// Bytes of one path.
    pub path: usize,
    /// Folders above a file.
    pub depth: usize,
}

impl Limits {
    /// How many bytes may come out before the ratio counts.
    pub const FREE_BYTES: u64 = 64 << 20;
}

impl Default for Limits {
    /// 20,000 entries, 2 GiB, 200:1, paths of 512 bytes and 32 folders.
    fn default() -> Self {
        Self { entries: 20_000, bytes: 2 << 30, ratio: 200, path: 512, depth: 32 }
    }
}

/// Why a folder cannot be packed or an archive is refused.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Reading or writing a file failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no gzip-compressed tar, or a damaged one.
    #[error("not a readable .tar.gz archive: {source}")]
    Unreadable {
        /// What the decoder says.
        source: std::io::Error,
    },
    /// Too many files and folders.
    #[error("more than {allowed} files and folders")]
    TooMany {
        /// The limit.
        allowed: u64,
    },
    /// Too many bytes.
    #[error("more than {allowed} bytes when unpacked")]
    TooLarge {
        /// The limit.
        allowed: u64,
    },
    /// It swells.
    #[error("unpacks to more than {allowed} times its size, which looks like a zip bomb")]
    Swells {
        /// The ratio.
        allowed: u64,
    },
    /// A path that is not allowed.
    #[error("{path:?} is not allowed: {why}")]
    Path {
        /// The path as written, cut to 200 characters.
        path: String,
        /// `an absolute path`, `".." in it`, ...
        why: &'static str,
    },
    /// Neither a plain file nor a folder.
    #[error("{path:?} is {kind}; only plain files and folders are allowed")]
    Kind {
        /// The path.
        path: String,
        /// `a symbolic link`, `a device`, ...
        kind: &'static str,
    },
    /// The same path twice, or a file where a folder must be.
    #[error("{path:?} comes twice")]
    Twice {
        /// The path.
        path: String,
    },
}

impl BundleError {
    fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// Gets back a [`BundleError`] that went through the decoder's `io::Error`.
    fn unreadable(source: std::io::Error) -> Self {
        match source.downcast::<Self>() {
            Ok(ours) => ours,
            Err(source) => Self::Unreadable { source },
        }
    }
}

/// Checks one path: relative, no `..`, UTF-8, short, shallow. Gives it back without `./`.
fn clean(path: &[u8], limits: &Limits) -> Result<String, BundleError> {
    let shown = || String::from_utf8_lossy(path).chars().take(200).collect::<String>();
    let refuse = |why| Err(BundleError::Path { path: shown(), why });
    let Ok(text) = std::str::from_utf8(path) else {
        return refuse("a name that is no UTF-8");
    };
    if text.len() > limits.path {
        return refuse("longer than a path may be");
    }
    if text.starts_with('/') {
        return refuse("an absolute path");
    }
    if text.contains('\\') {
        return refuse("a backslash in it");
    }
    if text.chars().any(char::is_control) {
        return refuse("a control character in it");
    }
    let parts: Vec<_> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return refuse("\"..\" in it");
    }
    if parts.iter().any(|part| part.len() > 255) {
        return refuse("a name of more than 255 bytes in it");
    }
    if parts.len() > limits.depth {
        return refuse("too many folders deep");
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests;
