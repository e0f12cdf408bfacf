//! A job from submission to its result: what comes out is exact, and nothing stays behind.

use crate::helpers::{adding, result_value};
use polder_tests::federation::Plan;
use polder_tests::trace::Trace;
use polder_tests::watch;
use std::collections::BTreeSet;

#[test]
fn three_sites_train_and_the_average_is_exact() {
    let federation = Plan::sites(3).start();
    let lead = federation.lead();
    let job = adding("adding", &[]).rounds(5).min_clients(3).write(&federation.root);
    let said = lead.polder(&["submit", &job.to_string_lossy(), "--wait", "--json"]).ok();
    let last = said.last_json();
    assert_eq!((last["phase"].as_str(), last["round"].as_u64()), (Some("completed"), Some(5)), "{last}");
    let rounds: Vec<u64> = said
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a document a line"))
        .filter(|event| event["event"] == "round")
        .map(|event| event["round"].as_u64().expect("a number"))
        .collect();
    assert_eq!(rounds, [1, 2, 3, 4, 5]);

    // Zeros, to which everybody added one in each of five rounds.
    let id = last["id"].as_str().expect("an id");
    assert_eq!(result_value(&lead, id), 5.0);

    let trace = Trace::at(federation.trace_file());
    for (site, trainers) in trace.trainers() {
        assert_eq!(trainers.len(), 1, "{site} started one trainer: {trainers:?}");
    }
    let given: Vec<(String, u32)> =
        trace.entries().into_iter().filter(|e| e.kind == "train").map(|e| (e.site, e.round)).collect();
    assert_eq!(given.len(), 15, "each round once at each site: {given:?}");
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 15);

    // Workers and trainers are gone, parents are not; run directories go with the job.
    let parents: BTreeSet<_> =
        ["server", "site-1", "site-2", "site-3"].map(|n| federation.parent(n).process().pid).into();
    for process in federation.processes() {
        assert!(
            parents.contains(&process.pid) || process.ended_within(watch::LIMIT),
            "left running: {:?}",
            process.arguments()
        );
    }
}

#[test]
fn workers_of_other_hosts_dial_a_port() {
    let federation = Plan::sites(2).worker_ports().start();
    let lead = federation.lead();
    let job = adding("ports", &[]).rounds(3).min_clients(2).write(&federation.root);
    let said = lead.polder(&["submit", &job.to_string_lossy(), "--wait", "--json"]).ok();
    let last = said.last_json();
    assert_eq!(last["phase"], "completed", "{last}");
    assert_eq!(result_value(&lead, last["id"].as_str().expect("an id")), 3.0);
    for name in ["server", "site-1", "site-2"] {
        let audit = std::fs::read_to_string(federation.root.join(name).join("state/audit.jsonl"));
        let audit = audit.expect("an audit log");
        let enrolled: Vec<_> = audit.lines().filter(|line| line.contains("\"enrolled\"")).collect();
        assert!(enrolled.len() == 1 && enrolled[0].contains("127.0.0.1:"), "{name}: {enrolled:?}");
    }
}
