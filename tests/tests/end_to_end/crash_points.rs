//! A parent that dies between any two steps of a launch: started again, it finishes what it began and starts
//! nothing twice.
//!
//! `POLDER_CRASH_AT=n` (debug builds) kills the parent at the n-th transition of its ledger. With --long every n is
//! tried until one is never reached; without, a few.

use crate::helpers::{adding, long, result_value};
use polder_tests::federation::{Federation, Plan};
use polder_tests::process::Process;
use polder_tests::trace::Trace;
use polder_tests::watch;
use std::collections::BTreeSet;

/// Runs one job while `parent` dies at the n-th point; whether it died.
fn die_at(federation: &mut Federation, parent: &str, n: u32) -> bool {
    let trace = Trace::at(federation.trace_file());
    let before: BTreeSet<_> = trace.trainers().into_values().flatten().collect();
    let _ = federation.parent_mut(parent).stop();
    federation.start(parent, &[("POLDER_CRASH_AT", &n.to_string())]);
    federation.parent(parent).wait_ready();
    let folder = adding(&format!("{parent}-{n}"), &[]).rounds(3).min_clients(2).write(&federation.root);
    let lead = federation.lead();
    let job = lead.submit(&folder);
    let mut waiting = lead
        .command(&["watch", &job, "--json"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the command line starts");
    let waiter = Process::of(waiting.id()).expect("it runs");
    // Whichever comes first: its death, or the end of the job without it.
    let victim = federation.parent(parent).process();
    let died = watch::first(&[&victim, &waiter], watch::LIMIT).expect("one of them ends") == 0;
    if died {
        assert_eq!(federation.parent_mut(parent).ended(watch::LIMIT), None, "killed by its own signal");
        federation.parent_mut(parent).restart();
        federation.parent(parent).wait_ready();
    }
    let shown = federation.lead().wait(&job);
    waiting.wait().expect("a child");
    assert_eq!(shown["phase"], "completed", "{parent} at {n}: {shown:#}");
    assert_eq!(result_value(&federation.lead(), &job), 3.0, "{parent} at {n}");
    let now: BTreeSet<_> = trace.trainers().into_values().flatten().collect();
    assert_eq!(
        now.difference(&before).count(),
        2,
        "{parent} at {n}: one trainer a site: {:?}",
        trace.entries()
    );
    died
}

fn every_point(parent: &str) {
    let mut federation = Plan::sites(2).start();
    let points: Vec<u32> = if long() { (1..200).collect() } else { vec![1, 2, 4, 7] };
    let mut reached = 0;
    for n in points {
        if !die_at(&mut federation, parent, n) {
            break;
        }
        reached = n;
    }
    assert!(reached >= 4, "only {reached} points were reached");
    eprintln!("{parent}: died at {reached} points");
    for process in federation.processes() {
        let runs = process.arguments().unwrap_or_default().iter().any(|word| word.contains("polder-worker"));
        assert!(!runs || process.ended_within(watch::LIMIT), "left running: {:?}", process.arguments());
    }
}

#[test]
fn a_site_parent_at_any_transition() {
    every_point("site-1");
}

#[test]
fn the_server_parent_at_any_transition() {
    every_point("server");
}
