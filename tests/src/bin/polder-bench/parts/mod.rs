//! The parts of the benchmark, a file each, and what they share.

pub(crate) mod idle;
pub(crate) mod models;
pub(crate) mod rounds;
pub(crate) mod sites;
pub(crate) mod start;
pub(crate) mod submit;

use crate::meter::Meter;
use polder_tests::federation::{Federation, User};
use polder_tests::job::Job;
use polder_tests::programs::program;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// KiB as the kernel gives them, in MiB.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52 KiB")]
pub(crate) fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// A job whose trainers add one to a model of this many bytes.
pub(crate) fn adding(name: &str, bytes: u64, rounds: u32, sites: usize) -> Job {
    let trainer = program("polder-test-trainer").to_string_lossy().into_owned();
    // Each site sends other bytes: nothing is spared because two are the same.
    Job::new(name, [trainer.as_str(), "--add", "own", "--init-bytes", &bytes.to_string()])
        .rounds(rounds)
        .min_clients(sites)
}

/// What one job took.
pub(crate) struct Run {
    /// When each round was reported done: by the server's clock (ms since 1970), and processor seconds so far.
    pub(crate) rounds: Vec<(f64, f64)>,
    /// From before the command line started until it said that the job ended.
    pub(crate) wall: Duration,
    /// Processor seconds of everything, the command line too.
    pub(crate) cpu: f64,
}

impl Run {
    /// Milliseconds and processor milliseconds a round, between two rounds (from 1).
    pub(crate) fn per_round(&self, from: usize, to: usize) -> (f64, f64) {
        #[expect(clippy::cast_precision_loss, reason = "a few hundred rounds")]
        let n = (to - from) as f64;
        let ((at, cpu), (later, more)) = (self.rounds[from - 1], self.rounds[to - 1]);
        ((later - at) / n, (more - cpu) * 1000.0 / n)
    }
}

/// Submits a job and follows it to its end, event by event.
///
/// # Panics
/// When it does not complete.
pub(crate) fn follow(user: &User<'_>, job: &Path, meter: Option<&Meter>) -> Run {
    let cpu = || meter.map_or(f64::NAN, Meter::seconds);
    let (began, before) = (Instant::now(), cpu());
    let mut child = user
        .command(&["submit", &job.to_string_lossy(), "--wait", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command line starts");
    let mut rounds = Vec::new();
    let mut last = Value::Null;
    for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
        last = serde_json::from_str(&line.expect("text")).expect("a document a line");
        if last["event"] == "round" {
            rounds.push((last["at"].as_f64().expect("a time"), cpu()));
        }
    }
    let status = child.wait().expect("a child");
    let wall = began.elapsed();
    assert!(status.success() && last["phase"] == "completed", "{last:#}");
    Run { rounds, wall, cpu: cpu() - before }
}

/// Says what went on when a federation is dropped by a panic; and keeps nothing.
pub(crate) fn connected(federation: &Federation, sites: usize) {
    let lead = federation.lead();
    let began = Instant::now();
    loop {
        let shown = lead.json(&["sites"]);
        let n =
            shown["sites"].as_array().expect("sites").iter().filter(|site| site["connected"] == true).count();
        if n >= sites {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{n} of {sites} sites are connected");
        std::thread::sleep(Duration::from_millis(50));
    }
}
