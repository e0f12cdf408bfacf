//! Highest memory and processor time of each kind of process while a job runs, read again and again from `/proc`.

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

impl Kind {
    /// Those that carry a model.
    pub(crate) const CARRIERS: [(Self, &str); 5] = [
        (Self::ServerWorker, "server worker"),
        (Self::ServerParent, "server parent"),
        (Self::SiteParent, "site parents"),
        (Self::ClientWorker, "client workers"),
        (Self::Trainer, "trainers"),
    ];
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

/// Seconds in user code and in the kernel, of a kind.
pub(crate) type Used = BTreeMap<Kind, (f64, f64)>;

/// Looks until it is stopped.
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<BTreeMap<Kind, Peak>>>,
    thread: Option<JoinHandle<Used>>,
}

impl Sampler {
    /// Starts looking at everything beneath a federation's root.
    pub(crate) fn start(root: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let (stopping, peaks) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            let mut known: Vec<(Kind, Process)> = Vec::new();
            let mut used = BTreeMap::new();
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
                    if turn % 5 == 1
                        && let Ok(cpu) = process.cpu_own()
                    {
                        used.insert((*kind, process.pid, process.started), cpu);
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut sums = Used::new();
            for ((kind, ..), (user, kernel)) in used {
                let sum = sums.entry(kind).or_default();
                *sum = (sum.0 + user.as_secs_f64(), sum.1 + kernel.as_secs_f64());
            }
            sums
        });
        Self { stop, seen, thread: Some(thread) }
    }

    /// The highest of each kind, and what each used.
    pub(crate) fn stop(mut self) -> (BTreeMap<Kind, Peak>, Used) {
        self.stop.store(true, Ordering::SeqCst);
        let used = self.thread.take().map(|thread| thread.join().expect("looking does not panic"));
        (self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone(), used.unwrap_or_default())
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
