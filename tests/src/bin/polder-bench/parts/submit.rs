//! From `polder submit` to the first training step, and jobs that do nothing.

use super::{adding, connected, follow, millis};
use crate::meter::Meter;
use crate::table::Figure;
use polder_tests::federation::Plan;
use polder_tests::job::Job;
use polder_tests::trace::Trace;
use std::time::{SystemTime, UNIX_EPOCH};

const TIMES: usize = 9;

/// As short as a numpy trainer gets. It writes the trace itself.
const NUMPY: &str = r#"
import json, os, sys, time
sys.path.insert(0, os.environ["SDK"])
import numpy
import polder_client as polder

polder.init()
while polder.is_running():
    model = polder.receive()
    with open(os.environ["TRACE_FILE"], "a") as trace:
        trace.write(json.dumps({"site": "", "round": model.round, "kind": "train" if model.params else "init",
                                "pid": os.getpid(), "started": 0, "at_ms": int(time.time() * 1000)}) + "\n")
    params = model.params or {"w": numpy.zeros(256, numpy.float32)}
    polder.send(polder.Model(params={k: v + 1 for k, v in params.items()}, weight=1.0))
"#;

pub(crate) fn run() -> Vec<Figure> {
    let sdk = std::env::current_dir().expect("a folder").join("sdk/python");
    let meter = Meter::new("submit");
    let mut plan = Plan::sites(2).runtime("env", serde_json::json!({"SDK": sdk}));
    plan.cgroup = meter.as_ref().map(|meter| meter.folder().to_owned());
    let federation = plan.start();
    connected(&federation, 2);
    let lead = federation.lead();
    let trace = Trace::at(federation.trace_file());
    let mut figures = Vec::new();
    let python = Job::new("numpy", ["/usr/bin/python3", "train.py"]).min_clients(2).file("train.py", NUMPY);
    let kinds = [
        ("submit to first training step, Rust trainer", adding("rust", 1024, 1, 2), 300.0),
        ("submit to first training step, numpy trainer", python, 700.0),
    ];
    let (mut noop, mut cpu) = (Vec::new(), Vec::new());
    for (what, job, target) in kinds {
        let mut values = Vec::new();
        for n in 0..TIMES {
            let folder = job
                .clone()
                .meta("name", format!("{}-{n}", job.meta["name"].as_str().expect("a name")).into());
            let folder = folder.write(&federation.root);
            let before = trace.entries().len();
            let began =
                SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1000.0;
            let run = follow(&lead, &folder, meter.as_ref());
            let first = trace.entries()[before..].iter().filter(|e| e.kind == "train").map(|e| e.at_ms).min();
            #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 2^52")]
            values.push(first.expect("a training step") as f64 - began);
            if target < 500.0 {
                noop.push(millis(run.wall));
                cpu.push(run.cpu);
            }
        }
        let figure = Figure::new("submit", what, "ms", values).at_most(target);
        // FLARE's is through its command line, as ours.
        figures.push(figure.flare(5300.0));
    }
    figures.push(
        Figure::new("submit", "job of one round, 2 sites: submit to finished", "ms", noop)
            .at_most(800.0)
            .flare(12_900.0),
    );
    figures.push(Figure::new("submit", "same: processor time of everything", "s", cpu).flare(3.4));
    figures
}
