//! The native request, printed; and what no value may do to the script.

use polder_core::launcher::SlurmSandbox;
use polder_core::parent::{LauncherConfig, ParentConfig, SlurmLauncher};
use polder_core::study_runtime::{NoFiles, StudyRuntimes};
use polder_core::value::to_json;
use polder_launch::{Allotted, Refusal, Resolved};
use polder_slurm::plan::{Host, SlurmPlan, minutes, plan};
use polder_slurm::script::{EXIT, RESTARTED, quote};
use polder_words::{LaunchId, Role, SiteName, StudyName};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// A host with every file and variable.
struct Everything;

impl Host for Everything {
    fn exists(&self, _: &str) -> bool {
        true
    }

    fn has_variable(&self, _: &str) -> bool {
        true
    }
}

fn config(settings: &str) -> ParentConfig {
    let text = format!("name: uni\nserver: https://s\nlauncher: {{slurm: {settings}}}\n");
    ParentConfig::parse("parent.yaml", text.as_bytes()).expect("a configuration")
}

fn settings(config: &ParentConfig) -> &SlurmLauncher {
    let LauncherConfig::Slurm(settings) = &config.launcher else { panic!("slurm") };
    settings
}

fn want(run_dir: &Path, worker: &Path) -> Resolved {
    let job = "0123456789abcdef0123456789abcdef".parse().expect("an id");
    Resolved {
        files: polder_words::FileWay::Shared,
        id: LaunchId { job, site: SiteName::new("uni").expect("a name"), role: Role::Client, attempt: 2 },
        study: StudyName::new("pathology").expect("a name"),
        run_dir: run_dir.into(),
        worker: worker.into(),
        gpus: 0,
        cpus: None,
        memory: None,
        options: serde_json::Map::new(),
        runtime: serde_json::Value::Null,
        pending_timeout_ms: None,
        max_restarts: 2,
    }
}

/// With one study of a study file and the job's options.
fn planned(
    site: &str,
    study: &str,
    options: serde_json::Value,
    want: &Resolved,
) -> Result<SlurmPlan, Refusal> {
    let config = config(site);
    let text = format!("format_version: 2\nstudies:\n  pathology: {study}\n");
    let studies =
        StudyRuntimes::parse("s.yaml", text.as_bytes(), &config.reading(&NoFiles)).expect("a study file");
    let mut want = want.clone();
    let runtime = studies.of("s.yaml", &want.study).0;
    want.runtime = serde_json::from_str(&to_json(&runtime.to_value())).expect("JSON");
    let serde_json::Value::Object(options) = options else { panic!("a map") };
    want.options = options;
    plan(settings(&config), true, &Everything, &want, &Allotted::default())
}

fn usual() -> Resolved {
    let run = "/srv/polder/runs/0123456789abcdef0123456789abcdef-client";
    want(Path::new(run), Path::new("/usr/libexec/polder/polder-worker"))
}

const SITE: &str = "{partition: gpu, account: proj, time: '12:00:00', forward_env: [HTTPS_PROXY]}";
const STUDY: &str = "{env: {ZED: \"it's $HOME\"}, secret_env: {PW: {source: PW_OF_PARENT}}, \
                     slurm: {qos: high, setup: \"module load cuda\\n\", python_path: /opt/py/bin/python3}}";
const DATA: &str = "{container: {image: /img/a.sif}, datasets: {train: {source: /data/t, mode: ro}}, env: {A: b}, \
                    secret_mounts: {tls: {source: /etc/tls, mount_path: /run/secrets/tls}}}";

fn cases() -> Vec<(&'static str, SlurmPlan)> {
    let none = serde_json::json!({});
    let nodes = serde_json::json!({"nodes": 2, "gpus_per_node": 4, "cpus_per_node": 8, "mem_per_node": 64000,
        "additional_node_command": "torchrun --node-rank '$POLDER_NODE_RANK' train.py"});
    let four = Resolved { gpus: 4, cpus: Some(4), memory: Some(64 << 30), ..usual() };
    let eight = Resolved { gpus: 8, ..usual() };
    let spank = "{datasets: {train: {source: /data/t, mode: ro}}, slurm: {sandbox: spank, user: fl-path}}";
    let with =
        |sandbox: &str| format!("{{sandbox: {sandbox}, partition: gpu, account: proj, gpu_types: [a100]}}");
    let typed = serde_json::json!({"gpu_type": "a100", "time": "90"});
    let all = [
        ("bare", planned(SITE, STUDY, none.clone(), &four)),
        ("bare_two_nodes", planned(SITE, STUDY, nodes.clone(), &eight)),
        ("spank", planned(SITE, spank, none.clone(), &usual())),
        ("apptainer", planned(&with("apptainer"), DATA, typed, &four)),
        ("apptainer_two_nodes", planned(&with("apptainer"), DATA, nodes.clone(), &eight)),
        ("pyxis", planned(&with("pyxis"), DATA, none, &four)),
        ("pyxis_two_nodes", planned(&with("pyxis"), DATA, nodes, &eight)),
    ];
    all.map(|(name, plan)| (name, plan.unwrap_or_else(|refusal| panic!("{name}: {refusal}")))).to_vec()
}

#[test]
fn whole_scripts_and_requests() {
    for (name, plan) in cases() {
        let mut request = plan.to_plan();
        assert_eq!(SlurmPlan::from_plan(&request), Ok(plan.clone()), "it reads back from the ledger");
        request.native.remove("script");
        insta::assert_json_snapshot!(name, request);
        insta::assert_snapshot!(format!("{name}_script"), plan.script);
    }
}

#[test]
fn shellcheck_has_nothing_to_say() {
    for (name, plan) in cases() {
        let mut child = Command::new("shellcheck")
            .args(["--shell=bash", "--exclude=SC2016", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("shellcheck is installed");
        child.stdin.take().expect("piped").write_all(plan.script.as_bytes()).expect("taken");
        let out = child.wait_with_output().expect("it ends");
        assert!(out.status.success(), "{name}:\n{}", String::from_utf8_lossy(&out.stdout));
    }
}

/// A program that writes its arguments and environment down, each ended by a NUL, and stands in for every other.
fn recorder(path: &Path, into: &Path, then: &str) {
    let into = into.display();
    let text =
        format!("#!/bin/bash\nprintf '%s\\0' \"$@\" >'{into}.args'\n/usr/bin/env -0 >'{into}.env'\n{then}\n");
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
}

/// Runs a script as `slurmd` would, in a folder of its own.
fn run(folder: &Path, script: &str, more: &[(&str, &str)]) -> std::process::Output {
    std::fs::write(folder.join("script"), script).expect("written");
    Command::new("/bin/bash")
        .arg(folder.join("script"))
        .env_clear()
        .env("SLURM_JOB_ID", "4711")
        .env("PATH", "/usr/bin:/bin")
        .envs(more.iter().copied())
        .current_dir(folder)
        .output()
        .expect("bash runs")
}

fn recorded(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("recorded");
    text.split_terminator('\0').map(str::to_owned).collect()
}

fn variables(path: &Path) -> BTreeMap<String, String> {
    recorded(path).iter().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
}

fn laid_out(name: &str) -> (tempfile::TempDir, Resolved) {
    let folder = tempfile::tempdir().expect("a folder");
    let run_dir = folder.path().join(name);
    for part in ["app", "in", "out", "state", "tmp", "attempts/2"] {
        std::fs::create_dir_all(run_dir.join(part)).expect("made");
    }
    let worker = folder.path().join("worker");
    recorder(&worker, &folder.path().join("worker-saw"), "exit 7");
    (folder, want(&run_dir, &worker))
}

#[test]
fn the_workers_end_is_the_jobs_and_is_written_down() {
    let (folder, want) = laid_out("run");
    let plan = planned("{}", "{}", serde_json::json!({}), &want).expect("a plan");
    let out = run(folder.path(), &plan.script, &[]);
    assert_eq!(out.status.code(), Some(7), "{out:?}");
    let exit = std::fs::read(want.run_dir.join("attempts/2").join(EXIT)).expect("written");
    let exit: serde_json::Value = serde_json::from_slice(&exit).expect("JSON");
    assert_eq!((exit["job"].as_str(), exit["code"].as_i64()), (Some("4711"), Some(7)));
    assert_eq!(exit["stage"], "worker");
}

#[test]
fn a_job_that_slurm_starts_again_does_nothing() {
    let (folder, want) = laid_out("run");
    let plan = planned("{}", "{}", serde_json::json!({}), &want).expect("a plan");
    let out = run(folder.path(), &plan.script, &[("SLURM_RESTART_COUNT", "1")]);
    assert_eq!(out.status.code(), Some(RESTARTED));
    assert!(!folder.path().join("worker-saw.args").exists());
}

#[test]
fn a_failing_setup_ends_the_job_before_the_worker() {
    let (folder, want) = laid_out("run");
    let plan = planned("{setup: \"false\\n\"}", "{}", serde_json::json!({}), &want).expect("a plan");
    let out = run(folder.path(), &plan.script, &[]);
    assert_eq!(out.status.code(), Some(1));
    let exit = std::fs::read_to_string(want.run_dir.join("attempts/2").join(EXIT)).expect("written");
    assert!(exit.contains(r#""stage":"setup""#), "{exit}");
    assert!(!folder.path().join("worker-saw.args").exists());
}

#[test]
fn outside_the_study_nothing_runs() {
    let (folder, want) = laid_out("run");
    let study = "{slurm: {sandbox: spank}}";
    let plan = planned("{}", study, serde_json::json!({}), &want).expect("a plan");
    assert_eq!(plan.descriptor.environment["_SLURM_SPANK_OPTION_polder_fl_study"], "pathology");
    let out = run(folder.path(), &plan.script, &[]);
    assert!(!folder.path().join("worker-saw.args").exists(), "{out:?}");
    let out = run(folder.path(), &plan.script, &[("POLDER_STUDY", "pathology")]);
    assert_eq!(out.status.code(), Some(7), "{out:?}");
}

/// Two ranks, each by a stand-in for `srun` that starts what it is given once a rank.
fn two_ranks(folder: &Path, want: &Resolved, command: &str, env: &str) -> SlurmPlan {
    let srun = folder.join("srun");
    let then = "while [[ $1 == --* ]]; do shift; done\nSLURM_PROCID=1 \"$@\"\nSLURM_PROCID=0 exec \"$@\"";
    recorder(&srun, &folder.join("srun-saw"), then);
    let site = format!("{{executables: {{srun: '{}'}}}}", srun.display());
    let options = serde_json::json!({"nodes": 2, "additional_node_command": command});
    planned(&site, env, options, want).expect("a plan")
}

#[test]
fn several_nodes_get_their_ranks_and_the_worker_is_the_first() {
    let (folder, want) = laid_out("run");
    let node = folder.path().join("node");
    recorder(&node, &folder.path().join("node-saw"), "pwd >'node-pwd'");
    let plan = two_ranks(folder.path(), &want, &format!("{} --x 'a b'", node.display()), "{env: {A: 'b c'}}");
    let out = run(folder.path(), &plan.script, &[("SLURM_GPUS_PER_NODE", "3"), ("SLURM_EXPORT_ENV", "NIL")]);
    assert_eq!(out.status.code(), Some(7), "{out:?}");
    let srun = recorded(&folder.path().join("srun-saw.args"));
    let flags =
        ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--wait=0", "--label"];
    assert_eq!(srun[..6], flags);
    assert_eq!(recorded(&folder.path().join("node-saw.args")), ["--x", "a b"]);
    assert!(want.run_dir.join("app/node-pwd").exists(), "further nodes start in the app's folder");
    for (who, rank) in [("worker-saw.env", "0"), ("node-saw.env", "1")] {
        let env = variables(&folder.path().join(who));
        for prefix in ["POLDER", "NVFL"] {
            assert_eq!(env[&format!("{prefix}_NNODES")], "2");
            assert_eq!(env[&format!("{prefix}_NODE_RANK")], rank);
            assert_eq!(env[&format!("{prefix}_MASTER_PORT")], (29400 + 4711 % 1000).to_string());
            assert!(!env[&format!("{prefix}_MASTER_ADDR")].is_empty());
            assert_eq!(env[&format!("{prefix}_RUN_ID")], want.id.to_string());
        }
        assert_eq!((env["MASTER_PORT"].as_str(), env["A"].as_str()), ("30111", "b c"));
        assert!(!env.contains_key("SLURM_GPUS_PER_NODE") && !env.contains_key("SLURM_EXPORT_ENV"));
    }
}

#[test]
fn what_sbatch_reads_as_a_time() {
    let times = [("5", 5), ("1:30", 2), ("12:00:00", 720), ("1-0", 1440), ("1-0:30", 1470), ("0-0:0:1", 1)];
    for (text, wanted) in times {
        assert_eq!(minutes(text), Some(wanted), "{text}");
    }
    for text in ["", "0", "x", "1:2:3:4", "-5", "1-", "1 0", "99999999999"] {
        assert_eq!(minutes(text), None, "{text}");
    }
}

#[test]
fn refusals_say_where() {
    let refused = |site: &str, study: &str, options: serde_json::Value, want: &Resolved| {
        let refusal = planned(site, study, options, want).expect_err("refused");
        assert!(refusal.place.is_some(), "{refusal}");
        refusal.to_string()
    };
    let none = || serde_json::json!({});
    let text = refused("{gpu_types: [a100]}", "{}", serde_json::json!({"gpu_type": "h100"}), &usual());
    assert!(text.contains("launcher_spec.uni.slurm.gpu_type") && text.contains("a100"), "{text}");
    let text = refused("{}", "{slurm: {time: 60}}", serde_json::json!({"time": "61"}), &usual());
    assert!(text.contains("allowed: at most 60"), "{text}");
    let text = refused("{}", "{}", serde_json::json!({"image": "/i.sif"}), &usual());
    assert!(text.contains("sandbox none runs no image"), "{text}");
    let text = refused("{}", "{}", none(), &Resolved { run_dir: "/a%j".into(), ..usual() });
    assert!(text.contains("run directory"), "{text}");
    let text = refused("{}", "{}", serde_json::json!({"time": "soon"}), &usual());
    assert!(text.contains("is not a time limit"), "{text}");
}

fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~\n\t]{0,40}",
        "['\"`$(){};&|<>\\\\!*?~#=\n\r ]{0,30}",
        any::<String>().prop_map(|text| text.replace('\0', "")),
        Just("'; touch broken; '".to_owned()),
        Just("$(touch broken)".to_owned()),
        Just("\nPOLDER\ntouch broken\n".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_quoted_word_is_that_word(text in hostile()) {
        let out = Command::new("/bin/bash").args(["-c", &format!("printf '%s' {}", quote(&text))]).output();
        prop_assert_eq!(out.expect("bash runs").stdout, text.into_bytes());
    }

    #[test]
    fn no_value_breaks_out_of_the_script(
        value in hostile(),
        python in hostile(),
        folder in "[ '\"$`(){};&|<>!*?~#=a-z]{1,20}",
    ) {
        let folder_name = format!("r{}x", folder.replace('/', ""));
        let (folder, want) = laid_out(&folder_name);
        let config = config("{}");
        let mut settings = settings(&config).clone();
        settings.sandbox = SlurmSandbox::None;
        settings.python_path = Some(format!("/{}/python3", python.replace('\0', "")));
        let mut want = want;
        want.runtime = serde_json::json!({"env": {"VALUE": value, "PATH": "/nowhere", "IFS": value, "BASH_ENV": value, "PPID": "1"}});
        let plan = plan(&settings, true, &Everything, &want, &Allotted::default()).expect("a plan");
        let out = run(folder.path(), &plan.script, &[]);
        prop_assert_eq!(out.status.code(), Some(7), "{:?}", out);
        let args = recorded(&folder.path().join("worker-saw.args"));
        let handover = want.run_dir.join("attempts/2/handover.json").display().to_string();
        prop_assert_eq!(args, ["run".to_owned(), "--handover".to_owned(), handover]);
        let env = variables(&folder.path().join("worker-saw.env"));
        prop_assert_eq!(&env["VALUE"], &value);
        prop_assert!(!folder.path().join("broken").exists());
        prop_assert!(!want.run_dir.join("app/broken").exists());
    }

    #[test]
    fn no_command_of_further_nodes_breaks_out_of_the_script(value in hostile()) {
        let (folder, want) = laid_out("run");
        let node = folder.path().join("node");
        recorder(&node, &folder.path().join("node-saw"), "");
        let word = value.replace(['\n', '\r'], " ").replace("${secret:", "");
        let line = format!("{} '{}'", node.display(), word.replace('\'', r"'\''"));
        let plan = two_ranks(folder.path(), &want, &line, "{}");
        let out = run(folder.path(), &plan.script, &[]);
        prop_assert_eq!(out.status.code(), Some(7), "{:?}", out);
        prop_assert_eq!(recorded(&folder.path().join("node-saw.args")), [word]);
        prop_assert!(!folder.path().join("broken").exists());
        prop_assert!(!want.run_dir.join("app/broken").exists());
    }
}
