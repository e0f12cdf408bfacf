//! The asking side of blobs: uploads and downloads that go on where they were cut.

use super::server::{is_conflict, path_of};
use super::stream::{file_body, receive};
use super::{BlobError, Have, Partial, Progress, Tree, blocking, failed};
use crate::body::Body;
use crate::client::{Client, ClientError};
use polder_words::BlobRef;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a blob is moved.
#[derive(Clone)]
pub struct Transfer {
    /// Whether a download is on disk when it is there.
    pub sync: bool,
    /// How many times in a row it may fail without a byte gained.
    pub tries: u32,
    /// Pause after the first failure; doubles up to 10 s.
    pub pause: Duration,
    /// How long nothing may come.
    pub idle: Duration,
    /// Told how many bytes are there, now and then.
    pub progress: Option<Progress>,
}

impl Default for Transfer {
    fn default() -> Self {
        Self {
            sync: true,
            tries: 5,
            pause: Duration::from_millis(200),
            idle: Duration::from_secs(60),
            progress: None,
        }
    }
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("sync", &self.sync)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}

/// Failures in a row, and when they are too many.
struct Patience<'a> {
    how: &'a Transfer,
    failures: u32,
    best: u64,
}

impl<'a> Patience<'a> {
    fn new(how: &'a Transfer) -> Self {
        Self { how, failures: 0, best: 0 }
    }

    fn at(&mut self, at: u64) {
        if at > self.best {
            self.best = at;
            self.failures = 0;
        }
        if let Some(progress) = &self.how.progress {
            progress(at);
        }
    }

    async fn after(&mut self, error: BlobError) -> Result<(), BlobError> {
        self.failures += 1;
        if self.failures >= self.how.tries {
            return Err(error);
        }
        tracing::debug!(%error, failures = self.failures, "transfer interrupted, going on");
        let pause = self.how.pause.saturating_mul(1 << (self.failures - 1).min(10));
        tokio::time::sleep(pause.min(Duration::from_secs(10))).await;
        Ok(())
    }
}

/// Longer than any upload: what watches it is that bytes move.
const AS_LONG_AS_IT_MOVES: Duration = Duration::from_secs(7 * 86_400);

/// Sends a file that is a blob, to below `prefix`. A blob the other side has is not sent again.
///
/// # Errors
/// When the other side refuses, or too many tries in a row gain nothing.
pub async fn upload(
    client: &Client,
    prefix: &str,
    file: &Path,
    tree: &Tree,
    how: &Transfer,
) -> Result<(), BlobError> {
    let blob = tree.blob();
    let path = path_of(prefix, &blob.root);
    let mut patience = Patience::new(how);
    loop {
        match upload_once(client, &path, file, tree, &mut patience).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_transient() || conflicts(&error) => patience.after(error).await?,
            Err(error) => return Err(error),
        }
    }
}

fn conflicts(error: &BlobError) -> bool {
    matches!(error, BlobError::Client(error) if error.problem().is_some_and(is_conflict))
}

async fn upload_once(
    client: &Client,
    path: &str,
    file: &Path,
    tree: &Tree,
    patience: &mut Patience<'_>,
) -> Result<(), BlobError> {
    let BlobRef { size, .. } = tree.blob();
    let list = tree.list();
    let mut have = Have { at: 0, complete: false };
    if !list.is_empty() {
        let ask = client.put(&format!("{path}/tree?size={size}")).body(Body::full(list));
        // Hashing what lies there may take a while.
        have = ask.timeout(AS_LONG_AS_IT_MOVES).fetch().await?;
        patience.at(have.at);
    }
    if have.complete {
        return Ok(());
    }
    let owned = file.to_owned();
    let opened = blocking(move || File::open(&owned).map_err(failed(&owned, "open"))).await?;
    let left = size.checked_sub(have.at).ok_or_else(|| wrong_have(client, have, size))?;
    let ask = client.put(&format!("{path}?size={size}&at={}", have.at)).bulk();
    let ask = ask
        .body(file_body(opened, have.at, left, patience.how.progress.clone()))
        .timeout(AS_LONG_AS_IT_MOVES);
    let done: Have = ask.fetch().await?;
    patience.at(done.at);
    if done.complete { Ok(()) } else { Err(BlobError::Incomplete { blob: tree.blob(), at: done.at }) }
}

fn wrong_have(client: &Client, have: Have, size: u64) -> BlobError {
    let why = format!("it has {} of {size} bytes", have.at);
    ClientError::Protocol { to: client.target(), why }.into()
}

/// Fetches a blob from below `prefix` into `dest`. What an earlier try left in `<dest>.part` is used.
///
/// # Errors
/// When the other side refuses or sends wrong bytes twice, or too many tries in a row gain nothing.
pub async fn download(
    client: &Client,
    prefix: &str,
    blob: BlobRef,
    dest: &Path,
    how: &Transfer,
) -> Result<(), BlobError> {
    let path = path_of(prefix, &blob.root);
    let mut patience = Patience::new(how);
    let tree = loop {
        match fetch_tree(client, &path, blob).await {
            Ok(tree) => break tree,
            Err(error) if error.is_transient() => patience.after(error).await?,
            Err(error) => return Err(error),
        }
    };
    let part = part_of(dest);
    let mut wrong = None;
    loop {
        match download_once(client, &path, &tree, &part, dest, &mut patience).await {
            Ok(()) => return Ok(()),
            // Once it may be the disk or a crash; twice the same piece, it is the other side.
            Err(BlobError::WrongPiece { piece, .. }) if wrong != Some(piece) => wrong = Some(piece),
            Err(error) if error.is_transient() => patience.after(error).await?,
            Err(error) => return Err(error),
        }
    }
}

fn part_of(dest: &Path) -> PathBuf {
    let mut name = dest.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

async fn fetch_tree(client: &Client, path: &str, blob: BlobRef) -> Result<Tree, BlobError> {
    if let Some(tree) = Tree::of_one_piece(blob) {
        return Ok(tree);
    }
    let limit = usize::try_from(Tree::list_len(blob.size)).unwrap_or(usize::MAX);
    let list = client.get(&format!("{path}/tree")).send().await?.bytes(limit).await?;
    Tree::from_list(blob, &list)
}

async fn download_once(
    client: &Client,
    path: &str,
    tree: &Tree,
    part: &Path,
    dest: &Path,
    patience: &mut Patience<'_>,
) -> Result<(), BlobError> {
    let (owned, owned_tree) = (part.to_owned(), tree.clone());
    let mut partial = blocking(move || Partial::open(&owned, owned_tree)).await?;
    patience.at(partial.at());
    let mut outcome = Ok(());
    if !partial.is_complete() {
        let reply =
            client.get(path).bulk().header("range", &format!("bytes={}-", partial.at())).send().await?;
        if reply.status() != http::StatusCode::PARTIAL_CONTENT {
            let why = format!("it answered {} to a range", reply.status());
            return Err(ClientError::Protocol { to: client.target(), why }.into());
        }
        let mut body = reply.into_body();
        (partial, outcome) =
            receive(partial, &mut body, patience.how.idle, patience.how.progress.as_ref()).await?;
        patience.at(partial.at());
    }
    outcome?;
    let (owned, sync) = (dest.to_owned(), patience.how.sync);
    blocking(move || {
        if let Some(dir) = owned.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(failed(dir, "create directory"))?;
        }
        partial.commit(&owned, sync)
    })
    .await
}
