//! A model or another body of bytes inside a message.

use polder_words::id::BlobRef;
use serde::{Deserialize, Serialize};

/// Bodies up to this many bytes ride inside the message.
pub const INLINE_LIMIT: u64 = 64 * 1024;

/// Bytes, or where to find them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "in", rename_all = "snake_case")]
pub enum Payload {
    /// The bytes themselves, base64, at most [`INLINE_LIMIT`] of them.
    Inline {
        /// Standard base64 with padding.
        data: String,
    },
    /// A blob the reader may fetch by grant of the job.
    Blob {
        /// Its name and size.
        blob: BlobRef,
    },
    /// A file beneath the run directory of the worker that reads or wrote this message.
    File {
        /// Relative path such as `in/<hash>` or `out/<name>`: no `..`, no link.
        path: String,
        /// Name and size, where the writer knows them (always, from a parent; never, from a worker).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        blob: Option<BlobRef>,
    },
}
