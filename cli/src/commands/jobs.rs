//! `jobs`, `show`, `watch`, `abort`, `delete`.

use super::follow::follow;
use crate::args::{JobArgs, ListArgs};
use crate::output::{Ending, Out, job as text};
use crate::server::{Server, now_millis};
use polder_words::JobId;
use serde::Serialize;

pub(crate) async fn list(args: &ListArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let mut jobs = server.jobs().await?;
    if args.active {
        jobs.jobs.retain(|job| !job.phase.is_final());
    }
    out.result(&jobs, |jobs| text::list(jobs, now_millis()))
}

pub(crate) async fn show(args: &JobArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let job = server.job(args.job.as_str()).await?;
    out.result(&job, |job| text::show(job, now_millis()))
}

pub(crate) async fn watch(args: &JobArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let job = server.job(args.job.as_str()).await?;
    follow(&mut server, job.id, out).await.map(drop)
}

pub(crate) async fn abort(args: &JobArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let job = server.job(args.job.as_str()).await?;
    server.abort(&job.id).await?;
    let job = server.job(&job.id.to_string()).await?;
    out.result(&job, |job| {
        let short = job.id.short();
        if job.phase.is_final() {
            format!("job {short} ({}) is {}", job.name, job.phase)
        } else {
            format!("job {short} ({}) is being ended; `polder watch {short}` follows it", job.name)
        }
    })
}

#[derive(Serialize)]
struct Deleted {
    job: JobId,
    deleted: bool,
}

pub(crate) async fn delete(args: &JobArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let job = server.job(args.job.as_str()).await?;
    server.delete(&job.id).await?;
    out.result(&Deleted { job: job.id, deleted: true }, |_| {
        format!("removed job {} ({}) and what it left", job.id.short(), job.name)
    })
}
