//! What the test trainers themselves say about who they are and what they were asked to do: lines in a file
//! that no parent knows of. Launches and rounds are counted here, not by asking the product.

use crate::watch;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One task a trainer was given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Entry {
    /// The launch it belongs to.
    #[serde(default)]
    pub launch: String,
    /// Which attempt.
    #[serde(default)]
    pub attempt: u32,
    /// The site.
    #[serde(default)]
    pub site: String,
    /// The round, from 1; 0 for `init`.
    pub round: u32,
    /// `train`, `init`, ...
    pub kind: String,
    /// The trainer's process.
    pub pid: u32,
    /// Its start, in clock ticks from boot.
    pub started: u64,
    /// When the task was taken, milliseconds since 1970.
    pub at_ms: u64,
}

/// The file.
#[derive(Debug, Clone)]
pub struct Trace {
    path: PathBuf,
}

impl Trace {
    /// The trace in this file, which trainers make.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Everything so far. A line that is being written is not there yet.
    ///
    /// # Panics
    /// When a line is no entry.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}")))
            .collect()
    }

    /// Waits until the entries satisfy something.
    ///
    /// # Panics
    /// When the time is over, with the entries seen.
    #[track_caller]
    pub fn wait(&self, limit: Duration, mut wanted: impl FnMut(&[Entry]) -> bool) -> Vec<Entry> {
        let folder = self.path.parent().expect("the trace lies in a folder");
        let found = watch::until(folder, limit, || {
            let entries = self.entries();
            if wanted(&entries) { Ok(entries) } else { Err(format!("the trace says {}", brief(&entries))) }
        });
        found.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until a trainer at each of these sites was given a round.
    ///
    /// # Panics
    /// When the time is over.
    #[track_caller]
    pub fn wait_round(&self, sites: &[String], round: u32) -> Vec<Entry> {
        self.wait(watch::LIMIT, |entries| {
            sites
                .iter()
                .all(|site| entries.iter().any(|e| e.site == *site && e.round == round && e.kind == "train"))
        })
    }

    /// The trainer processes seen, by site: pid and start.
    #[must_use]
    pub fn trainers(&self) -> BTreeMap<String, BTreeSet<(u32, u64)>> {
        let mut by_site: BTreeMap<String, BTreeSet<(u32, u64)>> = BTreeMap::new();
        for entry in self.entries() {
            by_site.entry(entry.site).or_default().insert((entry.pid, entry.started));
        }
        by_site
    }
}

fn brief(entries: &[Entry]) -> String {
    let all: Vec<String> =
        entries.iter().map(|e| format!("{}#{} {} {}", e.site, e.attempt, e.kind, e.round)).collect();
    all.join(", ")
}

/// A gate that trainers stop at: they lock the file shared, we hold it exclusively.
#[derive(Debug)]
pub struct Gate {
    file: File,
    /// Its path, for `--gate`.
    pub path: PathBuf,
}

impl Gate {
    /// A closed gate in `folder`.
    ///
    /// # Panics
    /// When the file cannot be made.
    #[must_use]
    pub fn closed(folder: &Path) -> Self {
        let path = folder.join("gate");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .expect("a file");
        file.lock().expect("nobody else holds it exclusively");
        // Whatever account a trainer runs under: a shared lock needs no more than reading.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .expect("our own file");
        Self { file, path }
    }

    /// Lets everybody through, now and later.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn open(self) {
        self.file.unlock().expect("it was locked");
    }
}
