//! What the server's role asks of the part that launches its workers; [`crate::workers`] does it, tests play it.

use super::job::Facts;
use crate::workers::{App, RunError, TakeError, Want, Workers};
use async_trait::async_trait;
use polder_api::BlobRef;
use polder_api::worker::Stop;
use polder_core::schedule::{Site, Stock};
use polder_launch::Ask;
use polder_transport::blob::Tree;
use polder_words::{Hash, JobId, Outcome, Role, SiteName};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Launches and speaks to server workers. All of it may be asked twice.
#[async_trait]
pub(super) trait Launches: Send + Sync {
    /// Sets aside what the job's server worker asks for; `Err`: what is missing.
    async fn reserve(&self, facts: &Facts) -> Result<(), String>;
    /// Gives that back; a worker that is wanted meanwhile keeps it.
    async fn release(&self, job: JobId);
    /// Wants the job's server worker; what becomes of it is told through the upstream. `Err`: it will never run.
    async fn run(&self, facts: &Facts, app: PathBuf) -> Result<(), Outcome>;
    /// Ends it, by itself first.
    async fn stop(&self, job: JobId, why: &str, grace_seconds: u64);
    /// The job has ended: its run directory may go.
    fn forget(&self, job: JobId);
    /// The worker should ask for what is next.
    fn poke(&self, job: JobId);
    /// Puts a file (a hard link of it) into the worker's `in/`; gives its path as the worker names it.
    async fn give(&self, job: JobId, file: PathBuf, blob: BlobRef) -> std::io::Result<String>;
    /// Takes a file the worker wrote, copying while hashing, into a folder under its hash.
    async fn take(&self, job: JobId, path: &str, cap: u64, folder: &Path) -> Result<Tree, TakeError>;
    /// Removes from `in/` what is not named.
    async fn keep_only(&self, job: JobId, keep: BTreeSet<Hash>);
    /// What the server's own place has and what is free of it.
    fn standing(&self) -> Site;
    /// Jobs that have something here.
    fn jobs(&self) -> Vec<JobId>;
}

#[async_trait]
impl Launches for Workers {
    async fn reserve(&self, facts: &Facts) -> Result<(), String> {
        let needs = facts.needs(&SiteName::server());
        let ask = Ask {
            gpus: u32::try_from(needs.gpus).unwrap_or(u32::MAX),
            cpus: u32::try_from(needs.cpus).unwrap_or(u32::MAX),
            memory: needs.memory,
        };
        Workers::reserve(self, facts.id, Role::Server, ask).await.map(drop).map_err(|short| short.to_string())
    }

    async fn release(&self, job: JobId) {
        Workers::release(self, job, Role::Server).await;
    }

    async fn run(&self, facts: &Facts, app: PathBuf) -> Result<(), Outcome> {
        let mut launch = self.resolved(facts.id, Role::Server, &facts.study);
        facts.fill(&mut launch);
        let app = facts.app(&SiteName::server()).map(|blob| App { path: app, blob });
        let class = match Workers::run(self, Want { launch, app }).await {
            Ok(()) => return Ok(()),
            Err(RunError::Refused(refusal)) => return Err(refusal.outcome()),
            Err(RunError::Short(short)) => {
                return Err(Outcome::failed(polder_words::FailureClass::Resources, short.to_string()));
            }
            Err(RunError::Bundle { blob, why }) => {
                (polder_words::FailureClass::Config, format!("app {}: {why}", blob.root))
            }
            Err(RunError::Failed(error)) => {
                (polder_words::FailureClass::Infrastructure, format!("{error:#}"))
            }
        };
        Err(Outcome::failed(class.0, class.1))
    }

    async fn stop(&self, job: JobId, why: &str, grace_seconds: u64) {
        let stop = Stop { why: why.to_owned(), grace_seconds };
        if let Err(error) = Workers::stop(self, job, Role::Server, stop).await {
            tracing::error!(job = %job.short(), error = format!("{error:#}"), "the server worker cannot be stopped");
        }
    }

    fn forget(&self, job: JobId) {
        Workers::forget(self, job, Role::Server);
    }

    fn poke(&self, job: JobId) {
        Workers::poke(self, job, Role::Server);
    }

    async fn give(&self, job: JobId, file: PathBuf, blob: BlobRef) -> std::io::Result<String> {
        self.give_file(job, Role::Server, blob, file).await
    }

    async fn take(&self, job: JobId, path: &str, cap: u64, folder: &Path) -> Result<Tree, TakeError> {
        self.take_file(job, Role::Server, path, cap, folder).await
    }

    async fn keep_only(&self, job: JobId, keep: BTreeSet<Hash>) {
        Workers::keep_only(self, job, Role::Server, keep).await;
    }

    fn standing(&self) -> Site {
        let standing = Workers::standing(self);
        let stock = |amount: Option<(u64, u64)>| amount.map(|(free, all)| Stock { free, all });
        Site {
            connected: true,
            gpus: stock(standing.gpus),
            cpus: stock(standing.cpus),
            memory: stock(standing.memory),
            jobs: None,
        }
    }

    fn jobs(&self) -> Vec<JobId> {
        let wanted = self.all().into_iter().map(|(job, role, _)| (job, role));
        let mut jobs: Vec<_> = wanted
            .chain(self.run_dirs())
            .filter(|(_, role)| *role == Role::Server)
            .map(|(job, _)| job)
            .collect();
        jobs.sort();
        jobs.dedup();
        jobs
    }
}
