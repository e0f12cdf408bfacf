//! What goes down: the current task, with its model in the worker's run directory before the worker hears of it.

use super::job::{Job, Wanted, make_folder};
use super::{Site, lock};
use polder_api::payload::Payload;
use polder_api::site::Task;
use polder_transport::blob::{Transfer, download};
use polder_words::{BlobRef, JobId, Role, TaskId};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The task of a job as its worker sees it, and where the parent has the model.
#[derive(Debug, Default, Clone)]
pub(super) struct Shown {
    pub(super) task: Option<Task>,
    /// The model the task begins with, to compare results against.
    pub(super) model: Model,
}

/// The model of a task, as the parent has it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Model {
    /// None: the task is to make one.
    #[default]
    None,
    /// In the message, base64.
    Inline(String),
    /// A blob in the job's folder.
    File(PathBuf, BlobRef),
}

impl Shown {
    pub(super) fn id(&self) -> Option<TaskId> {
        self.task.as_ref().map(|task| task.id)
    }
}

/// Follows the tasks the server wants done.
pub(super) async fn follow(job: &Arc<Job>) {
    let mut wanted = job.wanted.subscribe();
    loop {
        let task = wanted.borrow_and_update().task.clone();
        let shown = lock(&job.shown).id();
        if task.as_ref().map(|task| task.id) != shown {
            tokio::select! {
                () = show(job, task) => {}
                // A newer one: whatever was fetched of the old one is of no use.
                () = moved(&mut wanted, shown) => continue,
            }
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// Until another task than the one being shown is wanted.
async fn moved(wanted: &mut tokio::sync::watch::Receiver<Wanted>, shown: Option<TaskId>) {
    let begun = wanted.borrow().task.as_ref().map(|task| task.id);
    let other = |now: &Wanted| {
        let id = now.task.as_ref().map(|task| task.id);
        id != begun && id != shown
    };
    if wanted.wait_for(other).await.is_err() {
        std::future::pending::<()>().await;
    }
    wanted.mark_changed();
}

async fn show(job: &Job, task: Option<Task>) {
    let Some(mut task) = task else {
        *lock(&job.shown) = Shown::default();
        job.result.send_replace(None);
        job.site.workers().poke(job.id, Role::Client);
        return;
    };
    let mut pause = Duration::from_millis(100);
    let model = loop {
        match bring(&job.site, job.id, &mut task).await {
            Ok(model) => break model,
            Err(error) => {
                tracing::warn!(job = %job.id.short(), task = %task.id, "the model cannot be fetched: {error:#}");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(10));
            }
        }
    };
    let keep = match &model {
        Model::File(_, blob) => Some(blob.root),
        _ => None,
    };
    let old = {
        let mut shown = lock(&job.shown);
        let old = std::mem::take(&mut shown.model);
        *shown = Shown { task: Some(task), model: model.clone() };
        old
    };
    // What was computed for the last task is of no use any more.
    job.result.send_replace(None);
    job.site.workers().poke(job.id, Role::Client);
    if let Model::File(path, _) = old
        && !matches!(&model, Model::File(now, _) if *now == path)
    {
        job.site.workers().keep_only(job.id, Role::Client, keep.into_iter().collect::<BTreeSet<_>>()).await;
        let _ = tokio::fs::remove_file(path).await;
    }
}

/// Fetches a task's model, if it is a blob, and says in the task where the worker finds it.
async fn bring(site: &Site, job: JobId, task: &mut Task) -> anyhow::Result<Model> {
    let blob = match &task.model {
        None => return Ok(Model::None),
        Some(Payload::Inline { data }) => return Ok(Model::Inline(data.clone())),
        Some(Payload::Blob { blob }) => *blob,
        Some(Payload::File { .. }) => anyhow::bail!("the server names a file of its own"),
    };
    let folder = site.folder_of(job).join("models");
    make_folder(&folder).await?;
    let path = folder.join(blob.root.to_string());
    if !tokio::fs::try_exists(&path).await? {
        let prefix = format!("/v1/site/jobs/{job}/blobs");
        // It can be had again: no need to wait for the disk.
        let how = Transfer { sync: false, ..Transfer::default() };
        download(&site.client, &prefix, blob, &path, &how).await?;
    }
    let given = site.workers().give_file(job, Role::Client, blob, path.clone()).await?;
    task.model = Some(Payload::File { path: given, blob: Some(blob) });
    Ok(Model::File(path, blob))
}
