//! Whatever happens to a job, in whatever order: it ends, it says so once, and what is on disk is enough to go on.

use super::*;
use polder_api::{OrderSites, Payload};
use polder_words::FailureClass;
use polder_words::{AppName, Hash, Mode, Nonce, TaskId};
use proptest::prelude::*;

fn name(text: &str) -> SiteName {
    SiteName::new(text).expect("a name")
}

const SITES: [&str; 3] = ["a", "b", "c"];

fn facts(min_clients: u32, mandatory: &[&str]) -> Arc<Facts> {
    let blob = BlobRef { root: Hash([1; 32]), size: 1 };
    let order = Order {
        version: 1,
        federation: "net".to_owned(),
        study: "s".parse().expect("a name"),
        submitter: "u".parse().expect("a name"),
        sites: OrderSites::All,
        meta: String::new(),
        apps: BTreeMap::from([(AppName::new("app").expect("a name"), blob)]),
        cloned_from: None,
        nonce: Nonce([1; 16]),
        issued: 0,
        expires: 1,
    };
    let meta = JobMeta::parse("meta.json", br#"{"deploy_map": {"app": ["@ALL"]}}"#).expect("a meta");
    Arc::new(Facts {
        id: JobId([1; 16]),
        seq: 1,
        name: "job".to_owned(),
        study: order.study.clone(),
        submitter: order.submitter.clone(),
        priority: meta.priority,
        submitted: 0,
        min_clients,
        mandatory: mandatory.iter().map(|site| name(site)).collect(),
        named: None,
        apps: BTreeMap::new(),
        app_of_all: Some(blob),
        meta,
        max_restarts: 2,
        signed: Arc::new(SignedOrder {
            order: String::new(),
            signature: String::new(),
            certificate: String::new(),
        }),
        order: Arc::new(order),
    })
}

/// Something that happens.
#[derive(Debug, Clone)]
enum Step {
    Deploy(u8),
    Wait,
    Say(usize, Stand),
    Connect(usize, bool),
    Worker(ServerWorker),
    Tasks(u32),
    Result(usize, u32),
    End(Outcome),
    Abort,
    Pass(u64),
    /// The server dies and comes back.
    Crash,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Completed),
        Just(Outcome::failed(FailureClass::UserCode, "exit 7")),
        Just(Outcome::failed(FailureClass::Lost, "gone")),
    ]
}

fn stand() -> impl Strategy<Value = Stand> {
    prop_oneof![
        Just(Stand::Preparing),
        Just(Stand::Reserved { terms: None }),
        Just(Stand::Reserved { terms: None }),
        Just(Stand::Busy { reason: "no GPU".to_owned() }),
        Just(Stand::Refused { class: FailureClass::Policy, why: "no".to_owned() }),
        (1_u32..3, any::<bool>()).prop_map(|(attempt, ready)| Stand::Worker {
            attempt,
            phase: WorkerPhase::Running,
            native: None,
            reason: None,
            ready,
            unknown_since: None,
        }),
        (0_u32..3, outcome()).prop_map(|(attempts, outcome)| Stand::Ended { attempts, outcome }),
    ]
}

fn worker() -> impl Strategy<Value = ServerWorker> {
    (1_u32..4, prop::option::weighted(0.3, outcome())).prop_map(|(attempt, ended)| ServerWorker {
        attempt,
        phase: if ended.is_some() { WorkerPhase::Exited } else { WorkerPhase::Running },
        native: None,
        reason: None,
        ready: ended.is_none(),
        unknown_since: None,
        ended,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..8).prop_map(Step::Deploy),
        1 => Just(Step::Wait),
        8 => (0..3_usize, stand()).prop_map(|(site, stand)| Step::Say(site, stand)),
        2 => (0..3_usize, any::<bool>()).prop_map(|(site, on)| Step::Connect(site, on)),
        3 => worker().prop_map(Step::Worker),
        3 => (1_u32..4).prop_map(Step::Tasks),
        2 => (0..3_usize, 1_u32..4).prop_map(|(site, round)| Step::Result(site, round)),
        1 => outcome().prop_map(Step::End),
        1 => Just(Step::Abort),
        3 => (0_u64..700_000).prop_map(Step::Pass),
        2 => Just(Step::Crash),
    ]
}

/// The world around a job: what was written, and what sites are told.
struct World {
    job: Option<Job>,
    facts: Arc<Facts>,
    now: u64,
    /// As the database holds it.
    row: (JobPhase, Option<String>, serde_json::Value),
    /// As the desired sets hold it.
    goals: BTreeMap<SiteName, Goal>,
    ended: u32,
    phases: Vec<JobPhase>,
}

fn task(round: u32) -> Arc<Task> {
    Arc::new(Task {
        id: TaskId { attempt: 1, round, step: 0 },
        kind: "train".to_owned(),
        total_rounds: 3,
        model: Some(Payload::Inline { data: String::new() }),
        params: serde_json::Map::new(),
        timeout_millis: None,
    })
}

impl World {
    fn new(facts: Arc<Facts>) -> Self {
        let keep = Keep::default();
        let row = (JobPhase::Submitted, None, serde_json::to_value(&keep).expect("JSON"));
        let job = Job::new(Arc::clone(&facts), keep, JobPhase::Submitted, None, 0);
        Self {
            job: Some(job),
            facts,
            now: 0,
            row,
            goals: BTreeMap::new(),
            ended: 0,
            phases: vec![JobPhase::Submitted],
        }
    }

    fn take(&mut self, effects: Effects) {
        if let Some(change) = effects.change {
            self.row.0 = change.phase.unwrap_or(self.row.0);
            if let Some(reason) = change.reason {
                self.row.1 = reason;
            }
            self.row.2 = change.state.unwrap_or(self.row.2.clone());
        }
        for event in &effects.events {
            if let EventKind::Phase { phase, failure, .. } = event {
                assert!(self.ended == 0, "an event after the end: {event:?}");
                assert_eq!(
                    failure.is_some(),
                    *phase == JobPhase::Failed,
                    "a failure is said with `failed` alone"
                );
                self.phases.push(*phase);
            }
        }
        for (site, goal) in effects.goals {
            match goal {
                Some(goal) => self.goals.insert(site, goal),
                None => self.goals.remove(&site),
            };
        }
        let job = self.job.as_ref().expect("it gave these effects");
        assert_eq!(self.row.0, job.phase, "the phase is on disk");
        if effects.done {
            self.ended += 1;
            assert!(job.phase.is_final());
            assert!(self.goals.is_empty(), "nothing is wanted of sites any more: {:?}", self.goals);
            self.job = None;
        } else {
            assert!(!job.phase.is_final(), "it ended without saying so");
        }
    }

    fn act(&mut self, act: impl FnOnce(&mut Job, u64) -> Effects) {
        if let Some(job) = &mut self.job {
            let effects = act(job, self.now);
            self.take(effects);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Deploy(mask) => {
                let sites: Vec<_> =
                    (0..3).filter(|bit| mask & (1 << bit) != 0).map(|bit| name(SITES[bit])).collect();
                let enough = sites.len() >= self.facts.min_clients as usize
                    && self.facts.mandatory.iter().all(|site| sites.contains(site));
                if enough && self.job.as_ref().is_some_and(|job| job.waits(self.now)) {
                    self.act(|job, now| job.deploy(sites, now));
                }
            }
            Step::Wait => {
                if self.job.as_ref().is_some_and(|job| job.waits(self.now)) {
                    self.act(|job, now| job.wait("nobody is there".to_owned(), now));
                }
            }
            Step::Say(site, stand) => self.act(|job, now| job.observe(&name(SITES[site]), &stand, now)),
            Step::Connect(site, on) => self.act(|job, now| job.site_connected(&name(SITES[site]), on, now)),
            Step::Worker(worker) => self.act(|job, now| job.server_worker(worker, now)),
            Step::Tasks(round) => {
                self.act(|job, now| {
                    job.put_tasks(SITES.iter().map(|site| (name(site), task(round))).collect(), now)
                });
            }
            Step::Result(site, round) => {
                if let Some(job) = &mut self.job {
                    let result = TaskResult {
                        task: task(round).id,
                        result: polder_api::site::TaskOutcome::Done {
                            model: None,
                            weight: 1.0,
                            metrics: BTreeMap::new(),
                        },
                    };
                    let current =
                        job.tasks.get(&name(SITES[site])).is_some_and(|task| task.id == result.task);
                    assert_eq!(job.put_result(&name(SITES[site]), result), current);
                }
            }
            Step::End(outcome) => self.act(|job, now| job.ending(outcome, None, BTreeMap::new(), now)),
            Step::Abort => self.act(|job, now| job.abort("u".parse().expect("a name"), now)),
            Step::Pass(millis) => self.pass(millis),
            Step::Crash => self.crash(),
        }
    }

    /// Time passes; whatever becomes due is done on the way.
    fn pass(&mut self, millis: u64) {
        let end = self.now + millis;
        while let Some(at) =
            self.job.as_ref().and_then(Job::deadline).filter(|at| *at <= end && *at > self.now)
        {
            self.now = at;
            self.act(Job::tick);
        }
        self.now = end;
        self.act(Job::tick);
    }

    fn crash(&mut self) {
        let Some(before) = self.job.take() else { return };
        let keep: Keep = serde_json::from_value(self.row.2.clone()).expect("what was written reads back");
        assert_eq!(keep.verdict, before.keep.verdict, "a verdict is on disk before it is acted on");
        let (phase, reason) = (self.row.0, self.row.1.clone());
        let mut job = Job::new(Arc::clone(&self.facts), keep, phase, reason, self.now);
        let wanted = std::mem::take(&mut self.goals);
        let effects = job.resume(self.now);
        self.job = Some(job);
        self.take(effects);
        assert_eq!(self.goals, wanted, "the same is wanted of the same sites as before");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_job_ends_once_and_goes_on_after_a_crash(
        min in 1_u32..3,
        mandatory in prop::option::of(0..3_usize),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mandatory: Vec<_> = mandatory.into_iter().map(|site| SITES[site]).collect();
        let mut world = World::new(facts(min, &mandatory));
        for step in steps {
            world.step(step);
        }
        // However far it is, an abort and time end it.
        world.step(Step::Abort);
        world.pass(60_000);
        prop_assert_eq!(world.ended, 1);
        prop_assert!(world.job.is_none());
        let ends = world.phases.iter().filter(|phase| phase.is_final()).count();
        prop_assert_eq!(ends, 1, "{:?}", world.phases);
        // Only the queue is ever gone back to.
        for pair in world.phases.windows(2) {
            let back = pair[1] == JobPhase::Queued && matches!(pair[0], JobPhase::Deploying | JobPhase::Queued);
            let again = pair == [JobPhase::Queued, JobPhase::Deploying];
            prop_assert!(pair[0] < pair[1] || back || again, "{:?}", world.phases);
        }
    }
}

#[test]
fn a_silent_site_does_not_hold_a_deployment_for_ever() {
    let mut world = World::new(facts(1, &[]));
    world.step(Step::Deploy(0b011));
    world.step(Step::Say(0, Stand::Reserved { terms: None }));
    assert_eq!(world.row.0, JobPhase::Deploying);
    world.pass(RESERVE_PATIENCE + 1);
    assert_eq!(world.row.0, JobPhase::Starting, "it goes on with the one that answered");
    assert_eq!(world.goals.keys().collect::<Vec<_>>(), [&name("a")]);
}

#[test]
fn a_site_that_went_away_does_not_hold_a_deployment_for_long() {
    let mut world = World::new(facts(2, &[]));
    world.step(Step::Deploy(0b011));
    world.step(Step::Say(0, Stand::Reserved { terms: None }));
    world.step(Step::Connect(1, false));
    world.pass(ABSENT_PATIENCE - 1);
    assert_eq!(world.row.0, JobPhase::Deploying, "it may come back");
    world.pass(1);
    assert_eq!(
        (world.row.0, world.row.1.as_deref()),
        (JobPhase::Queued, Some("waiting for site b: its parent is not connected"))
    );
    assert!(world.goals.is_empty());
}

#[test]
fn what_a_site_says_of_its_terms_is_kept() {
    let mut world = World::new(facts(1, &[]));
    let terms = Terms {
        version: "1".to_owned(),
        mode: Mode::Process,
        isolation: polder_words::Isolation::Landlock,
        image: None,
        app: None,
        export: serde_json::json!({"logs": "tail"}),
    };
    world.step(Step::Deploy(0b001));
    world.step(Step::Say(0, Stand::Reserved { terms: Some(terms.clone()) }));
    world.step(Step::Crash);
    assert_eq!(world.job.expect("it starts").keep.terms[&name("a")], terms);
}

#[test]
fn who_was_left_out_does_not_count_as_lost() {
    let mut world = World::new(facts(1, &[]));
    world.step(Step::Deploy(0b111));
    world.step(Step::Say(0, Stand::Refused { class: FailureClass::Policy, why: "no".to_owned() }));
    world.step(Step::Say(1, Stand::Reserved { terms: None }));
    world.step(Step::Say(2, Stand::Reserved { terms: None }));
    assert_eq!(world.row.0, JobPhase::Starting);
    let gone = || Stand::Ended { attempts: 1, outcome: Outcome::failed(FailureClass::UserCode, "exit 7") };
    world.step(Step::Say(1, gone()));
    assert_eq!(world.row.0, JobPhase::Starting, "one is enough");
    assert_eq!(world.job.as_ref().map(|job| job.roster().len()), Some(2));
    world.step(Step::Say(2, gone()));
    assert_eq!(world.row.0, JobPhase::Failed, "and nobody is left to wait for");
}
