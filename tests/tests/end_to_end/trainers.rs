//! Trainers that fail in every way a program can: the job says which site, which class, the cause and the last
//! lines, and no parent grows.

use crate::helpers::adding;
use polder_tests::federation::{Federation, Plan};
use serde_json::{Value, json};

struct Bad {
    mode: &'static str,
    class: &'static str,
    cause: &'static [&'static str],
    tail: &'static str,
}

const BAD: [Bad; 9] = [
    Bad { mode: "fail", class: "user_code", cause: &["7"], tail: "ValueError: the data is not what it was" },
    Bad { mode: "die-at-start", class: "user_code", cause: &["3"], tail: "cannot find my configuration" },
    Bad { mode: "exit-early", class: "user_code", cause: &["round 2"], tail: "" },
    Bad { mode: "hang", class: "timeout", cause: &["2 s"], tail: "" },
    Bad { mode: "nan", class: "user_code", cause: &["\"w\"", "NaN"], tail: "" },
    Bad { mode: "inf", class: "user_code", cause: &["\"w\"", "infinite"], tail: "" },
    Bad { mode: "shape", class: "user_code", cause: &["\"w\"", "[3]", "[256]"], tail: "" },
    Bad { mode: "garbage", class: "user_code", cause: &[], tail: "" },
    Bad { mode: "huge-header", class: "user_code", cause: &[], tail: "" },
];

/// Runs a job in which one trainer misbehaves in round 2 at `site-2`; what `show` says in the end.
fn run(federation: &Federation, mode: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["--do", mode, "--at", "2", "--only", "site-2"];
    arguments.extend(more);
    let folder = adding(mode, &arguments)
        .rounds(3)
        .min_clients(2)
        // Short only where somebody hangs: a gigabyte of output takes its time on a busy machine.
        .with("aggregation", json!({"round_timeout": if mode == "hang" { "2s" } else { "60s" }}))
        .write(&federation.root);
    let lead = federation.lead();
    let job = lead.submit(&folder);
    lead.wait(&job)
}

fn peaks(federation: &Federation) -> Vec<u64> {
    ["server", "site-1", "site-2"]
        .iter()
        .map(|name| federation.parent(name).process().memory().expect("it runs").peak)
        .collect()
}

#[test]
fn each_bad_trainer_is_named_with_site_class_cause_and_last_lines() {
    let federation = Plan::sites(2).start();
    let good = run(&federation, "ok", &[]);
    assert_eq!(good["phase"], "completed", "{good:#}");
    let mut wrong = Vec::new();
    for bad in &BAD {
        let shown = run(&federation, bad.mode, &[]);
        let failure = &shown["failure"];
        let cause = failure["cause"].as_str().unwrap_or_default();
        let tail = failure["tail"].as_str().unwrap_or_default();
        let right = shown["phase"] == "failed"
            && (failure["site"] == "site-2" || bad.mode == "die-at-start")
            && failure["class"] == bad.class
            && bad.cause.iter().all(|word| cause.contains(word))
            && tail.contains(bad.tail);
        if !right {
            wrong.push(format!("{}: {} {failure:#}", bad.mode, shown["phase"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The same job again: nothing of the failures stuck.
    let good = run(&federation, "ok", &[]);
    assert_eq!(good["phase"], "completed", "{good:#}");
}

#[test]
fn a_flooded_log_costs_no_parent_memory_and_keeps_its_end() {
    let federation = Plan::sites(2).runtime("export", json!({"logs": "full"})).start();
    let good = run(&federation, "ok", &[]);
    assert_eq!(good["phase"], "completed", "{good:#}");
    let before = peaks(&federation);
    let shown = run(&federation, "flood", &["--flood-mib", "1024"]);
    let after = peaks(&federation);
    assert_eq!(shown["phase"], "completed", "{shown:#}");
    for (before, after) in before.iter().zip(&after) {
        assert!(after - before < 8 * 1024, "peaks in KiB before {before}, after {after}");
    }
    let id = shown["id"].as_str().expect("an id");
    let logs = federation.lead().polder(&["logs", id, "--site", "site-2"]).ok();
    assert!(logs.out.contains("the last line after the flood"), "{}", logs.out);
    assert!(logs.out.len() < 16 << 20, "{} bytes of log", logs.out.len());
    // On disk, a gigabyte is not kept either.
    let state = federation.parent("site-2").state();
    assert!(size(&state) < 200 << 20, "{} bytes in {}", size(&state), state.display());
}

#[test]
fn output_that_is_no_text_is_shown_without_harm() {
    let federation = Plan::sites(2).runtime("export", json!({"logs": "full"})).start();
    let shown = run(&federation, "bad-utf8", &[]);
    assert_eq!(shown["phase"], "completed", "{shown:#}");
    let id = shown["id"].as_str().expect("an id");
    let logs = federation.lead().polder(&["logs", id, "--site", "site-2"]).ok();
    let line = logs.out.lines().find(|line| line.contains("caf")).unwrap_or_else(|| panic!("{}", logs.out));
    assert!(line.contains('\u{fffd}'), "{line:?}");
    assert!(!line.contains('\u{1b}'), "what a trainer prints must not drive the terminal: {line:?}");
}

/// Bytes that a folder takes on disk.
fn size(folder: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size(&entry.path()),
            Ok(data) => data.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
