//! How fast a file goes over loopback TLS, into a file and back, and how long a small request takes.
//!
//! `cargo run --release -p polder-transport --example throughput [MiB [rounds]]`
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use jiff::Timestamp;
use polder_transport::Endpoint;
use polder_transport::blob::{Transfer, Tree, Uploads, download, hash_file, serve_blob, serve_tree, upload};
use polder_transport::client::{Client, Dialer};
use polder_transport::identity::{Kit, Participant, Principal, ProjectPlan, provision};
use polder_transport::server::{Call, Limits, Listener, Problem, Response, Router, json, respond, serve};
use polder_transport::tls::Acceptor;
use polder_words::{BlobRef, Hash, OrgName, SiteName};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

struct App {
    dir: PathBuf,
    uploads: Uploads,
    tree: Tree,
}

impl App {
    fn path(&self, root: &Hash) -> PathBuf {
        self.dir.join(root.to_string())
    }
}

fn blob(call: &Call) -> Result<BlobRef, Problem> {
    Ok(BlobRef { root: call.param("root")?, size: call.query("size")?.unwrap_or(0) })
}

async fn put_tree(app: Arc<App>, mut call: Call) -> Result<Response, Problem> {
    let blob = blob(&call)?;
    let partial = app.path(&blob.root).with_extension("part");
    Ok(json(&app.uploads.begin(&mut call, &partial, blob).await?))
}

async fn put(app: Arc<App>, mut call: Call) -> Result<Response, Problem> {
    let blob = blob(&call)?;
    let dest = app.path(&blob.root);
    Ok(json(&app.uploads.put(&mut call, &dest.with_extension("part"), &dest, blob, false).await?))
}

async fn get_tree(app: Arc<App>, _: Call) -> Result<Response, Problem> {
    Ok(serve_tree(&app.tree))
}

async fn get(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let root = call.param("root")?;
    let file = File::open(app.path(&root)).unwrap();
    let size = file.metadata().unwrap().len();
    serve_blob(call.headers(), file, &BlobRef { root, size })
}

/// User and system time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// The best of all rounds: what else runs on the machine only ever makes it worse.
#[derive(Default)]
struct Best(Vec<(&'static str, f64, f64)>);

impl Best {
    fn take(&mut self, what: &'static str, size: u64, began: (Instant, Duration)) {
        let rate = size as f64 / 1e9 / began.0.elapsed().as_secs_f64();
        let cost = (cpu() - began.1).as_secs_f64() / (size as f64 / f64::from(1 << 30));
        match self.0.iter_mut().find(|(name, ..)| *name == what) {
            Some((_, best_rate, best_cost)) => {
                *best_rate = best_rate.max(rate);
                *best_cost = best_cost.min(cost);
            }
            None => self.0.push((what, rate, cost)),
        }
    }

    fn print(&self) {
        for (what, rate, cost) in &self.0 {
            println!("{what:32} {rate:6.2} GB/s   {cost:.2} CPU-s/GiB");
        }
    }
}

fn kits(dir: &Path) -> (Kit, Kit) {
    let participant = |principal| Participant {
        principal,
        org: OrgName::new("org").unwrap(),
        hosts: Vec::new(),
        request: None,
    };
    let plan = ProjectPlan {
        federation: "bench".to_owned(),
        server: Endpoint::new("localhost", 8443).unwrap(),
        days: 30,
        participants: vec![
            participant(Principal::Server(SiteName::new("fl").unwrap())),
            participant(Principal::Site(SiteName::new("site").unwrap())),
        ],
    };
    let now = Timestamp::now();
    provision(&plan, dir, now).unwrap();
    (Kit::open(&dir.join("kits/fl"), now).unwrap(), Kit::open(&dir.join("kits/site"), now).unwrap())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn main() {
    let mib: u64 = std::env::args().nth(1).map_or(1024, |text| text.parse().unwrap());
    let rounds: u32 = std::env::args().nth(2).map_or(2, |text| text.parse().unwrap());
    let size = mib << 20;
    let dir = tempfile::tempdir().unwrap();
    let (server, site) = kits(dir.path());
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let source = dir.path().join("source");
    let mut file = File::create(&source).unwrap();
    let mut block = vec![0_u8; 1 << 20];
    for n in 0..mib {
        for (at, word) in block.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(
                &(n * 131_072 + at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes(),
            );
        }
        file.write_all(&block).unwrap();
    }
    drop(file);

    let began = (Instant::now(), cpu());
    let tree: Tree = hash_file(&source).unwrap();
    let mut best = Best::default();
    best.take("hash a file", size, began);

    let app = App { dir: store.clone(), uploads: Uploads::new(), tree: tree.clone() };
    let router = Router::new(Arc::new(app))
        .get("/ping", |_, _| async { Ok(json(&"pong")) })
        .get("/zero/{n}", |_, call: Call| async move {
            let n: u64 = call.param("n")?;
            let piece = bytes::Bytes::from(vec![0_u8; 256 * 1024]);
            let stream = futures_util::stream::iter(
                (0..n / piece.len() as u64).map(move |_| Ok::<_, std::io::Error>(piece.clone())),
            );
            Ok(respond("application/octet-stream", polder_transport::Body::stream(Some(n), stream)))
        })
        .put("/blobs/{root}/tree", put_tree)
        .get("/blobs/{root}/tree", get_tree)
        .put("/blobs/{root}", put)
        .get("/blobs/{root}", get);
    let (told, addr) = std::sync::mpsc::channel();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = Listener::tcp("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            let acceptor = Acceptor::participants(&server, Arc::default()).unwrap();
            serve(listener, acceptor, Arc::new(router), Limits::default(), stopped).await;
        });
    });
    let client = Client::new(Dialer::federation(&site).unwrap().address(addr.recv().unwrap()));
    let how = Transfer { sync: false, ..Transfer::default() };
    runtime().block_on(async {
        client.get("/ping").done().await.unwrap();
        let began = (Instant::now(), cpu());
        let count = 5000;
        for _ in 0..count {
            client.get("/ping").done().await.unwrap();
        }
        println!(
            "{:32} {:6.0} us     {:.0} us CPU",
            "small request",
            began.0.elapsed().as_micros() as f64 / f64::from(count),
            (cpu() - began.1).as_micros() as f64 / f64::from(count)
        );
        for round in 1..=rounds {
            let began = (Instant::now(), cpu());
            let mut body = client.get(&format!("/zero/{size}")).bulk().send().await.unwrap().into_body();
            while let Some(piece) = body.piece(Duration::from_secs(10)).await.unwrap() {
                std::hint::black_box(piece);
            }
            best.take("memory to memory", size, began);
            let began = (Instant::now(), cpu());
            upload(&client, "/blobs", &source, &tree, &how).await.unwrap();
            best.take("upload, file to file", size, began);
            let began = (Instant::now(), cpu());
            let dest = dir.path().join(format!("back-{round}"));
            download(&client, "/blobs", tree.blob(), &dest, &how).await.unwrap();
            best.take("download, file to file", size, began);
            std::fs::remove_file(dest).unwrap();
            std::fs::remove_file(store.join(tree.blob().root.to_string())).unwrap();
        }
    });
    best.print();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap());
    stop.cancel();
    thread.join().unwrap();
}
