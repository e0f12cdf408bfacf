//! A site of its own for every test: run directories, a launcher, and a shell as the worker.

use polder_launch::{
    Allotted, End, Event, Exit, Fate, Handover, LaunchError, Launcher, Native, NativeId, Plan, Resolved,
    Sighting,
};
use polder_process::{ProcessLauncher, Settings};
use polder_words::{JobId, LaunchId, Outcome, Role, SiteName, StudyName};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Longest wait for anything; reached only by a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Site {
    pub(crate) dir: Option<Arc<TempDir>>,
    pub(crate) settings: Settings,
}

impl Site {
    /// A site whose worker is a shell that runs this script.
    pub(crate) fn new(script: &str) -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("a folder"));
        let settings = Self::at(dir.path(), script).settings;
        Self { dir: Some(dir), settings }
    }

    /// The same in a folder that is somebody else's to remove.
    pub(crate) fn at(dir: &Path, script: &str) -> Self {
        let state = dir.join("state");
        fs::create_dir_all(state.join("runs")).expect("folders");
        let mut settings = Settings::new(state.join("runs"));
        settings.hide = vec![state];
        settings.gpus = polder_process::Gpus::Ids(Vec::new());
        settings.shim = Some(env!("CARGO_BIN_EXE_polder-worker").into());
        settings.worker_args = Some(vec!["-c".into(), script.into()]);
        Self { dir: None, settings }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.settings.hide[0].clone()
    }

    pub(crate) fn launcher(&self) -> Arc<ProcessLauncher> {
        Arc::new(ProcessLauncher::new(self.settings.clone()))
    }

    pub(crate) fn want(&self, job: u8) -> Resolved {
        let id = LaunchId {
            job: JobId([job; 16]),
            site: SiteName::new("hospital-a").expect("a name"),
            role: Role::Client,
            attempt: 1,
        };
        Resolved {
            run_dir: self.settings.runs.join(format!("{}-{}", id.job, id.role)),
            id,
            study: StudyName::new("pathology").expect("a name"),
            worker: "/bin/sh".into(),
            files: polder_words::FileWay::Shared,
            gpus: 0,
            cpus: None,
            memory: None,
            options: serde_json::Map::new(),
            runtime: serde_json::Value::Null,
            pending_timeout_ms: None,
            max_restarts: 2,
        }
    }
}

/// A launcher and one launch of it.
pub(crate) struct One {
    /// Kept as long as anything runs there.
    pub(crate) dir: Option<Arc<TempDir>>,
    pub(crate) launcher: Arc<ProcessLauncher>,
    pub(crate) want: Resolved,
}

impl One {
    pub(crate) fn new(site: &Site) -> Self {
        Self { dir: site.dir.clone(), launcher: site.launcher(), want: site.want(1) }
    }

    pub(crate) fn id(&self) -> &LaunchId {
        &self.want.id
    }

    pub(crate) fn plan(&self) -> Plan {
        self.launcher.plan(&self.want, &Allotted::default()).expect("a plan")
    }

    pub(crate) async fn prepare(&self) -> Result<NativeId, LaunchError> {
        self.launcher
            .prepare(self.id(), &self.plan(), &Handover::new(b"{\"token\":\"s3cret\"}".to_vec()))
            .await
    }

    pub(crate) async fn start(&self) {
        let native = self.prepare().await.expect("prepared");
        self.launcher.start(self.id(), &native).await.expect("started");
    }

    pub(crate) async fn end(&self, grace: Duration) {
        self.launcher
            .end(self.id(), End { grace, why: "the test says so".into() })
            .await
            .expect("asked to end");
    }

    pub(crate) async fn fate(&self) -> Fate {
        let mut fates = self.launcher.find(std::slice::from_ref(self.id())).await.expect("an answer");
        fates.remove(self.id()).expect("an answer for it")
    }

    /// Waits until the launch is so far.
    pub(crate) async fn until(&self, so_far: impl Fn(&Native) -> bool) -> Sighting {
        wait_for(&self.launcher, self.id(), so_far).await
    }

    pub(crate) async fn exit(&self) -> Exit {
        match self.until(|state| matches!(state, Native::Exited(_))).await.state {
            Native::Exited(exit) => exit,
            other => panic!("{other:?}"),
        }
    }

    /// Runs it from start to end.
    pub(crate) async fn run(&self) -> Exit {
        self.start().await;
        self.exit().await
    }

    pub(crate) fn attempt(&self) -> PathBuf {
        self.want.run_dir.join("attempts").join(self.want.id.attempt.to_string())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.attempt().join("worker.log")).unwrap_or_default()
    }

    pub(crate) fn exit_record(&self) -> polder_api::shim::ExitRecord {
        serde_json::from_slice(&fs::read(self.attempt().join("exit.json")).expect("exit.json"))
            .expect("readable")
    }

    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.want.run_dir.join("out").join(name)
    }
}

/// Watches until a launch is so far; as the ledger does, without asking again and again.
pub(crate) async fn wait_for(
    launcher: &Arc<ProcessLauncher>,
    id: &LaunchId,
    so_far: impl Fn(&Native) -> bool,
) -> Sighting {
    let (out, mut events) = mpsc::channel(64);
    let stop = CancellationToken::new();
    let watcher = tokio::spawn({
        let (launcher, stop) = (Arc::clone(launcher), stop.clone());
        async move { launcher.watch(out, stop).await }
    });
    let seen = tokio::time::timeout(PATIENCE, async {
        while let Some(event) = events.recv().await {
            let seen = match event {
                Event::Seen(sighting) => vec![sighting],
                Event::Relisted { complete } => complete,
                Event::Down(_) | Event::Up => Vec::new(),
            };
            if let Some(found) = seen.into_iter().find(|seen| seen.id == *id && so_far(&seen.state)) {
                return found;
            }
        }
        panic!("the watcher ended");
    })
    .await
    .expect("it comes that far");
    stop.cancel();
    watcher.await.expect("the watcher ends");
    seen
}

/// Waits for a file to appear, and reads it. Of a process that has no other way to say something.
pub(crate) async fn file(path: &Path) -> String {
    let wait = async {
        loop {
            match fs::read_to_string(path) {
                Ok(text) if text.ends_with('\n') => return text,
                _ => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{} appears", path.display()))
}

/// Whether a process is there, and not only what is left of one.
pub(crate) fn is_alive(pid: u32) -> bool {
    polder_process::proc::stat(pid).is_some()
}

/// Waits for a process to be gone.
pub(crate) async fn gone(pid: u32) {
    let wait = async {
        while is_alive(pid) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("process {pid} goes"));
}

pub(crate) fn failed(outcome: &Outcome) -> (polder_words::FailureClass, &str, &str) {
    match outcome {
        Outcome::Failed { class, cause, tail } => (*class, cause, tail),
        Outcome::Completed => panic!("it completed"),
    }
}
