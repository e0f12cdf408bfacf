//! Against a real engine: `POLDER_TEST_DOCKER` names its socket (`scripts/test --only docker` starts one). Without it
//! nothing here runs. The image is `local/bb:1`, busybox alone; the worker is a shell script, mounted as the real one.

use polder_core::parent::Pull;
use polder_docker::plan::{Settings, User, name};
use polder_docker::{DockerLauncher, Stock};
use polder_launch::launcher::DeviceId;
use polder_launch::{
    Allotted, End, Event, Exit, Fate, Handover, LaunchError, Launcher as _, Native, NativeId, Resolved,
    Sighting,
};
use polder_words::{FailureClass, LaunchId, Outcome, Role};
use serde_json::{Map, Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::mpsc::{Receiver, channel};
use tokio_util::sync::CancellationToken;

/// Longest wait for anything the engine does.
const PATIENCE: Duration = Duration::from_secs(60);

/// One site with its launcher.
struct Site {
    launcher: Arc<DockerLauncher>,
    folder: TempDir,
    events: Receiver<Event>,
    stop: CancellationToken,
    socket: String,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
        let filter = format!("label=polder.site={}", self.name());
        let left = docker(&self.socket, &["ps", "-aq", "--filter", &filter]);
        for container in left.lines() {
            docker(&self.socket, &["rm", "-f", container]);
        }
    }
}

fn docker(socket: &str, arguments: &[&str]) -> String {
    let out = Command::new("docker").args(["-H", &format!("unix://{socket}")]).args(arguments).output();
    String::from_utf8_lossy(&out.expect("docker starts").stdout).trim().to_owned()
}

/// A site of the engine under test; `None` when there is none.
fn site() -> Option<Site> {
    let socket = std::env::var("POLDER_TEST_DOCKER").ok()?;
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("open");
    fs::create_dir_all(folder.path().join("state/sock")).expect("a folder");
    let settings = Settings {
        socket: socket.clone(),
        image: Some("local/bb:1".into()),
        job_images: true,
        network: "none".into(),
        pull: Pull::Never,
        inventory: true,
        python_path: None,
        job_env: std::collections::BTreeMap::new(),
        kwargs: Map::new(),
        user: User { uid: 65534, gid: 65534 },
        hide: vec![folder.path().join("state")],
        sockets: folder.path().join("state/sock"),
        workspace: None,
    };
    let launcher = Arc::new(DockerLauncher::new(settings, Stock::default()));
    let (out, events) = channel(64);
    let stop = CancellationToken::new();
    let (watching, stopped) = (Arc::clone(&launcher), stop.clone());
    tokio::spawn(async move { watching.watch(out, stopped).await });
    Some(Site { launcher, folder, events, stop, socket })
}

impl Site {
    fn name(&self) -> String {
        let unique = self.folder.path().file_name().expect("a name").to_string_lossy().to_ascii_lowercase();
        format!("s{}", unique.replace(|c: char| !c.is_ascii_alphanumeric(), ""))
    }

    fn want(&self, script: &str, job: u8) -> Resolved {
        let run_dir = self.folder.path().join(format!("state/runs/{job}"));
        for name in ["app", "in", "out", "state", "tmp", "attempts/1"] {
            fs::create_dir_all(run_dir.join(name)).expect("a folder");
        }
        let worker = self.folder.path().join(format!("worker-{job}"));
        fs::write(&worker, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&worker, fs::Permissions::from_mode(0o755)).expect("executable");
        Resolved {
            id: LaunchId {
                job: format!("{job:032x}").parse().expect("an id"),
                site: self.name().parse().expect("a name"),
                role: Role::Client,
                attempt: 1,
            },
            study: "pathology".parse().expect("a name"),
            run_dir,
            worker,
            gpus: 0,
            cpus: None,
            memory: None,
            options: Map::new(),
            runtime: Value::Null,
            pending_timeout_ms: None,
            max_restarts: 2,
            files: polder_words::FileWay::Shared,
        }
    }

    async fn prepare(&self, want: &Resolved) -> Result<NativeId, LaunchError> {
        let plan = self.launcher.plan(want, &Allotted::default()).expect("it can be planned");
        self.launcher.prepare(&want.id, &plan, &handover(&want.id)).await
    }

    async fn run(&self, want: &Resolved) -> Result<NativeId, LaunchError> {
        let native = self.prepare(want).await?;
        self.launcher.start(&want.id, &native).await?;
        Ok(native)
    }

    /// Waits for what the watcher says.
    async fn until<T>(&mut self, mut found: impl FnMut(&Event) -> Option<T>) -> T {
        let wait = async {
            loop {
                let event = self.events.recv().await.expect("the watcher lives");
                if let Some(found) = found(&event) {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("it is said in time")
    }

    async fn exit(&mut self, id: &LaunchId) -> Exit {
        self.until(|event| match event {
            Event::Seen(Sighting { id: seen, state: Native::Exited(exit), .. }) if seen == id => {
                Some(exit.clone())
            }
            Event::Relisted { complete } => complete.iter().find_map(|sighting| match &sighting.state {
                Native::Exited(exit) if sighting.id == *id => Some(exit.clone()),
                _ => None,
            }),
            _ => None,
        })
        .await
    }

    /// How a script ends: class, cause and last lines.
    async fn end_of(&mut self, want: &Resolved) -> (Option<FailureClass>, String, String) {
        self.run(want).await.expect("it runs");
        match self.exit(&want.id).await.outcome {
            Outcome::Completed => (None, String::new(), String::new()),
            Outcome::Failed { class, cause, tail } => (Some(class), cause, tail),
        }
    }
}

fn handover(id: &LaunchId) -> Handover {
    let letter = json!({
        "protocol": 1, "launch": id, "dial": [{"unix": {"path": "/nowhere/worker.sock"}}],
        "pin": "00".repeat(32), "token": "secret-token", "run_dir": "/nowhere",
    });
    Handover::new(letter.to_string().into_bytes())
}

#[tokio::test]
async fn ends_of_all_kinds_are_told_apart() {
    let Some(mut site) = site() else { return };
    let want = site.want("exit 0", 1);
    assert_eq!(site.end_of(&want).await, (None, String::new(), String::new()));

    let want = site.want("echo the last line; exit 7", 2);
    let (class, cause, tail) = site.end_of(&want).await;
    assert_eq!((class, cause.as_str()), (Some(FailureClass::Infrastructure), "exit 7"));
    assert_eq!(tail.trim(), "the last line");

    let want = site.want("sh -c 'kill -TERM $PPID' & trap 'exit 143' TERM; wait; wait", 3);
    let (_, cause, _) = site.end_of(&want).await;
    assert_eq!(cause, "signal 15 (TERM)");

    let mut want = site.want("dd if=/dev/zero of=/dev/null bs=200M count=1", 4);
    want.worker = site.folder.path().join("worker-4");
    fs::write(&want.worker, "#!/bin/sh\nexec dd if=/dev/zero of=/dev/null bs=200M count=1\n")
        .expect("written");
    want.memory = Some(32 << 20);
    let (class, cause, _) = site.end_of(&want).await;
    assert_eq!(class, Some(FailureClass::OutOfMemory), "{cause}");
    assert!(cause.contains("memory limit"), "{cause}");

    let mut want = site.want("dd if=/dev/zero of=/dev/null bs=200M count=1; exit 9", 5);
    want.memory = Some(32 << 20);
    let (class, cause, _) = site.end_of(&want).await;
    assert_eq!(class, Some(FailureClass::OutOfMemory), "a child's: {cause}");
    assert!(cause.contains("a process of the container") && cause.contains("exit 9"), "{cause}");
}

fn refused(error: LaunchError) -> (FailureClass, String) {
    match error {
        LaunchError::Refused(refusal) => (refusal.class, refusal.to_string()),
        other => panic!("not refused: {other}"),
    }
}

#[tokio::test]
async fn what_cannot_run_is_refused_with_its_cause_and_leaves_nothing() {
    let Some(site) = site() else { return };
    let options = |image: &str| Map::from_iter([("image".to_owned(), json!(image))]);
    let mut missing = site.want("exit 0", 1);
    missing.options = options("nobody/has:this");
    let (class, text) = refused(site.run(&missing).await.expect_err("no image"));
    assert_eq!(class, FailureClass::Image);
    assert!(text.contains("nobody/has:this"), "{text}");

    let mut entrypoint = site.want("exit 0", 2);
    entrypoint.options = Map::from_iter([("entrypoint".to_owned(), json!(["/bin/nothing"]))]);
    let (class, text) = refused(site.run(&entrypoint).await.expect_err("no program"));
    assert_eq!(class, FailureClass::Image, "{text}");
    assert!(text.contains("/bin/nothing"), "{text}");

    let mut device = site.want("exit 0", 3);
    device.runtime = json!({"docker_kwargs": {"devices": ["/dev/no-such-device"]}});
    let (class, text) = refused(site.run(&device).await.expect_err("no device"));
    assert_eq!(class, FailureClass::Resources, "{text}");
    assert!(text.contains("/dev/no-such-device"), "{text}");

    let mut mount = site.want("exit 0", 4);
    let source = site.folder.path().join("no-such-data");
    mount.runtime = json!({"datasets": {"d": {"source": source, "mode": "ro"}}});
    let (class, text) = refused(site.run(&mount).await.expect_err("no data"));
    assert_eq!(class, FailureClass::Config, "{text}");
    assert!(text.contains("no-such-data") && !source.exists(), "a source is not made: {text}");

    let filter = format!("label=polder.site={}", site.name());
    assert_eq!(docker(&site.socket, &["ps", "-aq", "--filter", &filter]), "");
}

#[tokio::test]
async fn a_worker_has_its_limits_and_reaches_nothing_else() {
    let Some(mut site) = site() else { return };
    let data = site.folder.path().join("data");
    fs::create_dir(&data).expect("a folder");
    fs::write(data.join("row"), "1").expect("written");
    let script = r#"
        try() { "$@" 2>&1 && echo "DID: $*"; }
        cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes
        cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/pids/pids.max
        id -u
        cat /data/pathology/d/row; echo
        try touch /x; try touch /data/pathology/d/x; try touch /polder/sock/x; try touch /polder/worker
        try touch /polder/run/app/x; try touch /polder/run/in/x; try touch /polder/attempt/x
        try cat /var/run/docker.sock; try ls /polder/run/../../state
        try mkdir /polder/run/other
        ls /sys/class/net
        touch /polder/run/out/x /polder/run/state/x /polder/run/tmp/x /tmp/x && echo wrote its own
        cat /polder/attempt/handover.json
        exit 3"#;
    let mut want = site.want(script, 1);
    want.cpus = Some(1);
    want.memory = Some(64 << 20);
    want.runtime = json!({
        "docker_kwargs": {"pids_limit": 64},
        "datasets": {"d": {"source": data, "mode": "ro"}},
        "secret_mounts": {"tls": {"source": data, "mount_path": "/run/tls"}},
    });
    let (_, cause, tail) = site.end_of(&want).await;
    assert_eq!(cause, "exit 3", "{tail}");
    let lines: Vec<&str> = tail.lines().map(str::trim).collect();
    assert_eq!(lines[..6], ["67108864", "67108864", "100000", "64", "65534", "1"], "{tail}");
    assert!(!tail.contains("DID: "), "{tail}");
    assert!(tail.contains("wrote its own") && tail.contains("Read-only file system"), "{tail}");
    assert!(lines.contains(&"lo") && !lines.iter().any(|line| line.starts_with("eth")), "{tail}");
    assert!(tail.contains(r#""path":"/polder/sock/worker.sock""#) && tail.contains("/polder/run"), "{tail}");
    // What the engine shows of it holds no secret.
    let shown = docker(&site.socket, &["inspect", &name(&want.id)]);
    assert!(shown.contains("polder.launch") && !shown.contains("secret-token"));
    site.launcher.remove(&want.id).await.expect("it goes");
    assert!(!want.run_dir.join("attempts/1/handover.json").exists());
    site.launcher.remove(&want.id).await.expect("again is nothing");
}

#[tokio::test]
async fn made_twice_is_made_once_and_two_parents_leave_each_other_alone() {
    let (Some(one), Some(other)) = (site(), site()) else { return };
    let want = one.want("sleep 60", 1);
    let first = one.prepare(&want).await.expect("made");
    let again = one.prepare(&want).await.expect("adopted");
    assert_eq!(first, again);
    one.launcher.start(&want.id, &first).await.expect("started");
    one.launcher.start(&want.id, &first).await.expect("again is nothing");
    let found = one.launcher.find(std::slice::from_ref(&want.id)).await.expect("an answer");
    assert!(
        matches!(found[&want.id], Fate::Seen(Sighting { state: Native::Running { .. }, .. })),
        "{found:?}"
    );
    // The other parent knows nothing of it, and does nothing to it.
    let found = other.launcher.find(std::slice::from_ref(&want.id)).await.expect("an answer");
    assert!(!matches!(found[&want.id], Fate::Seen(_)), "{found:?}");
    other
        .launcher
        .end(&want.id, End { grace: Duration::ZERO, why: "no".into() })
        .await
        .expect("nothing to do");
    other.launcher.remove(&want.id).await.expect("nothing to do");
    let found = one.launcher.find(std::slice::from_ref(&want.id)).await.expect("an answer");
    assert!(
        matches!(found[&want.id], Fate::Seen(Sighting { state: Native::Running { .. }, .. })),
        "{found:?}"
    );
}

#[tokio::test]
async fn one_gpu_is_never_given_twice_by_two_parents() {
    let (Some(one), Some(other)) = (site(), site()) else { return };
    let label = |site: &Site, gpu: &str| {
        let want = site.want("sleep 60", 1);
        let with = Allotted { devices: vec![DeviceId(gpu.into())] };
        let mut plan = site.launcher.plan(&Resolved { gpus: 1, ..want.clone() }, &with).expect("planned");
        // There is no GPU here: what is tested is who holds which.
        plan.native["create"]["HostConfig"].as_object_mut().expect("a map").remove("DeviceRequests");
        (want, plan)
    };
    let ((mine, my_plan), (theirs, their_plan)) = (label(&one, "GPU-test-1"), label(&other, "GPU-test-1"));
    one.launcher.prepare(&mine.id, &my_plan, &handover(&mine.id)).await.expect("it is free");
    match other.launcher.prepare(&theirs.id, &their_plan, &handover(&theirs.id)).await {
        Err(LaunchError::NotSent(down)) => {
            assert!(down.to_string().contains("GPU GPU-test-1 is held"), "{down}");
        }
        else_ => panic!("{else_:?}"),
    }
    one.launcher.remove(&mine.id).await.expect("it goes");
    other.launcher.prepare(&theirs.id, &their_plan, &handover(&theirs.id)).await.expect("free again");
}

#[tokio::test]
async fn removed_by_hand_is_noticed_and_proved() {
    let Some(mut site) = site() else { return };
    let want = site.want("sleep 60", 1);
    let native = site.run(&want).await.expect("it runs");
    let id = want.id.clone();
    site.until(|event| {
        matches!(event, Event::Seen(seen) if matches!(seen.state, Native::Running { .. })).then_some(())
    })
    .await;
    docker(&site.socket, &["rm", "-f", &native.0]);
    site.until(|event| match event {
        Event::Relisted { complete } => (!complete.iter().any(|seen| seen.id == id)).then_some(()),
        _ => None,
    })
    .await;
    let began = Instant::now();
    loop {
        match site.launcher.find(std::slice::from_ref(&id)).await.expect("an answer").remove(&id) {
            Some(Fate::Gone(_)) => break,
            Some(Fate::Unsure(_)) if began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn ending_is_by_term_then_by_force_and_a_waiting_one_never_runs() {
    let Some(mut site) = site() else { return };
    let polite = site.want("trap 'echo asked; exit 5' TERM; sleep 60 & wait", 1);
    site.run(&polite).await.expect("it runs");
    let how = |seconds| End { grace: Duration::from_secs(seconds), why: "test".into() };
    site.launcher.end(&polite.id, how(20)).await.expect("asked");
    let Outcome::Failed { cause, .. } = site.exit(&polite.id).await.outcome else { panic!("it failed") };
    assert!(cause == "exit 5" || cause.starts_with("signal"), "{cause}");
    let deaf = site.want("trap '' TERM; sleep 60 & wait; wait", 2);
    site.run(&deaf).await.expect("it runs");
    site.launcher.end(&deaf.id, how(0)).await.expect("by force");
    let Outcome::Failed { cause, .. } = site.exit(&deaf.id).await.outcome else { panic!("it failed") };
    assert!(cause.starts_with("signal 9 (KILL)"), "{cause}");
    let waiting = site.want("touch /polder/run/out/ran", 3);
    site.prepare(&waiting).await.expect("made");
    site.launcher.end(&waiting.id, how(5)).await.expect("gone");
    assert_eq!(docker(&site.socket, &["ps", "-aq", "--filter", &format!("name={}", name(&waiting.id))]), "");
    assert!(!waiting.run_dir.join("out/ran").exists());
}

/// `scripts/docker/engine`, of the engine under test.
fn engine(folder: &Path, what: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/docker/engine");
    let done = Command::new(script).arg(what).arg(folder).status().expect("it starts");
    assert!(done.success(), "{what}");
}

/// The engine of its own that this test kills; the others' goes on.
#[tokio::test]
async fn an_engine_that_is_killed_and_comes_back_lost_nothing() {
    let Some(folder) = std::env::var_os("POLDER_TEST_DOCKER_OTHER").map(PathBuf::from) else { return };
    let Some(mut site) = site() else { return };
    // This site's launcher for the other engine.
    let socket = folder.join("docker.sock").display().to_string();
    site.stop.cancel();
    let stop = CancellationToken::new();
    let (out, events) = channel(64);
    let settings = Settings { socket: socket.clone(), ..site.launcher.settings().clone() };
    let launcher = Arc::new(DockerLauncher::new(settings, Stock::default()));
    let (watching, stopped) = (Arc::clone(&launcher), stop.clone());
    tokio::spawn(async move { watching.watch(out, stopped).await });
    (site.launcher, site.events, site.stop, site.socket) = (launcher, events, stop, socket);

    let short =
        site.want("until [ -e /polder/run/tmp/go ]; do sleep 0.1; done; echo ended meanwhile; exit 7", 1);
    let long = site.want("sleep 300", 2);
    site.run(&short).await.expect("it runs");
    site.run(&long).await.expect("it runs");
    let pid = fs::read_to_string(folder.join("docker.pid")).expect("a pid").trim().parse().expect("a number");
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    site.until(|event| matches!(event, Event::Down(_)).then_some(())).await;
    // Unknown is not finished.
    assert!(site.launcher.find(std::slice::from_ref(&short.id)).await.is_err());
    fs::write(short.run_dir.join("tmp/go"), "").expect("written");
    engine(&folder, "start");
    site.until(|event| matches!(event, Event::Up).then_some(())).await;
    let Outcome::Failed { cause, tail, .. } = site.exit(&short.id).await.outcome else { panic!("it failed") };
    assert_eq!(cause, "exit 7", "{tail}");
    let found = site.launcher.find(std::slice::from_ref(&long.id)).await.expect("an answer");
    assert!(
        matches!(found[&long.id], Fate::Seen(Sighting { state: Native::Running { .. }, .. })),
        "{found:?}"
    );
}
