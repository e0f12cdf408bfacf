//! `check`: the rules that hold everywhere, asked before anybody else does.
//!
//! The JSON of `check meta` and `check study-runtime` is a contract with programs outside and therefore not
//! versioned: a part that is refused is `{"refused": true}`, and `refusals` says why; see `polder_core::check`.

use crate::args::{CheckCommand, JobFolderArgs, MetaArgs, StudyRuntimeArgs};
use crate::job_folder::{JobFolder, read_file, refused};
use crate::output::table::Table;
use crate::output::{Ending, Failure, Out};
use polder_api::ProblemCode;
use polder_core::check::{CheckMeta, Part, check_meta};
use polder_core::launcher::{SANDBOXES, SlurmSandbox};
use polder_core::study_runtime::{Reading, StudyRuntimes};
use polder_core::value::{from_bytes, to_json};
use polder_words::AppName;
use serde::Serialize;
use std::path::Path;

pub(crate) fn check(command: &CheckCommand, out: &mut Out) -> Result<(), Ending> {
    match command {
        CheckCommand::Job(args) => job(args, out),
        CheckCommand::Meta(args) => meta(args, out),
        CheckCommand::StudyRuntime(args) => study_runtime(args, out),
    }
}

#[derive(Serialize)]
struct CheckedJob<'a> {
    accepted: bool,
    name: &'a str,
    apps: Vec<CheckedApp<'a>>,
}

#[derive(Serialize)]
struct CheckedApp<'a> {
    app: &'a AppName,
    workflow: polder_core::job::Workflow,
    rounds: u32,
    command: &'a [String],
    bytes: u64,
}

fn job(args: &JobFolderArgs, out: &mut Out) -> Result<(), Ending> {
    let folder = JobFolder::open(&args.dir)?;
    let mut apps = Vec::new();
    for (app, config) in &folder.apps {
        let packed = super::submit::pack(&folder.app_dir(app))?;
        apps.push(CheckedApp {
            app,
            workflow: config.workflow,
            rounds: config.rounds,
            command: &config.trainer.command,
            bytes: packed.tree.blob().size,
        });
    }
    let checked = CheckedJob { accepted: true, name: folder.name(), apps };
    out.result(&checked, |checked| {
        let mut table = Table::new(&["APP", "WORKFLOW", "ROUNDS", "TRAINER", "PACKED"]).right(2).right(4);
        for app in &checked.apps {
            table.row([
                app.app.to_string(),
                word(&app.workflow),
                app.rounds.to_string(),
                app.command.join(" "),
                crate::output::units::bytes(app.bytes),
            ]);
        }
        format!("{}: good to submit\n\n{}", checked.name, table.print())
    })
}

/// A value that is a word in its document.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
}

fn sandbox(args: &MetaArgs) -> Result<SlurmSandbox, Failure> {
    let Some(word) = &args.slurm_sandbox else { return Ok(SlurmSandbox::None) };
    SlurmSandbox::from_word(word).ok_or_else(|| {
        let words: Vec<&str> = SANDBOXES.iter().map(|(word, _)| *word).collect();
        Failure::new(ProblemCode::Usage, "--slurm-sandbox: not a sandbox")
            .found(word.clone(), words.join(", "))
    })
}

/// What people see of an accepted job.
fn to_text(check: &CheckMeta, file: &str, site: &str) -> String {
    let shown = |name: &str, part: &Part| match (part, check.refusals.get(name)) {
        (Part::Ok(value), _) => to_json(value),
        (Part::Refused, Some(error)) => format!("refused: {error}"),
        (Part::Refused, None) => "refused".to_owned(),
    };
    let mut table = Table::facts();
    for (name, part) in
        [("resolved", &check.resolved), ("admission", &check.admission), ("portable", &check.portable)]
    {
        table.row([name.to_owned(), shown(name, part)]);
    }
    let launcher = &check.launcher;
    for (mode, name, part) in [
        ("process", "launcher.process", &launcher.process),
        ("docker", "launcher.docker", &launcher.docker),
        ("k8s", "launcher.k8s", &launcher.k8s),
        ("slurm", "launcher.slurm", &launcher.slurm),
    ] {
        table.row([format!("options for {mode}"), shown(name, part)]);
    }
    table.row(["asks of Slurm".to_owned(), shown("slurm_resources", &check.slurm_resources)]);
    format!("{file}: good; for site {site}:\n\n{}", table.print())
}

fn meta(args: &MetaArgs, out: &mut Out) -> Result<(), Ending> {
    let sandbox = sandbox(args)?;
    let file = args.file.display().to_string();
    let bytes = read_file(&args.file)?;
    let check = check_meta(&bytes, &file, args.site.as_str(), sandbox);
    if out.is_json() {
        out.exact(&check.to_json())?;
        return if check.accepted { Ok(()) } else { Err(Ending::Said(1)) };
    }
    if let Some(error) = &check.error {
        return Err(refused(error).into());
    }
    out.text(&to_text(&check, &file, args.site.as_str()))?;
    if from_bytes(&file, &bytes).is_ok_and(|document| document.get("deploy_map").is_none()) {
        out.note("deploy_map is missing: a submission needs it");
    }
    Ok(())
}

/// Reads files a study names: beneath the folder of the document, whatever is written.
pub(crate) fn beside(folder: &Path) -> impl Fn(&str) -> Result<Vec<u8>, String> {
    let folder = folder.to_owned();
    move |name: &str| {
        let path = Path::new(name);
        let inside = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if !inside {
            return Err("it is not beneath the folder of the file".to_owned());
        }
        std::fs::read(folder.join(path)).map_err(|error| error.to_string())
    }
}

fn study_runtime(args: &StudyRuntimeArgs, out: &mut Out) -> Result<(), Ending> {
    let file = args.file.display().to_string();
    let bytes = read_file(&args.file)?;
    let files = beside(args.file.parent().unwrap_or(Path::new(".")));
    match StudyRuntimes::parse(&file, &bytes, &Reading::new(args.mode, &files)) {
        Ok(studies) if out.is_json() => out.text(&to_json(&studies.to_json())),
        Ok(studies) => {
            let mut table = Table::new(&["STUDY", "READ AS"]);
            for (name, study) in &studies.studies {
                table.row([name.to_string(), to_json(&study.to_json())]);
            }
            out.text(&format!("{file}: good for {}\n\n{}", args.mode, table.print()))?;
            for warning in &studies.warnings {
                out.note(&format!("warning: {warning}"));
            }
            Ok(())
        }
        Err(error) if out.is_json() => {
            out.document(&error.to_json())?;
            Err(Ending::Said(1))
        }
        Err(error) => Err(refused(&error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(meta: &serde_json::Value) -> String {
        check_meta(meta.to_string().as_bytes(), "meta.json", "site-1", SlurmSandbox::None).to_json()
    }

    #[test]
    fn the_contract_of_check_meta() {
        let good = document(&json!({"resource_spec": {"@default": {"num_of_gpus": 1, "memory": "8Gi"}},
            "launcher_spec": {"default": {"slurm": {"nodes": 2}}}}));
        let bad = document(&json!({"resource_spec": {"site-1": {"memory": 8}}}));
        insta::assert_snapshot!(format!("{good}\n{bad}"));
    }

    #[test]
    fn a_named_file_does_not_leave_the_folder() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(dir.path().join("pod.yaml"), "kind: Pod\n").expect("written");
        let read = beside(dir.path());
        assert!(read("pod.yaml").is_ok());
        assert!(read("../pod.yaml").is_err() && read("/etc/hostname").is_err() && read("none.yaml").is_err());
    }
}
