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
    assert!(said.contains("there is no part `nonsense`") && said.contains("parts: unit process"), "{said}");
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

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex"))
        .collect()
}
