//! The link to the parent: enrolment, and requests that are repeated until they are answered.
//!
//! A parent may be restarted at any time and for any length of time; a worker does not take notice beyond
//! asking again. It gives up when nobody answered for very long ([`Link::orphan_after`]), or when the
//! parent keeps saying that it does not know this launch.

use anyhow::{Context as _, Result, bail};
use polder_api::ProblemCode;
use polder_api::worker::{Dial, Enrol, Enrolled, Handover};
use polder_transport::client::{Client, ClientError, Dialer};
use polder_transport::identity::PrivateKey;
use polder_transport::identity::worker::WorkerKey;
use polder_words::Epoch;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How long a parent may deny this launch before it is believed: one that has just been started may not
/// have read its ledger yet.
const DENIED_FOR: Duration = Duration::from_secs(30);

/// Why the link will not come back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// Nobody answers.
    #[error("no answer from the parent for {} s: {last}", after.as_secs())]
    Orphaned {
        /// How long.
        after: Duration,
        /// The last error.
        last: String,
    },
    /// The parent answers and denies.
    #[error("the parent does not accept this worker: {0}")]
    Denied(String),
}

/// A link to the parent that an enrolled worker has.
pub(crate) struct Link {
    clients: Vec<Client>,
    /// Which of the ways answered last.
    way: Cell<usize>,
    orphan_after: Duration,
    epoch: Cell<Option<Epoch>>,
    changed: Notify,
    /// Since when nobody answers.
    down: Cell<Option<Instant>>,
    /// The longest outage since it was asked for.
    outage: Cell<Duration>,
    last_error: RefCell<String>,
}

fn clients(handover: &Handover, certificate: Option<(&str, &PrivateKey)>) -> Result<Vec<Client>> {
    let dialer = |dial: &Dial| -> Result<Client> {
        let dialer = match dial {
            Dial::Unix { path } => Dialer::worker_unix(Path::new(path), handover.pin, certificate)?,
            Dial::Tcp { address } => {
                let address = address.parse().with_context(|| format!("{address:?} is no address:port"))?;
                Dialer::worker_tcp(address, handover.pin, certificate)?
            }
        };
        Ok(Client::new(dialer))
    };
    let clients = handover.dial.iter().map(dialer).collect::<Result<Vec<_>>>()?;
    if clients.is_empty() {
        bail!("the handover names no way to reach the parent");
    }
    Ok(clients)
}

impl Link {
    /// Makes a key, which stays in memory, and trades the one-time token for a certificate.
    pub(crate) async fn enrol(handover: &Handover, orphan_after: Duration) -> Result<Rc<Self>> {
        let key = WorkerKey::generate(&handover.launch)?;
        let request = Enrol {
            launch: handover.launch.clone(),
            token: handover.token.clone(),
            request: key.request().to_owned(),
        };
        let stranger = Self::over(clients(handover, None)?, orphan_after);
        // The same key again gets the same certificate, so asking twice does no harm.
        let enrolled: Enrolled = stranger
            .persist(async |client| client.post("/v1/worker/enrol").json(&request).idempotent().fetch().await)
            .await?;
        let known = clients(handover, Some((&enrolled.certificate, key.key())))?;
        let link = Self::over(known, orphan_after);
        link.way.set(stranger.way.get());
        Ok(Rc::new(link))
    }

    fn over(clients: Vec<Client>, orphan_after: Duration) -> Self {
        Self {
            clients,
            way: Cell::new(0),
            orphan_after,
            epoch: Cell::new(None),
            changed: Notify::new(),
            down: Cell::new(None),
            outage: Cell::new(Duration::ZERO),
            last_error: RefCell::default(),
        }
    }

    /// Asks until there is an answer.
    pub(crate) async fn persist<T>(
        &self,
        ask: impl AsyncFn(&Client) -> Result<T, ClientError>,
    ) -> Result<T, Lost> {
        let mut wait = FIRST_WAIT;
        let mut denied: Option<Instant> = None;
        loop {
            let error = match ask(&self.clients[self.way.get()]).await {
                Ok(answer) => {
                    if let Some(since) = self.down.take() {
                        self.outage.set(self.outage.get().max(since.elapsed()));
                        self.last_error.borrow_mut().clear();
                    }
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let now = Instant::now();
            match error.problem().map(|problem| problem.code) {
                Some(code) if is_final(code) => {
                    let since = *denied.get_or_insert(now);
                    if now.duration_since(since) >= DENIED_FOR {
                        return Err(Lost::Denied(error.to_string()));
                    }
                }
                _ => denied = None,
            }
            let since = self.down.get().unwrap_or(now);
            self.down.set(Some(since));
            let after = now.duration_since(since);
            if after >= self.orphan_after {
                return Err(Lost::Orphaned { after, last: error.to_string() });
            }
            self.complain(&error.to_string());
            if error.problem().is_none() {
                self.way.set((self.way.get() + 1) % self.clients.len());
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Once an outage, in the attempt's own log: people look there when a worker seems to be stuck.
    fn complain(&self, error: &str) {
        if *self.last_error.borrow() != error {
            eprintln!("[polder] {error}; asking again");
            error.clone_into(&mut self.last_error.borrow_mut());
        }
    }

    /// How long nobody answered, at the longest, since this was last asked.
    pub(crate) fn take_outage(&self) -> Duration {
        self.outage.take()
    }

    /// The parent's run, as far as it is known.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.epoch.get()
    }

    /// Another run than before means that everything current must be said again.
    pub(crate) fn saw(&self, epoch: Epoch) {
        if self.epoch.replace(Some(epoch)) != Some(epoch) {
            self.changed.notify_waiters();
        }
    }

    /// Waits for the parent to be another run.
    pub(crate) async fn another_epoch(&self) {
        self.changed.notified().await;
    }
}

/// Answers that do not change by asking again, unless the parent is still reading its ledger.
fn is_final(code: ProblemCode) -> bool {
    use ProblemCode as Code;
    match code {
        Code::Busy | Code::Unreachable | Code::Internal => false,
        Code::Invalid | Code::Unauthenticated | Code::Forbidden | Code::NotFound => true,
        Code::Conflict | Code::TooLarge | Code::Usage => true,
    }
}
