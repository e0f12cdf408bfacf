//! `provision`: from `project.yml` to a CA and one ready folder for each participant.
//!
//! ```text
//! OUT/ca/                       the project CA, for the operator alone
//! OUT/kits/NAME/                what NAME gets
//!     ca.pem cert.pem key.pem kit.json kit.sig
//!     parent.yaml               server and sites: ready to start, theirs to edit
//!     local/study_runtime.yaml  sites: what each study gets there
//!     project.yml               server: the studies it begins with
//! ```
//! Incremental: run again with a further participant it makes that one's folder and touches no other,
//! but for the server's `project.yml`.

use crate::args::{CompleteArgs, ProvisionArgs, ProvisionCommand, RequestArgs, RevokeArgs, SignArgs};
use crate::job_folder::{read_file, refused};
use crate::output::table::Table;
use crate::output::units::count;
use crate::output::{Ending, Failure, Out};
use jiff::Timestamp;
use polder_api::ProblemCode;
use polder_core::parent::FILE as PARENT_FILE;
use polder_core::project::{FILE as PROJECT_FILE, Project};
use polder_transport::Endpoint;
use polder_transport::identity::provision::DEFAULT_DAYS;
use polder_transport::identity::{
    Authority, CertificateRequest, Kind, Kit, Participant, Principal, ProjectPlan, provision,
};
use polder_words::{SiteName, UserName, UserRole};
use serde::Serialize;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// What provisioning did.
#[derive(Debug, Serialize)]
pub(crate) struct Provisioned {
    federation: String,
    server: String,
    added: Vec<Made>,
    kept: Vec<Made>,
    /// What the project says now and a kit that is kept says otherwise.
    differing: Vec<String>,
    warnings: Vec<String>,
}

/// One participant's folder.
#[derive(Debug, Serialize)]
struct Made {
    name: String,
    kind: String,
    dir: PathBuf,
}

pub(crate) fn run(args: ProvisionArgs, out: &mut Out) -> Result<(), Ending> {
    match (args.command, args.project, args.out) {
        (Some(ProvisionCommand::Request(args)), ..) => request(&args, out),
        (Some(ProvisionCommand::Sign(args)), ..) => sign(&args, out),
        (Some(ProvisionCommand::Complete(args)), ..) => complete(&args, out),
        (Some(ProvisionCommand::Revoke(args)), ..) => revoke(&args, out),
        (None, Some(project), Some(dir)) => {
            let mut done = make(&project, &dir, &args.except)?;
            tell(&mut done, out)
        }
        (None, ..) => Err(Failure::new(ProblemCode::Usage, "PROJECT and --out are needed").into()),
    }
}

fn tell(done: &mut Provisioned, out: &mut Out) -> Result<(), Ending> {
    let notes: Vec<String> = done.warnings.iter().chain(&done.differing).cloned().collect();
    out.result(&*done, text)?;
    for note in notes {
        out.note(&format!("warning: {note}"));
    }
    Ok(())
}

fn text(done: &Provisioned) -> String {
    let mut text = format!(
        "{}, server {}: {} added, {} kept\n",
        done.federation,
        done.server,
        count(done.added.len(), "kit"),
        count(done.kept.len(), "kit")
    );
    if !done.added.is_empty() {
        let mut table = Table::new(&["ADDED", "KIND", "KIT"]);
        for made in &done.added {
            table.row([made.name.clone(), made.kind.clone(), made.dir.display().to_string()]);
        }
        text.push('\n');
        text.push_str(&table.print());
        text.push_str(
            "\nBring each kit to its owner, and keep the folder `ca` to yourself.\n\
             A parent starts with `polder-parent --config KIT/parent.yaml`,\n\
             a user with `polder login --study STUDY --kit KIT`.\n",
        );
    }
    text
}

/// Provisions everybody in a project but those excepted.
pub(crate) fn make(project: &Path, out: &Path, except: &[String]) -> Result<Provisioned, Failure> {
    let (project, text) = read_project(project)?;
    let mut plan = plan(&project)?;
    for name in except {
        let before = plan.participants.len();
        plan.participants.retain(|participant| participant.principal.name() != name);
        if plan.participants.len() == before {
            return Err(nobody("--except", name, &project));
        }
    }
    issue(&project, &text, &plan, out)
}

fn nobody(place: &str, name: &str, project: &Project) -> Failure {
    let names: Vec<String> =
        participants(project).iter().map(|participant| participant.principal.name().to_owned()).collect();
    Failure::new(ProblemCode::Invalid, format!("{place}: no participant of the project has this name"))
        .found(name.to_owned(), names.join(", "))
}

fn issue(project: &Project, text: &[u8], plan: &ProjectPlan, out: &Path) -> Result<Provisioned, Failure> {
    let done = provision(plan, out, Timestamp::now())
        .map_err(|error| Failure::new(ProblemCode::Invalid, error.to_string()))?;
    let made = |principal: &Principal| Made {
        name: principal.name().to_owned(),
        kind: principal.kind().to_string(),
        dir: out.join("kits").join(principal.name()),
    };
    for participant in &plan.participants {
        furnish(project, text, &participant.principal, &made(&participant.principal).dir)?;
    }
    Ok(Provisioned {
        federation: project.name.clone(),
        server: plan.server.to_string(),
        added: done.added.iter().map(made).collect(),
        kept: done.kept.iter().map(made).collect(),
        differing: done.differing,
        warnings: project.warnings.clone(),
    })
}

fn read_project(path: &Path) -> Result<(Project, Vec<u8>), Failure> {
    let bytes = read_file(path)?;
    let project = Project::parse(&path.display().to_string(), &bytes).map_err(|error| refused(&error))?;
    Ok((project, bytes))
}

fn participants(project: &Project) -> Vec<Participant> {
    let participant = |principal, org: &polder_words::OrgName, hosts: Vec<String>| Participant {
        principal,
        org: org.clone(),
        hosts,
        request: None,
    };
    let server = &project.server;
    let mut all =
        vec![participant(Principal::Server(server.name.clone()), &server.org, server.host_names.clone())];
    all.extend(
        project
            .sites
            .iter()
            .map(|site| participant(Principal::Site(site.name.clone()), &site.org, Vec::new())),
    );
    all.extend(
        project
            .users
            .iter()
            .map(|user| participant(Principal::User(user.name.clone(), user.role), &user.org, Vec::new())),
    );
    all
}

fn plan(project: &Project) -> Result<ProjectPlan, Failure> {
    let server = Endpoint::new(project.server.name.as_str(), project.server.port)
        .map_err(|error| Failure::new(ProblemCode::Invalid, format!("the server's name: {error}")))?;
    Ok(ProjectPlan {
        federation: project.name.clone(),
        server,
        days: DEFAULT_DAYS,
        participants: participants(project),
    })
}

/// Puts beside a kit what its owner starts from; what is there already is the owner's and stays.
fn furnish(project: &Project, text: &[u8], principal: &Principal, dir: &Path) -> Result<(), Failure> {
    match principal.kind() {
        Kind::Server => {
            replace(&dir.join(PROJECT_FILE), text)?;
            add(&dir.join(PARENT_FILE), &server_yaml(project))
        }
        Kind::Site => {
            add(&dir.join(PARENT_FILE), &site_yaml(project, principal.name()))?;
            let local = dir.join("local");
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&local)
                .map_err(|error| Failure::io(&local, "make the folder", &error))?;
            add(&local.join("study_runtime.yaml"), &runtime_yaml(project, principal.name()))
        }
        Kind::User => Ok(()),
    }
}

fn add(path: &Path, text: &str) -> Result<(), Failure> {
    let made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Failure::io(path, "write", &error)),
        _ => Ok(()),
    }
}

fn replace(path: &Path, text: &[u8]) -> Result<(), Failure> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, text)
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|error| Failure::io(path, "write", &error))
}

fn server_yaml(project: &Project) -> String {
    format!(
        "# The server of {federation}. Paths are relative to this file.
name: {name}
role: server
listen: 0.0.0.0:{port}
kit: .
state: state
# What the workflow's worker of each job is started with.
launcher:
  process: {{}}
",
        federation = project.name,
        name = project.server.name,
        port = project.server.port,
    )
}

fn site_yaml(project: &Project, name: &str) -> String {
    format!(
        "# Site {name} of {federation}. Paths are relative to this file.
name: {name}
server: https://{host}:{port}
kit: .
state: state
# What each study gets here: data, variables, secrets, what may leave. Read again at every launch.
study_runtime: local/study_runtime.yaml
# How workers are started, exactly one of: process, docker, kubernetes, slurm.
launcher:
  process: {{}}
# proxy: http://proxy.example.org:3128
",
        federation = project.name,
        host = project.server.name,
        port = project.server.port,
    )
}

fn runtime_yaml(project: &Project, site: &str) -> String {
    let mut text = "# What each study gets at this site.
format_version: 2
studies:
"
    .to_owned();
    let mine = project
        .studies
        .iter()
        .filter(|(_, study)| study.site_orgs.values().flatten().any(|name| name.as_str() == site));
    let mut any = false;
    for (name, _) in mine {
        any = true;
        text.push_str(&format!("  {name}:\n    env: {{}}\n"));
    }
    if !any {
        text.push_str("  {}\n");
    }
    text.push_str(
        "#  example:
#    env: {DATA: /srv/data/example.csv}     # variables of the trainer
#    export: {logs: tail, max_bytes: 1Gi}   # what may leave the site
",
    );
    text
}

#[derive(Serialize)]
struct Requested {
    name: String,
    key: PathBuf,
    request: PathBuf,
}

fn principal(name: &str) -> Result<Principal, Failure> {
    // A request carries a name only: what its owner is, the project says.
    let refused = |error: polder_words::NameError| Failure::new(ProblemCode::Usage, error.to_string());
    if name.contains('@') {
        UserName::new(name).map(|name| Principal::User(name, UserRole::Member)).map_err(refused)
    } else {
        SiteName::new(name).map(Principal::Site).map_err(refused)
    }
}

fn request(args: &RequestArgs, out: &mut Out) -> Result<(), Ending> {
    CertificateRequest::make(&args.out, &principal(&args.name)?, &args.org)
        .map_err(|error| Failure::new(ProblemCode::Invalid, error.to_string()))?;
    let made = Requested {
        name: args.name.clone(),
        key: args.out.join("key.pem"),
        request: args.out.join("request.pem"),
    };
    out.result(&made, |made| {
        format!("made {} (it stays here) and {}", made.key.display(), made.request.display())
    })?;
    out.note(
        "send request.pem to the operator of the federation; when the kit comes back, `polder provision complete` \
         puts the key into it",
    );
    Ok(())
}

fn sign(args: &SignArgs, out: &mut Out) -> Result<(), Ending> {
    let (project, text) = read_project(&args.project)?;
    let bytes = read_file(&args.request)?;
    let file = args.request.display().to_string();
    let pem = String::from_utf8(bytes).map_err(|_| {
        Failure::new(ProblemCode::Invalid, "is no certificate request in PEM").file(file.clone())
    })?;
    let request = CertificateRequest::parse(&pem)
        .map_err(|error| Failure::new(ProblemCode::Invalid, error.to_string()).file(file.clone()))?;
    let Some(name) = request.name else {
        return Err(Failure::new(ProblemCode::Invalid, "names nobody").file(file).into());
    };
    let mut plan = plan(&project)?;
    plan.participants.retain(|participant| {
        participant.principal.name() == name || participant.principal.kind() == Kind::Server
    });
    let Some(wanted) = plan.participants.iter_mut().find(|participant| participant.principal.name() == name)
    else {
        return Err(nobody(&file, &name, &project).into());
    };
    wanted.request = Some(pem);
    let dir = args.out.join("kits").join(&name);
    if dir.exists() {
        return Err(Failure::new(ProblemCode::Conflict, format!("{name} has a kit already"))
            .file(dir.display().to_string())
            .hint("remove the folder to issue it anew")
            .into());
    }
    let mut done = issue(&project, &text, &plan, &args.out)?;
    tell(&mut done, out)?;
    out.note(&format!(
        "send {} back; its owner completes it with `polder provision complete`",
        dir.display()
    ));
    Ok(())
}

#[derive(Serialize)]
struct Completed {
    name: String,
    kit: PathBuf,
}

fn complete(args: &CompleteArgs, out: &mut Out) -> Result<(), Ending> {
    let kit: Kit = CertificateRequest::complete(&args.request_dir, &args.kit, Timestamp::now())
        .map_err(|error| Failure::new(ProblemCode::Invalid, error.to_string()))?;
    let done = Completed { name: kit.info().name.clone(), kit: args.kit.clone() };
    out.result(&done, |done| format!("the kit of {} is complete: {}", done.name, done.kit.display()))
}

#[derive(Serialize)]
struct RevokedNow {
    name: String,
    /// Number of the list; the server takes none that is older.
    list: u64,
    file: PathBuf,
}

fn revoke(args: &RevokeArgs, out: &mut Out) -> Result<(), Ending> {
    let refused = |error: &dyn std::fmt::Display| Failure::new(ProblemCode::Invalid, error.to_string());
    let authority = Authority::open(&args.out.join("ca")).map_err(|error| refused(&error))?;
    let list =
        authority.revoke(&args.name, &args.reason, Timestamp::now()).map_err(|error| refused(&error))?;
    let text = authority.revoked_signed().map_err(|error| refused(&error))?;
    // Beside the CA it is written already; the server reads the copy in its kit.
    let file = match server_kit(&args.out.join("kits")) {
        Some(kit) => {
            let file = kit.join("revoked.json");
            replace(&file, text.as_bytes())?;
            file
        }
        None => args.out.join("ca/revoked.json"),
    };
    let done = RevokedNow { name: args.name.clone(), list: list.number, file };
    out.result(&done, |done| format!("revoked the certificates of {}: {}", done.name, done.file.display()))?;
    out.note("it holds once this file lies in the kit of the running server; bring it there");
    Ok(())
}

/// The kit of the server, where the operator still has it.
fn server_kit(kits: &Path) -> Option<PathBuf> {
    fs::read_dir(kits).ok()?.flatten().map(|entry| entry.path()).find(|kit| {
        let info = fs::read(kit.join("kit.json")).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        info.is_some_and(|info: serde_json::Value| info["kind"] == "server")
    })
}
