//! The launcher on a real cluster, requests made by `sbatch` with the arguments that a plan prints for admins.
//!
//! `POLDER_TEST_SLURM` is a command that runs another one on a host of the cluster with two nodes, each with 4 CPUs and two
//! `gpu`: `scripts/slurm/cluster in ctl`. The folder of temporary files has to be shared with the nodes.

use async_trait::async_trait;
use polder_core::parent::{LauncherConfig, ParentConfig};
use polder_launch::{
    Allotted, Clock, End, Event, Handover, LaunchError, Launcher, Native, NativeId, Resolved,
};
use polder_slurm::drive::{Settings, SlurmLauncher};
use polder_slurm::slurm::{Cluster, Job, JobNumber, Slurm, Submission, Trouble};
use polder_words::{FailureClass, JobId, LaunchId, Outcome, Role, SiteName, StudyName};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Slurm's own programs on a host of the cluster.
struct Programs {
    enter: Vec<String>,
    scripts: PathBuf,
}

impl Programs {
    fn run(&self, words: &[String]) -> Output {
        let mut command = Command::new(&self.enter[0]);
        command.args(&self.enter[1..]).args(words).output().expect("the command that enters the cluster runs")
    }

    fn said(&self, words: &[&str]) -> Result<String, Trouble> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let out = self.run(&words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() { Ok(text(&out.stdout)) } else { Err(Trouble::Unclear(text(&out.stderr))) }
    }

    /// `scontrol show job`, one map a job.
    fn shown(&self) -> Result<Vec<BTreeMap<String, String>>, Trouble> {
        let text = self.said(&["scontrol", "show", "job", "-o"])?;
        let fields = |line: &str| {
            line.split_whitespace()
                .filter_map(|word| word.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        Ok(text.lines().map(fields).filter(|job| job.contains_key("JobId")).collect())
    }
}

#[async_trait]
impl Slurm for Programs {
    async fn ping(&self) -> Result<Cluster, Trouble> {
        self.said(&["scontrol", "ping"])?;
        let message_timeout = Duration::from_secs(10);
        Ok(Cluster { name: "test".into(), version: "its programs".into(), message_timeout })
    }

    async fn submit(&self, job: &Submission) -> Result<JobNumber, Trouble> {
        let script = self.scripts.join(&job.descriptor.name);
        std::fs::write(&script, &job.script).expect("written");
        let mut words = vec!["sbatch".to_owned(), "--parsable".to_owned()];
        words.extend(job.descriptor.to_sbatch(&[], None));
        words.push(script.display().to_string());
        let out = self.run(&words);
        if !out.status.success() {
            let text = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            let code = if text.contains("partition") { 2000 } else { 2014 };
            return Err(Trouble::Refused { code, text });
        }
        Ok(String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number"))
    }

    async fn release(&self, job: JobNumber) -> Result<(), Trouble> {
        self.said(&["scontrol", "release", &job.to_string()]).map(drop)
    }

    async fn cancel(&self, job: JobNumber) -> Result<(), Trouble> {
        self.said(&["scancel", &job.to_string()]).map(drop)
    }

    async fn jobs(&self) -> Result<Vec<Job>, Trouble> {
        let number = |text: &str| text.parse::<u32>().unwrap_or_default();
        Ok(self
            .shown()?
            .iter()
            .map(|job| {
                let get = |key: &str| job.get(key).cloned().unwrap_or_default();
                let exit = get("ExitCode");
                let (code, signal) = exit.split_once(':').unwrap_or_default();
                Job {
                    number: number(&get("JobId")),
                    name: get("JobName"),
                    comment: get("Comment"),
                    work_dir: get("WorkDir"),
                    state: get("JobState"),
                    flags: Vec::new(),
                    reason: get("Reason"),
                    held: get("Priority") == "0",
                    exit_code: number(code),
                    signal: number(signal),
                    start: 0,
                    end: 0,
                }
            })
            .collect())
    }
}

struct Site {
    folder: tempfile::TempDir,
    programs: Arc<Programs>,
    launcher: Arc<SlurmLauncher>,
}

impl Site {
    fn new() -> Self {
        let enter =
            std::env::var("POLDER_TEST_SLURM").expect("POLDER_TEST_SLURM says how to enter the cluster");
        let folder = tempfile::tempdir().expect("a folder");
        let enter = enter.split_whitespace().map(str::to_owned).collect();
        let programs = Arc::new(Programs { enter, scripts: folder.path().to_owned() });
        let text = "name: uni\nserver: https://s\nlauncher: {slurm: {time: '10'}}\n";
        let config = ParentConfig::parse("parent.yaml", text.as_bytes()).expect("a configuration");
        let LauncherConfig::Slurm(site) = config.launcher else { panic!("slurm") };
        let runs = folder.path().join("runs");
        let settings = Settings { site: *site, job_images: false, runs, clock: Clock::default() };
        let launcher = SlurmLauncher::new(settings, Arc::clone(&programs) as Arc<dyn Slurm>);
        Self { folder, programs, launcher: Arc::new(launcher) }
    }

    fn want(&self, job: u8, worker: &str, options: serde_json::Value) -> Resolved {
        let id = LaunchId {
            job: JobId([job; 16]),
            site: SiteName::new("uni").expect("a name"),
            role: Role::Client,
            attempt: 1,
        };
        let run_dir = self.folder.path().join("runs").join(format!("{}-client", id.job));
        for name in ["app", "in", "out", "state", "tmp", "attempts/1"] {
            std::fs::create_dir_all(run_dir.join(name)).expect("made");
        }
        let program = run_dir.join("worker");
        std::fs::write(&program, format!("#!/bin/bash\n{worker}\n")).expect("written");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
        let serde_json::Value::Object(options) = options else { panic!("a map") };
        Resolved {
            id,
            study: StudyName::new("a").expect("a name"),
            run_dir,
            worker: program,
            files: polder_words::FileWay::Shared,
            gpus: 0,
            cpus: None,
            memory: None,
            options,
            runtime: serde_json::json!({"env": {"GREETING": "it's $HOME"}}),
            pending_timeout_ms: None,
            max_restarts: 2,
        }
    }

    async fn prepare(&self, want: &Resolved) -> Result<NativeId, LaunchError> {
        let plan = self.launcher.plan(want, &Allotted::default()).expect("a plan");
        self.launcher.prepare(&want.id, &plan, &Handover::new(b"{}".to_vec())).await
    }

    async fn start(&self, want: &Resolved) -> NativeId {
        let native = self.prepare(want).await.expect("submitted");
        self.launcher.start(&want.id, &native).await.expect("released");
        native
    }

    /// What the watcher says of a launch until it is as wanted.
    async fn until(&self, want: &Resolved, good: impl Fn(&Native) -> bool) -> Native {
        let (out, mut events) = tokio::sync::mpsc::channel(64);
        let stop = CancellationToken::new();
        let watcher = {
            let (launcher, stop) = (Arc::clone(&self.launcher), stop.clone());
            tokio::spawn(async move { launcher.watch(out, stop).await })
        };
        let begun = Instant::now();
        let mut last = None;
        let found = loop {
            let event = tokio::time::timeout(Duration::from_secs(150), events.recv()).await;
            let event = event.unwrap_or_else(|_| panic!("nothing new since {last:?}")).expect("it watches");
            let seen = match event {
                Event::Seen(seen) => vec![seen],
                Event::Relisted { complete } => complete,
                Event::Down(down) => panic!("{down}"),
                Event::Up => Vec::new(),
            };
            for sighting in seen.into_iter().filter(|seen| seen.id == want.id) {
                last = Some(sighting.state);
            }
            if let Some(state) = last.as_ref().filter(|state| good(state)) {
                break state.clone();
            }
            assert!(begun.elapsed() < Duration::from_secs(180), "still {last:?}");
        };
        stop.cancel();
        watcher.await.expect("it ends");
        found
    }

    async fn end_of(&self, want: &Resolved) -> Outcome {
        match self.until(want, |state| matches!(state, Native::Exited(_))).await {
            Native::Exited(exit) => exit.outcome,
            other => panic!("{other:?}"),
        }
    }
}

fn number(native: &NativeId) -> String {
    native.0.strip_prefix("job ").expect("a job").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
#[ignore = "needs a cluster: scripts/test --only slurm"]
async fn what_was_asked_for_is_read_back_from_slurm() {
    let site = Site::new();
    let worker = "echo \"$CUDA_VISIBLE_DEVICES|$GREETING|${FORBIDDEN:-}|$PWD|$*\" >out/said; sleep 2; exit 0";
    let mut want = site.want(1, worker, serde_json::json!({"time": "5"}));
    (want.gpus, want.cpus, want.memory) = (2, Some(2), Some(300 << 20));
    let native = site.prepare(&want).await.expect("submitted");
    assert_eq!(site.until(&want, |_| true).await, Native::Waiting, "held until it is released");
    let shown = site.programs.shown().expect("it answers");
    let job = shown.iter().find(|job| job["JobId"] == number(&native)).expect("it is there");
    for (key, value) in [
        ("Requeue", "0"),
        ("Restarts", "0"),
        ("NumNodes", "1-1"),
        ("CPUs/Task", "2"),
        ("MinMemoryNode", "300M"),
        ("TimeLimit", "00:05:00"),
        ("JobState", "PENDING"),
        ("Reason", "JobHeldUser"),
    ] {
        let found = job.get(key).map(String::as_str);
        let one = key == "NumNodes" && found == Some("1");
        assert!(found == Some(value) || one, "{key}: {found:?}");
    }
    assert_eq!(job["Comment"], format!("polder:{}", want.id));
    assert_eq!(job["WorkDir"], want.run_dir.display().to_string());
    let gres = ["TresPerNode", "TRES"].iter().filter_map(|key| job.get(*key)).cloned().collect::<String>();
    assert!(gres.contains("gpu"), "{job:?}");
    site.launcher.start(&want.id, &native).await.expect("released");
    site.launcher.start(&want.id, &native).await.expect("again changes nothing");
    assert_eq!(site.end_of(&want).await, Outcome::Completed);
    let handover = want.run_dir.join("attempts/1/handover.json");
    let said = format!("0,1|it's $HOME||{}|run --handover {}\n", want.run_dir.display(), handover.display());
    assert_eq!(read(&want.run_dir.join("out/said")), said);
    let exit = read(&want.run_dir.join("attempts/1/slurm-exit.json"));
    assert!(exit.contains(&format!("\"job\":\"{}\"", number(&native))), "{exit}");
}

#[tokio::test]
#[ignore = "needs a cluster: scripts/test --only slurm"]
async fn ends_are_told_apart() {
    let site = Site::new();
    let exits = site.want(2, "echo 'last words'; exit 7", serde_json::json!({}));
    let killed = site.want(3, "kill -SEGV $$", serde_json::json!({}));
    let ours = site.want(4, "sleep 60", serde_json::json!({}));
    let theirs = site.want(5, "sleep 60", serde_json::json!({}));
    let mut natives = Vec::new();
    for want in [&exits, &killed, &ours, &theirs] {
        natives.push(site.start(want).await);
    }
    let Outcome::Failed { class, cause, tail } = site.end_of(&exits).await else { panic!("failed") };
    assert_eq!((class, cause.as_str()), (FailureClass::Infrastructure, "exit 7"));
    assert!(tail.contains("last words"), "{tail}");
    let Outcome::Failed { cause, .. } = site.end_of(&killed).await else { panic!("failed") };
    assert!(cause.contains("11") || cause.contains("139"), "{cause}");
    for want in [&ours, &theirs] {
        site.until(want, |state| matches!(state, Native::Running { .. })).await;
    }
    site.programs.said(&["scontrol", "requeue", &number(&natives[2])]).expect_err("it is not to run twice");
    let how = End { grace: Duration::from_secs(5), why: "the job was aborted".into() };
    site.launcher.end(&ours.id, how).await.expect("asked for");
    site.programs.said(&["scancel", &number(&natives[3])]).expect("cancelled");
    let Outcome::Failed { class, .. } = site.end_of(&ours).await else { panic!("failed") };
    assert_eq!(class, FailureClass::Aborted);
    let Outcome::Failed { class, cause, .. } = site.end_of(&theirs).await else { panic!("failed") };
    assert_eq!(class, FailureClass::Infrastructure, "{cause}");
    assert!(cause.contains("CANCELLED"), "{cause}");
}

#[tokio::test]
#[ignore = "needs a cluster: scripts/test --only slurm"]
async fn two_nodes_are_one_group() {
    let site = Site::new();
    let say = "echo \"$POLDER_NODE_RANK of $POLDER_NNODES at $POLDER_MASTER_ADDR:$MASTER_PORT on $SLURMD_NODENAME in $PWD\"";
    let options = serde_json::json!({"nodes": 2, "gpus_per_node": 1,
        "additional_node_command": "bash -c 'eval \"$SAY\" >../out/one'"});
    let mut want = site.want(6, "eval \"$SAY\" >out/zero; sleep 1; exit 0", options);
    want.gpus = 2;
    want.runtime = serde_json::json!({"env": {"SAY": say}});
    let native = site.start(&want).await;
    assert_eq!(
        site.end_of(&want).await,
        Outcome::Completed,
        "{}",
        read(&want.run_dir.join("attempts/1/worker.log"))
    );
    let port = 29400 + number(&native).parse::<u32>().expect("a number") % 1000;
    let run = want.run_dir.display();
    let (zero, one) = (read(&want.run_dir.join("out/zero")), read(&want.run_dir.join("out/one")));
    assert_eq!(zero, format!("0 of 2 at n1:{port} on n1 in {run}\n"));
    assert_eq!(one, format!("1 of 2 at n1:{port} on n2 in {run}/app\n"));
}

#[tokio::test]
#[ignore = "needs a cluster: scripts/test --only slurm"]
async fn what_cannot_be_is_refused_or_ends_at_once() {
    let site = Site::new();
    let mut want = site.want(8, "exit 0", serde_json::json!({}));
    want.runtime = serde_json::json!({"slurm": {"partition": "nowhere"}});
    let refusal = refused(site.prepare(&want).await);
    assert_eq!(refusal.class, FailureClass::Config, "{refusal}");
    assert!(refusal.message.contains("partition"), "{refusal}");
    // Slurm does not look at what is held: that no node has so much is found out at the release.
    let mut want = site.want(7, "exit 0", serde_json::json!({}));
    want.memory = Some(1 << 50);
    let native = site.start(&want).await;
    let Outcome::Failed { class, cause, .. } = site.end_of(&want).await else { panic!("failed") };
    assert_eq!(class, FailureClass::Resources, "{cause}");
    site.launcher.remove(&want.id).await.expect("removed");
    let jobs = site.programs.shown().expect("it answers");
    let job = jobs.iter().find(|job| job["JobId"] == number(&native)).expect("it is there");
    assert_eq!(job["JobState"], "CANCELLED", "nothing is left waiting for ever");
}

/// Takes minutes and a node, so it runs alone.
#[tokio::test]
#[ignore = "needs a cluster and minutes: scripts/test --only slurm --long"]
async fn ends_that_slurm_makes() {
    let site = Site::new();
    let all = serde_json::json!({"cpus_per_node": 3});
    let late = site.want(9, "echo begun; sleep 600", serde_json::json!({"time": "1", "cpus_per_node": 3}));
    site.start(&late).await;
    let stranded = site.want(10, "sleep 600", all);
    let native = site.start(&stranded).await;
    site.until(&stranded, |state| matches!(state, Native::Running { .. })).await;
    let shown = site.programs.shown().expect("it answers");
    let job = shown.iter().find(|job| job["JobId"] == number(&native)).expect("it is there");
    let node = format!("NodeName={}", job["BatchHost"]);
    let other =
        shown.iter().find(|job| job["Comment"] == format!("polder:{}", late.id)).expect("it is there");
    assert_ne!(job["BatchHost"], other["BatchHost"], "run where each gets a node of its own");
    site.programs.said(&["scontrol", "update", &node, "State=DOWN", "Reason=test"]).expect("down");
    let outcome = site.end_of(&stranded).await;
    // Refused where the node came back by itself (ReturnToService=2).
    let _ = site.programs.said(&["scontrol", "update", &node, "State=RESUME"]);
    let Outcome::Failed { class, cause, .. } = outcome else { panic!("failed") };
    assert_eq!(class, FailureClass::Infrastructure);
    assert!(cause.contains("NODE_FAIL"), "{cause}");
    let Outcome::Failed { class, cause, tail } = site.end_of(&late).await else { panic!("failed") };
    assert_eq!(class, FailureClass::Timeout, "{cause}");
    assert!(cause.contains("TIMEOUT") && tail.contains("begun"), "{cause}: {tail}");
}

fn refused(prepared: Result<NativeId, LaunchError>) -> polder_launch::Refusal {
    match prepared {
        Err(LaunchError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}
