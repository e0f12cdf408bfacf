//! The trainer contract: line JSON over the Unix socket named by `POLDER_SOCKET`, any language.
//!
//! One request a line, one answer a line, in order. The trainer runs with the app folder as working
//! directory. With `mode: per_round` there is no socket: the command is started once a round with
//! `--in FILE --out FILE` appended and writes metrics to the file named by `POLDER_METRICS` if it likes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Name of the variable that holds the socket's path.
pub const SOCKET_VARIABLE: &str = "POLDER_SOCKET";
/// Name of the variable that holds the metrics file's path (`per_round` only).
pub const METRICS_VARIABLE: &str = "POLDER_METRICS";

/// What a trainer asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Who and where am I.
    Init,
    /// The next task; waits for one. Answered with `done` when the job has no more.
    Receive,
    /// The model of the task last received.
    Send {
        /// A safetensors file beneath the run directory (`out/`), absolute or relative to it.
        path: String,
        /// Weight in the aggregation: a finite number, above 0.
        #[serde(default)]
        weight: Option<f64>,
        /// Scalars shown to people, filtered by the study's export policy.
        #[serde(default)]
        metrics: BTreeMap<String, f64>,
    },
    /// Scalars outside of a send.
    Metrics {
        /// Step within the round.
        #[serde(default)]
        step: u64,
        /// Name to value.
        metrics: BTreeMap<String, f64>,
    },
    /// A line for the log.
    Log {
        /// The text.
        text: String,
    },
}

/// What the worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Reply {
    /// To `init`.
    Welcome {
        /// The site's name.
        site: String,
        /// The study.
        study: String,
        /// The job's id.
        job: String,
        /// Number of rounds, where the workflow knows it.
        total_rounds: u32,
        /// Folder into which the trainer writes what it sends.
        out: String,
    },
    /// To `receive`: a task.
    Task {
        /// Round, from 1.
        round: u32,
        /// How many.
        total_rounds: u32,
        /// What is asked: `train`, `evaluate`, `init`.
        kind: String,
        /// The model to start from, a safetensors file; absent for `init`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// Further values of the workflow.
        #[serde(default)]
        params: Map<String, Value>,
    },
    /// To `receive`: no more tasks; end with exit code 0.
    Done,
    /// To `send`, `metrics`, `log`: taken.
    Ok,
    /// The request was refused; the trainer may go on.
    Error {
        /// Why.
        message: String,
    },
}
