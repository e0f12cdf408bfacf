//! What idle connections cost a listener: memory each, and CPU a minute of long polls.
//!
//! `cargo run --release -p polder-transport --example idle [connections [seconds]]`
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

use jiff::Timestamp;
use polder_transport::Endpoint;
use polder_transport::client::{Client, Dialer};
use polder_transport::identity::{Kit, Participant, Principal, ProjectPlan, provision};
use polder_transport::longpoll::Bell;
use polder_transport::server::{Call, Limits, Listener, Router, json, serve};
use polder_transport::tls::Acceptor;
use polder_words::{Epoch, OrgName, SiteName};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn participant(principal: Principal) -> Participant {
    Participant { principal, org: OrgName::new("org").unwrap(), hosts: Vec::new(), request: None }
}

/// The server, as a process of its own: prints its port, then what it costs.
async fn listen(dir: PathBuf, seconds: u64) {
    let kit = Kit::open(&dir.join("kits/fl"), Timestamp::now()).unwrap();
    let acceptor = Acceptor::participants(&kit, Arc::default()).unwrap();
    let listener = Listener::tcp("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let router = Router::new(Arc::new(Bell::new(Epoch([1; 8])))).get(
        "/poll",
        |bell: Arc<Bell>, call: Call| async move {
            let after = call.query("after")?;
            Ok(json(&bell.wait(after, Duration::from_secs(call.query("wait")?.unwrap_or(50))).await))
        },
    );
    let before = status("VmRSS");
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, acceptor, Arc::new(router), Limits::default(), stop));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (rss, cpu) = (status("VmRSS"), ticks());
    println!("before {before} KiB, with connections {rss} KiB");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    println!(
        "after {seconds} s {} KiB, {:.3} s CPU a minute",
        status("VmRSS"),
        (ticks() - cpu) as f64 / 100.0 * 60.0 / seconds as f64
    );
    std::process::exit(0);
}

async fn poll(dir: &Path, connections: u32, seconds: u64) {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--listen", dir.to_str().unwrap(), &seconds.to_string()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let addr = lines.next_line().await.unwrap().unwrap().parse().unwrap();
    let kit = Kit::open(&dir.join("kits/site"), Timestamp::now()).unwrap();
    let dialer = Dialer::federation(&kit).unwrap().address(addr);
    for _ in 0..connections {
        let client = Client::new(dialer.clone());
        tokio::spawn(async move {
            let mut after: Option<String> = None;
            loop {
                let path = after.map_or("/poll".to_owned(), |after| format!("/poll?after={after}"));
                after = match client.get(&path).long_poll(Duration::from_secs(50)).fetch().await {
                    Ok(cursor) => Some(cursor),
                    Err(_) => return,
                };
            }
        });
    }
    while let Some(line) = lines.next_line().await.unwrap() {
        println!("{connections} connections: {line}");
    }
    child.wait().await.unwrap();
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if args.get(1).is_some_and(|arg| arg == "--listen") {
        runtime.block_on(listen(PathBuf::from(&args[2]), args[3].parse().unwrap()));
    }
    let connections = args.get(1).map_or(60, |text| text.parse().unwrap());
    let seconds = args.get(2).map_or(60, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let plan = ProjectPlan {
        federation: "idle".to_owned(),
        server: Endpoint::new("localhost", 8443).unwrap(),
        days: 30,
        participants: vec![
            participant(Principal::Server(SiteName::new("fl").unwrap())),
            participant(Principal::Site(SiteName::new("site").unwrap())),
        ],
    };
    provision(&plan, dir.path(), Timestamp::now()).unwrap();
    runtime.block_on(poll(dir.path(), connections, seconds));
}
