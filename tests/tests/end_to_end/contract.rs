//! The scripts that CI and people call.

use polder_tests::programs::{program, run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn scripts_test(arguments: &[&str]) -> (Option<i32>, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let out = Command::new(root.join("scripts/test")).args(arguments).output().expect("it starts");
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn a_part_that_is_not_there_is_a_usage_error_that_lists_what_is() {
    let (code, said) = scripts_test(&["--only", "nonsense"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("there is no part `nonsense`") && said.contains("parts: unit process slurm docker"),
        "{said}"
    );
}

fn oracle(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracles").join(name);
    let text = std::fs::read_to_string(path).expect("the oracles are here");
    let document: Value = serde_json::from_str(&text).expect("they are JSON");
    document["cases"].as_array().expect("a list of cases").clone()
}

/// `polder check ...` on a file; exit code and document.
fn check(arguments: &[&str]) -> (Option<i32>, Value) {
    let said = run(Command::new(program("polder")).arg("check").args(arguments).arg("--json"));
    (said.code, said.json())
}

#[test]
fn check_meta_says_what_flare_made_of_every_case() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("meta.json");
    let mut wrong = Vec::new();
    for case in oracle("resources.json") {
        let (name, expect) = (case["name"].as_str().expect("a name"), &case["expect"]);
        std::fs::write(&file, case["job_meta"].to_string()).expect("written");
        let path = file.to_string_lossy();
        let mut arguments = vec!["meta", &*path, "--site", case["site"].as_str().expect("a site")];
        if let Some(sandbox) = case["slurm_sandbox"].as_str() {
            arguments.extend(["--slurm-sandbox", sandbox]);
        }
        let (code, said) = check(&arguments);
        // What FLARE would only warn about is refused here.
        let misspelt = expect["misspelt_default"].as_array().is_some_and(|keys| !keys.is_empty());
        let accepted = expect["accepted_at_submission"] == true && !misspelt;
        if said["accepted"] != accepted || (code == Some(0)) != accepted {
            wrong.push(format!("{name}: accepted {} with exit {code:?}, not {accepted}", said["accepted"]));
        }
        let mut compare = |what: &str, expected: &Value, found: &Value| {
            if !expected.is_null() && expected != found {
                wrong.push(format!("{name}: {what} is {found}, not {expected}"));
            }
        };
        for key in ["resolved", "admission", "portable", "slurm_resources"] {
            compare(key, &expect[key], &said[key]);
        }
        for mode in ["process", "docker", "k8s", "slurm"] {
            compare(mode, &expect["launcher"][mode], &said["launcher"][mode]);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn check_study_runtime_says_what_flare_made_of_every_case() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("study_runtime.yaml");
    // Files that the documents name.
    std::fs::create_dir(folder.path().join("sub")).expect("a folder");
    for (name, text) in [
        ("pod.yaml", "apiVersion: v1\nkind: Pod\nspec:\n  serviceAccountName: study-sa\n"),
        ("sub/pod2.yaml", "spec:\n  nodeSelector: {a: b}\n"),
        ("notpod.yaml", "kind: Deployment\n"),
        ("list.yaml", "- 1\n"),
        ("broken.yaml", "a: [1\n"),
        ("empty.yaml", ""),
    ] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let mut wrong = Vec::new();
    for case in oracle("study_runtime.json") {
        let name = case["name"].as_str().expect("a name");
        let bytes = match case["yaml_hex"].as_str() {
            Some(hex) => unhex(hex),
            None => case["yaml"].as_str().expect("a document").as_bytes().to_vec(),
        };
        std::fs::write(&file, bytes).expect("written");
        for mode in ["process", "docker", "k8s", "slurm"] {
            let (code, said) = check(&["study-runtime", &file.to_string_lossy(), "--mode", mode]);
            let expected = &case["expect"][mode]["ok"];
            if expected.is_null() || !case["polder_refuses"].is_null() {
                let error = &said["error"];
                if code != Some(1) || !error["message"].is_string() || !error["file"].is_string() {
                    wrong.push(format!("{name}, {mode}: not refused as it should: exit {code:?}, {said}"));
                }
            } else if code != Some(0) || said != *expected {
                wrong.push(format!("{name}, {mode}: exit {code:?}, {said}, not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// FLARE's Docker launcher as `launcher` of a `parent.yaml`; `site_settings` are its arguments, under their own names.
fn docker_config(settings: &Value) -> String {
    let document = serde_json::json!({
        "name": "site-1", "server": "https://fl.example.org", "launcher": {"docker": settings},
    });
    document.to_string()
}

/// A launch as FLARE's documents describe it: `polder plan` on these three files, with the parent's environment.
fn planned(folder: &Path, case: &Value) -> (Option<i32>, Value) {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let config = write("parent.yaml", &docker_config(&case["site_settings"]));
    let mut meta = case["job_meta"].clone();
    meta.as_object_mut().expect("a map").entry("deploy_map").or_insert(serde_json::json!({"app": ["@ALL"]}));
    let meta_path = write("meta.json", &meta.to_string());
    let nothing = "format_version: 2\nstudies: {}\n";
    let runtime = write("study_runtime.yaml", case["study_runtime_yaml"].as_str().unwrap_or(nothing));
    let mut command = Command::new(program("polder"));
    command.arg("plan").arg("--config").arg(config).arg("--meta").arg(meta_path);
    command.arg("--study-runtime").arg(runtime).args(["--site", case["site"].as_str().expect("a site")]);
    command.args(["--role", case["side"].as_str().expect("a side")]).arg("--json");
    if meta["study"].is_null() {
        // FLARE's word for a job outside of any study.
        command.args(["--study", "default"]);
    }
    command.env("HOST_PW", "hunter2").env("PATH_DB_PASSWORD", "hunter3");
    let said = run(&mut command);
    (said.code, said.json())
}

/// What FLARE accepted and Polder refuses on purpose: `privileged` undoes what keeps a worker from the host.
const REFUSED_HERE: [&str; 1] = ["docker/merge_order"];

/// Compared, from the oracle's words to the request's: `image` is `Image`; `entrypoint` is `Entrypoint`; `env` has to be
/// in `Env`, or its name in `secret_env` (Polder prints no value of a secret); `nano_cpus`, `mem_limit` and `shm_size`
/// (as bytes) are `NanoCpus`, `Memory` and `ShmSize` of `HostConfig`; a device request of n GPUs is one of n ids where
/// the job asks, as it stands where the study does; `study_mounts` are the entries of `Mounts` outside `/polder`;
/// `other` is the field of that setting. The launcher's own fields are in the snapshots of `adapters/docker`.
fn differences(expect: &Value, said: &Value) -> Vec<String> {
    let (create, host) = (&said["create"], &said["create"]["HostConfig"]);
    let mut wrong = Vec::new();
    let mut compare = |what: &str, expected: &Value, found: &Value| {
        if expected != found {
            wrong.push(format!("{what} is {found}, not {expected}"));
        }
    };
    compare("image", &expect["image"], &create["Image"]);
    compare("entrypoint", &expect["entrypoint"], &create["Entrypoint"]);
    compare("nano_cpus", &expect["nano_cpus"], &host["NanoCpus"]);
    compare("mem_limit", &expect["mem_limit"], &host["Memory"]);
    let shm = match &expect["shm_size"] {
        Value::String(text) => {
            serde_json::json!(text.strip_suffix('g').expect("in GiB").parse::<u64>().expect("n") << 30)
        }
        other => other.clone(),
    };
    compare("shm_size", &shm, &host["ShmSize"]);
    let requests = match &expect["device_requests"] {
        Value::Array(list) if list[0]["Count"].as_u64().is_some() => {
            let ids: Vec<_> = (0..list[0]["Count"].as_u64().expect("n")).map(|n| n.to_string()).collect();
            serde_json::json!([{"Capabilities": list[0]["Capabilities"], "DeviceIDs": ids}])
        }
        other => other.clone(),
    };
    compare("device_requests", &requests, &host["DeviceRequests"]);
    let mounts = host["Mounts"].as_array().expect("a list");
    let outside =
        mounts.iter().filter(|mount| !mount["Target"].as_str().expect("text").starts_with("/polder"));
    compare("study_mounts", &expect["study_mounts"], &outside.cloned().collect());
    let fields = [("ipc_mode", &host["IpcMode"])];
    for (key, value) in expect["other"].as_object().expect("a map") {
        let found = fields.iter().find(|(name, _)| name == key).map_or(&Value::Null, |(_, field)| *field);
        compare(key, value, found);
    }
    let has =
        |list: &Value, text: &str| list.as_array().is_some_and(|list| list.iter().any(|item| item == text));
    for (name, value) in expect["env"].as_object().expect("a map") {
        let text = format!("{name}={}", value.as_str().expect("text"));
        if !has(&create["Env"], &text) && !has(&said["secret_env"], name) {
            wrong.push(format!("env has no {text}"));
        }
    }
    if said.to_string().contains("hunter") {
        wrong.push("a secret is in the plan".to_owned());
    }
    wrong
}

#[test]
fn docker_plans_ask_for_what_flare_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut wrong = Vec::new();
    for case in oracle("launch_plans.json").iter().filter(|case| case["mode"] == "docker") {
        let name = case["name"].as_str().expect("a name");
        let (code, said) = planned(folder.path(), case);
        if case["expect"]["refused"] == true || REFUSED_HERE.contains(&name) {
            if code != Some(1) || !said["error"]["message"].is_string() || !said["error"]["at"].is_string() {
                wrong.push(format!("{name}: not refused as it should: exit {code:?}, {said}"));
            }
        } else if code == Some(0) && said["mode"] == "docker" {
            wrong.extend(differences(&case["expect"], &said).iter().map(|text| format!("{name}: {text}")));
        } else {
            wrong.push(format!("{name}: exit {code:?}, {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_refused_on_purpose_is_planned_without_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = oracle("launch_plans.json");
    let mut case = cases.into_iter().find(|case| case["name"] == REFUSED_HERE[0]).expect("it is there");
    let yaml = case["study_runtime_yaml"].as_str().expect("text").replace(", privileged: true", "");
    case["study_runtime_yaml"] = yaml.into();
    case["expect"]["other"] = serde_json::json!({"ipc_mode": "host"});
    let (code, said) = planned(folder.path(), &case);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(differences(&case["expect"], &said), Vec::<String>::new());
    assert_eq!(said["create"]["Labels"]["a"], "b");
    assert_eq!(said["create"]["HostConfig"]["NetworkMode"], "net2");
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex"))
        .collect()
}
