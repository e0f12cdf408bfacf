//! `demo`: a federation of three sites at work, and what it is worth.
//!
//! ```text
//! split the data -> baselines -> federation up -> job folder -> submit -> rounds -> download -> compare
//! ```
//! The job is an ordinary one, submitted as anybody would; only the split and the baselines are computed here,
//! by the functions the trainer itself is made of.

mod job;
mod report;

use super::download::fetch;
use super::follow::{EventLine, INTERRUPTED, is_last, summary};
use super::submit::send;
use crate::args::DemoArgs;
use crate::federation::record::{self, Record};
use crate::federation::{Federation, SiteSpec, Spec};
use crate::job_folder::JobFolder;
use crate::output::units::{metrics, span};
use crate::output::{Ending, Failure, Out};
use crate::server::Server;
use crate::state::State;
use polder_api::ProblemCode;
use polder_api::user::{EventKind, Job};
use polder_demo_trainer::logistic::{Baselines, Examples, Model, Options, baselines};
use polder_demo_trainer::{data, split};
use polder_words::{JobId, JobPhase, OrgName, SiteName, StudyName, UserName};
use report::{Data, Report};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The study.
const STUDY: &str = "pathology";
/// Who submits.
const LEAD: (&str, &str) = ("lead@org_a.com", "org_a");
/// Organisations of the sites, in the order of the split.
const ORGS: [&str; 3] = ["org_a", "org_b", "org_c"];

pub(crate) async fn demo(args: &DemoArgs, out: &mut Out) -> Result<(), Ending> {
    let state = State::find()?;
    record::sweep_stale(&state);
    if args.stop {
        return stop(&state, out);
    }
    if args.keep
        && let Some(other) = record::running(&state)
    {
        return Err(Failure::new(ProblemCode::Conflict, "a federation is kept already")
            .file(other.display().to_string())
            .hint("`polder demo --stop` stops it")
            .into());
    }
    let mut interrupts = crate::Interrupts::listen();
    let ended = tokio::select! {
        () = interrupts.wait() => Err(Ending::Said(INTERRUPTED)),
        ended = run(args, &state, out) => ended,
    };
    if let Err(Ending::Said(INTERRUPTED)) = ended {
        out.note("interrupted; nothing was left running");
    }
    ended
}

/// `polder demo --stop`.
fn stop(state: &State, out: &mut Out) -> Result<(), Ending> {
    let stopped = record::stop_kept(state);
    if stopped.is_empty() {
        return Err(Failure::new(ProblemCode::NotFound, "no federation was kept")
            .hint("`polder demo --keep` leaves one up")
            .into());
    }
    out.result(&json!({"stopped": stopped}), |_| {
        let names: Vec<String> = stopped.iter().map(|dir| dir.display().to_string()).collect();
        format!("stopped and removed {}", names.join(", "))
    })
}

async fn run(args: &DemoArgs, state: &State, out: &mut Out) -> Result<(), Ending> {
    let began = Instant::now();
    let divided = if args.shuffled_labels {
        split::split_with_shuffled_labels(args.seed)
    } else {
        split::split(args.seed)
    };
    out.result(&Data::of(&divided, args.seed), Data::text)?;
    // While the federation comes up, another thread computes what it will be compared with.
    let (copy, seed, rounds) = (divided.clone(), args.seed, args.rounds);
    let compared = tokio::task::spawn_blocking(move || baselines(&copy, seed, rounds, Options::default()));

    let mut record = Record::new(state, "polder-demo-")?;
    let spec = spec(record.dir(), &divided)?;
    let federation = Federation::start(&spec).await?;
    let up = span(millis(began));
    out.result(&json!({"event": "up", "millis": millis(began)}), |_| {
        format!(
            "\na server and {} sites are up after {up}, each a process of its own, TLS between them",
            spec.sites.len()
        )
    })?;

    let folder = JobFolder::open(&job::write(record.dir(), args)?)?;
    let mut server = federation.server().await?;
    let id = send(&mut server, &folder).await?;
    out.result(&json!({"event": "submitted", "job": id}), |_| {
        format!("{} submitted job {}, signed with her own key\n", LEAD.0, id.short())
    })?;
    let job = watch(&mut server, id, out).await?;
    if job.phase != JobPhase::Completed {
        out.result(&job, summary)?;
        return Err(Ending::Said(1));
    }
    let dir = if args.keep { record.dir().join("results") } else { state.dir().join("demo") };
    let model = results(&mut server, &job, &dir).await?;
    let held_out = Examples::new(&divided.held_out);
    let compared: Baselines =
        compared.await.map_err(|error| Failure::new(ProblemCode::Internal, error.to_string()))?;
    let report = Report {
        accuracy: model.accuracy(&held_out),
        best_single_site: compared.best_single_site,
        pooled: compared.pooled,
        rounds: job.round,
        seconds: began.elapsed().as_secs_f64(),
    };
    if !out.is_json() {
        out.text(&report.text(&compared, held_out.len(), &dir))?;
    }
    if args.keep {
        let login = federation.login().clone();
        record.keep(federation.keep())?;
        let kept = json!({"event": "kept", "dir": record.dir(), "kit": login.kit, "study": login.study});
        out.result(&kept, |_| report::kept(&login, record.dir()))?;
    } else if !out.is_json() {
        out.text(report::NEXT)?;
    }
    if out.is_json() { out.document(&report) } else { Ok(()) }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn spec(dir: &Path, divided: &split::Split) -> Result<Spec, Failure> {
    let folder = dir.join("data");
    fs::create_dir_all(&folder).map_err(|error| Failure::io(&folder, "make the folder", &error))?;
    let mut sites = Vec::new();
    for ((name, rows), org) in divided.sites.iter().zip(ORGS) {
        let file = folder.join(format!("{name}.csv"));
        data::save(&file, rows).map_err(|error| Failure::new(ProblemCode::Internal, format!("{error:#}")))?;
        sites.push(SiteSpec {
            name: SiteName::new(name).expect("a good name"),
            org: OrgName::new(org).expect("a good name"),
            env: [("DATA".to_owned(), file.display().to_string())].into(),
            // Its own patients, and nobody else's.
            read: vec![file],
        });
    }
    Ok(Spec {
        dir: dir.to_owned(),
        name: "demo".to_owned(),
        study: StudyName::new(STUDY).expect("a good name"),
        sites,
        lead: (UserName::new(LEAD.0).expect("a good name"), OrgName::new(LEAD.1).expect("a good name")),
    })
}

/// Prints each round as it ends.
async fn watch(server: &mut Server, job: JobId, out: &mut Out) -> Result<Job, Ending> {
    let mut after = 0;
    loop {
        let news = server.events(&job, after).await?;
        for event in &news.events {
            if out.is_json() {
                out.result(&EventLine { job, event }, |_| String::new())?;
            } else if let EventKind::Round { round, total_rounds, metrics: values, millis, .. } = &event.what
            {
                let took = span(*millis);
                out.text(&format!("round {round:>2} of {total_rounds}  {}  {took:>6}", metrics(values)))?;
            }
        }
        after = news.next;
        if news.end || news.events.iter().any(|event| is_last(&event.what)) {
            return Ok(server.job(&job.to_string()).await?);
        }
    }
}

/// Fetches the results anew and reads the model.
async fn results(server: &mut Server, job: &Job, dir: &PathBuf) -> Result<Model, Ending> {
    if dir.exists() {
        fs::remove_dir_all(dir)
            .map_err(|error| Failure::io(dir, "remove the last demo's results", &error))?;
    }
    let done = fetch(server, job, dir, &Out::silent()).await?;
    let model = done
        .files
        .get("model.safetensors")
        .ok_or_else(|| Failure::new(ProblemCode::Internal, "the job left no model.safetensors"))?;
    let loaded = Model::load(&model.path)
        .map_err(|error| Failure::new(ProblemCode::Internal, format!("{error:#}")))?;
    Ok(loaded)
}
