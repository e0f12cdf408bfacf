//! The answering side of blobs: sending them, and taking uploads.

use super::stream::{file_body, receive};
use super::{BlobError, Have, LARGEST, Partial, Tree, blocking, failed};
use crate::server::{Call, Problem, ProblemCode, Response, respond};
use http::header::{ACCEPT_RANGES, CONTENT_RANGE, HeaderValue, RANGE};
use http::{HeaderMap, StatusCode};
use polder_words::{BlobRef, Hash};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Sends a blob from an open file, or the part that `range` asks for.
///
/// # Errors
/// `invalid` when the range lies outside.
pub fn serve_blob(headers: &HeaderMap, file: File, blob: &BlobRef) -> Result<Response, Problem> {
    let (at, end, partial) = match headers.get(RANGE) {
        None => (0, blob.size, false),
        Some(value) => {
            let (at, end) =
                value.to_str().ok().and_then(|text| range(text, blob.size)).ok_or_else(|| Problem {
                    found: value.to_str().ok().map(|text| text.chars().take(80).collect()),
                    allowed: Some(format!("bytes=FROM-[TO] within {} bytes", blob.size)),
                    ..Problem::new(ProblemCode::Invalid, "range lies outside of the blob")
                })?;
            (at, end, true)
        }
    };
    let mut response = respond("application/octet-stream", file_body(file, at, end - at, None));
    response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if partial {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let last = end.saturating_sub(1);
        if let Ok(value) = HeaderValue::from_str(&format!("bytes {at}-{last}/{}", blob.size)) {
            response.headers_mut().insert(CONTENT_RANGE, value);
        }
    }
    Ok(response)
}

/// `bytes=a-b` or `bytes=a-` as a half-open range that is not empty.
fn range(text: &str, size: u64) -> Option<(u64, u64)> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    let from: u64 = from.parse().ok()?;
    let end = if to.is_empty() { size } else { to.parse::<u64>().ok()?.checked_add(1)?.min(size) };
    (from < end).then_some((from, end))
}

/// Sends a piece list.
#[must_use]
pub fn serve_tree(tree: &Tree) -> Response {
    respond("application/octet-stream", crate::Body::full(tree.list()))
}

/// Uploads on their way. One for a server, whatever directories they go to.
#[derive(Debug, Default)]
pub struct Uploads {
    active: Mutex<HashMap<PathBuf, Arc<Slot>>>,
}

/// One partial file: who writes it now, and how the next one makes him stop.
#[derive(Debug, Default)]
struct Slot {
    writer: tokio::sync::Mutex<()>,
    stop: Mutex<CancellationToken>,
}

impl Uploads {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A connection that died in the middle may be noticed late; whoever comes with the same blob takes
    /// over at once.
    fn take_over(&self, partial: &Path) -> (Arc<Slot>, CancellationToken) {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        active.retain(|_, slot| Arc::strong_count(slot) > 1);
        let slot = active.entry(partial.to_owned()).or_default().clone();
        let stop = CancellationToken::new();
        let last =
            std::mem::replace(&mut *slot.stop.lock().unwrap_or_else(PoisonError::into_inner), stop.clone());
        last.cancel();
        (slot, stop)
    }

    /// Takes a piece list (`PUT <root>/tree?size=`) and says how far an earlier upload came.
    ///
    /// `partial` is where the bytes will lie until they are complete.
    ///
    /// # Errors
    /// `invalid` when the list does not belong to the blob.
    pub async fn begin(&self, call: &mut Call, partial: &Path, blob: BlobRef) -> Result<Have, Problem> {
        if blob.size > LARGEST {
            let message = format!("blob {} is larger than {LARGEST} bytes", blob.root);
            return Err(Problem::new(ProblemCode::TooLarge, message));
        }
        let limit = usize::try_from(Tree::list_len(blob.size)).unwrap_or(usize::MAX).max(64);
        let list = call.bytes(limit).await?;
        let tree = Tree::from_list(blob, &list).map_err(|error| problem(&error))?;
        let (slot, _stop) = self.take_over(partial);
        let _writing = slot.writer.lock().await;
        let path = partial.to_owned();
        blocking(move || {
            fs::write(tree_path(&path), tree.list()).map_err(failed(&path, "write the piece list of"))?;
            let partial = Partial::open(&path, tree)?;
            Ok(Have { at: partial.at(), complete: false })
        })
        .await
        .map_err(|error| problem(&error))
    }

    /// Takes bytes from `at` on (`PUT <root>?size=&at=`); when they are complete they are `dest`.
    ///
    /// # Errors
    /// `conflict` when bytes before `at` are missing or another connection took over, `invalid` when the
    /// bytes are not the blob's.
    pub async fn put(
        &self,
        call: &mut Call,
        partial: &Path,
        dest: &Path,
        blob: BlobRef,
        sync: bool,
    ) -> Result<Have, Problem> {
        let at = call.query::<u64>("at")?.unwrap_or(0);
        let mut body = call.take_body();
        let idle = call.body_time;
        let (slot, stop) = self.take_over(partial);
        let outcome = tokio::select! {
            biased;
            () = stop.cancelled() => Err(BlobError::TakenOver(blob.root)),
            outcome = async {
                let _writing = slot.writer.lock().await;
                Self::take(partial, at, blob, &mut body, idle).await
            } => outcome,
        };
        let (partial_file, outcome) = outcome.map_err(|error| problem(&error))?;
        outcome.map_err(|error| problem(&error))?;
        let at = partial_file.at();
        if !partial_file.is_complete() {
            return Ok(Have { at, complete: false });
        }
        let (path, dest) = (partial.to_owned(), dest.to_owned());
        blocking(move || {
            partial_file.commit(&dest, sync)?;
            // Of no use any more; a crash in between leaves it to the next upload of the same blob.
            let _ = fs::remove_file(tree_path(&path));
            Ok(())
        })
        .await
        .map_err(|error| problem(&error))?;
        Ok(Have { at, complete: true })
    }

    async fn take(
        path: &Path,
        at: u64,
        blob: BlobRef,
        body: &mut crate::Body,
        idle: Duration,
    ) -> Result<(Partial, Result<(), BlobError>), BlobError> {
        let owned = path.to_owned();
        let partial = blocking(move || {
            let tree = match Tree::of_one_piece(blob) {
                Some(tree) => tree,
                None => {
                    let list = match fs::read(tree_path(&owned)) {
                        Ok(list) => list,
                        Err(error) if error.kind() == ErrorKind::NotFound => {
                            return Err(BlobError::NoList(blob.root));
                        }
                        Err(error) => return Err(failed(&owned, "read the piece list of")(error)),
                    };
                    Tree::from_list(blob, &list)?
                }
            };
            let mut partial = Partial::open(&owned, tree)?;
            partial.rewind(at)?;
            Ok(partial)
        })
        .await?;
        receive(partial, body, idle, None).await
    }
}

fn tree_path(partial: &Path) -> PathBuf {
    let mut name = partial.as_os_str().to_owned();
    name.push(".tree");
    name.into()
}

/// What an error means for who sent the blob.
fn problem(error: &BlobError) -> Problem {
    let code = match error {
        // Whoever sends can do nothing about it, but should know why it waits.
        BlobError::Io { source, .. }
            if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
        {
            tracing::error!(%error, "upload failed");
            return Problem::new(ProblemCode::Busy, "the upload cannot be stored: the disk is full");
        }
        BlobError::WrongTree { .. } | BlobError::WrongPiece { .. } | BlobError::Body(_) => {
            ProblemCode::Invalid
        }
        BlobError::TooLong { .. } => ProblemCode::TooLarge,
        BlobError::Gap { .. }
        | BlobError::NoList(_)
        | BlobError::TakenOver(_)
        | BlobError::Incomplete { .. } => ProblemCode::Conflict,
        BlobError::Locked(_) => ProblemCode::Busy,
        BlobError::Io { .. } | BlobError::Client(_) | BlobError::Interrupted => {
            // Paths of this side are not for the other.
            tracing::error!(%error, "upload failed");
            return Problem::new(ProblemCode::Internal, "the upload could not be stored");
        }
    };
    Problem::new(code, error.to_string())
}

/// Whether an error of the other side says that its bytes and ours differ.
pub(super) fn is_conflict(problem: &Problem) -> bool {
    problem.code == ProblemCode::Conflict
}

/// The name of a blob in a path.
pub(super) fn path_of(prefix: &str, root: &Hash) -> String {
    format!("{}/{root}", prefix.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_without_its_path() {
        let of = |kind: ErrorKind| {
            problem(&BlobError::Io { path: "/secret/place".into(), action: "write", source: kind.into() })
        };
        let full = of(ErrorKind::StorageFull);
        assert_eq!(full.code, ProblemCode::Busy);
        assert!(full.message.contains("disk is full") && !full.message.contains("secret"), "{full}");
        assert_eq!(of(ErrorKind::PermissionDenied).code, ProblemCode::Internal);
    }
}
