//! The launcher against a controller in memory, which loses answers, delays requests and goes away.

use async_trait::async_trait;
use polder_core::parent::{LauncherConfig, ParentConfig};
use polder_launch::{
    Allotted, Clock, End, Event, Fate, Handover, LaunchError, Launcher, Native, NativeId, Resolved, Sighting,
    Time,
};
use polder_slurm::drive::{Settings, SlurmLauncher};
use polder_slurm::slurm::{Cluster, Job, JobNumber, Slurm, Submission, Trouble};
use polder_words::{FailureClass, LaunchId, Outcome, Role, SiteName, StudyName};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It never leaves.
    NotSent,
    /// It is done, and nobody hears of it.
    LostAnswer,
    /// It is lost on its way.
    LostRequest,
    /// Nobody hears of it, and it is done at the next list.
    Late,
    /// The controller says no.
    Refused,
}

#[derive(Default)]
struct State {
    jobs: BTreeMap<JobNumber, Job>,
    late: Vec<Submission>,
    faults: VecDeque<Option<Fault>>,
    down: bool,
    calls: u32,
    submitted: Vec<Submission>,
    released: Vec<JobNumber>,
}

#[derive(Default)]
struct Fake(Mutex<State>);

impl State {
    fn begin(&mut self) -> Result<Option<Fault>, Trouble> {
        self.calls += 1;
        if self.down {
            return Err(Trouble::NotSent("no controller".into()));
        }
        let fault = self.faults.pop_front().flatten();
        match fault {
            Some(Fault::NotSent) => Err(Trouble::NotSent("cut".into())),
            Some(Fault::LostRequest) => Err(Trouble::Unclear("no answer in time".into())),
            Some(Fault::Refused) => Err(Trouble::Refused { code: 2045, text: "Invalid account".into() }),
            other => Ok(other),
        }
    }

    fn create(&mut self, job: &Submission) -> JobNumber {
        let number = 100 + JobNumber::try_from(self.submitted.len()).expect("few");
        self.submitted.push(job.clone());
        let shown = Job {
            number,
            name: job.descriptor.name.clone(),
            comment: job.descriptor.comment.clone(),
            work_dir: job.descriptor.work_dir.clone(),
            state: "PENDING".into(),
            flags: Vec::new(),
            reason: "JobHeldUser".into(),
            held: job.descriptor.hold,
            exit_code: 0,
            signal: 0,
            start: 0,
            end: 0,
        };
        self.jobs.insert(number, shown);
        number
    }
}

impl Fake {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with it")
    }

    fn set(&self, number: JobNumber, change: impl FnOnce(&mut Job)) {
        change(self.state().jobs.get_mut(&number).expect("it is there"));
    }
}

#[async_trait]
impl Slurm for Fake {
    async fn ping(&self) -> Result<Cluster, Trouble> {
        self.state().begin()?;
        Ok(Cluster { name: "c".into(), version: "0".into(), message_timeout: Duration::from_secs(10) })
    }

    async fn submit(&self, job: &Submission) -> Result<JobNumber, Trouble> {
        let mut state = self.state();
        match state.begin()? {
            Some(Fault::Late) => {
                state.late.push(job.clone());
                Err(Trouble::Unclear("no answer in time".into()))
            }
            Some(_) => {
                state.create(job);
                Err(Trouble::Unclear("no answer in time".into()))
            }
            None => Ok(state.create(job)),
        }
    }

    async fn release(&self, job: JobNumber) -> Result<(), Trouble> {
        let mut state = self.state();
        let fault = state.begin()?;
        state.released.push(job);
        let job = state.jobs.get_mut(&job).expect("a job that was submitted");
        job.held = false;
        if job.state == "PENDING" {
            job.reason = "Priority".into();
        }
        if fault.is_some() { Err(Trouble::Unclear("no answer in time".into())) } else { Ok(()) }
    }

    async fn cancel(&self, job: JobNumber) -> Result<(), Trouble> {
        let mut state = self.state();
        let fault = state.begin()?;
        if let Some(job) =
            state.jobs.get_mut(&job).filter(|job| matches!(job.state.as_str(), "PENDING" | "RUNNING"))
        {
            job.state = "CANCELLED".into();
        }
        if fault.is_some() { Err(Trouble::Unclear("no answer in time".into())) } else { Ok(()) }
    }

    async fn jobs(&self) -> Result<Vec<Job>, Trouble> {
        let mut state = self.state();
        if state.begin()?.is_some() {
            return Err(Trouble::Unclear("no answer in time".into()));
        }
        let shown = state.jobs.values().cloned().collect();
        for job in std::mem::take(&mut state.late) {
            state.create(&job);
        }
        Ok(shown)
    }
}

struct Bench {
    folder: tempfile::TempDir,
    fake: Arc<Fake>,
    now: Arc<AtomicU64>,
}

const START: u64 = 1_800_000_000_000;

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, fake: Arc::default(), now: Arc::new(AtomicU64::new(START)) }
    }

    fn runs(&self) -> &Path {
        self.folder.path()
    }

    /// A parent that was just started.
    fn launcher(&self) -> SlurmLauncher {
        let text = "name: uni\nserver: https://s\nlauncher: {slurm: {account: proj}}\n";
        let config = ParentConfig::parse("parent.yaml", text.as_bytes()).expect("a configuration");
        let LauncherConfig::Slurm(site) = config.launcher else { panic!("slurm") };
        let now = Arc::clone(&self.now);
        let clock = Clock::new(move || Time(now.load(Ordering::SeqCst)));
        let settings = Settings { site: *site, job_images: false, runs: self.runs().into(), clock };
        SlurmLauncher::new(settings, Arc::clone(&self.fake) as Arc<dyn Slurm>)
    }

    fn pass(&self, seconds: u64) {
        self.now.fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.runs().join(format!("{}-client/attempts/1/{name}", id(1).job)), text)
            .expect("written");
    }

    /// Whether an intent of this attempt came to nothing.
    fn fenced(&self, attempt: u32) -> bool {
        let attempts = self.runs().join(format!("{}-client/attempts/{attempt}", id(1).job));
        attempts.join("slurm-fenced.json").exists()
    }

    async fn prepare(&self, launcher: &SlurmLauncher, attempt: u32) -> Result<NativeId, LaunchError> {
        let want = Resolved {
            id: id(attempt),
            study: StudyName::new("a").expect("a name"),
            run_dir: self.runs().join(format!("{}-client", id(1).job)),
            worker: "/usr/bin/worker".into(),
            files: polder_words::FileWay::Shared,
            gpus: 0,
            cpus: None,
            memory: None,
            options: serde_json::Map::new(),
            runtime: serde_json::Value::Null,
            pending_timeout_ms: None,
            max_restarts: 2,
        };
        let plan = launcher.plan(&want, &Allotted::default()).expect("a plan");
        launcher.prepare(&id(attempt), &plan, &Handover::new(b"the token".to_vec())).await
    }
}

fn id(attempt: u32) -> LaunchId {
    let job = "0123456789abcdef0123456789abcdef".parse().expect("an id");
    LaunchId { job, site: SiteName::new("uni").expect("a name"), role: Role::Client, attempt }
}

async fn fate(launcher: &SlurmLauncher, attempt: u32) -> Fate {
    launcher.find(&[id(attempt)]).await.expect("it answers").remove(&id(attempt)).expect("one answer an id")
}

async fn state(launcher: &SlurmLauncher) -> Native {
    match fate(launcher, 1).await {
        Fate::Seen(sighting) => sighting.state,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_launch_from_held_to_its_end() {
    let bench = Bench::new();
    let launcher = bench.launcher();
    let native = bench.prepare(&launcher, 1).await.expect("submitted");
    assert_eq!(native.to_string(), "job 100");
    assert_eq!(state(&launcher).await, Native::Waiting);
    // Again, as after a crash: the same job.
    assert_eq!(bench.prepare(&bench.launcher(), 1).await, Ok(native.clone()));
    launcher.start(&id(1), &native).await.expect("released");
    bench.fake.set(100, |job| job.start = START / 1000 + 7800);
    assert_eq!(state(&launcher).await, Native::Pending { reason: "Priority, start in 2 h 10 min".into() });
    bench.fake.set(100, |job| {
        job.state = "RUNNING".into();
        job.start = 5;
    });
    assert_eq!(state(&launcher).await, Native::Running { since: Time(5000) });
    bench.write("worker.log", "Traceback\nlast words\n");
    bench.fake.set(100, |job| {
        (job.state, job.reason, job.exit_code, job.end) = ("FAILED".into(), "NonZeroExitCode".into(), 7, 9);
    });
    let Native::Exited(exit) = state(&launcher).await else { panic!("exited") };
    let Outcome::Failed { class, cause, tail } = exit.outcome else { panic!("failed") };
    assert_eq!((class, cause.as_str(), exit.at), (FailureClass::Infrastructure, "exit 7", Time(9000)));
    assert!(tail.ends_with("last words\n"));
    assert_eq!(bench.fake.state().submitted.len(), 1);
}

#[tokio::test]
async fn nothing_secret_is_submitted() {
    let bench = Bench::new();
    bench.prepare(&bench.launcher(), 1).await.expect("submitted");
    let state = bench.fake.state();
    let sent = &state.submitted[0];
    assert!(!sent.script.contains("the token") && sent.environment.is_empty());
}

#[tokio::test]
async fn a_lost_answer_is_settled_by_the_comment() {
    let bench = Bench::new();
    bench.fake.state().faults = VecDeque::from([Some(Fault::LostAnswer)]);
    let launcher = bench.launcher();
    assert!(matches!(bench.prepare(&launcher, 1).await, Err(LaunchError::Unclear(_))));
    // Not sent again before it is settled.
    assert!(matches!(bench.prepare(&bench.launcher(), 1).await, Err(LaunchError::Unclear(_))));
    assert_eq!(state(&bench.launcher()).await, Native::Waiting);
    assert_eq!(bench.fake.state().submitted.len(), 1);
    assert_eq!(bench.prepare(&launcher, 1).await, Ok(NativeId("job 100".into())));
}

#[tokio::test]
async fn a_request_that_comes_late_is_cancelled_and_never_released() {
    let bench = Bench::new();
    bench.fake.state().faults = VecDeque::from([Some(Fault::LostRequest)]);
    let launcher = bench.launcher();
    assert!(matches!(bench.prepare(&launcher, 1).await, Err(LaunchError::Unclear(_))));
    assert!(matches!(fate(&launcher, 1).await, Fate::Unsure(_)), "it may still arrive");
    bench.pass(19);
    assert!(matches!(fate(&launcher, 1).await, Fate::Unsure(_)));
    bench.pass(1);
    assert!(matches!(fate(&launcher, 1).await, Fate::Gone(_)));
    // Against all promises, it arrives.
    let native = bench.prepare(&launcher, 2).await.expect("a new attempt");
    let mut first = bench.fake.state().submitted[0].clone();
    first.descriptor.comment = polder_slurm::plan::comment(&id(1));
    first.descriptor.name = polder_slurm::plan::job_name(&id(1));
    let late = bench.fake.state().create(&first);
    assert!(matches!(fate(&launcher, 1).await, Fate::Unsure(_)));
    launcher.start(&id(2), &native).await.expect("released");
    let state = bench.fake.state();
    assert_eq!(state.jobs[&late].state, "CANCELLED");
    assert!(!state.released.contains(&late));
}

#[tokio::test]
async fn a_second_job_of_one_launch_is_cancelled() {
    let bench = Bench::new();
    let launcher = bench.launcher();
    bench.prepare(&launcher, 1).await.expect("submitted");
    let again = bench.fake.state().submitted[0].clone();
    let second = bench.fake.state().create(&again);
    assert_eq!(state(&launcher).await, Native::Waiting);
    assert_eq!(bench.fake.state().jobs[&second].state, "CANCELLED");
    assert_eq!(bench.fake.state().jobs[&100].state, "PENDING");
}

#[tokio::test]
async fn refusals_have_a_class_and_can_be_tried_again_from_the_start() {
    let bench = Bench::new();
    bench.fake.state().faults = VecDeque::from([Some(Fault::Refused), Some(Fault::NotSent)]);
    let launcher = bench.launcher();
    let Err(LaunchError::Refused(refusal)) = bench.prepare(&launcher, 1).await else { panic!("refused") };
    assert_eq!(refusal.class, FailureClass::Config);
    assert!(refusal.message.contains("Invalid account"), "{refusal}");
    assert!(matches!(bench.prepare(&launcher, 1).await, Err(LaunchError::NotSent(_))));
    assert!(matches!(fate(&launcher, 1).await, Fate::Gone(_)), "nothing was sent");
    bench.prepare(&launcher, 1).await.expect("submitted");
}

#[tokio::test]
async fn a_job_that_slurm_forgot_has_its_record() {
    let bench = Bench::new();
    let launcher = bench.launcher();
    let native = bench.prepare(&launcher, 1).await.expect("submitted");
    launcher.start(&id(1), &native).await.expect("released");
    bench.fake.state().jobs.clear();
    assert!(matches!(fate(&launcher, 1).await, Fate::Gone(_)), "no record, no job");
    bench.write(
        "slurm-exit.json",
        r#"{"format":1,"job":"100","node":"n1","stage":"worker","code":137,"at":12}"#,
    );
    let Native::Exited(exit) = state(&launcher).await else { panic!("exited") };
    let Outcome::Failed { cause, .. } = exit.outcome else { panic!("failed") };
    assert_eq!((cause.as_str(), exit.at), ("signal 9", Time(12_000)));
    bench.write("slurm-exit.json", "no JSON");
    assert!(matches!(fate(&launcher, 1).await, Fate::Gone(_)), "what cannot be read is no record");
}

#[tokio::test]
async fn who_cancelled_it_is_told_apart() {
    for ours in [true, false] {
        let bench = Bench::new();
        let launcher = bench.launcher();
        bench.prepare(&launcher, 1).await.expect("submitted");
        if ours {
            let how = End { grace: Duration::ZERO, why: "the job was aborted".into() };
            launcher.end(&id(1), how).await.expect("asked for");
        } else {
            bench.fake.set(100, |job| job.state = "CANCELLED".into());
        }
        let Native::Exited(exit) = state(&launcher).await else { panic!("exited") };
        let Outcome::Failed { class, cause, .. } = exit.outcome else { panic!("failed") };
        let wanted = if ours { FailureClass::Aborted } else { FailureClass::Infrastructure };
        assert_eq!((class, cause.contains("the job was aborted")), (wanted, ours));
    }
}

#[tokio::test]
async fn a_link_that_a_worker_left_is_not_followed() {
    let bench = Bench::new();
    let launcher = bench.launcher();
    bench.prepare(&launcher, 1).await.expect("submitted");
    let secret = bench.runs().join("secret");
    std::fs::write(&secret, "of the parent").expect("written");
    let log = bench.runs().join(format!("{}-client/attempts/1/worker.log", id(1).job));
    std::os::unix::fs::symlink(&secret, &log).expect("linked");
    assert!(launcher.tail(&id(1), 100).await.is_err());
}

#[tokio::test]
async fn what_no_node_has_ends_and_is_cancelled() {
    let bench = Bench::new();
    let launcher = bench.launcher();
    let native = bench.prepare(&launcher, 1).await.expect("submitted");
    launcher.start(&id(1), &native).await.expect("released");
    // As Slurm does by itself once it looked.
    bench.fake.set(100, |job| (job.held, job.reason) = (true, "BadConstraints".into()));
    let Native::Exited(exit) = state(&launcher).await else { panic!("exited") };
    let Outcome::Failed { class, .. } = exit.outcome else { panic!("failed") };
    assert_eq!(class, FailureClass::Resources);
    launcher.remove(&id(1)).await.expect("removed");
    assert_eq!(bench.fake.state().jobs[&100].state, "CANCELLED");
    // Held by a person it only waits.
    bench.fake.set(100, |job| (job.state, job.reason) = ("PENDING".into(), "JobHeldAdmin".into()));
    assert_eq!(state(&launcher).await, Native::Pending { reason: "JobHeldAdmin".into() });
}

#[tokio::test]
async fn jobs_of_others_are_left_alone() {
    let bench = Bench::new();
    let launcher = bench.launcher();
    bench.prepare(&launcher, 1).await.expect("submitted");
    let other = bench.fake.state().submitted[0].clone();
    let number = bench.fake.state().create(&other);
    // Another parent under the same account.
    bench.fake.set(number, |job| job.work_dir = "/elsewhere".into());
    assert_eq!(state(&launcher).await, Native::Waiting);
    assert_eq!(bench.fake.state().jobs[&number].state, "PENDING");
}

#[tokio::test(start_paused = true)]
async fn one_list_a_second_says_what_changed() {
    let bench = Bench::new();
    let launcher = Arc::new(bench.launcher());
    let native = bench.prepare(&launcher, 1).await.expect("submitted");
    launcher.start(&id(1), &native).await.expect("released");
    let before = bench.fake.state().calls;
    let (out, mut events) = tokio::sync::mpsc::channel(8);
    let stop = CancellationToken::new();
    let watcher = {
        let (launcher, stop) = (Arc::clone(&launcher), stop.clone());
        tokio::spawn(async move { launcher.watch(out, stop).await })
    };
    let begun = tokio::time::Instant::now();
    let Some(Event::Relisted { complete }) = events.recv().await else { panic!("all first") };
    assert_eq!(complete.len(), 1);
    tokio::time::sleep(Duration::from_millis(5500)).await;
    bench.fake.set(100, |job| job.state = "RUNNING".into());
    let Some(Event::Seen(sighting)) = events.recv().await else { panic!("a change") };
    assert!(matches!(sighting.state, Native::Running { .. }));
    let calls = u64::from(bench.fake.state().calls - before);
    assert!(calls <= begun.elapsed().as_secs() + 1, "{calls} requests in {:?}", begun.elapsed());
    bench.fake.state().down = true;
    assert!(matches!(events.recv().await, Some(Event::Down(_))));
    tokio::time::sleep(Duration::from_secs(10)).await;
    bench.fake.state().down = false;
    bench.fake.set(100, |job| job.state = "COMPLETED".into());
    assert!(matches!(events.recv().await, Some(Event::Up)), "and once down, it says so once");
    let Some(Event::Relisted { complete }) = events.recv().await else { panic!("a gap") };
    let Native::Exited(exit) = &complete[0].state else { panic!("exited") };
    assert_eq!(exit.outcome, Outcome::Completed);
    stop.cancel();
    watcher.await.expect("it ends");
}

#[test]
fn native_states_mean_what_the_contract_says() {
    use polder_slurm::state::{Known, native};
    let job = |state: &str| Job {
        number: 1,
        name: String::new(),
        comment: String::new(),
        work_dir: String::new(),
        state: state.into(),
        flags: Vec::new(),
        reason: "None".into(),
        held: false,
        exit_code: 1,
        signal: 0,
        start: 0,
        end: 0,
    };
    let said = |state: &str| native(&job(state), &Known::default(), Time(0));
    for state in ["PENDING", "CONFIGURING", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"] {
        assert!(matches!(said(state), Some(Native::Pending { .. })), "{state}");
    }
    for (state, class) in [
        ("CANCELLED", FailureClass::Infrastructure),
        ("TIMEOUT", FailureClass::Timeout),
        ("DEADLINE", FailureClass::Timeout),
        ("OUT_OF_MEMORY", FailureClass::OutOfMemory),
        ("PREEMPTED", FailureClass::Preempted),
        ("NODE_FAIL", FailureClass::Infrastructure),
        ("BOOT_FAIL", FailureClass::Infrastructure),
        ("LAUNCH_FAILED", FailureClass::Infrastructure),
        ("RECONFIG_FAIL", FailureClass::Infrastructure),
        ("REVOKED", FailureClass::Infrastructure),
    ] {
        let Some(Native::Exited(exit)) = said(state) else { panic!("{state} is an end") };
        let Outcome::Failed { class: found, .. } = exit.outcome else { panic!("{state} failed") };
        assert_eq!(found, class, "{state}");
    }
    for state in ["", "COMPLETE", "garbled", "RUNNINGG"] {
        assert_eq!(said(state), None, "{state:?} is never an end");
    }
    let mut ending = job("COMPLETED");
    ending.flags.push("COMPLETING".into());
    assert!(matches!(native(&ending, &Known::default(), Time(0)), Some(Native::Running { .. })));
}

fn faults() -> impl Strategy<Value = Vec<Option<Fault>>> {
    let fault = prop_oneof![
        3 => Just(None),
        1 => Just(Some(Fault::NotSent)),
        1 => Just(Some(Fault::LostAnswer)),
        1 => Just(Some(Fault::LostRequest)),
        1 => Just(Some(Fault::Late)),
    ];
    prop::collection::vec(fault, 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever is lost, and with a new parent at every step: at most one job of a launch is ever released and alive.
    #[test]
    fn never_a_second_allocation(faults in faults()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let bench = Bench::new();
            bench.fake.state().faults = faults.into();
            let mut attempt = 1;
            // As the ledger does: look first, send only where nothing is, and a new attempt only on proof.
            for _ in 0..60 {
                let launcher = bench.launcher();
                bench.pass(3);
                let all: Vec<LaunchId> = (1..=attempt).map(id).collect();
                let Ok(mut found) = launcher.find(&all).await else { continue };
                // No launch speaks for the attempts before.
                for old in &all[..all.len() - 1] {
                    assert!(!matches!(found[old], Fate::Seen(Sighting { state: Native::Waiting, .. })));
                }
                let native = match found.remove(&id(attempt)).expect("an answer") {
                    Fate::Unsure(_) => continue,
                    Fate::Seen(sighting) => match sighting.state {
                        Native::Exited(_) => {
                            attempt += 1;
                            continue;
                        }
                        _ => sighting.native,
                    },
                    Fate::Gone(_) => {
                        if bench.fenced(attempt) {
                            attempt += 1;
                        }
                        match bench.prepare(&launcher, attempt).await {
                            Ok(native) => native,
                            Err(_) => continue,
                        }
                    }
                };
                let _ = launcher.start(&id(attempt), &native).await;
                let state = bench.fake.state();
                let alive = |job: &&Job| !job.held && job.state == "PENDING";
                assert!(state.jobs.values().filter(alive).count() <= 1, "{:?}", state.jobs);
            }
            let launcher = bench.launcher();
            assert!(matches!(fate(&launcher, attempt).await, Fate::Seen(_)), "it comes to run in the end");
            let state = bench.fake.state();
            let left: Vec<_> = state.jobs.values().filter(|job| job.state == "PENDING").collect();
            assert_eq!(left.len(), 1, "one runs, and nothing waits to: {:?}", state.jobs);
            assert!(!left[0].held);
        });
    }
}
