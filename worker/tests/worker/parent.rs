//! A parent as far as a worker can tell: it enrols, says what is wanted, and writes down what it hears.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Method;
use polder_api::payload::Payload;
use polder_api::site::{Ack, Task, TaskOutcome, TaskResult};
use polder_api::worker::{
    Dial, Ending, Enrol, Enrolled, Handover, Member, Next, Report, RoundDone, Stop, Tasks, WorkerAssignment,
};
use polder_transport::identity::WorkerAuthority;
use polder_transport::server::{Call, Limits, Listener, Problem, ProblemCode, Response, Router, json, serve};
use polder_transport::tls::Acceptor;
use polder_words::{Epoch, JobId, LaunchId, Role, SiteName, TaskId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Nothing in these tests takes that long.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the parent was told.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) enrolled: usize,
    pub(crate) reports: Vec<Report>,
    pub(crate) log: Vec<u8>,
    pub(crate) dropped: u64,
    pub(crate) results: Vec<TaskResult>,
    pub(crate) tasks: Vec<Tasks>,
    pub(crate) rounds: Vec<RoundDone>,
    pub(crate) ending: Option<Ending>,
}

struct Inner {
    authority: Arc<WorkerAuthority>,
    assignment: Mutex<WorkerAssignment>,
    next: Mutex<Next>,
    heard: Mutex<Heard>,
    /// Counts what changed: the desired state for the worker, the heard things for the test.
    wanted: watch::Sender<u64>,
    news: watch::Sender<u64>,
}

/// A parent and the folder in which it lives.
pub(crate) struct Parent {
    pub(crate) dir: tempfile::TempDir,
    inner: Arc<Inner>,
    runtime: tokio::runtime::Runtime,
    stop: CancellationToken,
    serving: Option<tokio::task::JoinHandle<()>>,
}

pub(crate) fn site(name: &str) -> SiteName {
    SiteName::new(name).expect("a good name")
}

pub(crate) fn trainer() -> String {
    let worker = Path::new(env!("CARGO_BIN_EXE_polder-worker"));
    worker.with_file_name("examples").join("test-trainer").display().to_string()
}

/// `job.yaml` with this trainer.
pub(crate) fn job(command: &[&str], rounds: u32, more: &Value) -> Value {
    let mut job =
        json!({"workflow": "fedavg", "rounds": rounds, "trainer": {"command": command, "mode": "session"}});
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        job[key] = value;
    }
    job
}

impl Parent {
    pub(crate) fn new(role: Role, job: Value, change: impl FnOnce(&mut WorkerAssignment)) -> Self {
        let dir = tempfile::Builder::new().prefix("w").tempdir().expect("a folder");
        let now = jiff::Timestamp::now();
        let authority = WorkerAuthority::open_or_create(&dir.path().join("ca"), now).expect("a CA");
        let launch = LaunchId { job: JobId([7; 16]), site: site("site-1"), role, attempt: 1 };
        let mut assignment = WorkerAssignment {
            launch,
            study: polder_words::StudyName::new("pathology").expect("a good name"),
            name: "a job".to_owned(),
            job,
            sites: vec![site("a"), site("b")],
            min_clients: 2,
            mandatory: Vec::new(),
            env: BTreeMap::new(),
            secret_env: BTreeMap::new(),
            gpus: Vec::new(),
            shared_files: true,
            report_seconds: 1,
        };
        change(&mut assignment);
        let epoch = Epoch([1; 8]);
        let next = Next {
            cursor: format!("{epoch}:1"),
            epoch,
            stop: None,
            task: None,
            results: BTreeMap::new(),
            roster: BTreeMap::new(),
        };
        for folder in ["app", "in", "out", "state"] {
            std::fs::create_dir_all(dir.path().join("run").join(folder)).expect("made");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let mut parent = Self {
            dir,
            inner: Arc::new(Inner {
                authority: Arc::new(authority),
                assignment: Mutex::new(assignment),
                next: Mutex::new(next),
                heard: Mutex::default(),
                wanted: watch::Sender::new(1),
                news: watch::Sender::new(0),
            }),
            runtime,
            stop: CancellationToken::new(),
            serving: None,
        };
        parent.listen();
        parent
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn listen(&mut self) {
        let inner = self.inner.clone();
        let router = Router::new(inner.clone())
            .post("/v1/worker/enrol", Inner::enrol)
            .get("/v1/worker/assignment", async |inner: Arc<Inner>, _| {
                Ok(json(&*inner.assignment.lock().expect("no panic")))
            })
            .get("/v1/worker/next", Inner::next)
            .post("/v1/worker/report", Inner::report)
            .post("/v1/worker/results", async |inner: Arc<Inner>, call| {
                inner.hear(call, |heard, result| heard.results.push(result)).await
            })
            .route(Method::PUT, "/v1/worker/tasks", async |inner: Arc<Inner>, call| {
                inner.hear(call, |heard, tasks| heard.tasks.push(tasks)).await
            })
            .post("/v1/worker/rounds", async |inner: Arc<Inner>, call| {
                inner.hear(call, |heard, round| heard.rounds.push(round)).await
            })
            .post("/v1/worker/outcome", async |inner: Arc<Inner>, call| {
                inner.hear(call, |heard, ending| heard.ending = Some(ending)).await
            });
        self.stop = CancellationToken::new();
        let stop = self.stop.clone();
        let socket = self.socket();
        self.serving = Some(self.runtime.spawn(async move {
            let listener = Listener::unix(&socket, 0o600).expect("a socket");
            let acceptor = Acceptor::workers(inner.authority.clone()).expect("TLS");
            let limits = Limits { grace: Duration::from_millis(50), ..Limits::default() };
            serve(listener, acceptor, Arc::new(router), limits, stop).await;
        }));
        while !self.socket().exists() {
            std::thread::yield_now();
        }
    }

    /// Goes away in the middle of everything.
    pub(crate) fn go_away(&mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            self.runtime.block_on(serving).expect("it serves");
        }
    }

    /// Comes back as another run, knowing what the test says it knows.
    pub(crate) fn come_back(&mut self, change: impl FnOnce(&mut Next)) {
        self.want(|next| {
            next.epoch = Epoch([next.epoch.0[0] + 1; 8]);
            change(next);
        });
        self.listen();
    }

    /// Changes what is wanted of the worker.
    pub(crate) fn want(&self, change: impl FnOnce(&mut Next)) {
        let mut next = self.inner.next.lock().expect("no panic");
        self.inner.wanted.send_modify(|n| {
            *n += 1;
            change(&mut next);
            next.cursor = format!("{}:{n}", next.epoch);
        });
    }

    /// The worker to be launched next is another attempt.
    pub(crate) fn next_attempt(&mut self, attempt: u32) {
        self.inner.assignment.lock().expect("no panic").launch.attempt = attempt;
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.inner.heard.lock().expect("no panic")
    }

    /// Waits until something was heard.
    pub(crate) fn wait_for<T>(&self, what: &str, mut found: impl FnMut(&Heard) -> Option<T>) -> T {
        let mut news = self.inner.news.subscribe();
        let waiting = async {
            loop {
                let found = found(&self.heard());
                match found {
                    Some(found) => return found,
                    None => news.changed().await.expect("the parent lives"),
                }
            }
        };
        let found = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, waiting).await });
        found.unwrap_or_else(|_| {
            let heard = self.heard();
            panic!(
                "{what} did not come; results {:?}, tasks {:?}, ending {:?}, log:\n{}",
                heard.results,
                heard.tasks,
                heard.ending,
                String::from_utf8_lossy(&heard.log)
            )
        })
    }

    pub(crate) fn result(&self, task: TaskId) -> TaskOutcome {
        self.wait_for(&format!("the result of {task}"), |heard| {
            heard.results.iter().find(|result| result.task == task).map(|result| result.result.clone())
        })
    }

    pub(crate) fn ending(&self) -> Ending {
        self.wait_for("the ending", |heard| heard.ending.clone())
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.heard().log).into_owned()
    }

    /// Gives a round's task with a model in the message.
    pub(crate) fn give(
        &self,
        round: u32,
        total_rounds: u32,
        model: &[u8],
        timeout_millis: Option<u64>,
    ) -> TaskId {
        let id = TaskId { attempt: 1, round, step: 0 };
        let model = Some(Payload::Inline { data: BASE64.encode(model) });
        let task = Task {
            id,
            kind: "train".to_owned(),
            total_rounds,
            model,
            params: serde_json::Map::new(),
            timeout_millis,
        };
        self.want(|next| next.task = Some(task));
        id
    }

    pub(crate) fn finish(&self) {
        self.want(|next| {
            next.task = None;
            next.stop = Some(Stop { why: "finished".to_owned(), grace_seconds: 5 });
        });
    }

    /// Starts the worker as a launcher would.
    pub(crate) fn launch(&self) -> Worker {
        self.launch_with(&[])
    }

    pub(crate) fn launch_with(&self, args: &[&str]) -> Worker {
        let handover = Handover {
            protocol: polder_api::PROTOCOL,
            launch: self.inner.launch(),
            dial: vec![Dial::Unix { path: self.socket().display().to_string() }],
            pin: self.inner.authority.pin(),
            token: "once".to_owned(),
            run_dir: self.run_dir().display().to_string(),
            files: polder_words::FileWay::Shared,
        };
        let path = self.dir.path().join("handover.json");
        std::fs::write(&path, serde_json::to_vec(&handover).expect("JSON")).expect("written");
        let log = std::fs::File::create(self.dir.path().join("worker.log")).expect("a file");
        let child = Command::new(env!("CARGO_BIN_EXE_polder-worker"))
            .args(["run", "--handover"])
            .arg(path)
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("the worker starts");
        Worker(child)
    }
}

impl Inner {
    async fn enrol(self: Arc<Self>, mut call: Call) -> Result<Response, Problem> {
        let enrol: Enrol = call.json(1 << 20).await?;
        if enrol.token != "once" {
            return Err(Problem::new(ProblemCode::Forbidden, "token"));
        }
        let now = jiff::Timestamp::now();
        let until = now + jiff::SignedDuration::from_hours(1);
        let certificate = self
            .authority
            .issue(&enrol.request, &enrol.launch, now, until)
            .map_err(|error| Problem::new(ProblemCode::Invalid, error.to_string()))?;
        self.note(|heard| heard.enrolled += 1);
        Ok(json(&Enrolled { certificate }))
    }

    async fn next(self: Arc<Self>, call: Call) -> Result<Response, Problem> {
        let after: Option<String> = call.query("after")?;
        let mut wanted = self.wanted.subscribe();
        loop {
            wanted.mark_unchanged();
            let next = self.next.lock().expect("no panic").clone();
            if after.as_ref() != Some(&next.cursor) {
                return Ok(json(&next));
            }
            tokio::select! {
                _ = wanted.changed() => {}
                () = call.stopping.cancelled() => return Ok(json(&next)),
            }
        }
    }

    async fn report(self: Arc<Self>, call: Call) -> Result<Response, Problem> {
        self.hear(call, |heard, report: Report| {
            if let Some(log) = &report.log {
                let data = BASE64.decode(&log.data).expect("base64");
                assert!(log.offset >= heard.log.len() as u64 || heard.dropped > 0, "bytes come twice");
                heard.log.extend(data);
                heard.dropped += log.dropped;
            }
            heard.reports.push(report);
        })
        .await
    }

    async fn hear<T: serde::de::DeserializeOwned>(
        &self,
        mut call: Call,
        write_down: impl FnOnce(&mut Heard, T),
    ) -> Result<Response, Problem> {
        if call.peer.holder.worker().is_none_or(|worker| worker.launch != self.launch()) {
            return Err(Problem::new(ProblemCode::Forbidden, "not this worker"));
        }
        let said = call.json(1 << 20).await?;
        self.note(|heard| write_down(heard, said));
        Ok(json(&Ack { epoch: self.next.lock().expect("no panic").epoch }))
    }

    fn launch(&self) -> LaunchId {
        self.assignment.lock().expect("no panic").launch.clone()
    }

    fn note(&self, write_down: impl FnOnce(&mut Heard)) {
        write_down(&mut self.heard.lock().expect("no panic"));
        self.news.send_modify(|n| *n += 1);
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A worker's process; killed when the test ends before it.
pub(crate) struct Worker(pub(crate) Child);

impl Worker {
    /// Its exit code, when it ends by itself in time.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("it is a child") {
                return status.code();
            }
            assert!(Instant::now() < until, "the worker does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// `VmHWM` of its process, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel tells");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everybody is there.
pub(crate) fn ready(sites: &[&str]) -> BTreeMap<SiteName, Member> {
    sites.iter().map(|name| (site(name), Member::Ready)).collect()
}

/// A model `w` of F32 values.
pub(crate) fn model(values: &[f32]) -> Vec<u8> {
    let header =
        polder_workflow::Header::build([("w", polder_workflow::Dtype::F32, &[values.len() as u64][..])]);
    let mut bytes = header.expect("a header").to_bytes();
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

/// The same with one value many times.
pub(crate) fn model_of(value: f32, count: usize) -> Vec<u8> {
    let header = polder_workflow::Header::build([("w", polder_workflow::Dtype::F32, &[count as u64][..])]);
    let mut bytes = header.expect("a header").to_bytes();
    bytes.extend(value.to_le_bytes().repeat(count));
    bytes
}

/// The values of a model in a message.
pub(crate) fn values(payload: &Payload) -> Vec<f32> {
    let Payload::Inline { data } = payload else { panic!("not in the message: {payload:?}") };
    let bytes = BASE64.decode(data).expect("base64");
    let model = polder_workflow::Model::from_bytes(bytes).expect("a model");
    let tensor = model.header().get("w").expect("it is there").clone();
    let mut raw = vec![0; usize::try_from(tensor.end - tensor.start).expect("small")];
    model.read_data(&mut raw, tensor.start).expect("readable");
    raw.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
}
