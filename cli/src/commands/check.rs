//! `check`: the rules that hold everywhere, asked before anybody else does.
//!
//! The JSON of `check meta` and `check study-runtime` is a contract with programs outside and therefore not
//! versioned: a part that is refused is `{"refused": true}`, and `error` says why.

use crate::args::{CheckCommand, JobFolderArgs, MetaArgs, StudyRuntimeArgs};
use crate::job_folder::{JobFolder, read_file, refused};
use crate::output::table::Table;
use crate::output::{Ending, Failure, Out};
use polder_api::ProblemCode;
use polder_core::launcher::{SANDBOXES, SlurmSandbox};
use polder_core::meta::{JobMeta, Need};
use polder_core::resources::{View, slurm_resources};
use polder_core::study_runtime::{Reading, StudyRuntimes};
use polder_core::value::{At, Data, Map, Value, from_bytes, to_json};
use polder_words::{AppName, Mode};
use serde::Serialize;
use std::path::Path;

/// How long a Slurm site lets a job wait when it says nothing, in seconds.
const PENDING_TIMEOUT: f64 = 600.0;

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

fn error_value(error: &polder_core::Error) -> Value {
    Value::map([
        ("file", Value::from(error.file())),
        ("at", Value::from(error.at())),
        ("found", Value::from(error.found())),
        ("allowed", Value::from(error.allowed())),
        ("message", Value::from(error.message())),
    ])
}

/// Every part of what one site makes of a meta file.
struct Findings {
    error: Option<polder_core::Error>,
    parts: Vec<(&'static str, Result<Value, polder_core::Error>)>,
    launchers: Vec<(Mode, Result<Value, polder_core::Error>)>,
    slurm: Result<Value, polder_core::Error>,
}

fn find(file: &str, document: &Value, site: &str, sandbox: SlurmSandbox) -> Findings {
    let nothing = Value::from(Data::Null);
    let part = |key| document.get(key).unwrap_or(&nothing);
    let view = View { file, resource_spec: part("resource_spec"), launcher_spec: part("launcher_spec") };
    let map = |map: Map| Value::from(map);
    Findings {
        error: JobMeta::read(&At::root(file, document), Need::Parts).err(),
        parts: vec![
            ("resolved", view.resolved(site).map(map)),
            ("admission", view.admission(site).map(map)),
            ("portable", view.portable(site).map(|portable| map(portable.to_map()))),
        ],
        launchers: Mode::ALL.iter().map(|mode| (*mode, view.launcher(site, *mode).map(map))).collect(),
        slurm: slurm_resources(&view, site, sandbox, PENDING_TIMEOUT).map(|slurm| slurm.to_value()),
    }
}

fn judged(part: &Result<Value, polder_core::Error>) -> Value {
    match part {
        Ok(value) => Value::map([("ok", value.clone())]),
        Err(_) => Value::map([("refused", Value::from(true))]),
    }
}

impl Findings {
    /// The contract's document.
    fn to_value(&self) -> Value {
        let error = self.error.as_ref().map_or_else(|| Value::from(Data::Null), error_value);
        let mut pairs = vec![("accepted", Value::from(self.error.is_none())), ("error", error)];
        pairs.extend(self.parts.iter().map(|(name, part)| (*name, judged(part))));
        let launchers = self.launchers.iter().map(|(mode, part)| (mode.as_str(), judged(part)));
        pairs.push(("launcher", Value::map(launchers)));
        pairs.push(("slurm_resources", judged(&self.slurm)));
        Value::map(pairs)
    }

    fn to_text(&self, file: &str, site: &str) -> String {
        let shown = |part: &Result<Value, polder_core::Error>| match part {
            Ok(value) => to_json(value),
            Err(error) => format!("refused: {error}"),
        };
        let mut table = Table::facts();
        for (name, part) in &self.parts {
            table.row([(*name).to_owned(), shown(part)]);
        }
        for (mode, part) in &self.launchers {
            table.row([format!("options for {mode}"), shown(part)]);
        }
        table.row(["asks of Slurm".to_owned(), shown(&self.slurm)]);
        format!("{file}: good; for site {site}:\n\n{}", table.print())
    }
}

fn meta(args: &MetaArgs, out: &mut Out) -> Result<(), Ending> {
    let sandbox = sandbox(args)?;
    let file = args.file.display().to_string();
    let bytes = read_file(&args.file)?;
    let document = from_bytes(&file, &bytes);
    let findings = match &document {
        Ok(document) => find(&file, document, args.site.as_str(), sandbox),
        Err(error) => {
            let all = || Err(error.clone());
            Findings {
                error: Some(error.clone()),
                parts: ["resolved", "admission", "portable"].map(|name| (name, all())).into(),
                launchers: Mode::ALL.iter().map(|mode| (*mode, all())).collect(),
                slurm: all(),
            }
        }
    };
    if out.is_json() {
        out.text(&to_json(&findings.to_value()))?;
        return if findings.error.is_none() { Ok(()) } else { Err(Ending::Said(1)) };
    }
    if let Some(error) = &findings.error {
        return Err(refused(error).into());
    }
    out.text(&findings.to_text(&file, args.site.as_str()))?;
    if document.is_ok_and(|document| document.get("deploy_map").is_none()) {
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
        let value = from_bytes("meta.json", meta.to_string().as_bytes()).expect("JSON");
        to_json(&find("meta.json", &value, "site-1", SlurmSandbox::None).to_value())
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
