//! A federation of real processes on loopback, in a folder of its own.
//!
//! ```text
//! <root>/project.yml          who takes part
//! <root>/fed/                 what `polder provision` made: ca/, kits/
//! <root>/<parent>/            parent.yaml, local/, state/ of each parent
//! <root>/home/                what the command line remembers
//! <root>/data/                what studies may read
//! /dev/shm/<root>/            what trainers append to: no parent knows the folder, and it is among the few that
//!                             an isolated worker may write
//! ```
//! Dropped, it ends every process beneath the root, the workers of dead parents too.

use crate::log::Lines;
use crate::process::{self, Process};
use crate::programs::{self, Said, program, run, run_within};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The study every site is in.
pub const STUDY: &str = "pathology";
/// A study of another organisation's user on the same sites.
pub const OTHER_STUDY: &str = "cardiology";
/// Lead of [`STUDY`].
pub const LEAD: &str = "lead@org_a.com";
/// Lead of [`OTHER_STUDY`], no member of [`STUDY`].
pub const OTHER_LEAD: &str = "other@org_b.com";
/// Member of [`STUDY`] who may only look.
pub const MEMBER: &str = "member@org_a.com";
/// Project admin.
pub const ADMIN: &str = "admin@host.org";

/// What differs from an ordinary federation.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Names of the sites.
    pub sites: Vec<String>,
    /// Further keys of every site's `study_runtime.yaml` under each study.
    pub runtime: Value,
    /// Further keys of every parent's `parent.yaml`.
    pub parent: Value,
    /// The proxy through which sites reach the server: `http://[user:password@]host:port`.
    pub proxy: Option<String>,
    /// A control group that every process of the federation is put into.
    pub cgroup: Option<PathBuf>,
    /// Whether workers dial a TCP port of their parent rather than its socket.
    pub ports: bool,
}

impl Plan {
    /// Sites `site-1` to `site-n`.
    #[must_use]
    pub fn sites(n: usize) -> Self {
        Self {
            sites: (1..=n).map(|n| format!("site-{n}")).collect(),
            runtime: json!({}),
            parent: json!({}),
            proxy: None,
            cgroup: None,
            ports: false,
        }
    }

    /// With workers that dial a TCP port, as those of other hosts do.
    #[must_use]
    pub fn worker_ports(mut self) -> Self {
        self.ports = true;
        self
    }

    /// With a key in every site's runtime of each study.
    #[must_use]
    pub fn runtime(mut self, key: &str, value: Value) -> Self {
        self.runtime[key] = value;
        self
    }

    /// With a key in every parent's configuration.
    #[must_use]
    pub fn parent(mut self, key: &str, value: Value) -> Self {
        self.parent[key] = value;
        self
    }

    /// Provisions; nothing runs yet.
    ///
    /// # Panics
    /// When `polder provision` fails.
    #[must_use]
    pub fn provision(self) -> Federation {
        // Short: socket paths beneath it are limited to about a hundred characters.
        let root = tempfile::Builder::new().prefix("polder-").tempdir_in("/tmp").expect("a folder in /tmp");
        let path = fs::canonicalize(root.path()).expect("it is there");
        // Workers of other accounts have to reach their run directories and the trace.
        open_to_all(&path, 0o755);
        let federation =
            Federation { port: free_port(), plan: self, root: path, parents: Vec::new(), keep: Some(root) };
        federation.lay();
        federation
    }

    /// Provisions and starts the server and every site.
    ///
    /// # Panics
    /// When something does not start.
    #[must_use]
    pub fn start(self) -> Federation {
        let mut federation = self.provision();
        federation.start_all();
        federation
    }
}

/// A federation.
#[derive(Debug)]
pub struct Federation {
    /// Its folder.
    pub root: PathBuf,
    /// The server's port.
    pub port: u16,
    plan: Plan,
    parents: Vec<Parent>,
    keep: Option<tempfile::TempDir>,
}

/// One parent: its files, and its process while it runs.
#[derive(Debug)]
pub struct Parent {
    /// `server` or the site's name.
    pub name: String,
    /// Its folder: `parent.yaml`, `local/`, `state/`.
    pub folder: PathBuf,
    /// What it wrote, over all its runs.
    pub log: Lines,
    cgroup: Option<PathBuf>,
    child: Option<Child>,
}

impl Federation {
    fn lay(&self) {
        let organisation = |n: usize| if n.is_multiple_of(2) { "org_a" } else { "org_b" };
        let mut participants = vec![json!({
            "name": "localhost", "type": "server", "org": "host", "port": self.port,
        })];
        let mut by_org = json!({});
        for (n, site) in self.plan.sites.iter().enumerate() {
            let org = organisation(n);
            participants.push(json!({"name": site, "type": "client", "org": org}));
            if by_org[org].is_null() {
                by_org[org] = json!([]);
            }
            by_org[org].as_array_mut().expect("made above").push(json!(site));
        }
        for (name, org, role) in [
            (LEAD, "org_a", "lead"),
            (OTHER_LEAD, "org_b", "lead"),
            (MEMBER, "org_a", "member"),
            (ADMIN, "host", "project_admin"),
        ] {
            participants.push(json!({"name": name, "type": "admin", "org": org, "role": role}));
        }
        let project = json!({
            "api_version": 4,
            "name": "test-net",
            "participants": participants,
            "studies": {
                STUDY: {"site_orgs": by_org, "admins": [LEAD, MEMBER]},
                OTHER_STUDY: {"site_orgs": by_org, "admins": [OTHER_LEAD]},
            },
        });
        // JSON is YAML.
        write(&self.root.join("project.yml"), &pretty(&project));
        self.provision();
        for folder in ["home", "data"] {
            fs::create_dir(self.root.join(folder)).expect("a new folder");
        }
        fs::create_dir(self.trace_folder()).expect("a new folder");
        write(&self.trace_file(), "");
        open_to_all(&self.trace_folder(), 0o755);
        open_to_all(&self.trace_file(), 0o666);
        self.write_parent("server");
        for site in &self.plan.sites {
            self.write_parent(site);
        }
    }

    /// Runs `polder provision` on `project.yml` as it is now.
    ///
    /// # Panics
    /// When it fails.
    pub fn provision(&self) -> Said {
        run(Command::new(program("polder"))
            .args(["provision", "project.yml", "--out", "fed"])
            .current_dir(&self.root))
        .ok()
    }

    fn write_parent(&self, name: &str) {
        let folder = self.root.join(name);
        fs::create_dir_all(folder.join("local")).expect("a new folder");
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("sdk");
        let read = json!([programs::folder(), self.root.join("data"), sdk]);
        let mut config = json!({"state": "state", "launcher": {"process": {"gpus": 0, "read": read}}});
        if name == "server" {
            config["name"] = json!("localhost");
            config["role"] = json!("server");
            config["listen"] = json!(format!("127.0.0.1:{}", self.port));
            config["kit"] = json!(self.kit("localhost"));
        } else {
            config["name"] = json!(name);
            config["server"] = json!(format!("https://localhost:{}", self.port));
            config["kit"] = json!(self.kit(name));
            if let Some(proxy) = &self.plan.proxy {
                config["proxy"] = json!(proxy);
            }
        }
        if self.plan.ports {
            config["launcher"]["process"]["internal_port"] = json!(free_port());
        }
        merge(&mut config, &self.plan.parent);
        write(&folder.join("parent.yaml"), &pretty(&config));
        let mut study = json!({"env": {"TRACE_FILE": self.trace_file()}});
        merge(&mut study, &self.plan.runtime);
        let runtime = json!({"format_version": 2, "studies": {STUDY: study, OTHER_STUDY: study}});
        write(&folder.join("local/study_runtime.yaml"), &pretty(&runtime));
    }

    /// The file that trainers append to.
    #[must_use]
    pub fn trace_file(&self) -> PathBuf {
        self.trace_folder().join("trace.jsonl")
    }

    /// The folder of what trainers write and are held by.
    #[must_use]
    pub fn trace_folder(&self) -> PathBuf {
        Path::new("/dev/shm").join(self.root.file_name().expect("the root has a name"))
    }

    /// The kit of a participant.
    #[must_use]
    pub fn kit(&self, name: &str) -> PathBuf {
        self.root.join("fed/kits").join(name)
    }

    /// Names of the sites.
    #[must_use]
    pub fn sites(&self) -> &[String] {
        &self.plan.sites
    }

    /// Starts the server and then every site, and waits until all are ready.
    ///
    /// # Panics
    /// When one does not get ready.
    pub fn start_all(&mut self) {
        let names: Vec<String> =
            std::iter::once("server".to_owned()).chain(self.plan.sites.clone()).collect();
        for name in &names {
            self.start(name, &[]);
        }
        for name in &names {
            self.parent(name).wait_ready();
        }
    }

    /// Starts one parent, with variables; does not wait.
    ///
    /// # Panics
    /// When it runs already.
    pub fn start(&mut self, name: &str, variables: &[(&str, &str)]) {
        self.start_under(name, &[], variables);
    }

    /// Starts one parent as the last arguments of another program, such as `strace`; does not wait.
    ///
    /// # Panics
    /// When it runs already.
    pub fn start_under(&mut self, name: &str, under: &[&str], variables: &[(&str, &str)]) {
        let n = self.parents.iter().position(|parent| parent.name == name).unwrap_or_else(|| {
            self.parents.push(Parent {
                name: name.to_owned(),
                folder: self.root.join(name),
                log: Lines::default(),
                cgroup: self.plan.cgroup.clone(),
                child: None,
            });
            self.parents.len() - 1
        });
        self.parents[n].start(under, variables);
    }

    /// A parent by name.
    ///
    /// # Panics
    /// When it was never started.
    #[must_use]
    pub fn parent(&self, name: &str) -> &Parent {
        self.parents.iter().find(|parent| parent.name == name).expect("a parent that was started")
    }

    /// A parent by name, to start or stop.
    ///
    /// # Panics
    /// When it was never started.
    #[must_use]
    pub fn parent_mut(&mut self, name: &str) -> &mut Parent {
        self.parents.iter_mut().find(|parent| parent.name == name).expect("a parent that was started")
    }

    /// The lead of [`STUDY`] at the command line.
    #[must_use]
    pub fn lead(&self) -> User<'_> {
        self.user(LEAD, STUDY)
    }

    /// A user at the command line.
    #[must_use]
    pub fn user(&self, name: &str, study: &str) -> User<'_> {
        User { federation: self, kit: self.kit(name), study: study.to_owned() }
    }

    /// Every process of this federation, parents and workers.
    ///
    /// # Panics
    /// When `/proc` cannot be read.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        process::beneath(&self.root).expect("/proc is there")
    }

    /// Keeps the folder when the federation is dropped; for looking at after a failure.
    pub fn keep(&mut self) {
        if let Some(folder) = self.keep.take() {
            eprintln!("kept: {}", folder.keep().display());
        }
    }
}

impl Drop for Federation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for parent in &self.parents {
                eprintln!("-- log of {}:\n{}", parent.name, parent.log.text());
            }
            if std::env::var_os("POLDER_TEST_KEEP").is_some() {
                self.keep();
            }
        }
        for parent in &mut self.parents {
            parent.kill();
        }
        // A folder that is not there is as good as removed.
        let _ = fs::remove_dir_all(self.trace_folder());
        // Workers outlive their parents on purpose; their shims may start something while they end.
        for _ in 0..10 {
            let left = process::beneath(&self.root).unwrap_or_default();
            if left.is_empty() {
                break;
            }
            for process in &left {
                // It may have ended meanwhile.
                let _ = process.kill();
            }
            for process in &left {
                let _ = process.ended_within(Duration::from_secs(2));
            }
        }
    }
}

impl Parent {
    fn start(&mut self, under: &[&str], variables: &[(&str, &str)]) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut command = match under {
            [] => command_in(self.cgroup.as_deref(), "polder-parent"),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program("polder-parent"));
                command
            }
        };
        let child = command
            .arg("--config")
            .arg(self.folder.join("parent.yaml"))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(writer.try_clone().expect("a copy"))
            .stderr(writer)
            .spawn()
            .expect("polder-parent starts");
        self.log = Lines::default();
        self.log.follow(reader);
        self.child = Some(child);
    }

    /// Starts it again.
    ///
    /// # Panics
    /// When it runs.
    pub fn restart(&mut self) {
        self.start(&[], &[]);
    }

    /// Waits until it says that it is ready.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_ready(&self) {
        self.log
            .wait(0, Duration::from_secs(30), |line| line.contains("ready"))
            .unwrap_or_else(|seen| panic!("{} does not get ready: {seen}", self.name));
    }

    /// Its process.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn process(&self) -> Process {
        let child = self.child.as_ref().expect("it runs");
        Process::of(child.id()).expect("nobody has reaped it")
    }

    /// `kill -9`, and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks it to stop, and waits; how it ended.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn stop(&mut self) -> Option<i32> {
        let process = self.process();
        process.signal(rustix::process::Signal::TERM).expect("it runs");
        self.ended(Duration::from_secs(30))
    }

    /// Waits for it to end by itself; its exit code, absent when a signal ended it.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn ended(&mut self, limit: Duration) -> Option<i32> {
        let process = self.process();
        assert!(process.ended_within(limit), "{} does not end:\n{}", self.name, self.log.text());
        self.child.take().expect("it ran").wait().expect("a child").code()
    }

    /// Its folder for state.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }
}

/// Somebody at the command line.
#[derive(Debug, Clone)]
pub struct User<'a> {
    federation: &'a Federation,
    /// The kit.
    pub kit: PathBuf,
    /// The study.
    pub study: String,
}

impl User<'_> {
    /// `polder ARGUMENTS...` as this user.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let home = self.federation.root.join("home").join(self.kit.file_name().expect("a kit has a name"));
        fs::create_dir_all(&home).expect("a folder");
        let mut command = command_in(self.federation.plan.cgroup.as_deref(), "polder");
        command
            .args(arguments)
            .env("POLDER_KIT", &self.kit)
            .env("POLDER_STUDY", &self.study)
            .env("HOME", &home)
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .current_dir(&home);
        command
    }

    /// Runs `polder ARGUMENTS...` to its end.
    #[must_use]
    #[track_caller]
    pub fn polder(&self, arguments: &[&str]) -> Said {
        run(&mut self.command(arguments))
    }

    /// Runs `polder ARGUMENTS... --json`, which has to succeed.
    #[must_use]
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        self.polder(&all).ok().json()
    }

    /// Submits a folder; the job's id.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    #[track_caller]
    pub fn submit(&self, job: &Path) -> String {
        let said = self.json(&["submit", &job.to_string_lossy()]);
        said["job"].as_str().unwrap_or_else(|| panic!("no id in {said}")).to_owned()
    }

    /// Follows a job event by event.
    ///
    /// # Panics
    /// When the command line does not start.
    #[must_use]
    pub fn follow(&self, job: &str) -> Following {
        let mut child = self
            .command(&["watch", job, "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command line starts");
        let lines = Lines::default();
        lines.follow(child.stdout.take().expect("a pipe"));
        Following { child, lines, seen: 0 }
    }

    /// Waits until a job ended; what `polder show` says of it then.
    ///
    /// # Panics
    /// When it does not end in time.
    #[must_use]
    #[track_caller]
    pub fn wait(&self, job: &str) -> Value {
        let said = run_within(&mut self.command(&["watch", job, "--json"]), programs::LIMIT);
        assert!(matches!(said.code, Some(0 | 1)), "{said:?}");
        self.json(&["show", job])
    }
}

/// A command line that follows a job; ended when dropped.
#[derive(Debug)]
pub struct Following {
    child: Child,
    lines: Lines,
    seen: usize,
}

impl Following {
    /// Waits for the next event that is wanted.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn wait(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let parsed = |line: &str| serde_json::from_str::<Value>(line).expect("a document a line");
        let found = self.lines.wait(self.seen, crate::watch::LIMIT, |line| wanted(&parsed(line)));
        let (n, _, line) = found.unwrap_or_else(|seen| panic!("{seen}"));
        self.seen = n + 1;
        parsed(&line)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program, in a control group where one is named. A shell puts itself there and becomes the program, so
/// that nothing the program starts is ever outside.
fn command_in(cgroup: Option<&Path>, name: &str) -> Command {
    let Some(cgroup) = cgroup else { return Command::new(program(name)) };
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(cgroup.join("cgroup.procs"))
        .arg(program(name));
    command
}

/// A port nobody listens on now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a value prints")
}

fn open_to_all(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own folder");
}

/// Puts `extra` into `base`, map by map.
fn merge(base: &mut Value, extra: &Value) {
    match (base, extra) {
        (Value::Object(base), Value::Object(extra)) => {
            for (key, value) in extra {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, extra) => *base = extra.clone(),
    }
}
