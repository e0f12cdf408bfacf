//! `simulate`: one's own job on this machine, with sites that are processes.
//!
//! It is the same job, the same code and the same checks as in a federation; only the sites are here. What
//! it leaves is the results' folder.

use super::download::{Downloaded, default_dir, fetch};
use super::follow::{INTERRUPTED, summary, until_end};
use super::submit::send;
use crate::args::SimulateArgs;
use crate::federation::record::{self, Record};
use crate::federation::{Federation, SiteSpec, Spec};
use crate::job_folder::JobFolder;
use crate::output::{Ending, Failure, Out, job as text};
use crate::state::State;
use polder_api::ProblemCode;
use polder_words::{JobPhase, OrgName, SiteName, StudyName, UserName};

/// Name of the federation.
const FEDERATION: &str = "simulation";

pub(crate) async fn simulate(args: &SimulateArgs, out: &mut Out) -> Result<(), Ending> {
    let folder = JobFolder::open(&args.job)?;
    let sites = sites(&folder, args)?;
    let mut interrupts = crate::Interrupts::listen();
    let state = State::find()?;
    record::sweep_stale(&state);
    let place = Record::new(&state, "polder-sim-")?;
    let spec = Spec {
        dir: place.dir().to_owned(),
        name: FEDERATION.to_owned(),
        study: StudyName::new(FEDERATION).expect("a good name"),
        sites,
        lead: (
            UserName::new("you@simulation").expect("a good name"),
            OrgName::new("here").expect("a good name"),
        ),
    };
    out.note(&format!("starting {} sites on this machine", spec.sites.len()));
    let ended = tokio::select! {
        () = interrupts.wait() => Err(Ending::Said(INTERRUPTED)),
        ended = run(&spec, &folder, args, out) => ended,
    };
    if let Err(Ending::Said(INTERRUPTED)) = ended {
        out.note("interrupted; nothing was left running");
    }
    ended
}

async fn run(spec: &Spec, folder: &JobFolder, args: &SimulateArgs, out: &mut Out) -> Result<(), Ending> {
    let federation = Federation::start(spec).await?;
    let mut server = federation.server().await?;
    let id = send(&mut server, folder).await?;
    let Some(job) = until_end(&mut server, id, out).await? else { return Err(Ending::Said(INTERRUPTED)) };
    let dir = args.out.clone().unwrap_or_else(|| default_dir(&job));
    let logs = dir.join("logs");
    super::logs::save(&mut server, &job, &logs).await?;
    if job.phase != JobPhase::Completed {
        out.result(&job, summary)?;
        out.note(&format!("every worker's log is in {}", logs.display()));
        return Err(Ending::Said(1));
    }
    let done: Downloaded = fetch(&mut server, &job, &dir, out).await?;
    out.result(&job, |job| {
        format!(
            "{}{}",
            summary(job),
            text::files(&dir, done.files.keys().map(String::as_str).chain(["logs/"]))
        )
    })
}

/// The sites: those the job names, else as many as asked for.
fn sites(folder: &JobFolder, args: &SimulateArgs) -> Result<Vec<SiteSpec>, Failure> {
    let names: Vec<SiteName> = folder.meta.clients().unwrap_or_else(|| {
        (1..=args.sites).map(|n| SiteName::new(&format!("site-{n}")).expect("a good name")).collect()
    });
    let least = folder.meta.min_clients;
    if u32::try_from(names.len()).unwrap_or(u32::MAX) < least {
        return Err(Failure::new(ProblemCode::Invalid, "the job wants more sites than there are")
            .found(format!("--sites {}", names.len()), format!("at least its min_clients, {least}")));
    }
    let org = OrgName::new("here").expect("a good name");
    let site = |(n, name): (usize, SiteName)| {
        let fill =
            |value: &String| value.replace("{site}", name.as_str()).replace("{n}", &(n + 1).to_string());
        let env = args.env.iter().map(|(key, value)| (key.clone(), fill(value))).collect();
        // Whose job and data these are is whose machine this is.
        SiteSpec { name, org: org.clone(), env, read: vec!["/".into()] }
    };
    Ok(names.into_iter().enumerate().map(site).collect())
}
