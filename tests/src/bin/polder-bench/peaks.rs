//! Highest memory of each kind of process while a job runs, read again and again from `/proc`.

use polder_tests::process::{self, Memory, Process};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Which processes are one line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ServerParent,
    SiteParent,
    ServerWorker,
    ClientWorker,
    Trainer,
    Other,
}

/// The highest values seen of a kind, MiB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Peak {
    /// `VmHWM`: mapped files count.
    pub(crate) resident: f64,
    /// `RssAnon`: the process's own memory.
    pub(crate) own: f64,
    /// `RssFile`: pages of mapped files.
    pub(crate) mapped: f64,
}

/// Looks until it is stopped.
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<BTreeMap<Kind, Peak>>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts looking at everything beneath a federation's root.
    pub(crate) fn start(root: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let (stopping, peaks) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            let mut known: Vec<(Kind, Process)> = Vec::new();
            let mut turn = 0u32;
            while !stopping.load(Ordering::SeqCst) {
                // Who is there is looked up seldom, how large they are often.
                if turn.is_multiple_of(10) {
                    known = process::beneath(&root)
                        .unwrap_or_default()
                        .into_iter()
                        .map(|process| (kind(&root, &process), process))
                        .collect();
                }
                turn += 1;
                for (kind, process) in &known {
                    if let Ok(memory) = process.memory() {
                        note(&mut peaks.lock().unwrap_or_else(PoisonError::into_inner), *kind, memory);
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { stop, seen, thread: Some(thread) }
    }

    /// The highest of each kind.
    pub(crate) fn stop(mut self) -> BTreeMap<Kind, Peak> {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("looking does not panic");
        }
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn note(peaks: &mut BTreeMap<Kind, Peak>, kind: Kind, memory: Memory) {
    let peak = peaks.entry(kind).or_default();
    for (slot, kib) in
        [(&mut peak.resident, memory.peak), (&mut peak.own, memory.own), (&mut peak.mapped, memory.mapped)]
    {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52 KiB")]
        let mib = kib as f64 / 1024.0;
        *slot = slot.max(mib);
    }
}

fn kind(root: &Path, process: &Process) -> Kind {
    let words = process.arguments().unwrap_or_default();
    let program =
        words.first().map(|word| word.rsplit('/').next().unwrap_or(word).to_owned()).unwrap_or_default();
    let of_server = words.iter().any(|word| word.starts_with(&*root.join("server").to_string_lossy()));
    let supervises = words.get(1).is_some_and(|word| word == "supervise");
    match program.as_str() {
        "polder-parent" if of_server => Kind::ServerParent,
        "polder-parent" => Kind::SiteParent,
        "polder-worker" if supervises => Kind::Other,
        "polder-worker" if of_server => Kind::ServerWorker,
        "polder-worker" => Kind::ClientWorker,
        "polder-test-trainer" => Kind::Trainer,
        _ => Kind::Other,
    }
}
