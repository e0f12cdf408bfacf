//! Between a file and a connection: reading ahead of the socket, hashing and writing behind it.

use super::{BlobError, Partial, Progress};
use crate::body::Body;
use bytes::Bytes;
use futures_util::stream;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Bytes read from a file at a time. Two such buffers belong to each body being sent.
const CHUNK: usize = 256 * 1024;
/// Pieces of a body that may wait for the disk.
const QUEUE: usize = 8;

/// Buffers of one body, used again and again: a fresh one costs as much in page faults as it holds in
/// copying.
type Spare = Arc<Mutex<Vec<Vec<u8>>>>;

struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    spare: Spare,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
    }
}

struct Reading {
    file: Arc<File>,
    at: u64,
    end: u64,
    next: Option<JoinHandle<io::Result<Bytes>>>,
    spare: Spare,
    progress: Option<Progress>,
}

impl Reading {
    fn ahead(&mut self) {
        let now = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(CHUNK);
        if now == 0 {
            return;
        }
        let (file, at, spare) = (self.file.clone(), self.at, self.spare.clone());
        self.at += now as u64;
        self.next = Some(tokio::task::spawn_blocking(move || {
            let mut bytes = spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
            if bytes.len() < now {
                bytes.resize(now, 0);
            }
            file.read_exact_at(&mut bytes[..now], at)?;
            Ok(Bytes::from_owner(Buffer { bytes, len: now, spare }))
        }));
    }
}

/// A body of `len` bytes of a file, from `at` on; read one step ahead of the connection.
#[must_use]
pub fn file_body(file: File, at: u64, len: u64, progress: Option<Progress>) -> Body {
    if len == 0 {
        return Body::empty();
    }
    let reading =
        Reading { file: Arc::new(file), at, end: at + len, next: None, spare: Arc::default(), progress };
    Body::stream(
        Some(len),
        stream::try_unfold(reading, |mut reading| async move {
            if reading.next.is_none() {
                reading.ahead();
            }
            let Some(next) = reading.next.take() else { return Ok(None) };
            let bytes = next.await.map_err(io::Error::other)??;
            if let Some(progress) = &reading.progress {
                progress(reading.at);
            }
            reading.ahead();
            Ok::<_, io::Error>(Some((bytes, reading)))
        }),
    )
}

/// Pours a body into a partial file, hashing and writing beside the connection. Each part of it must
/// come within `idle`. Gives the file back with what happened: it may be resumed.
///
/// # Errors
/// The inner error says what happened to the body; the outer is [`BlobError::Interrupted`] alone.
pub async fn receive(
    partial: Partial,
    body: &mut Body,
    idle: Duration,
    progress: Option<&Progress>,
) -> Result<(Partial, Result<(), BlobError>), BlobError> {
    let mut at = partial.at();
    let (queue, mut waiting) = mpsc::channel::<Bytes>(QUEUE);
    let disk = tokio::task::spawn_blocking(move || {
        let mut partial = partial;
        while let Some(bytes) = waiting.blocking_recv() {
            if let Err(error) = partial.write(&bytes) {
                return (partial, Err(error));
            }
        }
        (partial, Ok(()))
    });
    let mut network = Ok(());
    loop {
        match body.piece(idle).await {
            Ok(Some(bytes)) => {
                at += bytes.len() as u64;
                if let Some(progress) = progress {
                    progress(at);
                }
                if queue.send(bytes).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                network = Err(BlobError::from(error));
                break;
            }
        }
    }
    drop(queue);
    match disk.await {
        Ok((partial, outcome)) => Ok((partial, outcome.and(network))),
        Err(join) if join.is_panic() => std::panic::resume_unwind(join.into_panic()),
        Err(_) => Err(BlobError::Interrupted),
    }
}
