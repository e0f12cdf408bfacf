//! Every Slurm case of `launch_plans.json`, from the three documents through the planner that launches use.

use polder_adapters::Places;
use polder_core::meta::{JobMeta, Need};
use polder_core::parent::ParentConfig;
use polder_core::study_runtime::{NoFiles, StudyRuntimes};
use polder_core::value::{At, from_json};
use polder_launch::{Allotted, Plan, Refusal, Resolved};
use polder_words::{LaunchId, Role, SiteName, StudyName};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A parent's `parent.yaml` with these settings of Slurm, which are FLARE's under their own names.
fn config(case: &Value) -> ParentConfig {
    let settings = case["site_settings"].clone();
    let document = json!({
        "name": case["site"], "server": "https://fl.example.org", "launcher": {"slurm": settings},
        "job_images": true,
    });
    ParentConfig::parse("parent.yaml", document.to_string().as_bytes()).expect("a configuration")
}

fn plan(case: &Value) -> Result<Plan, Refusal> {
    let refuse = |error: polder_core::Error| polder_adapters::refusal_of(&error);
    let config = config(case);
    let mut meta = case["job_meta"].clone();
    meta.as_object_mut().expect("a map").entry("deploy_map").or_insert(json!({"app": ["@ALL"]}));
    let document = from_json("meta.json", meta.to_string().as_bytes()).map_err(refuse)?;
    let job = JobMeta::read(&At::root("meta.json", &document), Need::Parts).map_err(refuse)?;
    let nothing = "format_version: 2\nstudies: {}\n";
    let text = case["study_runtime_yaml"].as_str().unwrap_or(nothing);
    let studies = StudyRuntimes::parse("study_runtime.yaml", text.as_bytes(), &config.reading(&NoFiles))
        .map_err(refuse)?;
    let study = StudyName::new(meta["study"].as_str().unwrap_or("default")).expect("a name");
    let (runtime, _) = studies.of("study_runtime.yaml", &study);
    let role = if case["side"] == "server" { Role::Server } else { Role::Client };
    let id = LaunchId {
        job: meta["job_id"].as_str().expect("an id").replace('-', "").parse().expect("an id"),
        site: SiteName::new(case["site"].as_str().expect("a name")).expect("a name"),
        role,
        attempt: 1,
    };
    let mut want = Resolved {
        files: polder_words::FileWay::Shared,
        run_dir: format!("/srv/polder/runs/{}-{role}", id.job).into(),
        id,
        study,
        worker: "/usr/libexec/polder/polder-worker".into(),
        gpus: 0,
        cpus: None,
        memory: None,
        options: serde_json::Map::new(),
        runtime: Value::Null,
        pending_timeout_ms: None,
        max_restarts: 0,
    };
    polder_adapters::ask(&mut want, "meta.json", &job, &runtime, &config)?;
    let places = Places {
        state: "/srv/polder".into(),
        kit: "/srv/kit".into(),
        config: "/srv/parent.yaml".into(),
        sockets: Vec::new(),
    };
    polder_adapters::plan(&config, &places, &want, &Allotted::default())
}

fn differences(expect: &Value, found: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut same = |what: &str, expected: &Value, found: &Value| {
        if expected != found {
            wrong.push(format!("{what} is {found}, not {expected}"));
        }
    };
    let flags = expect["flags"].as_array().expect("a list");
    let said = found["sbatch"].as_array().expect("a list");
    let own = ["--job-name=", "--comment=", "--chdir=", "--output=", "--export=", "--hold"];
    let mine = |flag: &Value| own.iter().any(|own| flag.as_str().expect("text").starts_with(own));
    let asked: Vec<Value> = said.iter().filter(|flag| !mine(flag)).cloned().collect();
    same("flags", &json!(flags), &json!(asked));
    same("study_mounts", &expect["study_mounts"], &found["mounts"]);
    same("study_env", &expect["study_env"], &found["env"]);
    same("secret_env_names", &expect["secret_env_names"], &found["secret_env"]);
    for key in ["additional_node_command", "forward_env", "image", "pending_timeout", "sandbox", "setup"] {
        same(key, &expect[key], &found[key]);
    }
    wrong
}

fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", name, "--nocapture"]);
    command
}

/// The parent of these cases was started with two variables, so the cases run in a process that was, too.
#[test]
fn plans_ask_for_what_flare_asked_for() {
    let mut command = child("in_a_parent_with_two_variables");
    command.env("PATH_DB_PASSWORD", "hunter2").env("HOST_PW", "hunter3").env("POLDER_TEST_ORACLE", "1");
    command.env_remove("PARENT_UNSET");
    let out = command.output().expect("it ran");
    assert!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn in_a_parent_with_two_variables() {
    if std::env::var_os("POLDER_TEST_ORACLE").is_none() {
        return;
    }
    let shared = tempfile::tempdir().expect("a folder");
    let path = shared.path().to_str().expect("text");
    std::fs::write(shared.path().join("img.sif"), "").expect("written");
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles/launch_plans.json");
    // The cases' shared folder, where it is here.
    let text = std::fs::read_to_string(oracle).expect("read").replace("/ws/", &format!("{path}/"));
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let mut seen = 0;
    let mut wrong = Vec::new();
    for case in document["cases"].as_array().expect("a list").iter().filter(|case| case["mode"] == "slurm") {
        seen += 1;
        let name = case["name"].as_str().expect("a name");
        match (case["expect"]["refused"] == true, plan(case)) {
            (true, Ok(plan)) => wrong.push(format!("{name}: planned: {plan:?}")),
            (true, Err(refusal)) => {
                if refusal.place.is_none() {
                    wrong.push(format!("{name}: names no place: {refusal}"));
                }
            }
            (false, Err(refusal)) => wrong.push(format!("{name}: {refusal}")),
            (false, Ok(plan)) => {
                let found = serde_json::to_value(&plan).expect("JSON");
                wrong.extend(
                    differences(&case["expect"], &found).iter().map(|text| format!("{name}: {text}")),
                );
                if found.to_string().contains("hunter") {
                    wrong.push(format!("{name}: a secret is in the plan"));
                }
            }
        }
    }
    assert!(seen >= 12, "{seen} cases");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
