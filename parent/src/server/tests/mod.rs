//! The server's role over its real HTTP API with real certificates; workers and sites are played.

mod life;
mod restart;
mod rights;
mod submit;

use super::launches::Launches;
use super::state::Server;
use super::upstream::ServerUpstream;
use super::{News, Setup, router};
use crate::workers::{TakeError, Upstream, WorkerState};
use async_trait::async_trait;
use polder_api::order::ORDER_DOMAIN;
use polder_api::site::{Ack, Amount, Desired, Goal, Hello, Observation, Observed, Offer, Stand, Welcome};
use polder_api::user::{Events, Job, OpenSession, Session, Submit, Submitted};
use polder_api::{Order, OrderSites, PROTOCOL, Problem, SignedOrder};
use polder_core::schedule::Site as Standing;
use polder_launch::Clock;
use polder_store::bundle::{Limits as BundleLimits, pack};
use polder_store::{Audit, Sqlite};
use polder_transport::Endpoint;
use polder_transport::blob::{Transfer, Tree, TreeHasher, copy_hashing, upload};
use polder_transport::client::{Client, Dialer};
use polder_transport::identity::{Kit, Participant, Principal, ProjectPlan, provision};
use polder_transport::server::{Limits, Listener, serve};
use polder_transport::tls::Acceptor;
use polder_words::{
    AppName, BlobRef, Epoch, FailureClass, Hash, Isolation, JobId, JobPhase, LaunchId, Mode, Nonce, Outcome,
    Role, SiteName, UserName, UserRole, WorkerPhase,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const LEAD: &str = "lead@org_a.com";
const OTHER_LEAD: &str = "lead@org_b.com";
const MEMBER: &str = "member@org_a.com";
const ADMIN: &str = "admin@host.com";
const STUDY: &str = "pathology";
const OTHER_STUDY: &str = "genomics";

/// What the server asked of its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    Run(JobId),
    Stop(JobId, String),
    Forget(JobId),
}

/// Plays the launcher of server workers; its run directories are folders of a test.
struct Played {
    runs: PathBuf,
    asked: Mutex<Vec<Asked>>,
    poked: tokio::sync::Notify,
    /// Why nothing can be launched, if so.
    refuses: Mutex<Option<Outcome>>,
}

impl Played {
    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no test panics here").clone()
    }

    fn ask(&self, what: Asked) {
        self.asked.lock().expect("no test panics here").push(what);
    }

    fn dir(&self, job: JobId) -> PathBuf {
        self.runs.join(job.to_string())
    }
}

#[async_trait]
impl Launches for Played {
    async fn reserve(&self, _: &super::job::Facts) -> Result<(), String> {
        Ok(())
    }
    async fn release(&self, _: JobId) {}
    async fn run(&self, facts: &super::job::Facts, app: PathBuf) -> Result<(), Outcome> {
        assert!(app.is_file(), "the server's app is there");
        for name in ["in", "out"] {
            std::fs::create_dir_all(self.dir(facts.id).join(name)).expect("a folder");
        }
        self.ask(Asked::Run(facts.id));
        self.refuses.lock().expect("no test panics here").clone().map_or(Ok(()), Err)
    }
    async fn stop(&self, job: JobId, why: &str, _: u64) {
        self.ask(Asked::Stop(job, why.to_owned()));
    }
    fn forget(&self, job: JobId) {
        self.ask(Asked::Forget(job));
    }
    fn poke(&self, _: JobId) {
        self.poked.notify_one();
    }
    async fn give(&self, job: JobId, file: PathBuf, blob: BlobRef) -> std::io::Result<String> {
        let path = format!("in/{}", blob.root);
        let dest = self.dir(job).join(&path);
        if !dest.exists() {
            std::fs::hard_link(file, dest)?;
        }
        Ok(path)
    }
    async fn take(&self, job: JobId, path: &str, _: u64, folder: &Path) -> Result<Tree, TakeError> {
        let io = |source| TakeError::Io { path: path.to_owned(), source };
        let mut from = std::fs::File::open(self.dir(job).join(path)).map_err(io)?;
        let mut bytes = Vec::new();
        let tree = copy_hashing(&mut from, &mut bytes).map_err(io)?;
        std::fs::write(folder.join(tree.blob().root.to_string()), bytes).map_err(io)?;
        Ok(tree)
    }
    async fn keep_only(&self, job: JobId, keep: BTreeSet<Hash>) {
        let Ok(entries) = std::fs::read_dir(self.dir(job).join("in")) else { return };
        for entry in entries.flatten() {
            let name: Option<Hash> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if name.is_none_or(|root| !keep.contains(&root)) {
                std::fs::remove_file(entry.path()).expect("removed");
            }
        }
    }
    fn standing(&self) -> Standing {
        Standing { connected: true, ..Standing::default() }
    }
    fn jobs(&self) -> Vec<JobId> {
        Vec::new()
    }
}

/// A server, and the kits of everybody.
struct Bed {
    dir: tempfile::TempDir,
    port: u16,
    run: Option<Running>,
    epoch: AtomicU8,
}

struct Running {
    server: Arc<Server>,
    launches: Arc<Played>,
    upstream: ServerUpstream,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

fn participants() -> Vec<Participant> {
    let one = |principal, org: &str| Participant {
        principal,
        org: org.parse().expect("a name"),
        hosts: vec!["127.0.0.1".to_owned()],
        request: None,
    };
    let user = |name: &str, role| Principal::User(name.parse().expect("a name"), role);
    let mut all = vec![one(Principal::Server("localhost".parse().expect("a name")), "host")];
    for (name, org) in [("a", "org_a"), ("b", "org_b"), ("c", "org_c")] {
        all.push(one(Principal::Site(name.parse().expect("a name")), org));
    }
    all.push(one(user(LEAD, UserRole::Lead), "org_a"));
    all.push(one(user(OTHER_LEAD, UserRole::Lead), "org_b"));
    all.push(one(user(MEMBER, UserRole::Member), "org_a"));
    all.push(one(user(ADMIN, UserRole::ProjectAdmin), "host"));
    all
}

fn project() -> Value {
    let site = |name: &str, org: &str| json!({"name": name, "type": "client", "org": org});
    let user =
        |name: &str, org: &str, role: &str| json!({"name": name, "type": "admin", "org": org, "role": role});
    json!({
        "api_version": 4,
        "name": "net",
        "participants": [
            {"name": "localhost", "type": "server", "org": "host"},
            site("a", "org_a"), site("b", "org_b"), site("c", "org_c"),
            user(LEAD, "org_a", "lead"), user(OTHER_LEAD, "org_b", "lead"),
            user(MEMBER, "org_a", "member"), user(ADMIN, "host", "project_admin"),
        ],
        "studies": {
            STUDY: {"site_orgs": {"org_a": ["a"], "org_b": ["b"], "org_c": ["c"]}, "admins": [LEAD, MEMBER]},
            OTHER_STUDY: {"site_orgs": {"org_b": ["b"]}, "admins": [OTHER_LEAD]},
        },
    })
}

impl Bed {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let listener = Listener::tcp("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is TCP").port();
        let plan = ProjectPlan {
            federation: "net".to_owned(),
            server: Endpoint::new("localhost", port).expect("an address"),
            days: 2,
            participants: participants(),
        };
        provision(&plan, &dir.path().join("fed"), jiff::Timestamp::now()).expect("provisioned");
        let kit = dir.path().join("fed/kits/localhost");
        std::fs::write(kit.join("project.yml"), project().to_string()).expect("written");
        let mut bed = Self { dir, port, run: None, epoch: AtomicU8::new(0) };
        bed.start_on(listener).await;
        bed
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    async fn start_on(&mut self, listener: Listener) {
        let state = self.state();
        std::fs::create_dir_all(&state).expect("a folder");
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        let setup = Setup {
            kit: Arc::new(self.kit("localhost")),
            epoch: Epoch([epoch; 8]),
            clock: Clock::default(),
            store: Arc::new(Sqlite::open(&state).expect("opens")),
            audit: Arc::new(Audit::open(&state.join("audit.jsonl")).expect("opens")),
            authorization: state.join("authorization.json"),
            project: self.dir.path().join("fed/kits/localhost/project.yml"),
            max_restarts: 2,
            state: state.clone(),
        };
        let stop = CancellationToken::new();
        let (server, news): (_, News) = setup.open(stop.clone()).await.expect("opens");
        let launches = Arc::new(Played {
            runs: state.join("runs"),
            asked: Mutex::default(),
            poked: tokio::sync::Notify::new(),
            refuses: Mutex::default(),
        });
        let begun = server.begin(Arc::clone(&launches) as Arc<dyn Launches>, news).await;
        begun.expect("takes up what is there");
        let acceptor =
            Acceptor::participants(&server.kit, Arc::clone(server.revoked.list())).expect("a good kit");
        let limits = Limits { grace: Duration::from_secs(1), ..Limits::default() };
        let serving = tokio::spawn(serve(listener, acceptor, router(&server), limits, stop.clone()));
        let upstream = ServerUpstream(Arc::clone(&server));
        self.run = Some(Running { server, launches, upstream, stop, serving });
    }

    /// The server dies and comes up again, with nothing but its disk.
    async fn restart(&mut self) {
        let run = self.run.take().expect("it runs");
        run.stop.cancel();
        run.serving.await.expect("it ends");
        drop((run.server, run.upstream));
        let listener = loop {
            match Listener::tcp(&format!("127.0.0.1:{}", self.port)).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        self.start_on(listener).await;
    }

    fn run(&self) -> &Running {
        self.run.as_ref().expect("it runs")
    }

    fn kit(&self, name: &str) -> Kit {
        Kit::open(&self.dir.path().join("fed/kits").join(name), jiff::Timestamp::now()).expect("a good kit")
    }

    fn client(&self, name: &str) -> Client {
        Client::new(Dialer::federation(&self.kit(name)).expect("a good key"))
    }

    async fn session(&self, name: &str, study: &str) -> Result<Session, Problem> {
        let open = OpenSession { study: study.parse().expect("a name"), protocol: PROTOCOL };
        said(self.client(name).post("/v1/user/sessions").json(&open).fetch().await)
    }

    async fn login(&self, name: &str, study: &str) -> Client {
        let session = self.session(name, study).await.expect("may log in");
        self.client(name).with_header("authorization", &format!("Bearer {}", session.token))
    }

    /// A site that says hello.
    async fn site(&self, name: &str) -> Site {
        Site::connect(self.client(name), name).await
    }

    /// The app every test uses, uploaded.
    async fn app(&self, user: &Client) -> BlobRef {
        let job = json!({"rounds": 2, "trainer": {"command": ["./train"]}});
        self.upload(user, &[("job.yaml", job.to_string().as_bytes()), ("train", b"#!/bin/sh\n")]).await
    }

    async fn upload(&self, user: &Client, files: &[(&str, &[u8])]) -> BlobRef {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, body) in files {
            std::fs::write(folder.path().join(name), body).expect("written");
        }
        let bytes = pack(folder.path(), Vec::new(), &BundleLimits::default()).expect("packs");
        self.upload_bytes(user, &bytes).await
    }

    async fn upload_bytes(&self, user: &Client, bytes: &[u8]) -> BlobRef {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), bytes).expect("written");
        let mut hasher = TreeHasher::new();
        hasher.update(bytes);
        let tree = hasher.finish();
        let how = Transfer { tries: 1, ..Transfer::default() };
        upload(user, "/v1/user/uploads", file.path(), &tree, &how).await.expect("uploads");
        tree.blob()
    }

    fn order(&self, user: &str, meta: &Value, app: BlobRef) -> Order {
        static NONCE: AtomicU8 = AtomicU8::new(0);
        let issued = u64::try_from(jiff::Timestamp::now().as_second()).expect("after 1970");
        Order {
            version: 1,
            federation: "net".to_owned(),
            study: STUDY.parse().expect("a name"),
            submitter: user.parse().expect("a name"),
            sites: OrderSites::All,
            meta: meta.to_string(),
            apps: BTreeMap::from([(AppName::new("app").expect("a name"), app)]),
            cloned_from: None,
            nonce: Nonce([NONCE.fetch_add(1, Ordering::Relaxed); 16]),
            issued,
            expires: issued + 3600,
        }
    }

    fn sign(&self, user: &str, order: &Order) -> SignedOrder {
        let kit = self.kit(user);
        let text = serde_json::to_string(order).expect("JSON");
        let signature = kit.sign(ORDER_DOMAIN, text.as_bytes()).expect("signs").to_string();
        SignedOrder { order: text, signature, certificate: kit.certificate_pem().to_owned() }
    }

    /// Submits a job for all sites of the study.
    async fn submit(&self, user: &Client, meta: &Value) -> Result<JobId, Problem> {
        let app = self.app(user).await;
        let order = self.order(LEAD, meta, app);
        submit(user, &self.sign(LEAD, &order)).await
    }

    async fn job(&self, user: &Client, id: JobId) -> Job {
        said(user.get(&format!("/v1/user/jobs/{id}")).fetch().await).expect("may look")
    }

    /// Waits until the job is in a phase.
    async fn until(&self, user: &Client, id: JobId, phase: JobPhase) -> Job {
        let mut after = 0;
        let look = async {
            loop {
                let job = self.job(user, id).await;
                if job.phase == phase {
                    return job;
                }
                let path = format!("/v1/user/jobs/{id}/events?after={after}&wait=1");
                let events: Events = said(user.get(&path).fetch().await).expect("may look");
                assert!(
                    !events.end || self.job(user, id).await.phase == phase,
                    "{:?}",
                    self.job(user, id).await
                );
                after = events.next;
            }
        };
        match tokio::time::timeout(Duration::from_secs(20), look).await {
            Ok(job) => job,
            Err(_) => panic!("not {phase}: {:?}", self.job(user, id).await),
        }
    }

    /// Says how the server worker stands.
    fn worker(&self, job: JobId, attempt: u32, ended: Option<Outcome>) {
        let state = WorkerState {
            launch: launch(job, attempt),
            phase: if ended.is_some() { WorkerPhase::Exited } else { WorkerPhase::Running },
            native: Some(format!("pid {attempt}")),
            reason: None,
            ready: ended.is_none(),
            unknown_since: None,
            doing: None,
            ended,
        };
        self.run().upstream.worker_changed(job, Role::Server, &state);
    }
}

async fn submit(user: &Client, signed: &SignedOrder) -> Result<JobId, Problem> {
    let body = Submit { order: signed.clone() };
    let done: Result<Submitted, _> = user.post("/v1/user/jobs").json(&body).idempotent().fetch().await;
    said(done).map(|done| done.job)
}

/// What the server said, or what it refused; anything else fails the test.
#[track_caller]
fn said<T>(answer: Result<T, polder_transport::client::ClientError>) -> Result<T, Problem> {
    answer.map_err(|error| error.problem().cloned().unwrap_or_else(|| panic!("{error}")))
}

fn launch(job: JobId, attempt: u32) -> LaunchId {
    LaunchId { job, site: SiteName::server(), role: Role::Server, attempt }
}

fn name(text: &str) -> SiteName {
    SiteName::new(text).expect("a name")
}

fn meta(min_clients: u32, mandatory: &[&str]) -> Value {
    json!({"name": "try", "deploy_map": {"app": ["@ALL"]}, "min_clients": min_clients, "mandatory_clients": mandatory})
}

/// A site, played by hand.
struct Site {
    client: Client,
    epoch: Epoch,
    cursor: String,
    /// The goal of each job, as the server wants it now.
    wanted: BTreeMap<JobId, polder_api::site::Assignment>,
    forgotten: Vec<JobId>,
}

fn offer() -> Offer {
    Offer {
        mode: Mode::Process,
        architectures: vec!["x86_64".to_owned()],
        isolation: Isolation::Landlock,
        not_enforced: Vec::new(),
        gpus: Some(Amount { free: 0, all: 0 }),
        cpus: Some(Amount { free: 4, all: 4 }),
        memory_mib: None,
        down: None,
    }
}

impl Site {
    async fn connect(client: Client, name: &str) -> Self {
        let epoch = Epoch([name.as_bytes()[0]; 8]);
        let hello = Hello { protocol: PROTOCOL, version: "1".to_owned(), epoch, offer: offer() };
        let _: Welcome = said(client.post("/v1/site/hello").json(&hello).fetch().await).expect("welcome");
        Self { client, epoch, cursor: String::new(), wanted: BTreeMap::new(), forgotten: Vec::new() }
    }

    /// One poll.
    async fn poll(&mut self, wait: u64) {
        let path = format!("/v1/site/desired?after={}&wait={wait}", self.cursor);
        let poll = self.client.get(&path).long_poll(Duration::from_secs(wait));
        let desired: Desired = said(poll.fetch().await).expect("may poll");
        self.cursor = desired.cursor;
        if desired.snapshot {
            self.wanted.clear();
        }
        for mut assignment in desired.assignments {
            if assignment.order.is_none() {
                assignment.order = self.wanted.get(&assignment.job).and_then(|known| known.order.clone());
            }
            assert!(assignment.order.is_some(), "an assignment without the order it belongs to");
            self.wanted.insert(assignment.job, assignment);
        }
        for job in desired.forgotten {
            self.wanted.remove(&job);
            self.forgotten.push(job);
        }
    }

    /// Polls until something holds.
    async fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..40 {
            if holds(self) {
                return;
            }
            self.poll(1).await;
        }
        panic!("never {what}: {:?}", self.wanted);
    }

    async fn until_goal(&mut self, job: JobId, goal: &str) {
        self.until(goal, |site| site.goal(job) == Some(goal)).await;
    }

    fn goal(&self, job: JobId) -> Option<&'static str> {
        self.wanted.get(&job).map(|assignment| match assignment.goal {
            Goal::Reserve => "reserve",
            Goal::Run => "run",
            Goal::Stop { .. } => "stop",
        })
    }

    async fn says(&self, job: JobId, stand: Stand) {
        let observed = Observed { epoch: self.epoch, jobs: vec![Observation { job, stand }], offer: None };
        let _: Ack =
            said(self.client.post("/v1/site/observed").json(&observed).fetch().await).expect("acknowledged");
    }

    async fn reserves(&mut self, job: JobId) {
        self.until_goal(job, "reserve").await;
        self.says(job, Stand::Reserved { terms: None }).await;
    }

    async fn runs(&mut self, job: JobId) {
        self.until_goal(job, "run").await;
        self.says(job, running(1)).await;
    }

    async fn ends(&mut self, job: JobId) {
        self.until_goal(job, "stop").await;
        self.says(job, Stand::Ended { attempts: 1, outcome: Outcome::Completed }).await;
    }
}

fn running(attempt: u32) -> Stand {
    Stand::Worker {
        attempt,
        phase: WorkerPhase::Running,
        native: Some("pid 1".to_owned()),
        reason: None,
        ready: true,
        unknown_since: None,
    }
}

fn failed(class: FailureClass, cause: &str) -> Outcome {
    Outcome::Failed { class, cause: cause.to_owned(), tail: "last line".to_owned() }
}

fn user(name: &str) -> UserName {
    name.parse().expect("a name")
}
