//! The server role: the round engine with hands.
//!
//! ```text
//! parent --next: roster, results--> Engine --Publish--> tasks (told until heard)
//!                                     |  ^---Aggregated, Refused--- mean of the models in in/, into out/
//!                                     |  ^---Saved----------------- checkpoint, in a thread of its own
//!                                     '--Report--> rounds           '--Finish, Fail--> outcome
//! ```
//! Everything that decides is in `polder_workflow::engine`; here are the clock, the files and the parent.

mod global;
mod keeper;

use crate::link::Lost;
use crate::run::{Desk, News};
use crate::say::Current;
use global::{Global, Made, MakeError};
use keeper::Keeper;
use polder_api::site::Task;
use polder_api::worker::{Ending, RoundDone, Tasks};
use polder_words::{FailureClass, Outcome, SiteName};
use polder_workflow::checkpoint::Checkpoints;
use polder_workflow::engine::{Contribution, Failure, Record, Start};
use polder_workflow::{Action, Engine, Event, JobSpec, Rules};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Metrics of the whole job.
const METRICS: &str = "metrics.json";
/// The last model.
const MODEL: &str = "model.safetensors";

/// Something that was done beside the loop.
enum Done {
    Made(Result<Made, MakeError>),
    Saved(u32, Result<(), String>),
}

struct Job {
    desk: Rc<Desk>,
    spec: JobSpec,
    engine: Engine,
    began: Instant,
    global: Option<Rc<Global>>,
    keeper: Keeper,
    tasks: Rc<Current<Tasks>>,
    rounds: Rc<Rounds>,
    done: mpsc::UnboundedSender<Done>,
    /// Models of rounds before, which nobody needs once the next checkpoint is written.
    stale: VecDeque<(u32, Rc<Global>)>,
}

/// Runs the job's rounds.
pub(crate) async fn work(
    desk: Rc<Desk>,
    mut news: mpsc::Receiver<Result<News, Lost>>,
) -> Result<Ending, Lost> {
    let (done, mut doings) = mpsc::unbounded_channel();
    let (mut job, actions) = match Job::begin(&desk, done) {
        Ok(begun) => begun,
        Err(outcome) => return Ok(failed(outcome)),
    };
    let mut telling = {
        let (desk, tasks) = (desk.clone(), job.tasks.clone());
        let tell = async |client: &polder_transport::client::Client, tasks: &Tasks| {
            client.put("/v1/worker/tasks").json(tasks).fetch().await
        };
        tokio::task::spawn_local(async move { tasks.keep_telling(&desk.link, tell).await })
    };
    let mut reporting = {
        let (desk, rounds) = (desk.clone(), job.rounds.clone());
        tokio::task::spawn_local(async move { rounds.keep_telling(&desk).await })
    };
    let mut end = job.carry_out(actions);
    while end.is_none() {
        let deadline =
            job.engine.deadline().map(|millis| job.began + std::time::Duration::from_millis(millis));
        let tick = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        end = tokio::select! {
            biased;
            Some(done) = doings.recv() => job.was_done(done),
            found = news.recv() => match found {
                Some(Ok(found)) => job.heard(&found),
                Some(Err(lost)) => return Err(lost),
                None => return Err(Lost::Denied("the link has ended".to_owned())),
            },
            lost = &mut telling => return Err(lost.unwrap_or_else(|error| Lost::Denied(error.to_string()))),
            lost = &mut reporting => return Err(lost.unwrap_or_else(|error| Lost::Denied(error.to_string()))),
            () = tick => job.step(Event::Tick),
            () = desk.told_to_end.cancelled() => {
                Some(failed(Outcome::failed(FailureClass::Preempted, "ended from outside (TERM)")))
            }
        };
    }
    // The last rounds are part of the outcome: nobody is told that the job is done before that.
    tokio::select! {
        () = job.rounds.all_told() => {}
        () = desk.told_to_end.cancelled() => {}
        lost = &mut reporting => return Err(lost.unwrap_or_else(|error| Lost::Denied(error.to_string()))),
    }
    telling.abort();
    reporting.abort();
    Ok(end.unwrap_or_else(|| failed(infrastructure("the rounds ended without an outcome"))))
}

fn infrastructure(cause: impl std::fmt::Display) -> Outcome {
    Outcome::failed(FailureClass::Infrastructure, cause.to_string())
}

fn failed(outcome: Outcome) -> Ending {
    Ending { outcome, site: None, results: BTreeMap::new() }
}

/// An error with all its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(source) = at {
        text = format!("{text}: {source}");
        at = source.source();
    }
    text
}

impl Job {
    fn begin(desk: &Rc<Desk>, done: mpsc::UnboundedSender<Done>) -> Result<(Self, Vec<Action>), Outcome> {
        let assignment = &desk.assignment;
        let config = |cause: String| Outcome::failed(FailureClass::Config, cause);
        let spec = JobSpec::read(&assignment.job).map_err(|error| config(error.to_string()))?;
        let rules = Rules::new(
            &spec,
            assignment.sites.clone(),
            assignment.min_clients,
            assignment.mandatory.iter().cloned(),
            assignment.launch.attempt,
        )
        .map_err(|error| config(error.to_string()))?;
        let out = desk.run_dir.join(polder_api::rundir::OUT);
        std::fs::create_dir_all(&out)
            .map_err(|error| infrastructure(format!("{}: {error}", out.display())))?;
        let (checkpoints, last) = Checkpoints::open(&desk.run_dir, polder_api::rundir::STATE)
            .map_err(|error| infrastructure(chain(&error)))?;
        let (start, global) = match last {
            Some(last) => {
                let global = Global::restore(&desk.run_dir, &last.model).map_err(infrastructure)?;
                desk.say(&format!("continuing after round {}", last.round));
                (Start { round: last.round, late: last.late, lost: last.lost }, Some(global))
            }
            None => match &spec.initial_model {
                Some(path) => {
                    let global = Global::initial(&desk.run_dir, path, assignment.launch.attempt)
                        .map_err(|why| config(format!("initial_model: {path}: {why}")))?;
                    (Start::default(), Some(global))
                }
                None => (Start::default(), None),
            },
        };
        global::clear(&out, global.as_ref());
        let rounds = Rounds::new();
        // A worker that was killed between checkpoint and report left the last round untold.
        if start.round > 0
            && let Ok(history) = checkpoints.history()
            && let Some(record) = history.last()
        {
            rounds.push(round_done(record, spec.rounds));
        }
        let mut engine = Engine::new(rules, start);
        let actions = engine.begin(global.is_some(), 0);
        let job = Self {
            desk: desk.clone(),
            spec,
            engine,
            began: Instant::now(),
            global: global.map(Rc::new),
            keeper: Keeper::start(checkpoints, done.clone()),
            tasks: Current::new(),
            rounds,
            done,
            stale: VecDeque::new(),
        };
        Ok((job, actions))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn step(&mut self, event: Event<'_>) -> Option<Ending> {
        let now = self.now();
        let actions = self.engine.step(event, now);
        self.carry_out(actions)
    }

    fn heard(&mut self, news: &News) -> Option<Ending> {
        if let Some(stop) = &news.next.stop {
            return Some(failed(Outcome::failed(FailureClass::Aborted, stop.why.clone())));
        }
        if news.after_outage
            && let Some(end) = self.step(Event::Reconnected)
        {
            return Some(end);
        }
        self.step(Event::Seen { roster: &news.next.roster, results: &news.next.results })
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> Option<Ending> {
        for action in actions {
            match action {
                Action::Publish { sites, task, kind } => self.publish(&sites, task, kind),
                Action::Adopt(part) => {
                    let (run, attempt) = (self.desk.run_dir.clone(), self.engine.rules().attempt);
                    self.make(move || Global::adopt(&run, &part, attempt));
                }
                Action::Aggregate { round, parts } => self.aggregate(round, parts),
                Action::Save(record) => self.save(record),
                Action::Report(done) => {
                    self.desk.say(&in_words(&done));
                    self.rounds.push(done);
                }
                Action::Finish => return Some(self.finish()),
                Action::Fail { site, failure: Failure { class, cause, tail } } => {
                    let outcome = Outcome::Failed { class, cause, tail };
                    return Some(Ending { outcome, site, results: BTreeMap::new() });
                }
            }
        }
        None
    }

    fn publish(&mut self, sites: &[SiteName], id: polder_words::TaskId, kind: &str) {
        let rules = self.engine.rules();
        let task = Task {
            id,
            kind: kind.to_owned(),
            total_rounds: rules.rounds,
            model: self.global.as_ref().filter(|_| kind != "init").map(|global| global.payload()),
            params: serde_json::Map::new(),
            timeout_millis: u64::try_from(rules.round_timeout.as_millis()).ok(),
        };
        let tasks = sites.iter().map(|site| (site.clone(), task.clone())).collect();
        let doing = match id.round {
            0 => format!("waiting for the first model of {}", sites.first().map_or("", AsRef::as_ref)),
            round => format!("round {round} of {}", rules.rounds),
        };
        self.desk.doing(doing, Some(id));
        self.tasks.set(Some(Tasks { tasks }));
    }

    fn aggregate(&mut self, round: u32, parts: Vec<Contribution>) {
        // Nobody may begin the round anew from here on; the sites' parents can forget its model.
        let (run, attempt) = (self.desk.run_dir.clone(), self.engine.rules().attempt);
        let Some(base) = self.global.as_ref() else {
            return;
        };
        let header = base.header.clone();
        self.make(move || Global::mean(&run, &header, &parts, attempt, round));
    }

    /// Small models are made at once: handing them to a thread would cost more than making them.
    fn make(&self, make: impl FnOnce() -> Result<Made, MakeError> + Send + 'static) {
        let done = self.done.clone();
        if self.global.as_ref().is_some_and(|global| global.is_small()) {
            let _ = done.send(Done::Made(make()));
        } else {
            drop(tokio::task::spawn_blocking(move || {
                let _ = done.send(Done::Made(make()));
            }));
        }
    }

    fn was_done(&mut self, done: Done) -> Option<Ending> {
        match done {
            Done::Made(Ok(made)) => {
                let round = self.engine.round();
                if let Some(old) = self.global.replace(Rc::new(made)) {
                    self.stale.push_back((round, old));
                }
                self.step(Event::Aggregated)
            }
            Done::Made(Err(MakeError::Refused { site, cause })) => {
                self.desk.say(&format!("site {site}: {cause}"));
                self.step(Event::Refused { site: &site, cause: &cause })
            }
            Done::Made(Err(MakeError::Failed(cause))) => Some(failed(infrastructure(cause))),
            Done::Saved(round, Ok(())) => {
                while let Some((_, old)) = self.stale.pop_front_if(|(made, _)| *made <= round) {
                    old.remove(&self.desk.run_dir);
                }
                self.step(Event::Saved { round })
            }
            Done::Saved(_, Err(cause)) => Some(failed(infrastructure(cause))),
        }
    }

    fn save(&mut self, record: Record) {
        if let Some(global) = &self.global {
            self.keeper.save(record, global.saved());
        }
    }

    fn finish(&mut self) -> Ending {
        let lost = self.engine.lost().clone();
        let results = self.global.as_ref().ok_or_else(|| "there is no model".to_owned()).and_then(|global| {
            let model = global.result(&self.desk.run_dir, MODEL)?;
            let metrics = self.keeper.write_metrics(&self.desk.run_dir, METRICS, self.spec.rounds, &lost)?;
            Ok(BTreeMap::from([(MODEL.to_owned(), model), (METRICS.to_owned(), metrics)]))
        });
        match results {
            Ok(results) => Ending { outcome: Outcome::Completed, site: None, results },
            Err(cause) => failed(infrastructure(cause)),
        }
    }
}

fn round_done(record: &Record, total_rounds: u32) -> RoundDone {
    RoundDone {
        round: record.round,
        total_rounds,
        metrics: record.metrics.clone(),
        sites: record.sites.iter().map(|(site, record)| (site.clone(), record.metrics.clone())).collect(),
        millis: record.millis,
    }
}

fn in_words(done: &RoundDone) -> String {
    let metrics: String = done.metrics.iter().map(|(name, value)| format!(", {name} {value:.5}")).collect();
    format!(
        "round {} of {}: {} sites{metrics}, {} ms",
        done.round,
        done.total_rounds,
        done.sites.len(),
        done.millis
    )
}

/// Rounds that are done, told to the parent one after the other.
struct Rounds {
    waiting: std::cell::RefCell<VecDeque<RoundDone>>,
    changed: tokio::sync::Notify,
    told: tokio::sync::Notify,
}

impl Rounds {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            waiting: std::cell::RefCell::default(),
            changed: tokio::sync::Notify::new(),
            told: tokio::sync::Notify::new(),
        })
    }

    fn push(&self, done: RoundDone) {
        self.waiting.borrow_mut().push_back(done);
        self.changed.notify_one();
    }

    async fn keep_telling(&self, desk: &Desk) -> Lost {
        loop {
            let first = self.waiting.borrow().front().cloned();
            let Some(done) = first else {
                self.told.notify_waiters();
                self.changed.notified().await;
                continue;
            };
            let tell = async |client: &polder_transport::client::Client| {
                client
                    .post("/v1/worker/rounds")
                    .json(&done)
                    .idempotent()
                    .fetch::<polder_api::site::Ack>()
                    .await
            };
            match desk.link.persist(tell).await {
                Ok(ack) => desk.link.saw(ack.epoch),
                Err(lost) => return lost,
            }
            self.waiting.borrow_mut().pop_front();
        }
    }

    async fn all_told(&self) {
        loop {
            let told = self.told.notified();
            if self.waiting.borrow().is_empty() {
                return;
            }
            told.await;
        }
    }
}
