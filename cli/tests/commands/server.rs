//! A server that says what a test wants it to say: real TLS, a provisioned kit, scripted answers.

use futures_util::future::BoxFuture;
use polder_api::{Problem, ProblemCode};
use polder_transport::Body;
use polder_transport::identity::{Kit, RevocationList, Revocations};
use polder_transport::server::{Call, Limits, Listener, Response, Service, serve};
use polder_transport::tls::Acceptor;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use tokio_util::sync::CancellationToken;

pub(crate) const LEAD: &str = "lead@org_a.com";

/// Answers by `METHOD path?query`; of several answers the last stays.
#[derive(Default)]
struct Script {
    answers: HashMap<String, VecDeque<(u16, Value)>>,
    asked: Vec<String>,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

impl Service for Scripted {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Response> {
        let key = format!("{} {}", call.method(), call.uri());
        let mut script = self.0.lock().expect("no test panics here");
        script.asked.push(key.clone());
        let (status, body) = match script.answers.get_mut(&key) {
            Some(answers) if answers.len() > 1 => answers.pop_front().expect("there are two"),
            Some(answers) => answers[0].clone(),
            None => (404, json!(Problem::new(ProblemCode::NotFound, format!("{key} is not scripted")))),
        };
        Box::pin(async move {
            let body = if status == 204 { Body::empty() } else { Body::full(body.to_string()) };
            http::Response::builder().status(status).body(body).expect("a good response")
        })
    }
}

/// A running server and the folder everything lies in.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    port: u16,
    script: Scripted,
    running: Option<(CancellationToken, std::thread::JoinHandle<()>)>,
}

pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn session(token: &str) -> Value {
    json!({"token": token, "federation": "test-net", "study": "pathology", "user": LEAD, "role": "lead",
        "expires": 4_102_444_800_u64})
}

impl Server {
    /// Provisions and starts.
    pub(crate) fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let project = json!({"api_version": 4, "name": "test-net", "participants": [
            {"name": "127.0.0.1", "type": "server", "org": "host", "port": port},
            {"name": LEAD, "type": "admin", "org": "org_a", "role": "lead"},
        ]});
        std::fs::write(dir.path().join("project.yml"), project.to_string()).expect("written");
        let mut server = Self { dir, port, script: Scripted::default(), running: None };
        let said = server.polder(&["provision", "project.yml", "--out", "fed"]);
        assert_eq!(said.code, 0, "{}", said.err);
        server.answer("POST /v1/user/sessions", 200, session("first"));
        server.up();
        server
    }

    /// Listens.
    pub(crate) fn up(&mut self) {
        let stop = CancellationToken::new();
        let (service, stopped, port) = (Arc::new(self.script.clone()), stop.clone(), self.port);
        let kit = Kit::open(&self.kit("127.0.0.1"), jiff::Timestamp::now()).expect("provisioned above");
        let (ready, listening) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = Listener::tcp(&format!("127.0.0.1:{port}")).await.expect("the port is free");
                let revocations = Arc::new(Revocations::new(&RevocationList::empty()));
                let acceptor = Acceptor::participants(&kit, revocations).expect("a good kit");
                ready.send(()).expect("the test waits");
                serve(listener, acceptor, service, Limits::default(), stopped).await;
            });
        });
        listening.recv().expect("it listens");
        self.running = Some((stop, thread));
    }

    /// Stops listening.
    pub(crate) fn down(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.cancel();
            thread.join().expect("serving does not panic");
        }
    }

    /// What it says to `METHOD path`, after what it was told before.
    pub(crate) fn answer(&self, key: &str, status: u16, body: Value) {
        let mut script = self.script.0.lock().expect("no test panics here");
        script.answers.entry(key.to_owned()).or_default().push_back((status, body));
    }

    /// What it was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.script.0.lock().expect("no test panics here").asked)
    }

    pub(crate) fn kit(&self, name: &str) -> PathBuf {
        self.dir.path().join("fed/kits").join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polder"));
        command
            .args(words)
            .current_dir(self.dir.path())
            .env_clear()
            .env("HOME", self.dir.path())
            .env("POLDER_KIT", self.kit(LEAD))
            .env("POLDER_STUDY", "pathology")
            .stdin(Stdio::null());
        command
    }

    /// Runs `polder WORDS...`.
    pub(crate) fn polder(&self, words: &[&str]) -> Said {
        let Output { status, stdout, stderr } = self.command(words).output().expect("it starts");
        Said {
            code: status.code().expect("it ends by itself"),
            out: String::from_utf8(stdout).expect("text"),
            err: String::from_utf8(stderr).expect("text"),
        }
    }

    /// Runs it twice, for people and for programs, and shows both.
    pub(crate) fn shown(&self, words: &[&str]) -> String {
        let text = self.polder(words);
        let json = self.polder(&[words, &["--json"]].concat());
        assert_eq!(text.code, json.code, "the exit code does not depend on the form");
        let dir = self.dir.path().display().to_string();
        let shown = format!(
            "$ polder {}\n{}-- notes\n{}-- json\n{}-- exit {}\n",
            words.join(" "),
            text.out,
            text.err,
            json.out,
            text.code
        );
        shown.replace(&dir, "DIR").replace(&format!(":{}", self.port), ":PORT")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.down();
    }
}
