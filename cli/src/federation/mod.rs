//! A whole federation on this machine, for `demo`, `simulate` and whoever wants to try something.
//!
//! Nothing of it is pretended: a project is provisioned, each participant gets its kit, the server and every
//! site run their own `polder-parent` with its own `parent.yaml`, TLS goes over loopback. All of it lies in one
//! folder, and everything that runs in that folder is ended when the [`Federation`] is dropped.

pub(crate) mod processes;
pub(crate) mod record;

use crate::commands::provision;
use crate::job_folder::{read_file, refused};
use crate::output::Failure;
use crate::server::Server;
use crate::state::Login;
use polder_api::ProblemCode;
use polder_core::parent::{LauncherConfig, ParentConfig};
use polder_words::{OrgName, SiteName, StudyName, UserName};
use processes::{Daemon, Ident};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a federation may take to come up.
const READY: Duration = Duration::from_secs(30);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(10);
/// The server's name: it is on this machine.
const HOST: &str = "127.0.0.1";

/// One site.
#[derive(Debug, Clone)]
pub(crate) struct SiteSpec {
    /// Its name.
    pub(crate) name: SiteName,
    /// Its organisation.
    pub(crate) org: OrgName,
    /// The variables its trainers get: the study's `env` there.
    pub(crate) env: BTreeMap<String, String>,
    /// What its trainers may read beside the system and the job.
    pub(crate) read: Vec<PathBuf>,
}

/// A federation to start.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Folder for everything; made when it is not there.
    pub(crate) dir: PathBuf,
    /// Name of the federation.
    pub(crate) name: String,
    /// Its one study.
    pub(crate) study: StudyName,
    /// Its sites.
    pub(crate) sites: Vec<SiteSpec>,
    /// Who submits jobs, with the role `lead`.
    pub(crate) lead: (UserName, OrgName),
}

/// A federation that runs.
#[derive(Debug)]
pub(crate) struct Federation {
    dir: PathBuf,
    /// Sites first: they are stopped before the server.
    daemons: Vec<Daemon>,
    login: Login,
    kept: bool,
}

/// The folder of a participant's kit.
fn kit(dir: &Path, name: &str) -> PathBuf {
    dir.join("fed/kits").join(name)
}

/// A program beside this one, else on `PATH`.
pub(crate) fn program(name: &str) -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(std::env::split_paths(&path).map(|dir| dir.join(name)))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            Failure::new(
                ProblemCode::Invalid,
                format!("the program `{name}` is neither beside `polder` nor on PATH"),
            )
            .hint(format!("`cargo build --release -p {name}` builds it; scripts/demo builds all"))
        })
}

impl Spec {
    /// The federation's `project.yml`; JSON is YAML too.
    fn project(&self, port: u16) -> String {
        let mut participants = vec![json!({"name": HOST, "type": "server", "org": "host", "port": port})];
        let mut site_orgs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for site in &self.sites {
            participants.push(json!({"name": site.name, "type": "client", "org": site.org}));
            site_orgs.entry(site.org.as_str()).or_default().push(site.name.as_str());
        }
        let (lead, org) = &self.lead;
        participants.push(json!({"name": lead, "type": "admin", "org": org, "role": "lead"}));
        let mut studies = Map::new();
        studies.insert(self.study.to_string(), json!({"site_orgs": site_orgs, "admins": [lead]}));
        let project =
            json!({"api_version": 4, "name": self.name, "participants": participants, "studies": studies});
        serde_json::to_string_pretty(&project).expect("plain data becomes JSON") + "\n"
    }

    /// A site's `study_runtime.yaml`.
    fn study_runtime(&self, site: &SiteSpec) -> Value {
        let mut studies = Map::new();
        // Whoever runs this has the data and the job on this machine: nothing needs to be withheld.
        studies.insert(self.study.to_string(), json!({"env": site.env, "export": {"logs": "full"}}));
        json!({"format_version": 2, "studies": studies})
    }

    fn write(&self) -> io::Result<PathBuf> {
        fs::create_dir_all(self.dir.join("logs"))?;
        let project = self.dir.join("project.yml");
        fs::write(&project, self.project(free_port()?))?;
        Ok(project)
    }
}

/// Lets a site's workers read some paths, in its `parent.yaml`.
fn open_for(file: &Path, read: &[PathBuf]) -> Result<(), Failure> {
    let mut config = ParentConfig::parse(&file.display().to_string(), &read_file(file)?)
        .map_err(|error| refused(&error))?;
    if let LauncherConfig::Process(process) = &mut config.launcher {
        process.read = read.to_vec();
    }
    fs::write(file, config.to_string()).map_err(|error| Failure::io(file, "write", &error))
}

/// A port nobody listens on at this moment.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((HOST, 0))?.local_addr()?.port())
}

impl Federation {
    /// Provisions and starts a federation, and waits until every site is connected.
    pub(crate) async fn start(spec: &Spec) -> Result<Self, Failure> {
        let parent = program("polder-parent")?;
        program("polder-worker")?;
        let failed = |error: io::Error| Failure::io(&spec.dir, "write", &error);
        let project = spec.write().map_err(failed)?;
        provision::make(&project, &spec.dir.join("fed"), &[])?;
        for site in &spec.sites {
            let local = kit(&spec.dir, site.name.as_str()).join("local");
            let text =
                serde_json::to_string_pretty(&spec.study_runtime(site)).expect("plain data becomes JSON");
            fs::write(local.join("study_runtime.yaml"), text).map_err(failed)?;
            open_for(&kit(&spec.dir, site.name.as_str()).join("parent.yaml"), &site.read)?;
        }
        let login = Login { kit: kit(&spec.dir, spec.lead.0.as_str()), study: spec.study.clone() };
        let mut this = Self { dir: spec.dir.clone(), daemons: Vec::new(), login, kept: false };
        for name in spec.sites.iter().map(|site| site.name.as_str()).chain([HOST]) {
            let log = spec.dir.join("logs").join(format!("{name}.log"));
            let config = kit(&spec.dir, name).join("parent.yaml");
            let daemon = Daemon::start(name, &parent, &[Path::new("--config"), &config], &log)
                .map_err(|error| Failure::io(&parent, "start", &error))?;
            this.daemons.push(daemon);
        }
        this.ready(spec.sites.len()).await?;
        Ok(this)
    }

    /// Waits until every site is connected.
    async fn ready(&mut self, sites: usize) -> Result<(), Failure> {
        let end = Instant::now() + READY;
        let mut server = None;
        loop {
            for daemon in &mut self.daemons {
                if let Some(status) = daemon.ended() {
                    let tail = daemon.tail(10);
                    return Err(Failure::new(
                        ProblemCode::Internal,
                        format!("the parent of {} ended with {status}: {tail}", daemon.name()),
                    ));
                }
            }
            let problem = match &mut server {
                None => match self.server().await {
                    Ok(connected) => {
                        server = Some(connected);
                        continue;
                    }
                    Err(failure) => failure.sentence(),
                },
                Some(server) => match server.sites().await {
                    Ok(list) if list.sites.iter().filter(|site| site.connected).count() == sites => {
                        return Ok(());
                    }
                    Ok(_) => "not every site is connected".to_owned(),
                    Err(failure) => failure.sentence(),
                },
            };
            if Instant::now() > end {
                let message =
                    format!("the federation did not come up within {} s: {problem}", READY.as_secs());
                return Err(Failure::new(ProblemCode::Internal, message)
                    .hint(format!("the parents' logs are in {}", self.dir.join("logs").display())));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A connection as the lead, in the study.
    pub(crate) async fn server(&self) -> Result<Server, Failure> {
        Server::open(self.login.clone(), None).await
    }

    /// The lead's kit and the study.
    pub(crate) fn login(&self) -> &Login {
        &self.login
    }

    /// Lets it run on after this program; gives its processes.
    pub(crate) fn keep(mut self) -> Vec<Ident> {
        self.kept = true;
        let idents = self.daemons.iter().filter_map(Daemon::ident).collect();
        self.daemons.iter_mut().for_each(Daemon::release);
        idents
    }
}

impl Drop for Federation {
    fn drop(&mut self) {
        if !self.kept {
            processes::stop(&mut self.daemons);
            processes::sweep(&self.dir);
        }
    }
}
