//! The one-time token of a launch belongs to the first key it comes with.
//!
//! The site's worker program is a script that plays dead, so that the test is the first to enrol.

use crate::helpers::adding;
use polder_api::worker::{Dial, Enrol, Enrolled, Handover};
use polder_tests::federation::{Federation, Plan};
use polder_tests::programs::program;
use polder_tests::raw::refusal;
use polder_tests::watch;
use polder_transport::client::{Client, ClientError, Dialer};
use polder_transport::identity::WorkerKey;
use serde_json::json;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// A federation whose site launches nothing but a sleeper.
fn with_sleeper() -> Federation {
    let mut federation = Plan::sites(1).provision();
    let script = federation.root.join("data/worker");
    let worker = program("polder-worker");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = supervise ]; then exec {} \"$@\"; fi\nexec sleep 600\n",
        worker.display()
    );
    std::fs::write(&script, text).expect("written");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let path = federation.root.join("site-1/parent.yaml");
    let text = std::fs::read_to_string(&path).expect("it was written");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("as JSON");
    config["launcher"]["process"]["worker"] = json!(script);
    std::fs::write(&path, config.to_string()).expect("written");
    federation.start_all();
    federation
}

/// The handover of the one launch at the site, once it is there.
fn handover(federation: &Federation, job: &str) -> Handover {
    let runs = federation.root.join("site-1/state/runs");
    let path: PathBuf = runs.join(format!("{job}-client/attempts/1/handover.json"));
    let mut events = federation.lead().follow(job);
    events.wait(|event| event["worker"]["site"] == "site-1" && event["worker"]["phase"] == "running");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("a handover")
}

fn enrol(letter: &Handover, token: &str, key: &WorkerKey) -> Result<Enrolled, ClientError> {
    let Some(Dial::Unix { path }) = letter.dial.first() else { panic!("no socket in {letter:?}") };
    let dialer = Dialer::worker_unix(path.as_ref(), letter.pin, None).expect("a dialer");
    let ask =
        Enrol { launch: letter.launch.clone(), token: token.to_owned(), request: key.request().to_owned() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { Client::new(dialer).post("/v1/worker/enrol").json(&ask).fetch().await })
}

#[test]
fn a_token_works_again_with_the_same_key_and_never_with_another() {
    let federation = with_sleeper();
    let folder = adding("enrol", &[]).write(&federation.root);
    let lead = federation.lead();
    let job = lead.submit(&folder);
    let letter = handover(&federation, &job);
    let mine = WorkerKey::generate(&letter.launch).expect("a key");

    let problem = refusal(enrol(&letter, "guessed", &mine).map(|enrolled| enrolled.certificate));
    assert_eq!(problem.code, polder_api::ProblemCode::Unauthenticated, "{problem:?}");

    let first = enrol(&letter, &letter.token, &mine).expect("a certificate").certificate;
    let again = enrol(&letter, &letter.token, &mine).expect("the same again").certificate;
    assert_eq!(first, again, "the same key, the same certificate");

    let thief = WorkerKey::generate(&letter.launch).expect("a key");
    let problem = refusal(enrol(&letter, &letter.token, &thief).map(|enrolled| enrolled.certificate));
    assert_eq!(problem.code, polder_api::ProblemCode::Forbidden, "{problem:?}");
    assert!(problem.message.contains("quarantined"), "{problem:?}");

    // Nobody knows who was first, the worker or the thief: the launch ends, and the job says why.
    let shown = lead.wait(&job);
    assert_eq!(shown["phase"], "failed", "{shown:#}");
    assert!(shown["failure"].to_string().contains("quarantined"), "{shown:#}");
    let audit =
        std::fs::read_to_string(federation.root.join("site-1/state/audit.jsonl")).expect("an audit log");
    for what in ["enrolment_refused", "enrolled", "quarantined"] {
        assert!(audit.contains(&format!("\"{what}\"")), "{what} is not in {audit}");
    }
    for process in federation.processes() {
        let sleeps = process.arguments().unwrap_or_default().iter().any(|word| word == "600");
        assert!(!sleeps || process.ended_within(watch::LIMIT), "left running: {:?}", process.arguments());
    }
}
