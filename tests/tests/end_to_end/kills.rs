//! `kill -9` of each process while round 5 of 20 runs: the job completes, no round is missing, nothing
//! is launched twice.
//!
//! Trainers are held at a gate in round 5, so that the kill always falls into it; they say themselves who they
//! are, in a file no parent knows. The result is 20 everywhere only if every round was done once.

use crate::helpers::{adding, result_value};
use polder_tests::federation::{Federation, Plan};
use polder_tests::process::Process;
use polder_tests::trace::{Gate, Trace};
use polder_tests::watch;
use serde_json::Value;
use std::process::Child;

const ROUNDS: u32 = 20;

struct Held {
    federation: Federation,
    trace: Trace,
    gate: Option<Gate>,
    job: String,
    cli: Child,
}

/// A job whose trainers wait at the gate in round 5, and a command line that waits for it.
fn held() -> Held {
    let federation = Plan::sites(2).start();
    let gate = Gate::closed(&federation.trace_folder());
    let trace = Trace::at(federation.trace_file());
    let folder = adding("held", &["--gate", &gate.path.to_string_lossy(), "--at", "5"])
        .rounds(ROUNDS)
        .min_clients(2)
        .write(&federation.root);
    let job = federation.lead().submit(&folder);
    let cli = waiting(&federation, &job);
    trace.wait_round(federation.sites(), 5);
    Held { federation, trace, gate: Some(gate), job, cli }
}

fn waiting(federation: &Federation, job: &str) -> Child {
    federation
        .lead()
        .command(&["watch", job, "--json"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the command line starts")
}

impl Held {
    fn open(&mut self) {
        self.gate.take().expect("opened once").open();
    }

    /// Workers of a role at a site, as the process list has them.
    fn workers(&self, parent: &str) -> Vec<Process> {
        let runs = self.federation.root.join(parent).join("state/runs");
        polder_tests::process::beneath(&runs).expect("a process list")
    }

    /// The job completes with every round done once; answers with what `show` says.
    fn completes(mut self, trainers_of_site_1: usize) -> Value {
        let waited = self.cli.wait_with_output().expect("it ends");
        let shown = self.federation.lead().wait(&self.job);
        assert_eq!(shown["phase"], "completed", "{shown:#}");
        assert_eq!(shown["round"], ROUNDS, "{shown:#}");
        assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
        // The one who waited saw every round exactly once, restarts or not.
        let rounds: Vec<u64> = String::from_utf8_lossy(&waited.stdout)
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| event["event"] == "round")
            .filter_map(|event| event["round"].as_u64())
            .collect();
        assert_eq!(rounds, (1..=u64::from(ROUNDS)).collect::<Vec<_>>());
        assert_eq!(result_value(&self.federation.lead(), &self.job), 20.0);
        let trainers = self.trace.trainers();
        assert_eq!(trainers["site-1"].len(), trainers_of_site_1, "{trainers:?}");
        assert_eq!(trainers["site-2"].len(), 1, "{trainers:?}");
        // Nobody was given a round again after its successor.
        for site in self.federation.sites() {
            let rounds: Vec<u32> = self
                .trace
                .entries()
                .into_iter()
                .filter(|e| e.site == *site && e.kind == "train")
                .map(|e| e.round)
                .collect();
            assert!(rounds.is_sorted(), "{site}: {rounds:?}");
        }
        drop(self.gate.take());
        shown
    }
}

fn attempts(shown: &Value, site: &str) -> Vec<u64> {
    let workers = shown["workers"].as_array().expect("workers");
    workers.iter().filter(|w| w["site"] == site).filter_map(|w| w["attempt"].as_u64()).collect()
}

#[test]
fn the_server_parent() {
    let mut held = held();
    let worker = held.workers("server");
    held.federation.parent_mut("server").kill();
    assert!(worker.iter().all(Process::alive), "workers outlive their parent");
    held.federation.parent_mut("server").restart();
    held.federation.parent("server").wait_ready();
    held.open();
    let shown = held.completes(1);
    assert_eq!(attempts(&shown, "server"), [1], "the same server worker went on: {shown:#}");
}

#[test]
fn a_site_parent() {
    let mut held = held();
    held.federation.parent_mut("site-1").kill();
    held.federation.parent_mut("site-1").restart();
    held.federation.parent("site-1").wait_ready();
    held.open();
    let shown = held.completes(1);
    assert_eq!(attempts(&shown, "site-1"), [1], "the same worker went on: {shown:#}");
}

#[test]
fn a_site_parent_that_stays_away_until_its_trainer_is_done() {
    let mut held = held();
    held.federation.parent_mut("site-1").kill();
    held.open();
    // The other site's result of round 5 is there; this one's waits with its worker.
    held.federation.parent_mut("site-1").restart();
    let shown = held.completes(1);
    assert_eq!(attempts(&shown, "site-1"), [1], "{shown:#}");
}

#[test]
fn a_client_worker() {
    let mut held = held();
    let before = held.trace.entries();
    for process in held.workers("site-1") {
        if process.arguments().is_ok_and(|words| words.iter().any(|word| word.contains("polder-worker"))) {
            process.kill().expect("it runs");
        }
    }
    held.trace.wait(watch::LIMIT, |entries| {
        entries[before.len()..].iter().any(|e| e.site == "site-1" && e.attempt == 2 && e.round == 5)
    });
    held.open();
    let shown = held.completes(2);
    assert_eq!(attempts(&shown, "site-1").last(), Some(&2), "{shown:#}");
    assert_eq!(attempts(&shown, "site-2"), [1], "{shown:#}");
}

/// Kills only the worker of a parent, or only its shim.
fn kill_alone(held: &Held, parent: &str, shims: bool) {
    let mut killed = 0;
    for process in held.workers(parent) {
        let Ok(words) = process.arguments() else { continue };
        let ours = words.first().is_some_and(|word| word.contains("polder-worker"));
        if ours && words.iter().any(|word| word == "supervise") == shims {
            process.kill().expect("it runs");
            killed += 1;
        }
    }
    assert_eq!(killed, 1, "one worker has one shim: {:?}", held.workers(parent));
}

/// The other one of worker and shim is ended, the next attempt redoes round 5, and people are told why.
fn a_client_goes_on_without(shim: bool, why: &str) {
    let mut held = held();
    let before = held.trace.entries();
    let mut told = held.federation.lead().follow(&held.job);
    kill_alone(&held, "site-1", shim);
    held.trace.wait(watch::LIMIT, |entries| {
        entries[before.len()..].iter().any(|e| e.site == "site-1" && e.attempt == 2 && e.round == 5)
    });
    let event = told.wait(|event| {
        event["worker"]["site"] == "site-1"
            && event["worker"]["reason"].as_str().is_some_and(|r| r.contains(why))
    });
    assert_eq!(event["worker"]["attempt"], 1, "{event:#}");
    drop(told);
    held.open();
    let shown = held.completes(2);
    assert_eq!(attempts(&shown, "site-1").last(), Some(&2), "{shown:#}");
    assert_eq!(attempts(&shown, "site-2"), [1], "{shown:#}");
}

#[test]
fn a_client_worker_without_its_shim() {
    a_client_goes_on_without(false, "KILL");
}

#[test]
fn the_shim_of_a_client_worker() {
    a_client_goes_on_without(true, "shim");
}

#[test]
fn the_server_worker_without_its_shim() {
    let mut held = held();
    kill_alone(&held, "server", false);
    held.open();
    let shown = held.completes(1);
    assert_eq!(attempts(&shown, "server").last(), Some(&2), "{shown:#}");
}

#[test]
fn the_shim_of_the_server_worker() {
    let mut held = held();
    kill_alone(&held, "server", true);
    held.open();
    let shown = held.completes(1);
    assert_eq!(attempts(&shown, "server").last(), Some(&2), "{shown:#}");
}

#[test]
fn the_server_worker() {
    let mut held = held();
    for process in held.workers("server") {
        if process.arguments().is_ok_and(|words| words.iter().any(|word| word.contains("polder-worker"))) {
            process.kill().expect("it runs");
        }
    }
    held.open();
    let shown = held.completes(1);
    assert_eq!(attempts(&shown, "server").last(), Some(&2), "{shown:#}");
}

#[test]
fn the_command_line_that_waits() {
    let mut held = held();
    held.cli.kill().expect("it runs");
    held.cli.wait().expect("a child");
    held.cli = waiting(&held.federation, &held.job);
    held.open();
    held.completes(1);
}
