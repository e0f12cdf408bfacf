//! What a worker of this site is told, and what it says.

use super::job::{Job, secrets_of};
use super::{Site, gate, lock};
use crate::workers::{NextBody, Upstream, WorkerState};
use async_trait::async_trait;
use polder_api::site::{MetricPoint, Stand, TaskResult};
use polder_api::worker::{Ending, Report, RoundDone, Tasks, WorkerAssignment};
use polder_api::{Problem, ProblemCode};
use polder_core::value::to_json;
use polder_words::{JobId, LaunchId, Role};
use std::sync::Arc;

/// The site as its workers' room sees it.
pub(super) struct Room(pub(super) Arc<Site>);

impl Room {
    fn job(&self, launch: &LaunchId) -> Result<Arc<Job>, Problem> {
        let gone =
            || Problem::new(ProblemCode::NotFound, format!("job {} is not one of this site", launch.job));
        self.0.job(launch.job).ok_or_else(gone)
    }
}

fn not_here(what: &str) -> Problem {
    Problem::new(ProblemCode::Forbidden, format!("{what} are a server worker's; this is a client worker"))
}

#[async_trait]
impl Upstream for Room {
    async fn assignment(&self, launch: &LaunchId) -> Result<WorkerAssignment, Problem> {
        let job = self.job(launch)?;
        let again = || Problem::new(ProblemCode::Busy, "the job is being read again; try again");
        let accepted = job.accepted().ok_or_else(again)?;
        let order = &accepted.verified.order;
        let secret_env =
            secrets_of(&accepted.runtime).map_err(|why| Problem::new(ProblemCode::Invalid, why))?;
        let config = serde_json::from_str(&to_json(&accepted.config.to_value()))
            .map_err(|error| Problem::new(ProblemCode::Internal, error.to_string()))?;
        Ok(WorkerAssignment {
            launch: launch.clone(),
            study: order.study.clone(),
            name: accepted.verified.meta.name.clone().unwrap_or_default(),
            job: config,
            sites: Vec::new(),
            min_clients: 0,
            mandatory: Vec::new(),
            env: accepted.runtime.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            secret_env,
            gpus: Vec::new(),
            shared_files: true,
            report_seconds: self.0.config.idle.heartbeat.as_secs().max(1),
        })
    }

    fn next(&self, launch: &LaunchId) -> NextBody {
        let task = self.0.job(launch.job).and_then(|job| lock(&job.shown).task.clone());
        NextBody { task, ..NextBody::default() }
    }

    async fn result(&self, launch: &LaunchId, result: TaskResult) -> Result<(), Problem> {
        gate::result(&self.job(launch)?, launch, result).await
    }

    async fn tasks(&self, _: &LaunchId, _: Tasks) -> Result<(), Problem> {
        Err(not_here("tasks"))
    }

    async fn round(&self, _: &LaunchId, _: RoundDone) -> Result<(), Problem> {
        Err(not_here("rounds"))
    }

    async fn report(&self, launch: &LaunchId, report: Report) -> Result<(), Problem> {
        let job = self.job(launch)?;
        let Some(accepted) = job.accepted() else { return Ok(()) };
        let export = &accepted.runtime.export;
        let points = report.metrics.into_iter().map(|point| MetricPoint {
            round: point.round,
            step: point.step,
            values: gate::allowed(export, point.values),
        });
        let chunk = report.log.as_ref().and_then(|log| gate::log(export, launch, log));
        let mut talk = lock(&job.talk);
        talk.metrics.extend(points.filter(|point| !point.values.is_empty()));
        talk.log.extend(chunk);
        drop(talk);
        job.talks.notify_one();
        Ok(())
    }

    async fn ending(&self, _: &LaunchId, _: &Ending) -> Result<(), Problem> {
        // The ledger has its word; what leaves of it goes through `worker_changed`.
        Ok(())
    }

    fn worker_changed(&self, job: JobId, role: Role, state: &WorkerState) {
        if role != Role::Client {
            return;
        }
        let Some(job) = self.0.job(job) else { return };
        let stand = match state.stand() {
            Stand::Ended { attempts, outcome } => {
                let outcome = match job.accepted() {
                    Some(accepted) => accepted.runtime.export.outcome(&outcome),
                    // Not read again yet, so what may leave is not known: nothing beyond the class.
                    None => polder_core::export::Export {
                        logs: polder_core::export::LogExport::ClassOnly,
                        ..Default::default()
                    }
                    .outcome(&outcome),
                };
                Stand::Ended { attempts, outcome }
            }
            other => other,
        };
        job.set_stand(stand);
    }
}
