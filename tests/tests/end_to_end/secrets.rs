//! Secrets reach the trainer and nothing else: no command line, no environment but the trainer's, no log, no file
//! that outlives the job.

use crate::helpers::adding;
use polder_tests::federation::Plan;
use polder_tests::trace::{Gate, Trace};
use polder_tests::watch;
use serde_json::json;

const SECRET: &str = "correct-horse-battery-staple";

#[test]
fn a_secret_is_seen_by_the_trainer_alone() {
    is_seen_by_the_trainer_alone(Plan::sites(1));
}

#[test]
fn a_secret_that_came_over_a_port_is_seen_by_the_trainer_alone() {
    is_seen_by_the_trainer_alone(Plan::sites(1).worker_ports());
}

fn is_seen_by_the_trainer_alone(plan: Plan) {
    let plan =
        plan.runtime("secret_env", json!({"DB_PASSWORD": {"source": "SITE_DB_PASSWORD", "key": "value"}}));
    let mut federation = plan.provision();
    federation.start("server", &[]);
    federation.start("site-1", &[("SITE_DB_PASSWORD", SECRET)]);
    for name in ["server", "site-1"] {
        federation.parent(name).wait_ready();
    }
    let gate = Gate::closed(&federation.trace_folder());
    let trace = Trace::at(federation.trace_file());
    let folder =
        adding("secret", &["--gate", &gate.path.to_string_lossy()]).rounds(2).write(&federation.root);
    let lead = federation.lead();
    let job = lead.submit(&folder);
    let entries = trace.wait_round(federation.sites(), 1);
    let trainer = entries.last().expect("a task").pid;

    let mut holders = Vec::new();
    for process in federation.processes() {
        let words = process.arguments().unwrap_or_default();
        assert!(!words.iter().any(|word| word.contains(SECRET)), "on a command line: {words:?}");
        let tokens: Vec<_> = words.iter().filter(|word| word.len() > 200).collect();
        assert!(tokens.is_empty(), "long words on a command line: {tokens:?}");
        if process.environment().unwrap_or_default().iter().any(|word| word.contains(SECRET)) {
            holders.push(process.pid);
        }
    }
    let parent = federation.parent("site-1").process().pid;
    holders.retain(|pid| *pid != parent);
    assert_eq!(holders, [trainer], "who has it in the environment besides the parent that was given it");

    gate.open();
    assert_eq!(lead.wait(&job)["phase"], "completed");
    for process in federation.processes() {
        let runs = process.arguments().unwrap_or_default().iter().any(|word| word.contains("polder-worker"));
        assert!(!runs || process.ended_within(watch::LIMIT));
    }
    for name in ["server", "site-1"] {
        assert!(!federation.parent(name).log.text().contains(SECRET));
    }
    let found = holding(&federation.root, SECRET.as_bytes());
    assert!(found.is_empty(), "on disk: {found:?}");
}

/// Files beneath a folder that hold some bytes.
fn holding(folder: &std::path::Path, needle: &[u8]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            found.extend(holding(&entry.path(), needle));
        } else if kind.is_file()
            && std::fs::read(entry.path()).is_ok_and(|bytes| bytes.windows(needle.len()).any(|w| w == needle))
        {
            found.push(entry.path());
        }
    }
    found
}
