//! The life of a worker: handover, enrolment, assignment, the role's work, the outcome.

use crate::link::{Link, Lost};
use crate::log::Log;
use crate::{client, server};
use anyhow::{Context as _, Result};
use polder_api::worker::{Ending, Handover, Next, Report, WorkerAssignment};
use polder_api::{LONG_POLL_SECONDS, PROTOCOL};
use polder_transport::client::escape;
use polder_words::{Outcome, Role};
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

/// From the command line.
pub(crate) struct Options {
    /// The handover file.
    pub(crate) handover: PathBuf,
    /// How long to go on without an answer from the parent.
    pub(crate) orphan_after: Duration,
}

/// Log lines and metrics wait so long for more of them.
const GATHER: Duration = Duration::from_millis(300);
/// How long a worker that was told to end tries to tell its parent.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// After an outage of this length the clocks of a round begin anew.
const OUTAGE: Duration = Duration::from_secs(2);

/// What both roles work with.
pub(crate) struct Desk {
    pub(crate) link: Rc<Link>,
    pub(crate) assignment: WorkerAssignment,
    pub(crate) run_dir: PathBuf,
    pub(crate) log: RefCell<Log>,
    /// What the next report says; the log is added when it goes.
    pub(crate) report: RefCell<Report>,
    /// There is something new for a report.
    pub(crate) news: Notify,
    /// The machine, or its scheduler, wants this worker to end (TERM).
    pub(crate) told_to_end: CancellationToken,
}

/// News from the parent.
pub(crate) struct News {
    pub(crate) next: Next,
    /// The link was down before, for so long that nobody could have answered meanwhile.
    pub(crate) after_outage: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let path = options.handover.display();
    let text = std::fs::read(&options.handover).with_context(|| format!("cannot read {path}"))?;
    let handover: Handover = serde_json::from_slice(&text).with_context(|| path.to_string())?;
    if handover.protocol != PROTOCOL {
        anyhow::bail!("{path}: protocol {} where this worker speaks {PROTOCOL}", handover.protocol);
    }
    if handover.files == polder_words::FileWay::Channel {
        anyhow::bail!("{path}: files are to go over the channel, which this worker cannot do");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = LocalSet::new().block_on(&runtime, work(handover, options.orphan_after));
    // A blocking read of a file that hangs must not keep the process.
    runtime.shutdown_background();
    done
}

async fn work(handover: Handover, orphan_after: Duration) -> Result<ExitCode> {
    let link = Link::enrol(&handover, orphan_after).await?;
    let assignment: WorkerAssignment =
        link.persist(async |client| client.get("/v1/worker/assignment").fetch().await).await?;
    let role = assignment.launch.role;
    let desk = Rc::new(Desk {
        link,
        run_dir: handover.run_dir.into(),
        assignment,
        log: RefCell::new(Log::new(true)),
        report: RefCell::new(Report {
            doing: "starting".to_owned(),
            task: None,
            metrics: Vec::new(),
            log: None,
        }),
        news: Notify::new(),
        told_to_end: CancellationToken::new(),
    });
    let mut term = signal(SignalKind::terminate())?;
    let told_to_end = desk.told_to_end.clone();
    tokio::task::spawn_local(async move {
        term.recv().await;
        told_to_end.cancel();
    });
    let (sender, news) = mpsc::channel(4);
    let polling = tokio::task::spawn_local(keep_asking(desk.link.clone(), sender));
    let reporting = tokio::task::spawn_local(keep_reporting(desk.clone()));
    let ending = match role {
        Role::Client => client::work(desk.clone(), news).await,
        Role::Server => server::work(desk.clone(), news).await,
    };
    polling.abort();
    reporting.abort();
    let _ = reporting.await;
    let ending = match ending {
        Ok(ending) => ending,
        Err(lost) => {
            desk.log.borrow_mut().say(&lost.to_string());
            return Err(lost.into());
        }
    };
    if let Outcome::Failed { class, cause, .. } = &ending.outcome {
        desk.log.borrow_mut().say(&format!("{class}: {cause}"));
    }
    desk.log.borrow_mut().close();
    let last_words = async {
        desk.flush_log().await?;
        tell_outcome(&desk, &ending).await
    };
    tokio::select! {
        told = last_words => told?,
        // Who was told to end will be made to end soon, whether the parent is there or not.
        () = patience_after(&desk.told_to_end) => anyhow::bail!("told to end, and the parent does not answer"),
    }
    Ok(match ending.outcome {
        Outcome::Completed => ExitCode::SUCCESS,
        Outcome::Failed { .. } => ExitCode::FAILURE,
    })
}

async fn patience_after(told_to_end: &CancellationToken) {
    told_to_end.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
}

async fn tell_outcome(desk: &Desk, ending: &Ending) -> Result<(), Lost> {
    desk.link
        .persist(async |client| client.post("/v1/worker/outcome").json(ending).idempotent().done().await)
        .await
}

/// Follows what the parent wants, for ever.
async fn keep_asking(link: Rc<Link>, out: mpsc::Sender<Result<News, Lost>>) {
    let wait = Duration::from_secs(LONG_POLL_SECONDS);
    let mut after: Option<String> = None;
    loop {
        let path = match &after {
            Some(after) => format!("/v1/worker/next?after={}&wait={LONG_POLL_SECONDS}", escape(after)),
            None => "/v1/worker/next?wait=0".to_owned(),
        };
        let asked =
            link.persist(async |client| client.get(&path).long_poll(wait).fetch::<Next>().await).await;
        let next = match asked {
            Ok(next) => next,
            Err(lost) => {
                let _ = out.send(Err(lost)).await;
                return;
            }
        };
        link.saw(next.epoch);
        after = Some(next.cursor.clone());
        if out.send(Ok(News { next, after_outage: link.take_outage() > OUTAGE })).await.is_err() {
            return;
        }
    }
}

/// Says that this worker lives, and what is new with it.
async fn keep_reporting(desk: Rc<Desk>) {
    let every = Duration::from_secs(desk.assignment.report_seconds.max(1));
    loop {
        if desk.tell_report().await.is_err() {
            // The same error ends the role's work, which knows what to do about it.
            return;
        }
        tokio::select! {
            () = desk.news.notified() => tokio::time::sleep(GATHER.min(every)).await,
            () = tokio::time::sleep(every) => {}
            () = desk.link.another_epoch() => {}
        }
    }
}

impl Desk {
    /// What this worker does from now on, in words.
    pub(crate) fn doing(&self, doing: impl Into<String>, task: Option<polder_words::TaskId>) {
        let mut report = self.report.borrow_mut();
        report.doing = doing.into();
        report.task = task;
    }

    /// A line of the worker's own in the log.
    pub(crate) fn say(&self, line: &str) {
        self.log.borrow_mut().say(line);
        self.news.notify_one();
    }

    /// The last lines of the log.
    pub(crate) fn tail(&self) -> String {
        self.log.borrow().tail()
    }

    async fn tell_report(&self) -> Result<(), Lost> {
        loop {
            let mut report = self.report.borrow().clone();
            report.log = self.log.borrow_mut().chunk();
            let tell = async |client: &polder_transport::client::Client| {
                client
                    .post("/v1/worker/report")
                    .json(&report)
                    .idempotent()
                    .fetch::<polder_api::site::Ack>()
                    .await
            };
            let ack = self.link.persist(tell).await?;
            self.link.saw(ack.epoch);
            let told = report.metrics.len();
            self.report.borrow_mut().metrics.drain(..told);
            let Some(chunk) = report.log else { return Ok(()) };
            let mut log = self.log.borrow_mut();
            log.acknowledge(&chunk);
            if !log.has_news() {
                return Ok(());
            }
        }
    }

    /// Hands over all that is left of the log.
    async fn flush_log(&self) -> Result<(), Lost> {
        if self.log.borrow().has_news() || !self.report.borrow().metrics.is_empty() {
            self.tell_report().await?;
        }
        Ok(())
    }
}
