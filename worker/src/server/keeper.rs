//! Checkpoints are written by a thread of their own, so that no round waits for a disk unless the one
//! before it is still being written.

use super::Done;
use polder_api::rundir;
use polder_words::SiteName;
use polder_workflow::checkpoint::{Checkpoints, Saved};
use polder_workflow::engine::{Failure, Record};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc as std_mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Writes checkpoints, one after the other.
pub(crate) struct Keeper {
    orders: std_mpsc::Sender<(Record, Saved)>,
    checkpoints: Arc<Mutex<Checkpoints>>,
}

impl Keeper {
    pub(crate) fn start(checkpoints: Checkpoints, done: mpsc::UnboundedSender<Done>) -> Self {
        let (orders, inbox) = std_mpsc::channel::<(Record, Saved)>();
        let checkpoints = Arc::new(Mutex::new(checkpoints));
        let mine = checkpoints.clone();
        std::thread::spawn(move || {
            while let Ok((record, model)) = inbox.recv() {
                let saved = mine.lock().unwrap_or_else(PoisonError::into_inner).save(&record, model);
                let saved = saved.map_err(|error| super::chain(&error));
                if done.send(Done::Saved(record.round, saved)).is_err() {
                    return;
                }
            }
        });
        Self { orders, checkpoints }
    }

    /// Writes the state after a round; [`Done::Saved`] says when it is on disk.
    pub(crate) fn save(&self, record: Record, model: Saved) {
        // The thread ends with the worker only.
        let _ = self.orders.send((record, model));
    }

    /// Writes the metrics of all rounds into `out/`. Returns the path below the run directory.
    pub(crate) fn write_metrics(
        &self,
        run: &Path,
        file: &str,
        rounds: u32,
        lost: &BTreeMap<SiteName, Failure>,
    ) -> Result<String, String> {
        let checkpoints = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let history = checkpoints.history().map_err(|error| super::chain(&error))?;
        let lost: BTreeMap<_, _> = lost
            .iter()
            .map(|(site, failure)| {
                (site, serde_json::json!({"class": failure.class, "cause": failure.cause}))
            })
            .collect();
        let rounds_made: Vec<_> = history
            .iter()
            .map(|record| {
                serde_json::json!({
                    "round": record.round, "metrics": record.metrics, "sites": record.sites, "late": record.late,
                    "millis": record.millis,
                })
            })
            .collect();
        let all =
            serde_json::json!({"version": 1, "total_rounds": rounds, "rounds": rounds_made, "lost": lost});
        let path = format!("{}/{file}", rundir::OUT);
        std::fs::write(run.join(&path), all.to_string())
            .map_err(|error| format!("cannot write {path}: {error}"))?;
        Ok(path)
    }
}
