//! Rounds of large models: time, peaks of memory, bytes on the wire.

use super::{adding, connected, follow};
use crate::meter::Meter;
use crate::peaks::{Kind, Peak, Sampler};
use crate::table::Figure;
use polder_tests::federation::Plan;
use polder_tests::proxy::{Behaviour, Proxy};
use std::sync::atomic::Ordering;

struct Size {
    mib: u64,
    sites: usize,
    rounds: u32,
    wall_target: Option<f64>,
    /// Wall and processor seconds a round, peaks of server and client job in MiB; of FLARE.
    flare: Option<(f64, f64, f64, f64)>,
}

const SIZES: [Size; 5] = [
    Size { mib: 64, sites: 2, rounds: 6, wall_target: None, flare: Some((4.7, 3.3, 920.0, 820.0)) },
    Size { mib: 256, sites: 2, rounds: 5, wall_target: Some(1.5), flare: Some((8.5, 10.0, 2870.0, 1950.0)) },
    Size { mib: 256, sites: 4, rounds: 4, wall_target: None, flare: Some((20.2, 21.5, 4400.0, 1840.0)) },
    // FLARE does not fit in 22 GiB.
    Size { mib: 1024, sites: 2, rounds: 3, wall_target: None, flare: None },
    Size { mib: 1024, sites: 4, rounds: 2, wall_target: None, flare: None },
];

pub(crate) fn run() -> Vec<Figure> {
    touch_memory();
    let only: Option<u64> = std::env::var("POLDER_BENCH_MIB").ok().and_then(|mib| mib.parse().ok());
    let sizes = SIZES.iter().filter(|size| only.is_none_or(|mib| mib == size.mib));
    let mut figures: Vec<Figure> = sizes.flat_map(measure).collect();
    figures.push(wire());
    figures
}

/// Uses most of the free memory once. A virtual machine may have to get each page from its host when it is first
/// written, several times slower than writing; what is measured here is not that.
fn touch_memory() {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<usize>().ok()).unwrap_or(0);
    drop(std::hint::black_box(vec![1_u8; kib / 10 * 7 * 1024]));
}

fn measure(size: &Size) -> Vec<Figure> {
    let meter = Meter::new(&format!("models-{}-{}", size.mib, size.sites));
    let mut plan = Plan::sites(size.sites);
    plan.cgroup = meter.as_ref().map(|meter| meter.folder().to_owned());
    let federation = plan.start();
    connected(&federation, size.sites);
    let job = adding("large", size.mib << 20, size.rounds, size.sites).write(&federation.root);
    let sampler = Sampler::start(federation.root.clone());
    let run = follow(&federation.lead(), &job, meter.as_ref());
    let (peaks, used) = sampler.stop();
    let (walls, cpus): (Vec<f64>, Vec<f64>) = (1..run.rounds.len()).map(|n| run.per_round(n, n + 1)).unzip();
    let what = |rest: &str| format!("{} MiB model, {} sites: {rest}", size.mib, size.sites);
    let seconds = |values: Vec<f64>| values.into_iter().map(|value| value / 1000.0).collect::<Vec<_>>();
    let mut wall = Figure::new("models", what("a round"), "s", seconds(walls));
    if let Some(target) = size.wall_target {
        wall = wall.at_most(target);
    }
    let mut cpu = Figure::new("models", what("processor time a round"), "s", seconds(cpus));
    let peak = |kind: Kind| peaks.get(&kind).copied().unwrap_or_default();
    let memory = |name: &str, peak: Peak| {
        [
            Figure::new("models", what(&format!("{name}, peak resident")), "MiB", vec![peak.resident]),
            Figure::new("models", what(&format!("{name}, own memory")), "MiB", vec![peak.own]),
            Figure::new("models", what(&format!("{name}, mapped files")), "MiB", vec![peak.mapped]),
        ]
    };
    let [mut server, server_own, server_mapped] = memory("server worker", peak(Kind::ServerWorker));
    let [mut client, client_own, client_mapped] = memory("client worker", peak(Kind::ClientWorker));
    let [server_parent, ..] = memory("server parent", peak(Kind::ServerParent));
    let [site_parent, ..] = memory("site parent", peak(Kind::SiteParent));
    if size.mib == 1024 {
        server = server.at_most(192.0);
    }
    client = client.at_most(64.0);
    if let Some((flare_wall, flare_cpu, flare_server, flare_client)) = size.flare {
        wall = wall.flare(flare_wall);
        cpu = cpu.flare(flare_cpu);
        server = server.flare(flare_server);
        client = client.flare(flare_client);
    }
    // Where the processor time of the whole job went, a round: the first of a job has no model to send down.
    let shares = Kind::CARRIERS.map(|(kind, name)| {
        let (user, kernel) = used.get(&kind).copied().unwrap_or_default();
        let rounds = f64::from(size.rounds);
        let share = |part: &str, seconds: f64| {
            Figure::new("models", what(&format!("{name}, {part} a round")), "s", vec![seconds / rounds])
        };
        [share("user time", user), share("kernel time", kernel)]
    });
    let mut figures = vec![
        wall,
        cpu,
        server,
        server_own,
        server_mapped,
        client,
        client_own,
        client_mapped,
        server_parent.at_most(48.0),
        site_parent.at_most(48.0),
    ];
    figures.extend(shares.into_iter().flatten());
    figures
}

/// Bytes between sites and server for each byte of model that has to travel, counted by a proxy.
fn wire() -> Figure {
    const BYTES: u64 = 64 << 20;
    const ROUNDS: u32 = 3;
    const SITES: usize = 2;
    let proxy = Proxy::start(Behaviour::default()).expect("a port");
    let mut plan = Plan::sites(SITES);
    plan.proxy = Some(format!("http://{}", proxy.address()));
    let federation = plan.start();
    connected(&federation, SITES);
    let before = proxy.seen().up.load(Ordering::SeqCst) + proxy.seen().down.load(Ordering::SeqCst);
    let job = adding("wire", BYTES, ROUNDS, SITES).write(&federation.root);
    let _ = follow(&federation.lead(), &job, None);
    let moved = proxy.seen().up.load(Ordering::SeqCst) + proxy.seen().down.load(Ordering::SeqCst) - before;
    // Down and up once a round and site, and the first model up from one site.
    let payload = BYTES * (u64::from(ROUNDS) * 2 * SITES as u64 + 1);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let ratio = moved as f64 / payload as f64;
    Figure::new("models", "64 MiB model, 2 sites: bytes on the wire for each of the payload", "", vec![ratio])
        .at_most(1.02)
        .flare(2.01)
}
