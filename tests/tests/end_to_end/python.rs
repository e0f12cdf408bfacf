//! The Python package against a live federation: what it submits is what the command line submits.

use crate::helpers::result_model;
use polder_tests::federation::{Federation, LEAD, Plan, STUDY};
use polder_tests::job::Job;
use polder_tests::programs::{Said, program, run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Three sites with a part of the breast-cancer data each.
fn with_data() -> Federation {
    let mut federation = Plan::sites(3).provision();
    let data = federation.root.join("data");
    let trainer = program("polder-demo-trainer");
    let _ = run(Command::new(&trainer).args(["split", "--seed", "7", "--out"]).arg(&data)).ok();
    for (site, file) in federation.sites().iter().zip(["hospital-a", "hospital-b", "university"]) {
        let path = federation.root.join(site).join("local/study_runtime.yaml");
        let text = std::fs::read_to_string(&path).expect("it was written");
        let mut runtime: Value = serde_json::from_str(&text).expect("as JSON");
        runtime["studies"][STUDY]["env"]["DATA"] = json!(data.join(format!("{file}.csv")));
        std::fs::write(&path, runtime.to_string()).expect("written");
    }
    federation.start_all();
    federation
}

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("sdk/python")
}

/// Runs a script with Debian's Python, as the lead would in a notebook.
fn python(federation: &Federation, script: &str, arguments: &[&str]) -> Said {
    run(Command::new("/usr/bin/python3")
        .args(["-c", script])
        .args(arguments)
        .env("PYTHONPATH", sdk())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("POLDER_BIN", program("polder"))
        .env("POLDER_KIT", federation.kit(LEAD))
        .env("POLDER_STUDY", STUDY)
        .env("HOME", federation.root.join("home")))
}

const SUBMIT: &str = r#"
import sys, polder_client
session = polder_client.Session(study="pathology")
job = session.submit(sys.argv[1])
rounds = []
job = session.wait(job, on_event=lambda event: rounds.append(event["round"]) if event["event"] == "round" else None)
files = session.download(job, sys.argv[2])
print(job.phase, rounds, sorted(files))
"#;

#[test]
fn a_job_by_python_and_one_by_the_command_line_give_the_same_bits() {
    let federation = with_data();
    let trainer = program("polder-demo-trainer").to_string_lossy().into_owned();
    let folder =
        Job::new("cancer", [&trainer, "--seed", "7"]).rounds(4).min_clients(3).write(&federation.root);
    let lead = federation.lead();
    let by_hand = lead.submit(&folder);
    assert_eq!(lead.wait(&by_hand)["phase"], "completed");
    let out = federation.root.join("python-results");
    let said = python(&federation, SUBMIT, &[&folder.to_string_lossy(), &out.to_string_lossy()]).ok();
    assert!(said.out.starts_with("completed [1, 2, 3, 4] ["), "{}", said.out);
    let model = std::fs::read(out.join("model.safetensors")).expect("a model");
    assert_eq!(model, result_model(&lead, &by_hand), "bit for bit");
    assert!(model.len() > 100);
    // It has learnt something.
    let held_out = federation.root.join("data/held-out.csv");
    let said = run(Command::new(&trainer)
        .args(["evaluate", "--model"])
        .arg(out.join("model.safetensors"))
        .arg("--data")
        .arg(held_out))
    .ok();
    assert!(said.out.trim().parse::<f64>().expect("a number") > 0.8, "{}", said.out);
}

const NUMPY: &str = r#"
import os, sys
sys.path.insert(0, os.environ["SDK"])
import numpy
import polder_client as polder

me = polder.init()
while polder.is_running():
    model = polder.receive()
    params = model.params or {"w": numpy.zeros((3, 2), numpy.float32), "n": numpy.zeros(1, numpy.float64)}
    polder.log(f"round {model.round} of {model.total_rounds}")
    polder.send(polder.Model(params={k: v + 1 for k, v in params.items()}, metrics={"loss": 1.0 / (model.round + 1)}, weight=2.0))
"#;

const CHECK: &str = r#"
import sys, polder_client
session = polder_client.Session()
job = session.wait(session.submit(sys.argv[1]))
assert job.phase == "completed", job
assert job.metrics == {"loss": 0.25}, job.metrics
assert {w.site for w in job.workers} >= {"site-1", "site-2"}, job.workers
text = "".join(str(line) for line in session.logs(job))
assert "round 3 of 3" in text, text
assert job.id in [j.id for j in session.jobs()]
try:
    session.job("0" * 32)
    raise SystemExit("found")
except polder_client.NotFound as error:
    assert "0000" in str(error), error
"#;

#[test]
fn a_numpy_trainer_and_a_notebook() {
    let plan =
        Plan::sites(2).runtime("env", json!({"SDK": sdk()})).runtime("export", json!({"logs": "full"}));
    let federation = plan.start();
    let folder = Job::new("numpy", ["/usr/bin/python3", "train.py"])
        .rounds(3)
        .min_clients(2)
        .file("train.py", NUMPY)
        .write(&federation.root);
    let _ = python(&federation, CHECK, &[&folder.to_string_lossy()]).ok();
}
