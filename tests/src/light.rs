//! Sites that launch nothing: each has a certificate of its own, a connection, a long poll and heartbeats,
//! takes every job it is offered and adds one to the model itself. Sixty of them fit into a test.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polder_api::site::{
    Ack, Desired, Goal, Hello, Observation, Observed, Offer, Stand, Task, TaskOutcome, TaskResult, Welcome,
};
use polder_api::{PROTOCOL, Payload};
use polder_transport::client::{Client, ClientError, Dialer};
use polder_transport::identity::Kit;
use polder_words::{Epoch, Isolation, JobId, Mode, Outcome, TaskId, WorkerPhase};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long one long poll may wait.
const POLL: Duration = Duration::from_secs(25);
/// How often each says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What one of the sites went through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The server said welcome.
    Connected,
    /// It was asked to reserve.
    Asked(JobId),
    /// It was given a task.
    Given(JobId, TaskId),
    /// It was told to stop.
    Stopped(JobId),
    /// It lost the server.
    Lost(String),
}

/// Many sites in one thread.
#[derive(Debug)]
pub struct Sites {
    shared: Arc<Shared>,
    // Dropped with it, which ends the thread and every connection.
    _stop: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Vec<(Instant, String, Seen)>>,
    news: Condvar,
}

impl Shared {
    fn say(&self, site: &str, what: Seen) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push((
            Instant::now(),
            site.to_owned(),
            what,
        ));
        self.news.notify_all();
    }
}

impl Sites {
    /// Connects one site for each kit.
    ///
    /// # Panics
    /// When a kit cannot be used.
    #[must_use]
    pub fn connect(kits: &[PathBuf]) -> Self {
        let shared = Arc::new(Shared::default());
        let mut sites = Vec::new();
        for folder in kits {
            let kit = Kit::open(folder, jiff::Timestamp::now()).expect("a good kit");
            let dialer = Dialer::federation(&kit).expect("a good key");
            let site = Light {
                name: kit.info().name.clone(),
                client: Client::new(dialer),
                shared: Arc::clone(&shared),
                epoch: Epoch(
                    jiff::Timestamp::now().as_nanosecond().to_le_bytes()[..8]
                        .try_into()
                        .expect("eight bytes"),
                ),
                jobs: BTreeMap::new(),
            };
            sites.push(site);
        }
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let mut tasks = tokio::task::JoinSet::new();
                for site in sites {
                    tasks.spawn(site.run());
                }
                // Ends with the sender; the tasks with their set.
                let _ = stopped.await;
            });
        });
        Self { shared, _stop: stop }
    }

    /// Waits until what was seen satisfies something.
    ///
    /// # Panics
    /// When the time is over.
    #[track_caller]
    pub fn wait(
        &self,
        limit: Duration,
        mut wanted: impl FnMut(&[(Instant, String, Seen)]) -> bool,
    ) -> Vec<(Instant, String, Seen)> {
        let end = Instant::now() + limit;
        let mut seen = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if wanted(&seen) {
                return seen.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "after {limit:?}: {seen:?}");
            seen = self.shared.news.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until all of this many are connected.
    ///
    /// # Panics
    /// When they do not get there.
    #[track_caller]
    pub fn wait_connected(&self, n: usize) {
        self.wait(Duration::from_secs(60), |seen| {
            let mut names: Vec<&str> = seen
                .iter()
                .filter(|(_, _, what)| *what == Seen::Connected)
                .map(|(_, name, _)| name.as_str())
                .collect();
            names.sort_unstable();
            names.dedup();
            names.len() >= n
        });
    }
}

struct Light {
    name: String,
    client: Client,
    shared: Arc<Shared>,
    epoch: Epoch,
    jobs: BTreeMap<JobId, Stand>,
}

impl Light {
    async fn run(mut self) {
        loop {
            if let Err(error) = self.session().await {
                self.shared.say(&self.name, Seen::Lost(error.to_string()));
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }

    async fn session(&mut self) -> Result<(), ClientError> {
        let offer = Offer {
            mode: Mode::Process,
            architectures: vec!["x86_64".to_owned()],
            isolation: Isolation::OwnUid,
            not_enforced: Vec::new(),
            gpus: None,
            cpus: None,
            memory_mib: None,
            down: None,
        };
        let hello = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: self.epoch,
            offer,
        };
        let _: Welcome = self.client.post("/v1/site/hello").json(&hello).fetch().await?;
        self.shared.say(&self.name, Seen::Connected);
        let mut cursor = String::new();
        let mut beat = tokio::time::interval(HEARTBEAT);
        // The answer comes when there is news; the heartbeat goes on meanwhile.
        let mut poll = Box::pin(desired(self.client.clone(), cursor.clone()));
        loop {
            tokio::select! {
                _ = beat.tick() => self.observe(Vec::new()).await?,
                answer = &mut poll => {
                    let desired: Desired = answer?;
                    cursor.clone_from(&desired.cursor);
                    poll = Box::pin(self::desired(self.client.clone(), cursor.clone()));
                    self.follow(desired).await?;
                }
            }
        }
    }

    async fn follow(&mut self, desired: Desired) -> Result<(), ClientError> {
        for assignment in desired.assignments {
            let job = assignment.job;
            let stand = match &assignment.goal {
                Goal::Reserve => {
                    self.shared.say(&self.name, Seen::Asked(job));
                    Stand::Reserved { terms: None }
                }
                Goal::Run => Stand::Worker {
                    attempt: 1,
                    phase: WorkerPhase::Running,
                    native: Some("none".to_owned()),
                    reason: None,
                    ready: true,
                    unknown_since: None,
                },
                Goal::Stop { .. } => {
                    self.shared.say(&self.name, Seen::Stopped(job));
                    Stand::Ended { attempts: 1, outcome: Outcome::Completed }
                }
            };
            if self.jobs.insert(job, stand.clone()).as_ref() != Some(&stand) {
                self.observe(vec![Observation { job, stand }]).await?;
            }
            if let (Goal::Run, Some(task)) = (&assignment.goal, &assignment.task) {
                self.work(job, task).await?;
            }
        }
        for job in desired.forgotten {
            self.jobs.remove(&job);
        }
        Ok(())
    }

    async fn work(&self, job: JobId, task: &Task) -> Result<(), ClientError> {
        self.shared.say(&self.name, Seen::Given(job, task.id));
        let model = match &task.model {
            Some(Payload::Inline { data }) => add_one(data),
            _ => STANDARD.encode(crate::job::model(256, 0.0)),
        };
        let result = TaskOutcome::Done {
            model: Some(Payload::Inline { data: model }),
            weight: 1.0,
            metrics: BTreeMap::new(),
        };
        let result = TaskResult { task: task.id, result };
        let path = format!("/v1/site/jobs/{job}/results");
        let _: Ack = self.client.post(&path).json(&result).idempotent().fetch().await?;
        Ok(())
    }

    async fn observe(&self, jobs: Vec<Observation>) -> Result<(), ClientError> {
        let observed = Observed { epoch: self.epoch, jobs, offer: None };
        let _: Ack = self.client.post("/v1/site/observed").json(&observed).idempotent().fetch().await?;
        Ok(())
    }
}

async fn desired(client: Client, cursor: String) -> Result<Desired, ClientError> {
    let after = if cursor.is_empty() { String::new() } else { format!("after={cursor}&") };
    let path = format!("/v1/site/desired?{after}wait={}", POLL.as_secs());
    client.get(&path).long_poll(POLL).fetch().await
}

/// A model of f32 values, each one more.
fn add_one(data: &str) -> String {
    let mut bytes = STANDARD.decode(data).expect("base64 of the server");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let body = 8 + usize::try_from(header).expect("a small header");
    for value in bytes[body..].as_chunks_mut::<4>().0 {
        *value = (f32::from_le_bytes(*value) + 1.0).to_le_bytes();
    }
    STANDARD.encode(bytes)
}
