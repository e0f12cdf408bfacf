//! Blobs over real connections: whole, cut, resumed, altered.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::proxy::Proxy as TestProxy;
use common::{Federation, Server, limits};
use polder_transport::Body;
use polder_transport::blob::{
    BlobError, Have, PIECE, Transfer, Tree, Uploads, download, hash_file, serve_blob, serve_tree, upload,
};
use polder_transport::client::{Client, ClientError, Dialer};
use polder_transport::server::{Call, Problem, ProblemCode, Response, Router, json};
use polder_words::{BlobRef, Hash};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Semaphore;

struct Store {
    dir: PathBuf,
    uploads: Uploads,
    /// What is served as piece list instead of the right one.
    list: Mutex<Option<Tree>>,
    puts: AtomicUsize,
    started: Semaphore,
}

impl Store {
    fn path(&self, root: &Hash) -> PathBuf {
        self.dir.join(root.to_string())
    }
    fn partial(&self, root: &Hash) -> PathBuf {
        self.dir.join(format!("{root}.part"))
    }
}

fn blob(call: &Call) -> Result<BlobRef, Problem> {
    Ok(BlobRef { root: call.param("root")?, size: call.query("size")?.unwrap_or(0) })
}

async fn put_tree(store: Arc<Store>, mut call: Call) -> Result<Response, Problem> {
    let blob = blob(&call)?;
    Ok(json(&store.uploads.begin(&mut call, &store.partial(&blob.root), blob).await?))
}

async fn put(store: Arc<Store>, mut call: Call) -> Result<Response, Problem> {
    store.puts.fetch_add(1, Ordering::SeqCst);
    store.started.add_permits(1);
    let blob = blob(&call)?;
    let (partial, dest) = (store.partial(&blob.root), store.path(&blob.root));
    Ok(json(&store.uploads.put(&mut call, &partial, &dest, blob, true).await?))
}

async fn get_tree(store: Arc<Store>, call: Call) -> Result<Response, Problem> {
    let other = store.list.lock().unwrap().clone();
    Ok(serve_tree(&other.unwrap_or_else(|| hash_file(&store.path(&call.param("root").unwrap())).unwrap())))
}

async fn get(store: Arc<Store>, call: Call) -> Result<Response, Problem> {
    let root = call.param("root")?;
    let Ok(file) = File::open(store.path(&root)) else {
        return Err(Problem::new(ProblemCode::NotFound, "no such blob"));
    };
    let size = file.metadata().unwrap().len();
    serve_blob(call.headers(), file, &BlobRef { root, size })
}

struct World {
    dir: TempDir,
    store: Arc<Store>,
    wire: TestProxy,
    client: Client,
    _server: Server,
}

impl World {
    async fn new() -> Self {
        let federation = Federation::new();
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        fs::create_dir(&store).unwrap();
        let store = Arc::new(Store {
            dir: store,
            uploads: Uploads::new(),
            list: Mutex::default(),
            puts: AtomicUsize::new(0),
            started: Semaphore::new(0),
        });
        let router = Router::new(store.clone())
            .put("/b/{root}/tree", put_tree)
            .get("/b/{root}/tree", get_tree)
            .put("/b/{root}", put)
            .get("/b/{root}", get);
        let server = Server::tcp(federation.acceptor(), router, limits()).await;
        let wire = TestProxy::wire(server.addr.unwrap()).await;
        let dialer = Dialer::federation(&federation.kit("hospital-a")).unwrap().address(wire.addr);
        Self { dir, store, wire, client: Client::new(dialer), _server: server }
    }

    fn file(&self, size: u64) -> (PathBuf, Tree) {
        let path = self.dir.path().join(format!("source-{size}"));
        // No two blocks alike, and none like a block of a file of another size.
        let mut block: Vec<u8> =
            (0..65_536_u32).map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]).collect();
        let mut bytes = Vec::with_capacity(usize::try_from(size + 65_536).unwrap());
        while (bytes.len() as u64) < size {
            block[..8].copy_from_slice(&(bytes.len() as u64 ^ size << 32).to_le_bytes());
            bytes.extend_from_slice(&block);
        }
        bytes.truncate(usize::try_from(size).unwrap());
        fs::write(&path, &bytes).unwrap();
        let tree = hash_file(&path).unwrap();
        assert_eq!(tree.blob().root.0, *blake3::hash(&bytes).as_bytes());
        (path, tree)
    }

    /// A file of the server's store.
    fn stored(&self, size: u64) -> (PathBuf, Tree) {
        let (path, tree) = self.file(size);
        let stored = self.store.path(&tree.blob().root);
        fs::copy(path, &stored).unwrap();
        (stored, tree)
    }

    async fn upload(&self, path: &Path, tree: &Tree) -> Result<(), BlobError> {
        upload(&self.client, "/b", path, tree, &quick()).await
    }

    async fn download(&self, tree: &Tree, dest: &Path) -> Result<(), BlobError> {
        download(&self.client, "/b", tree.blob(), dest, &quick()).await
    }

    fn dest(&self) -> PathBuf {
        self.dir.path().join("dest")
    }
}

fn quick() -> Transfer {
    Transfer { pause: Duration::from_millis(1), ..Transfer::default() }
}

fn same(a: &Path, b: &Path) -> bool {
    fs::read(a).unwrap() == fs::read(b).unwrap()
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 1;
    file.write_all_at(&byte, at).unwrap();
}

#[tokio::test]
async fn blobs_go_and_come_whole() {
    let world = World::new().await;
    for size in [0, 1, 70_000, PIECE, 2 * PIECE + 12_345] {
        let (path, tree) = world.file(size);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let how = Transfer {
            progress: Some(Arc::new({
                let seen = seen.clone();
                move |at| seen.lock().unwrap().push(at)
            })),
            ..quick()
        };
        upload(&world.client, "/b", &path, &tree, &how).await.unwrap();
        let stored = world.store.path(&tree.blob().root);
        assert!(same(&stored, &path), "{size}");
        assert_eq!(fs::read_dir(&world.store.dir).unwrap().count(), 1, "nothing else is left");
        assert!(seen.lock().unwrap().is_sorted() && seen.lock().unwrap().last() == Some(&size));

        let dest = world.dest();
        world.download(&tree, &dest).await.unwrap();
        assert!(same(&dest, &path), "{size}");
        assert!(!dest.with_extension("part").exists());
        fs::remove_file(dest).unwrap();
        fs::remove_file(stored).unwrap();
    }
}

#[tokio::test]
async fn a_cut_upload_goes_on_within_the_piece() {
    let world = World::new().await;
    let size = PIECE + PIECE / 2 + 777;
    let (path, tree) = world.file(size);
    world.wire.shared.budget.store(PIECE + PIECE / 4, Ordering::SeqCst);
    world.upload(&path, &tree).await.unwrap();
    assert!(same(&world.store.path(&tree.blob().root), &path));
    let up = world.wire.shared.up.load(Ordering::SeqCst);
    // What was under way when it was cut is sent again, and no more than that: less than half a piece.
    assert!(up < size + PIECE / 2, "{up} bytes for {size}");
    assert_eq!(world.store.puts.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_cut_download_goes_on_within_the_piece() {
    let world = World::new().await;
    let size = PIECE + PIECE / 2 + 777;
    let (path, tree) = world.stored(size);
    world.wire.shared.budget.store(PIECE + PIECE / 4, Ordering::SeqCst);
    world.download(&tree, &world.dest()).await.unwrap();
    assert!(same(&world.dest(), &path));
    let down = world.wire.shared.down.load(Ordering::SeqCst);
    assert!(down < size + PIECE / 2, "{down} bytes for {size}");
}

#[tokio::test]
async fn a_download_survives_what_a_crash_left() {
    let world = World::new().await;
    let (path, tree) = world.stored(PIECE + PIECE / 2 + 777);
    let part = world.dir.path().join("dest.part");
    let good = fs::read(&path).unwrap();
    let at = usize::try_from(PIECE).unwrap();
    // A piece and a quarter, the quarter with a hole as a crash leaves it; a wrong first piece; too much.
    let mut hole = good[..at + at / 4].to_vec();
    hole[at + 4096..at + 8192].fill(0);
    let mut first = good[..at + 5].to_vec();
    first[17] ^= 1;
    let mut long = good.clone();
    long.push(0);
    for left in [hole, first, long, good.clone(), Vec::new()] {
        fs::write(&part, left).unwrap();
        world.download(&tree, &world.dest()).await.unwrap();
        assert!(same(&world.dest(), &path));
        assert!(!part.exists());
        fs::remove_file(world.dest()).unwrap();
    }
}

#[tokio::test]
async fn wrong_bytes_are_noticed_at_the_end_of_their_piece() {
    let world = World::new().await;
    let (path, tree) = world.stored(PIECE + 777);
    *world.store.list.lock().unwrap() = Some(tree.clone());
    flip(&path, PIECE + 5);
    let error = world.download(&tree, &world.dest()).await.unwrap_err();
    assert!(matches!(error, BlobError::WrongPiece { piece: 1, .. }), "{error}");
    assert!(!world.dest().exists());
    assert_eq!(
        fs::metadata(world.dir.path().join("dest.part")).unwrap().len(),
        PIECE,
        "the good piece is kept"
    );
    // Put right, the download goes on.
    flip(&path, PIECE + 5);
    world.download(&tree, &world.dest()).await.unwrap();
    assert!(same(&world.dest(), &path));
}

#[tokio::test]
async fn a_wrong_piece_list_is_refused_before_any_byte() {
    let world = World::new().await;
    let (_, tree) = world.stored(PIECE + 777);
    let (_, other) = world.file(PIECE + 778);
    *world.store.list.lock().unwrap() = Some(other.clone());
    let error = world.download(&tree, &world.dest()).await.unwrap_err();
    assert!(matches!(error, BlobError::WrongTree { .. }), "{error}");

    let list = Body::full(other.list());
    let blob = tree.blob();
    let ask = world.client.put(&format!("/b/{}/tree?size={}", blob.root, blob.size)).body(list);
    let error = ask.send().await.unwrap_err();
    assert!(matches!(error, ClientError::Status { status: 400, .. }), "{error}");
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let world = World::new().await;
    let (_, tree) = world.file(70_000);
    let error = world.download(&tree, &world.dest()).await.unwrap_err();
    let BlobError::Client(ClientError::Status { status: 404, .. }) = error else { panic!("{error}") };
}

#[tokio::test]
async fn a_file_that_changed_after_it_was_hashed_is_refused() {
    let world = World::new().await;
    for (size, at) in [(70_000, 3), (PIECE + 777, PIECE + 1)] {
        let (path, tree) = world.file(size);
        flip(&path, at);
        let error = world.upload(&path, &tree).await.unwrap_err();
        assert!(error.to_string().contains(&format!("piece {} of blob", at / PIECE)), "{error}");
        assert!(!world.store.path(&tree.blob().root).exists());
    }
    // An empty blob by another name is none either.
    let (path, _) = world.file(0);
    let tree = Tree::of_one_piece(BlobRef { root: Hash([1; 32]), size: 0 }).unwrap();
    assert!(world.upload(&path, &tree).await.is_err());
}

#[tokio::test]
async fn uploads_that_do_not_fit_are_refused() {
    let world = World::new().await;
    let (path, tree) = world.file(70_000);
    let blob = tree.blob();
    let status = |outcome: Result<Have, ClientError>| match outcome {
        Err(ClientError::Status { status, problem }) => (status, problem.message),
        other => panic!("{other:?}"),
    };
    let put = |query: String, body: Vec<u8>| {
        world.client.put(&format!("/b/{}?{query}", blob.root)).body(Body::full(body)).fetch()
    };
    let bytes = fs::read(path).unwrap();
    let (code, why) = status(put("size=70000&at=5".to_owned(), bytes[5..].to_vec()).await);
    assert_eq!(code, 409, "{why}");
    let (code, why) = status(put("size=69999".to_owned(), bytes.clone()).await);
    assert_eq!(code, 413, "{why}");
    // The end of a shorter size is where its hash is asked for.
    let (code, why) = status(put("size=69999".to_owned(), bytes[..69_999].to_vec()).await);
    assert_eq!(code, 400, "{why}");
    let (code, why) = status(put(format!("size={}", PIECE + 1), bytes.clone()).await);
    assert_eq!((code, why.contains("piece list")), (409, true), "{why}");
    let half: Have = put("size=70000".to_owned(), bytes[..30_000].to_vec()).await.unwrap();
    assert_eq!(half, Have { at: 30_000, complete: false });
    let all: Have = put("size=70000&at=30000".to_owned(), bytes[30_000..].to_vec()).await.unwrap();
    assert_eq!(all, Have { at: 70_000, complete: true });
}

#[tokio::test]
async fn a_new_upload_takes_over_from_one_that_hangs() {
    let world = World::new().await;
    let (path, tree) = world.file(PIECE);
    let blob = tree.blob();
    let first = Bytes::from(fs::read(&path).unwrap()[..100_000].to_vec());
    let hanging = futures_util::StreamExt::chain(
        futures_util::stream::iter([Ok::<_, std::io::Error>(first)]),
        futures_util::stream::pending(),
    );
    let stuck = tokio::spawn({
        let client = world.client.clone();
        let path = format!("/b/{}?size={}", blob.root, blob.size);
        async move { client.put(&path).bulk().body(Body::stream(Some(PIECE), hanging)).send().await }
    });
    world.store.started.acquire().await.unwrap().forget();
    tokio::time::timeout(Duration::from_secs(20), world.upload(&path, &tree)).await.unwrap().unwrap();
    assert!(same(&world.store.path(&blob.root), &path));
    let error = stuck.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Status { status: 409, .. }), "{error}");
}

#[tokio::test]
async fn ranges_are_answered_as_http_says() {
    let world = World::new().await;
    let (path, tree) = world.stored(70_000);
    let ask = |range: &'static str| {
        world.client.get(&format!("/b/{}", tree.blob().root)).header("range", range).send()
    };
    let reply = ask("bytes=10-19").await.unwrap();
    assert_eq!(reply.status(), 206);
    assert_eq!(reply.header("content-range"), Some("bytes 10-19/70000"));
    assert_eq!(&reply.bytes(100).await.unwrap()[..], &fs::read(path).unwrap()[10..20]);
    for bad in ["bytes=70000-", "bytes=5-4", "bytes=-5", "pieces=1-2", "bytes=1-99999999999999999999"] {
        let error = ask(bad).await.unwrap_err();
        assert!(matches!(error, ClientError::Status { status: 400, .. }), "{bad}: {error}");
    }
}
