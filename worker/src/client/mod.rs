//! The client role: a site's trainer, and the tasks it is given.
//!
//! ```text
//!            next: task t                 receive             send: model ok
//!  waiting ---------------> task is ready -------> training -----------------> answered (told until heard)
//!     ^                                               | exit, bad model           |
//!     |                                               v                           |
//!     |                                       failed: told, then the worker ends  |
//!     '------------------------ next: task t + 1 ---------------------------------'
//!  next: stop ---> receive is answered `done`; TERM and KILL when the trainer does not end
//! ```
//! The task is state of the parent, not a message: the same one may come many times. The result is state
//! of this worker: it is told until it is acknowledged, and again when the parent is another run.

mod program;
mod socket;
mod take;

use crate::link::Lost;
use crate::run::{Desk, News};
use crate::say::Current;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use polder_api::payload::Payload;
use polder_api::rundir;
use polder_api::site::{Task, TaskOutcome, TaskResult};
use polder_api::worker::{Ending, Stop};
use polder_transport::client::{Client, ClientError};
use polder_words::{FailureClass, Outcome, TaskId};
use polder_workflow::tensors::{Header, Model};
use polder_workflow::{JobSpec, TrainerMode, Weighting};
use program::{Exit, Program};
use socket::Counter;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use take::Taken;
use tokio::sync::mpsc;

/// Past the end of its time by so much, a trainer that does not end is killed.
const KILL_AT: f64 = 0.8;
/// And asked to end before that.
const TERM_AT: f64 = 0.4;

/// The cause when a scheduler or a person ends this worker from outside.
const TOLD_TO_END: &str = "ended from outside (TERM)";
/// What a trainer has then, in seconds.
const TERM_GRACE: u64 = 10;
/// Longest cause that is told.
const CAUSE: usize = 1000;

/// What the trainer did.
pub(crate) enum Did {
    /// It took the task.
    Received(TaskId),
    /// It handed in a model.
    Sent {
        /// Of which task.
        task: TaskId,
        /// The model, or what is wrong with it.
        model: Result<Taken, String>,
        /// As sent.
        weight: Option<f64>,
        /// As sent.
        metrics: BTreeMap<String, f64>,
    },
}

/// The task as the trainer sees it.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) task: Task,
    /// The model to start from.
    pub(crate) path: Option<PathBuf>,
    /// Its header: what a result is compared with.
    pub(crate) header: Option<Arc<Header>>,
}

struct Site {
    desk: Rc<Desk>,
    spec: JobSpec,
    counter: Rc<Counter>,
    result: Rc<Current<TaskResult>>,
    program: Option<Program>,
    work: Option<Work>,
    answered: BTreeSet<TaskId>,
    deadline: Option<Instant>,
    stop: Option<(Stop, Instant)>,
    told_to_end: bool,
}

/// Works until the job is over.
pub(crate) async fn work(
    desk: Rc<Desk>,
    mut news: mpsc::Receiver<Result<News, Lost>>,
) -> Result<Ending, Lost> {
    let spec = match JobSpec::read(&desk.assignment.job) {
        Ok(spec) => spec,
        Err(error) => return Ok(ended(Outcome::failed(FailureClass::Config, error.to_string()))),
    };
    let (did, mut doings) = mpsc::channel(16);
    let counter = match Counter::open(&desk, spec.rounds, did) {
        Ok(counter) => counter,
        Err(error) => return Ok(ended(Outcome::failed(FailureClass::Infrastructure, format!("{error:#}")))),
    };
    let result = Current::new();
    let mut telling = {
        let (desk, result) = (desk.clone(), result.clone());
        tokio::task::spawn_local(async move { result.keep_telling(&desk.link, tell).await })
    };
    let mut site = Site {
        desk: desk.clone(),
        spec,
        counter,
        result,
        program: None,
        work: None,
        answered: BTreeSet::new(),
        deadline: None,
        stop: None,
        told_to_end: false,
    };
    let mut end = match site.spec.trainer.mode {
        TrainerMode::Session => site.start(&[]).err(),
        TrainerMode::PerRound => None,
    };
    desk.doing("waiting for a task", None);
    while end.is_none() {
        let until = site.next_moment();
        let exit = async {
            match &mut site.program {
                Some(program) => program.exit().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // What the trainer did before it ended comes before its end.
            biased;
            Some(did) = doings.recv() => end = site.did(did),
            exit = exit => {
                // A send that is being checked belongs to the time before the end as well.
                site.counter.settled().await;
                while end.is_none() && let Ok(did) = doings.try_recv() {
                    end = site.did(did);
                }
                end = end.or_else(|| site.exited(&exit));
            }
            found = news.recv() => match found {
                Some(Ok(found)) => end = site.heard(found).await,
                Some(Err(lost)) => return Err(site.abandon(lost).await),
                None => return Err(site.abandon(Lost::Denied("the link has ended".to_owned())).await),
            },
            lost = &mut telling => {
                let lost = lost.unwrap_or_else(|error| Lost::Denied(error.to_string()));
                return Err(site.abandon(lost).await);
            }
            () = sleep_until(until) => end = site.time_passed(),
            () = desk.told_to_end.cancelled(), if !site.told_to_end => {
                site.told_to_end = true;
                if site.stop.is_none() {
                    let why = TOLD_TO_END.to_owned();
                    end = site.stopped(Stop { why, grace_seconds: TERM_GRACE });
                } else if let Some(program) = &mut site.program {
                    program.signal_term();
                }
            }
        }
    }
    if let Some(mut program) = site.program.take() {
        program.kill().await;
    }
    // The result (a failure, often) is worth more than the outcome: the workflow waits for it. A parent
    // that wants this worker to end wants no result any more.
    while site.stop.is_none() {
        tokio::select! {
            () = site.result.heard() => break,
            lost = &mut telling => return Err(lost.unwrap_or_else(|error| Lost::Denied(error.to_string()))),
            found = news.recv() => match found {
                Some(Ok(found)) => site.stop = found.next.stop.map(|stop| (stop, Instant::now())),
                Some(Err(lost)) => return Err(lost),
                None => break,
            },
            () = desk.told_to_end.cancelled() => break,
        }
    }
    telling.abort();
    Ok(ended(end.unwrap_or(Outcome::Completed)))
}

async fn tell(client: &Client, result: &TaskResult) -> Result<polder_api::site::Ack, ClientError> {
    client.post("/v1/worker/results").json(result).idempotent().fetch().await
}

fn ended(outcome: Outcome) -> Ending {
    Ending { outcome, site: None, results: BTreeMap::new() }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

impl Site {
    /// Starts the trainer, with further arguments.
    fn start(&mut self, more: &[String]) -> Result<(), Outcome> {
        let mut env = self.counter.environment();
        if let Some(work) = &self.work {
            env.push(("POLDER_ROUND".to_owned(), work.task.id.round.to_string()));
            env.push(("POLDER_TOTAL_ROUNDS".to_owned(), work.task.total_rounds.to_string()));
            env.push(("POLDER_KIND".to_owned(), work.task.kind.clone()));
        }
        if self.spec.trainer.mode == TrainerMode::PerRound {
            env.push((
                polder_api::trainer::METRICS_VARIABLE.to_owned(),
                self.state("metrics.json").display().to_string(),
            ));
        }
        let program = Program::start(&self.desk, &self.spec.trainer.command, more, env)?;
        self.program = Some(program);
        Ok(())
    }

    fn state(&self, name: &str) -> PathBuf {
        self.desk.run_dir.join(rundir::STATE).join(name)
    }

    fn failed(&self, class: FailureClass, cause: impl Into<String>) -> Outcome {
        Outcome::Failed { class, cause: cause.into(), tail: self.desk.tail() }
    }

    /// Ends the worker with a failure, which is also the answer to the task. A failure that a new attempt
    /// may mend is none of the task's.
    fn fail(&mut self, class: FailureClass, cause: impl Into<String>) -> Outcome {
        let mut cause = cause.into();
        cause.truncate(cause.floor_char_boundary(CAUSE));
        let tail = self.desk.tail();
        if let Some(work) = self.work.as_ref().filter(|_| !class.is_worth_retrying()) {
            let task = work.task.id;
            if self.answered.insert(task) {
                let result = TaskOutcome::Failed { class, cause: cause.clone(), tail: tail.clone() };
                self.result.set(Some(TaskResult { task, result }));
            }
        }
        self.deadline = None;
        Outcome::Failed { class, cause, tail }
    }

    fn next_moment(&self) -> Option<Instant> {
        let stopping = self.stop.as_ref().and_then(|(stop, since)| {
            let grace = Duration::from_secs(stop.grace_seconds);
            let moments =
                [since.checked_add(grace.mul_f64(TERM_AT)), since.checked_add(grace.mul_f64(KILL_AT))];
            let sent = self.program.as_ref().map_or(0, Program::signals_sent);
            moments.get(sent).copied().flatten()
        });
        [self.deadline, stopping].into_iter().flatten().min()
    }

    fn time_passed(&mut self) -> Option<Outcome> {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.deadline = None;
            return self.too_late();
        }
        if let (Some((stop, since)), Some(program)) = (&self.stop, &mut self.program) {
            let grace = Duration::from_secs(stop.grace_seconds);
            if now >= *since + grace.mul_f64(KILL_AT) {
                self.desk.say("the trainer did not end in time: killed");
                program.signal_kill();
            } else if now >= *since + grace.mul_f64(TERM_AT) {
                program.signal_term();
            }
        }
        None
    }

    /// The task's time is over. A session goes on: if the round closes without this site it may take
    /// part in the next.
    fn too_late(&mut self) -> Option<Outcome> {
        let work = self.work.as_ref()?;
        let (task, millis) = (work.task.id, work.task.timeout_millis.unwrap_or_default());
        let cause = format!("no answer within {:?}", Duration::from_millis(millis));
        self.desk.say(&format!("round {}: {cause}", task.round));
        if self.answered.insert(task) {
            let result = TaskOutcome::Failed { class: FailureClass::Timeout, cause, tail: self.desk.tail() };
            self.result.set(Some(TaskResult { task, result }));
        }
        if self.spec.trainer.mode == TrainerMode::PerRound
            && let Some(program) = &mut self.program
        {
            program.signal_kill();
        }
        None
    }

    async fn heard(&mut self, news: News) -> Option<Outcome> {
        if let Some(stop) = news.next.stop
            && self.stop.is_none()
        {
            return self.stopped(stop);
        }
        let task = news.next.task?;
        let known = self.work.as_ref().map(|work| work.task.id);
        if self.stop.is_some() || known == Some(task.id) || self.answered.contains(&task.id) {
            return None;
        }
        // Only the newest matters: what the parent does not name any more cannot come again.
        self.answered.retain(|answered| *answered == task.id);
        self.result.set(None);
        let id = task.id;
        let begun = match self.begin(task).await {
            Ok(work) => work,
            Err(cause) => {
                return Some(
                    self.failed(FailureClass::Infrastructure, format!("round {}: {cause}", id.round)),
                );
            }
        };
        self.deadline = begun
            .task
            .timeout_millis
            .and_then(|millis| Instant::now().checked_add(Duration::from_millis(millis)));
        self.work = Some(begun.clone());
        self.desk.doing(format!("round {} is waiting for the trainer", id.round), Some(id));
        match self.spec.trainer.mode {
            TrainerMode::Session => {
                self.counter.put(Some(begun));
                if self.program.is_none() {
                    let cause = format!("the trainer ended after round {}", id.round.saturating_sub(1));
                    return Some(self.fail(FailureClass::UserCode, cause));
                }
            }
            TrainerMode::PerRound => return self.run_once(&begun).await,
        }
        None
    }

    /// Lays the model of a task where the trainer can read it.
    async fn begin(&self, task: Task) -> Result<Work, String> {
        let (path, model) = match &task.model {
            None => (None, None),
            Some(Payload::Inline { data }) => {
                let bytes =
                    BASE64.decode(data).map_err(|error| format!("the model is not base64: {error}"))?;
                // A new file each time: a trainer may keep the last one mapped for as long as it likes.
                let (path, new) = (self.state("model.safetensors"), self.state("model.safetensors.part"));
                std::fs::write(&new, &bytes)
                    .and_then(|()| std::fs::rename(&new, &path))
                    .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
                (Some(path), Some(Model::from_bytes(bytes)))
            }
            Some(Payload::File { path, .. }) => {
                let path = self.desk.run_dir.join(path);
                let model = Model::open(&path);
                (Some(path), Some(model))
            }
            Some(Payload::Blob { .. }) => {
                return Err(
                    "the parent shares no files with this worker, which this version needs".to_owned()
                );
            }
        };
        let header = match model {
            Some(Ok(model)) => Some(Arc::new(model.header().clone())),
            Some(Err(error)) => return Err(format!("the global model cannot be read: {error}")),
            None => None,
        };
        Ok(Work { task, path, header })
    }

    async fn run_once(&mut self, work: &Work) -> Option<Outcome> {
        if let Some(mut program) = self.program.take() {
            // It still works on a task that nobody waits for any more.
            program.kill().await;
        }
        let out =
            self.desk.run_dir.join(rundir::OUT).join(format!("round-{}.safetensors", work.task.id.round));
        let _ = std::fs::remove_file(&out);
        let _ = std::fs::remove_file(self.state("metrics.json"));
        let mut more = Vec::new();
        if let Some(path) = &work.path {
            more.extend(["--in".to_owned(), path.display().to_string()]);
        }
        more.extend(["--out".to_owned(), out.display().to_string()]);
        if let Err(outcome) = self.start(&more) {
            return Some(outcome);
        }
        self.desk.doing(format!("training, round {}", work.task.id.round), Some(work.task.id));
        None
    }

    fn did(&mut self, did: Did) -> Option<Outcome> {
        let current = self.work.as_ref().map(|work| work.task.id);
        match did {
            Did::Received(task) => {
                self.desk.doing(format!("training, round {}", task.round), Some(task));
                None
            }
            // The round was closed without it.
            Did::Sent { task, .. } if current != Some(task) || self.answered.contains(&task) => {
                self.desk.say(&format!("the model of round {} came too late and is not used", task.round));
                None
            }
            Did::Sent { model: Err(cause), .. } => Some(self.fail(FailureClass::UserCode, cause)),
            Did::Sent { task, model: Ok(taken), weight, metrics } => {
                let weight = match self.spec.aggregation.weight {
                    Weighting::Equal => 1.0,
                    Weighting::NumSamples => {
                        weight.or_else(|| metrics.get("num_samples").copied()).unwrap_or(1.0)
                    }
                };
                if !(weight.is_finite() && weight > 0.0) {
                    let cause = format!("its weight is {weight}; allowed is a finite number above 0");
                    return Some(self.fail(FailureClass::UserCode, cause));
                }
                self.answered.insert(task);
                self.deadline = None;
                let result = TaskOutcome::Done { model: Some(taken.payload), weight, metrics };
                self.result.set(Some(TaskResult { task, result }));
                self.desk.doing("waiting for a task", None);
                None
            }
        }
    }

    fn exited(&mut self, exit: &Exit) -> Option<Outcome> {
        self.program = None;
        if let Some((stop, _)) = &self.stop {
            return Some(self.after_stop(&stop.why.clone()));
        }
        let open = self.work.clone().filter(|work| !self.answered.contains(&work.task.id));
        if self.spec.trainer.mode == TrainerMode::PerRound {
            // Killed because it was late, or ended after its answer was taken.
            let work = open?;
            return if exit.is_good() { self.collect(&work) } else { Some(self.crashed(exit, Some(&work))) };
        }
        match (open, exit.is_good()) {
            (Some(work), true) => {
                let cause =
                    format!("the trainer ended (exit 0) before it sent the model of {}", name(&work.task));
                Some(self.fail(FailureClass::UserCode, cause))
            }
            (open, false) => Some(self.crashed(exit, open.as_ref())),
            (None, true) => {
                let rounds = self.spec.rounds;
                let made = self.answered.iter().map(|task| task.round).max();
                if made.is_some_and(|made| made >= rounds) {
                    // It knew that this was the last round. The parent will say stop.
                    self.desk.doing("the trainer has ended; waiting for the end of the job", None);
                    return None;
                }
                let made = made.map_or("before its first round".to_owned(), |made| {
                    format!("after round {made} of {rounds}")
                });
                let cause = format!("the trainer ended (exit 0) {made}");
                Some(self.fail(FailureClass::UserCode, cause))
            }
        }
    }

    fn crashed(&mut self, exit: &Exit, work: Option<&Work>) -> Outcome {
        let when = work.map_or(String::new(), |work| format!(" in {}", name(&work.task)));
        let cause = format!("the trainer ended with {exit}{when}");
        self.fail(exit.class(), cause)
    }

    /// The result of a process that ran for one round.
    fn collect(&mut self, work: &Work) -> Option<Outcome> {
        let round = work.task.id.round;
        let path = format!("{}/round-{round}.safetensors", rundir::OUT);
        let taken = match take::take(&self.desk.run_dir, &path, work.header.as_deref()) {
            Ok(taken) => taken,
            Err(cause) => {
                return Some(self.fail(FailureClass::UserCode, format!("{}: {cause}", name(&work.task))));
            }
        };
        let (weight, metrics) = match take::metrics(&self.state("metrics.json")) {
            Ok(found) => found,
            Err(cause) => return Some(self.fail(FailureClass::UserCode, cause)),
        };
        self.did(Did::Sent { task: work.task.id, model: Ok(taken), weight, metrics })
    }

    fn stopped(&mut self, stop: Stop) -> Option<Outcome> {
        self.desk.say(&format!("stopping: {}", stop.why));
        self.desk.doing(format!("stopping: {}", stop.why), None);
        self.deadline = None;
        self.counter.done();
        self.result.set(None);
        let finished = is_finished(&stop.why);
        let why = stop.why.clone();
        let grace = stop.grace_seconds;
        self.stop = Some((stop, Instant::now()));
        let Some(program) = &mut self.program else {
            return Some(self.after_stop(&why));
        };
        if grace == 0 {
            program.signal_kill();
        } else if !finished {
            // Nobody wants the round it is in the middle of.
            program.signal_term();
        }
        None
    }

    fn after_stop(&self, why: &str) -> Outcome {
        match why {
            _ if is_finished(why) => Outcome::Completed,
            TOLD_TO_END => self.failed(FailureClass::Preempted, why),
            _ => self.failed(FailureClass::Aborted, why),
        }
    }

    /// The parent is gone for good.
    async fn abandon(&mut self, lost: Lost) -> Lost {
        if let Some(mut program) = self.program.take() {
            program.kill().await;
        }
        lost
    }
}

fn is_finished(why: &str) -> bool {
    why == "finished"
}

fn name(task: &Task) -> String {
    if task.kind == "init" { "the first model (init)".to_owned() } else { format!("round {}", task.id.round) }
}
