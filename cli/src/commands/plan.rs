//! `plan`: the native request a job would make at a site, printed and not made.
//!
//! The same functions as in the site's parent, from the same three files. Where a launch takes what only it
//! knows (the job's id, devices that are free), the plan takes what is written, or the first there are.

use super::check::beside;
use crate::args::PlanArgs;
use crate::job_folder::{read_file, refused};
use crate::output::{Ending, Failure, Out};
use polder_adapters::Places;
use polder_api::{Problem, ProblemCode};
use polder_core::meta::{JobMeta, Need};
use polder_core::parent::{Devices, LauncherConfig, ParentConfig};
use polder_core::resources::View;
use polder_core::study_runtime::{StudyRuntime, StudyRuntimes};
use polder_core::value::{At, Data, Value, from_bytes};
use polder_launch::launcher::{DeviceId, default_max_restarts};
use polder_launch::{Allotted, Plan, Refusal, Resolved};
use polder_words::{JobId, LaunchId, Mode, StudyName};
use std::path::Path;

pub(crate) fn plan(args: &PlanArgs, out: &mut Out) -> Result<(), Ending> {
    match planned(args, out) {
        Ok(plan) if out.is_json() => out.document(&plan),
        Ok(plan) => out.exact(&serde_json::to_string_pretty(&plan).expect("a plan is plain data")),
        Err(failure) => {
            if !out.is_json() {
                return Err(failure.into());
            }
            let problem = &failure.problem;
            let text = |part: &Option<String>| part.clone().unwrap_or_default();
            out.document(&serde_json::json!({"error": {
                "file": text(&problem.file),
                "at": text(&problem.at),
                "found": text(&problem.found),
                "allowed": text(&problem.allowed),
                "message": problem.message,
            }}))?;
            Err(Ending::Said(problem.code.exit_code()))
        }
    }
}

fn planned(args: &PlanArgs, out: &mut Out) -> Result<Plan, Failure> {
    let name = |path: &Path| path.display().to_string();
    let config = ParentConfig::parse(&name(&args.config), &read_file(&args.config)?)
        .map_err(|error| refused(&error))?;
    let file = name(&args.meta);
    let document = from_bytes(&file, &read_file(&args.meta)?).map_err(|error| refused(&error))?;
    let meta = JobMeta::read(&At::root(&file, &document), Need::Parts).map_err(|error| refused(&error))?;

    let runtime_file = name(&args.study_runtime);
    let files = beside(args.study_runtime.parent().unwrap_or(Path::new(".")));
    let reading = config.reading(&files);
    let studies = StudyRuntimes::parse(&runtime_file, &read_file(&args.study_runtime)?, &reading)
        .map_err(|error| refused(&error))?;
    let study = study_of(args, &document, &studies)?;
    let (runtime, warning) = studies.of(&runtime_file, &study);
    for warning in studies.warnings.iter().chain(&warning) {
        out.note(&format!("warning: {warning}"));
    }
    runtime
        .check_launch(&runtime_file, config.mode(), config.slurm_sandbox())
        .map_err(|error| refused(&error))?;

    let beside_config = args.config.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::path::absolute(beside_config.unwrap_or(Path::new(".")))
        .map_err(|error| Failure::io(&args.config, "find", &error))?;
    let state = folder.join(&config.state);
    let id = LaunchId { job: job_of(&document), site: args.site.clone(), role: args.role, attempt: 1 };
    let mut want = Resolved {
        run_dir: state.join("runs").join(format!("{}-{}", id.job, id.role)),
        id,
        study,
        worker: folder.join(polder_adapters::worker_program(&config.launcher)),
        files: config.launcher.file_way(),
        gpus: 0,
        cpus: None,
        memory: None,
        options: serde_json::Map::new(),
        runtime: serde_json::Value::Null,
        pending_timeout_ms: None,
        max_restarts: default_max_restarts(),
    };
    brings_code(&document, &file, &args.site, &config, &meta)?;
    secrets_there(&runtime_file, &runtime, config.mode())?;
    polder_adapters::ask(&mut want, &file, &meta, &runtime, &config).map_err(|refusal| denied(&refusal))?;
    let places = Places {
        sockets: vec![polder_adapters::socket_in(&state, config.mode())],
        kit: folder.join(&config.kit),
        config: folder.join("parent.yaml"),
        state: state.clone(),
    };
    let with = allotted(&config.launcher, want.gpus);
    polder_adapters::plan(&config, &places, &want, &with).map_err(|refusal| denied(&refusal))
}

/// A program or interpreter of the job's own counts as bringing code, which a job's record has to say: whether it may
/// is the submitter's right, which a plan does not know.
fn brings_code(
    document: &Value,
    file: &str,
    site: &polder_words::SiteName,
    config: &ParentConfig,
    meta: &JobMeta,
) -> Result<(), Failure> {
    if config.mode() != Mode::Docker || document.get("byoc").is_some_and(|byoc| byoc.data == Data::Bool(true))
    {
        return Ok(());
    }
    let view =
        View { file, resource_spec: meta.resource_spec.value(), launcher_spec: meta.launcher_spec.value() };
    for key in ["entrypoint", "python_path"] {
        let option = view.option(site.as_str(), Mode::Docker, key).map_err(|error| refused(&error))?;
        if let Some(value) = option.filter(|value| !value.is_null()) {
            let mut failure = Failure::new(ProblemCode::Invalid, "counts as bringing code")
                .file(file.to_owned())
                .found(polder_core::value::to_json(value), "a job whose record says `byoc: true`");
            failure.problem.at = Some(format!("launcher_spec.{site}.docker.{key}"));
            return Err(failure);
        }
    }
    Ok(())
}

/// Secrets that are variables of the parent have to be there, as they have to for a launch.
fn secrets_there(file: &str, runtime: &StudyRuntime, mode: Mode) -> Result<(), Failure> {
    if mode == Mode::K8s {
        return Ok(());
    }
    for secret in runtime.secret_env.iter().filter(|secret| secret.file().is_none()) {
        if std::env::var_os(&secret.source).is_none() {
            let mut failure = Failure::new(ProblemCode::Invalid, "the parent has no such variable")
                .file(file.to_owned())
                .found(secret.source.clone(), "a variable of the parent, or file:/path");
            failure.problem.at = Some(format!("studies.{}.secret_env.{}.source", runtime.study, secret.name));
            return Err(failure);
        }
    }
    Ok(())
}

/// The study: named, or written in the meta file, or the only one there is.
fn study_of(args: &PlanArgs, document: &Value, studies: &StudyRuntimes) -> Result<StudyName, Failure> {
    if let Some(study) = &args.study {
        return Ok(study.clone());
    }
    if let Some(text) = document.get("study").and_then(Value::as_text) {
        return StudyName::new(text).map_err(|error| {
            let mut failure =
                Failure::new(ProblemCode::Invalid, error.to_string()).file(args.meta.display().to_string());
            failure.problem.at = Some("study".to_owned());
            failure
        });
    }
    let mut names = studies.studies.keys();
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(only.clone()),
        _ => Err(Failure::new(ProblemCode::Usage, "which study? name it with --study").found(
            format!("{} studies in {}", studies.studies.len(), args.study_runtime.display()),
            "--study STUDY",
        )),
    }
}

/// The job's id as a meta file of a submitted job has it, else zeros.
fn job_of(document: &Value) -> JobId {
    let written = document.get("job_id").and_then(Value::as_text);
    written.and_then(|text| text.replace('-', "").parse().ok()).unwrap_or(JobId([0; 16]))
}

/// The first devices there are.
fn allotted(launcher: &LauncherConfig, gpus: u32) -> Allotted {
    let inventory = match launcher {
        LauncherConfig::Process(process) => &process.gpus,
        LauncherConfig::Docker(docker) => &docker.gpus,
        // Their schedulers hand out devices.
        LauncherConfig::K8s(_) | LauncherConfig::Slurm(_) => return Allotted::default(),
    };
    let devices = match inventory {
        Devices::Ids(ids) => ids.iter().take(gpus as usize).cloned().map(DeviceId).collect(),
        Devices::Auto => (0..gpus).map(|n| DeviceId(n.to_string())).collect(),
    };
    Allotted { devices }
}

fn denied(refusal: &Refusal) -> Failure {
    let mut problem = Problem::new(ProblemCode::Invalid, refusal.message.clone());
    if let Some(place) = &refusal.place {
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        problem.file = text(&place.file);
        problem.at = text(&place.at);
        problem.found = text(&place.found);
        problem.allowed = text(&place.allowed);
    }
    problem.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_id_of_either_spelling_is_read() {
        let id = |text: &str| job_of(&from_bytes("m", text.as_bytes()).expect("JSON")).to_string();
        assert_eq!(
            id(r#"{"job_id": "6f1e2c3a-0b1d-4c5e-8f90-a1b2c3d4e5f6"}"#),
            "6f1e2c3a0b1d4c5e8f90a1b2c3d4e5f6"
        );
        assert_eq!(id("{}"), "0".repeat(32));
    }
}
