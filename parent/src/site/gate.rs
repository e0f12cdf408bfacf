//! The gate: what a worker hands up is looked at here, from its bytes, before any of it may leave the site.
//!
//! A worker is never asked whether its result is in order. The parent copies the bytes out of the worker's reach
//! first and checks the copy: size, tensor names, types and shapes against the model the task began with, and
//! that every number is one. Metrics pass by name, logs as far as the study's `export.logs` says.

use super::job::{Accepted, Job, make_folder};
use super::lock;
use super::outgoing::{Outgoing, Spool};
use super::tasks::Model;
use crate::workers::TakeError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polder_api::payload::{INLINE_LIMIT, Payload};
use polder_api::site::{LogChunk, TaskOutcome, TaskResult};
use polder_api::worker::WorkerLog;
use polder_api::{Problem, ProblemCode};
use polder_core::export::{Export, LogExport, ResultSummary, TensorSummary, Withheld};
use polder_words::{FailureClass, LaunchId, Role};
use polder_workflow::tensors;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Largest result where the study names no limit and the model is no measure: 64 GiB.
const LARGEST: u64 = 64 << 30;
/// Most metrics of one result or report.
const MOST_METRICS: usize = 1000;

/// Why a result stays here.
#[derive(Debug, thiserror::Error)]
enum Stays {
    #[error("{0}")]
    Withheld(#[from] Withheld),
    #[error("the result is no model: {0}")]
    NoModel(#[from] tensors::model::OpenError),
    #[error("{0}")]
    Content(#[from] tensors::Refusal),
    #[error("the weight is {0}; it has to be finite and above 0")]
    Weight(f64),
    #[error("the result is {0}")]
    Take(#[from] TakeError),
    #[error("the result's bytes are no base64")]
    Base64,
    #[error("the result names a blob; a worker hands over bytes or a file")]
    Foreign,
    #[error("the task asks for a model and the result has none")]
    Missing,
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

impl Stays {
    fn class(&self) -> FailureClass {
        match self {
            Self::Withheld(why) => why.class(),
            Self::Take(TakeError::Io { .. }) | Self::Io(_) => FailureClass::Infrastructure,
            _ => FailureClass::UserCode,
        }
    }
}

/// Takes the result of the current task and sets it on its way up. A result of another task is dropped: it
/// is late. The same one again is the same.
pub(super) async fn result(job: &Arc<Job>, launch: &LaunchId, result: TaskResult) -> Result<(), Problem> {
    let Some(accepted) = job.accepted() else {
        return Err(Problem::new(ProblemCode::Busy, "the job is being read again; try again"));
    };
    let (current, kind, model) = {
        let shown = lock(&job.shown);
        let kind = shown.task.as_ref().map(|task| task.kind.clone());
        (shown.id(), kind.unwrap_or_default(), shown.model.clone())
    };
    if current.is_none() && job.wanted.borrow().task.as_ref().is_none_or(|task| task.id == result.task) {
        // This parent was started again and has not heard from the server what the task is.
        return Err(Problem::new(ProblemCode::Busy, "the task is not known again yet; try again"));
    }
    if current != Some(result.task) {
        tracing::debug!(job = %job.id.short(), task = %result.task, "a late result is dropped");
        return Ok(());
    }
    if job.result.borrow().as_ref().is_some_and(|out| out.result.task == result.task) {
        return Ok(());
    }
    let task = result.task;
    let checked = check(job, &accepted, &kind, &model, result.result).await;
    let outgoing = match checked {
        Ok((outcome, spool)) => Outgoing { result: TaskResult { task, result: outcome }, spool },
        Err(stays) => {
            job.site.write_audit(
                "result_withheld",
                &[
                    ("launch", launch.to_string().into()),
                    ("task", task.to_string().into()),
                    ("why", stays.to_string().into()),
                ],
            );
            let tail = job.site.workers().tail(launch, 16 * 1024).await;
            let failed = failure(&accepted.runtime.export, stays.class(), stays.to_string(), &tail);
            Outgoing { result: TaskResult { task, result: failed }, spool: None }
        }
    };
    // Only if the task is still the current one: the newer one's result must not be replaced.
    if lock(&job.shown).id() == Some(task) {
        job.result.send_replace(Some(Arc::new(outgoing)));
    }
    Ok(())
}

fn failure(export: &Export, class: FailureClass, cause: String, tail: &str) -> TaskOutcome {
    let outcome = polder_words::Outcome::Failed { class, cause, tail: tail.to_owned() };
    match export.outcome(&outcome) {
        polder_words::Outcome::Failed { class, cause, tail } => TaskOutcome::Failed { class, cause, tail },
        polder_words::Outcome::Completed => {
            TaskOutcome::Failed { class, cause: String::new(), tail: String::new() }
        }
    }
}

async fn check(
    job: &Arc<Job>,
    accepted: &Accepted,
    kind: &str,
    begins_with: &Model,
    outcome: TaskOutcome,
) -> Result<(TaskOutcome, Option<Spool>), Stays> {
    let export = &accepted.runtime.export;
    let (model, weight, metrics) = match outcome {
        TaskOutcome::Done { model, weight, metrics } => (model, weight, metrics),
        TaskOutcome::Failed { class, cause, tail } => {
            return Ok((failure(export, class, cause, &tail), None));
        }
    };
    if !weight.is_finite() || weight <= 0.0 {
        return Err(Stays::Weight(weight));
    }
    let metrics = allowed(export, metrics);
    let Some(model) = model else {
        if kind != "evaluate" {
            return Err(Stays::Missing);
        }
        return Ok((TaskOutcome::Done { model: None, weight, metrics }, None));
    };
    let (payload, spool) = match model {
        Payload::Blob { .. } => return Err(Stays::Foreign),
        Payload::Inline { data } => {
            let bytes = STANDARD.decode(&data).map_err(|_| Stays::Base64)?;
            if bytes.len() as u64 > INLINE_LIMIT {
                return Err(Stays::Base64);
            }
            look(export, &tensors::Model::from_bytes(bytes)?, begins_with)?;
            (Payload::Inline { data }, None)
        }
        Payload::File { path, .. } => {
            let spool = spool(job, export, &path).await?;
            let (export, begins_with) = (export.clone(), begins_with.clone());
            let copy = spool.path.clone();
            let looked = tokio::task::spawn_blocking(move || {
                look(&export, &tensors::Model::open(&copy)?, &begins_with)
            });
            let looked = looked.await.map_err(|error| Stays::Io(std::io::Error::other(error)))?;
            if let Err(stays) = looked {
                let _ = tokio::fs::remove_file(&spool.path).await;
                return Err(stays);
            }
            (Payload::Blob { blob: spool.tree.blob() }, Some(spool))
        }
    };
    Ok((TaskOutcome::Done { model: Some(payload), weight, metrics }, spool))
}

/// Copies what the worker left out of its reach.
async fn spool(job: &Arc<Job>, export: &Export, path: &str) -> Result<Spool, Stays> {
    let folder = job.site.folder_of(job.id).join("results");
    make_folder(&folder).await?;
    // One byte more than allowed is enough to see that it is more than allowed.
    let cap = export.max_bytes.map_or(LARGEST, |max| max.saturating_add(1));
    let tree = job.site.workers().take_file(job.id, Role::Client, path, cap, &folder).await?;
    let path: PathBuf = folder.join(tree.blob().root.to_string());
    Ok(Spool { path, tree })
}

fn summary(header: &tensors::Header) -> Vec<TensorSummary> {
    let shape = |tensor: &tensors::Tensor| tensor.shape.to_vec();
    header
        .tensors()
        .iter()
        .map(|tensor| TensorSummary {
            name: tensor.name.to_string(),
            dtype: tensor.dtype.as_str().to_owned(),
            shape: shape(tensor),
            finite: true,
        })
        .collect()
}

/// Looks at a result: blocks for as long as reading it takes.
fn look(export: &Export, model: &tensors::Model, begins_with: &Model) -> Result<(), Stays> {
    let expected = match begins_with {
        Model::None => None,
        Model::Inline(data) => {
            let bytes = STANDARD.decode(data).map_err(|_| Stays::Base64)?;
            Some(summary(tensors::Model::from_bytes(bytes)?.header()))
        }
        Model::File(path, _) => Some(summary(tensors::Model::open(path)?.header())),
    };
    let header = model.header();
    let found = ResultSummary { bytes: header.file_len(), tensors: summary(header) };
    export.check_result(&found, expected.as_deref())?;
    tensors::check::all_finite(model)??;
    Ok(())
}

/// The metrics that may leave.
pub(super) fn allowed(export: &Export, metrics: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    metrics
        .into_iter()
        .filter(|(name, value)| name.len() <= 200 && export.allows_metric(name, *value))
        .take(MOST_METRICS)
        .collect()
}

/// The part of a worker's log that may leave, as text of the same length: offsets stay what they are, however often
/// a part is told. A byte that is no UTF-8 becomes `?`.
pub(super) fn log(export: &Export, launch: &LaunchId, log: &WorkerLog) -> Option<LogChunk> {
    if export.logs != LogExport::Full {
        return None;
    }
    let bytes = STANDARD.decode(&log.data).ok()?;
    Some(LogChunk { attempt: launch.attempt, offset: log.offset, text: same_length(&bytes) })
}

fn same_length(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(std::iter::repeat_n('?', chunk.invalid().len()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_log_keeps_its_offsets(bytes: Vec<u8>) {
            prop_assert_eq!(same_length(&bytes).len(), bytes.len());
        }
    }

    #[test]
    fn only_full_logs_are_streamed() {
        let launch: LaunchId = format!("{}.uni.client.1", "0".repeat(32)).parse().expect("a launch id");
        let chunk = WorkerLog { offset: 7, data: STANDARD.encode(b"a\xffb"), dropped: 0 };
        let with = |logs| Export { logs, ..Export::default() };
        assert_eq!(log(&with(LogExport::Tail), &launch, &chunk), None);
        let sent = log(&with(LogExport::Full), &launch, &chunk).expect("full logs leave");
        assert_eq!((sent.offset, sent.text.as_str()), (7, "a?b"));
    }
}
