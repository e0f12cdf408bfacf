//! The demo as anybody would first run it.

use crate::helpers::long;
use polder_tests::process;
use polder_tests::programs::{program, run_within};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

/// Runs the demo in a folder for temporary files of its own; what it says last. Nothing may be left of it.
fn demo(arguments: &[&str]) -> Value {
    let folder = tempfile::Builder::new().prefix("demo-").tempdir_in("/tmp").expect("a folder");
    let home = tempfile::tempdir().expect("a folder");
    let said = run_within(
        Command::new(program("polder"))
            .arg("demo")
            .args(arguments)
            .arg("--json")
            .env("TMPDIR", folder.path())
            .env("HOME", home.path())
            .current_dir(folder.path()),
        Duration::from_secs(60),
    )
    .ok();
    let left = process::beneath(folder.path()).expect("a process list");
    assert!(
        left.is_empty(),
        "left running: {:?}",
        left.iter().map(process::Process::arguments).collect::<Vec<_>>()
    );
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|e| e.path()).collect();
    assert!(files.is_empty(), "left on disk: {files:?}");
    // But the model, where it says.
    assert!(home.path().join(".local/state/polder/demo/model.safetensors").is_file());
    said.last_json()
}

fn number(said: &Value, key: &str) -> f64 {
    said[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {said}"))
}

#[test]
fn it_beats_the_best_single_site_and_works_twice() {
    let first = demo(&[]);
    assert!(number(&first, "accuracy") >= 0.95, "{first}");
    assert!(number(&first, "accuracy") > number(&first, "best_single_site"), "{first}");
    assert!(number(&first, "seconds") < 20.0, "{first}");
    let second = demo(&[]);
    for key in ["accuracy", "best_single_site", "pooled", "rounds"] {
        assert_eq!(first[key], second[key], "the same seed, the same result");
    }
}

#[test]
fn seeds_change_split_and_result() {
    let seeds = if long() { 20 } else { 3 };
    let mut seen = BTreeSet::new();
    for seed in 1..=seeds {
        let said = demo(&["--seed", &seed.to_string()]);
        assert!(number(&said, "accuracy") > 0.9, "seed {seed}: {said}");
        seen.insert(format!("{} {}", said["accuracy"], said["best_single_site"]));
    }
    assert!(seen.len() > 1, "{seen:?}");
}

#[test]
fn shuffled_labels_teach_nothing() {
    let said = demo(&["--shuffled-labels"]);
    assert!(number(&said, "accuracy") < 0.8, "{said}");
}
