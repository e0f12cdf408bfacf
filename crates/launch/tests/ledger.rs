//! The ledger's shell: what it writes, what it calls and in which order, against a launcher in memory.

use async_trait::async_trait;
use bytes::Bytes;
use polder_launch::{
    Allotted, Ask, Cause, Check, Clock, DeviceId, Down, End, Event, Exit, Fate, Handover, Host, LaunchError,
    Launcher, Ledger, LedgerError, LedgerStore, MemoryStore, Native, NativeId, Offer, Plan, Proof, Refusal,
    Resolved, Row, Settings, Sighting, StoreError, Time, WantError,
};
use polder_words::{
    FailureClass, Isolation, JobId, LaunchId, Mode, Outcome, Role, SiteName, StudyName, WorkerPhase,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;

/// What was written and called, in order.
type Trace = Arc<Mutex<Vec<String>>>;

/// A backend in memory: workers wait, run, and end when a test says so.
#[derive(Default)]
struct Backend {
    trace: Trace,
    objects: Mutex<BTreeMap<LaunchId, Native>>,
    watcher: Mutex<Option<Sender<Event>>>,
    panics: AtomicBool,
    refuses: AtomicBool,
}

impl Backend {
    fn note(&self, what: &str) {
        self.trace.lock().expect("a trace").push(what.to_owned());
    }

    fn sighting(&self, id: &LaunchId) -> Option<Sighting> {
        let state = self.objects.lock().expect("objects").get(id)?.clone();
        Some(Sighting { id: id.clone(), native: NativeId(format!("n{}", id.attempt)), state })
    }

    async fn becomes(&self, id: &LaunchId, state: Native) {
        self.objects.lock().expect("objects").insert(id.clone(), state);
        let watcher = self.watcher.lock().expect("a watcher").clone();
        if let (Some(watcher), Some(sighting)) = (watcher, self.sighting(id)) {
            let _ = watcher.send(Event::Seen(sighting)).await;
        }
    }

    async fn ends(&self, id: &LaunchId, outcome: Outcome) {
        self.becomes(id, Native::Exited(Exit { outcome, at: Time(5) })).await;
    }
}

#[async_trait]
impl Launcher for Backend {
    fn mode(&self) -> Mode {
        Mode::Process
    }

    async fn offer(&self) -> Result<Offer, Down> {
        Ok(Offer {
            mode: Mode::Process,
            architectures: vec!["x86_64".into()],
            isolation: Isolation::Landlock,
            not_enforced: Vec::new(),
            devices: Some(vec![DeviceId("0".into()), DeviceId("1".into())]),
            cpus: Some(4),
            memory: Some(8 << 30),
            expected_start: None,
        })
    }

    fn plan(&self, want: &Resolved, _with: &Allotted) -> Result<Plan, Refusal> {
        if want.gpus > 7 {
            return Err(Refusal::new(FailureClass::Policy, "not here"));
        }
        Ok(Plan { mode: Mode::Process, native: serde_json::Map::new() })
    }

    async fn prepare(&self, id: &LaunchId, _plan: &Plan, _hand: &Handover) -> Result<NativeId, LaunchError> {
        self.note(&format!("prepare {}", id.attempt));
        assert!(!self.panics.swap(false, Ordering::SeqCst), "the launcher has a bug");
        if self.refuses.load(Ordering::SeqCst) {
            return Err(LaunchError::Refused(Refusal::new(FailureClass::Image, "no such image")));
        }
        self.objects.lock().expect("objects").insert(id.clone(), Native::Waiting);
        Ok(NativeId(format!("n{}", id.attempt)))
    }

    async fn start(&self, id: &LaunchId, _native: &NativeId) -> Result<(), LaunchError> {
        self.note(&format!("start {}", id.attempt));
        self.becomes(id, Native::Running { since: Time(1) }).await;
        Ok(())
    }

    async fn find(&self, ids: &[LaunchId]) -> Result<BTreeMap<LaunchId, Fate>, Down> {
        self.note("find");
        let fate = |id| self.sighting(id).map_or(Fate::Gone(Proof("not there".into())), Fate::Seen);
        Ok(ids.iter().map(|id| (id.clone(), fate(id))).collect())
    }

    async fn watch(&self, out: Sender<Event>, stop: CancellationToken) {
        let ids: Vec<_> = self.objects.lock().expect("objects").keys().cloned().collect();
        let complete = ids.iter().filter_map(|id| self.sighting(id)).collect();
        *self.watcher.lock().expect("a watcher") = Some(out.clone());
        let _ = out.send(Event::Relisted { complete }).await;
        stop.cancelled().await;
    }

    async fn end(&self, id: &LaunchId, how: End) -> Result<(), LaunchError> {
        self.note(&format!("end {}: {}", id.attempt, how.why));
        if self.objects.lock().expect("objects").contains_key(id) {
            self.ends(id, Outcome::failed(FailureClass::Infrastructure, "signal 15 (TERM)")).await;
        }
        Ok(())
    }

    async fn tail(&self, _id: &LaunchId, _max: usize) -> Result<Bytes, Down> {
        Ok(Bytes::new())
    }

    async fn remove(&self, id: &LaunchId) -> Result<(), LaunchError> {
        self.note(&format!("remove {}", id.attempt));
        self.objects.lock().expect("objects").remove(id);
        Ok(())
    }

    async fn preflight(&self) -> Vec<Check> {
        Vec::new()
    }
}

/// A disk that notes what it writes, and may be full.
struct Disk {
    below: MemoryStore,
    trace: Trace,
    full: AtomicBool,
}

#[async_trait]
impl LedgerStore for Disk {
    async fn load(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.below.load().await
    }

    async fn put(&self, key: &str, row: &str) -> Result<(), StoreError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(StoreError::new("put", "no space left"));
        }
        let phase = serde_json::from_str::<Row>(row).expect("a row").phase();
        self.trace.lock().expect("a trace").push(format!("write {phase}"));
        self.below.put(key, row).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.below.delete(key).await
    }
}

struct Letters(Trace);

#[async_trait]
impl Host for Letters {
    async fn handover(&self, want: &Resolved) -> Result<Handover, LaunchError> {
        self.0.lock().expect("a trace").push(format!("handover {}", want.id.attempt));
        Ok(Handover::new(b"secret".to_vec()))
    }
}

struct Parent {
    ledger: Ledger,
    backend: Arc<Backend>,
    disk: Arc<Disk>,
    trace: Trace,
}

impl Parent {
    async fn new() -> Self {
        let trace = Trace::default();
        let backend = Arc::new(Backend { trace: Arc::clone(&trace), ..Backend::default() });
        let below = MemoryStore::default();
        let disk = Arc::new(Disk { below, trace: Arc::clone(&trace), full: AtomicBool::new(false) });
        let ledger = Self::open(&backend, &disk, &trace).await;
        Self { ledger, backend, disk, trace }
    }

    async fn open(backend: &Arc<Backend>, disk: &Arc<Disk>, trace: &Trace) -> Ledger {
        let begun = tokio::time::Instant::now();
        let clock = Clock::new(move || Time(1_000_000).plus(begun.elapsed()));
        let host = Arc::new(Letters(Arc::clone(trace)));
        Ledger::open(Arc::clone(disk) as _, Arc::clone(backend) as _, host, Settings { clock })
            .await
            .expect("opens")
    }

    /// The parent dies: its task is gone, its workers are not.
    async fn die_and_come_back(&mut self) {
        self.ledger.close().await;
        self.ledger = Self::open(&self.backend, &self.disk, &self.trace).await;
    }

    async fn until(&self, job: u8, so_far: impl Fn(&Row) -> bool) -> Row {
        let mut changes = self.ledger.changes();
        loop {
            changes.borrow_and_update();
            if let Some(row) = self.ledger.state(JobId([job; 16]), Role::Client).filter(&so_far) {
                return row;
            }
            changes.changed().await.expect("the ledger lives");
        }
    }

    async fn phase(&self, job: u8, phase: WorkerPhase) -> Row {
        self.until(job, |row| row.phase() == phase).await
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.trace.lock().expect("a trace"))
    }
}

fn want(job: u8) -> Resolved {
    let site = SiteName::new("hospital-a").expect("a name");
    Resolved {
        id: LaunchId { job: JobId([job; 16]), site, role: Role::Client, attempt: 1 },
        study: StudyName::new("pathology").expect("a name"),
        run_dir: "/runs/x".into(),
        worker: "/bin/worker".into(),
        files: polder_words::FileWay::Shared,
        gpus: 1,
        cpus: Some(1),
        memory: Some(1 << 30),
        options: serde_json::Map::new(),
        runtime: serde_json::Value::Null,
        pending_timeout_ms: None,
        max_restarts: 1,
    }
}

#[tokio::test(start_paused = true)]
async fn every_step_is_on_disk_before_the_next() {
    let parent = Parent::new().await;
    let row = parent.ledger.want(want(1)).await.expect("wanted");
    assert_eq!(
        parent.disk.load().await.expect("loads").len(),
        1,
        "the intent is on disk when `want` returns"
    );
    let id = row.id().clone();
    parent.phase(1, WorkerPhase::Running).await;
    assert_eq!(
        parent.take(),
        ["write planned", "handover 1", "prepare 1", "write submitted", "start 1", "write running"]
    );
    parent.ledger.report_outcome(&id, Outcome::Completed).await.expect("taken");
    parent.backend.ends(&id, Outcome::failed(FailureClass::Infrastructure, "signal 9 (KILL)")).await;
    let row = parent.until(1, Row::is_settled).await;
    assert_eq!(row.ended(), Some(&Outcome::Completed), "its own word");
    assert_eq!(parent.take(), ["write running", "write exited", "remove 1", "write exited"]);
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_comes_back_adopts_what_runs() {
    let mut parent = Parent::new().await;
    let id = parent.ledger.want(want(1)).await.expect("wanted").id().clone();
    parent.phase(1, WorkerPhase::Running).await;
    parent.take();
    parent.die_and_come_back().await;
    let row = parent.phase(1, WorkerPhase::Running).await;
    assert_eq!((row.id(), parent.ledger.standing().gpus), (&id, Some((1, 2))), "it has its GPU, too");
    parent.backend.ends(&id, Outcome::Completed).await;
    parent.until(1, Row::is_settled).await;
    assert!(!parent.take().iter().any(|what| what.starts_with("prepare") || what.starts_with("start")));
    assert_eq!(parent.ledger.standing().gpus, Some((2, 2)));
}

#[tokio::test(start_paused = true)]
async fn it_ended_while_nobody_looked() {
    let mut parent = Parent::new().await;
    let id = parent.ledger.want(want(1)).await.expect("wanted").id().clone();
    parent.phase(1, WorkerPhase::Running).await;
    parent
        .ledger
        .report_outcome(&id, Outcome::failed(FailureClass::UserCode, "exit 3"))
        .await
        .expect("taken");
    *parent.backend.watcher.lock().expect("a watcher") = None;
    parent.backend.ends(&id, Outcome::Completed).await;
    parent.die_and_come_back().await;
    let row = parent.until(1, Row::is_settled).await;
    assert_eq!(row.ended(), Some(&Outcome::failed(FailureClass::UserCode, "exit 3")), "the word was kept");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_of_nobodys_fault_is_started_again() {
    let parent = Parent::new().await;
    let first = parent.ledger.want(want(1)).await.expect("wanted").id().clone();
    parent.phase(1, WorkerPhase::Running).await;
    parent.backend.ends(&first, Outcome::failed(FailureClass::Infrastructure, "signal 9 (KILL)")).await;
    let row = parent.until(1, |row| row.id().attempt == 2 && row.phase() == WorkerPhase::Running).await;
    let wrong = parent.ledger.report_outcome(&first, Outcome::Completed).await;
    assert!(matches!(wrong, Err(LedgerError::NotCurrent(id)) if id == first), "only the current one speaks");
    parent.backend.ends(row.id(), Outcome::failed(FailureClass::Infrastructure, "signal 9 (KILL)")).await;
    let row = parent.until(1, Row::is_settled).await;
    assert_eq!((row.id().attempt, row.restarts), (2, 1), "max_restarts is 1");
}

#[tokio::test(start_paused = true)]
async fn stop_and_forget() {
    let parent = Parent::new().await;
    parent.ledger.want(want(1)).await.expect("wanted");
    parent.phase(1, WorkerPhase::Running).await;
    assert!(!parent.ledger.forget(JobId([1; 16]), Role::Client).await.expect("asked"), "it runs");
    parent.take();
    let grace = Duration::from_secs(30);
    let begun = tokio::time::Instant::now();
    parent.ledger.stop(JobId([1; 16]), Role::Client, "aborted by lead@org", grace).await.expect("taken");
    let row = parent.until(1, Row::is_settled).await;
    assert!(begun.elapsed() >= grace, "it had its time to end by itself");
    assert_eq!(row.ended(), Some(&Outcome::failed(FailureClass::Aborted, "aborted by lead@org")));
    assert!(parent.take().contains(&"end 1: aborted by lead@org".to_owned()));
    assert!(parent.ledger.forget(JobId([1; 16]), Role::Client).await.expect("asked"));
    assert!(parent.disk.load().await.expect("loads").is_empty());
    parent.ledger.stop(JobId([9; 16]), Role::Client, "x", grace).await.expect("nobody is no one to end");
}

#[tokio::test(start_paused = true)]
async fn what_there_is_is_given_once() {
    let parent = Parent::new().await;
    let ledger = &parent.ledger;
    let job = |n: u8| JobId([n; 16]);
    let gpu = Ask { gpus: 1, ..Ask::default() };
    let first = ledger.reserve(job(1), Role::Client, gpu).await.expect("free");
    assert_eq!(ledger.reserve(job(1), Role::Client, gpu).await, Ok(first.clone()), "again is the same");
    let second = ledger.reserve(job(2), Role::Client, gpu).await.expect("free");
    assert_ne!(first, second);
    let short = ledger.reserve(job(3), Role::Client, gpu).await.expect_err("none left");
    assert_eq!(short.to_string(), "0 GPUs free of 2, 1 asked for");
    assert!(!short.is_for_ever());
    let big = Ask { cpus: 5, ..Ask::default() };
    let short = ledger.reserve(job(3), Role::Client, big).await.expect_err("too many");
    assert_eq!(short.to_string(), "4 CPUs free of 4, 5 asked for");
    assert!(short.is_for_ever());
    ledger.release(job(2), Role::Client).await;
    // The reservation becomes the lease.
    let row = ledger.want(Resolved { cpus: None, memory: None, ..want(1) }).await.expect("wanted");
    assert_eq!(row.lease, first);
    ledger.release(job(1), Role::Client).await;
    assert_eq!(ledger.reserve(job(3), Role::Client, gpu).await.expect("free"), second);
    let error = ledger.want(want(4)).await.expect_err("none left");
    assert!(matches!(error, WantError::Short(_)), "{error}");
    assert!(ledger.state(job(4), Role::Client).is_none(), "nothing is kept of it");
}

#[tokio::test(start_paused = true)]
async fn refusals() {
    let parent = Parent::new().await;
    parent.backend.refuses.store(true, Ordering::SeqCst);
    parent.ledger.want(want(1)).await.expect("wanted");
    let row = parent.until(1, |row| row.ended().is_some()).await;
    assert_eq!(row.ended(), Some(&Outcome::failed(FailureClass::Image, "no such image")));
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_launches_nothing() {
    let parent = Parent::new().await;
    parent.disk.full.store(true, Ordering::SeqCst);
    let error = parent.ledger.want(want(1)).await.expect_err("it cannot be written down");
    assert!(error.to_string().contains("no space left"), "{error}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(parent.take(), Vec::<String>::new());
    parent.disk.full.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(parent.take(), Vec::<String>::new(), "who was told no does not get it later");
    assert!(parent.ledger.state(JobId([1; 16]), Role::Client).is_none());
    let id = parent.ledger.want(want(1)).await.expect("wanted").id().clone();
    parent.phase(1, WorkerPhase::Running).await;

    parent.disk.full.store(true, Ordering::SeqCst);
    parent.backend.ends(&id, Outcome::Completed).await;
    parent.take();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let row = parent.ledger.state(JobId([1; 16]), Role::Client).expect("a row");
    assert_eq!(row.phase(), WorkerPhase::Running, "what is not on disk is not shown");
    assert!(!parent.take().contains(&"remove 1".to_owned()));
    parent.disk.full.store(false, Ordering::SeqCst);
    parent.until(1, Row::is_settled).await;
}

#[tokio::test(start_paused = true)]
async fn a_launcher_with_a_bug_is_one_that_did_not_answer() {
    let parent = Parent::new().await;
    parent.backend.panics.store(true, Ordering::SeqCst);
    parent.ledger.want(want(1)).await.expect("wanted");
    let row = parent.phase(1, WorkerPhase::Running).await;
    assert_eq!((row.id().attempt, row.restarts), (2, 0), "the first provably never came to be");
}

#[tokio::test(start_paused = true)]
async fn objects_that_nobody_speaks_for_are_ended() {
    let mut parent = Parent::new().await;
    let stray = LaunchId { attempt: 7, ..want(9).id };
    parent.backend.objects.lock().expect("objects").insert(stray.clone(), Native::Waiting);
    parent.die_and_come_back().await;
    while parent.backend.objects.lock().expect("objects").contains_key(&stray) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_shows_and_changes_nothing() {
    let parent = Parent::new().await;
    parent.ledger.want(want(1)).await.expect("wanted");
    parent.phase(1, WorkerPhase::Running).await;
    let watcher = parent.backend.watcher.lock().expect("a watcher").clone().expect("it watches");
    let down = Down { since: Time(7), why: Cause("connection refused".into()) };
    watcher.send(Event::Down(down.clone())).await.expect("it listens");
    let row = parent.until(1, |row| row.unknown.is_some()).await;
    assert_eq!(row.phase(), WorkerPhase::Running);
    assert_eq!(parent.ledger.standing().down, Some(down));
    parent.until(1, |row| row.unknown.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn idle_is_idle() {
    let parent = Parent::new().await;
    let id = parent.ledger.want(want(1)).await.expect("wanted").id().clone();
    parent.phase(1, WorkerPhase::Running).await;
    parent.take();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = parent.take();
    assert!(asked.len() <= 6 && asked.iter().all(|what| what == "find"), "{asked:?}");
    parent.backend.ends(&id, Outcome::Completed).await;
    parent.until(1, Row::is_settled).await;
    parent.take();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(parent.take(), Vec::<String>::new(), "nothing lives, nothing is done");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_stops_the_parent() {
    let disk = MemoryStore::default();
    disk.put("x", "{\"version\": 99}").await.expect("written");
    let backend = Arc::new(Backend::default());
    let host = Arc::new(Letters(Trace::default()));
    let opened = Ledger::open(Arc::new(disk), backend, host, Settings::default()).await;
    assert!(matches!(opened, Err(LedgerError::Row { key, .. }) if key == "x"));
}
