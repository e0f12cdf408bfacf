//! Parents with nothing to do.

use super::{connected, mib};
use crate::table::Figure;
use polder_tests::federation::Plan;
use polder_tests::process::Process;
use std::time::Duration;

/// Long enough for every timer to fire.
const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn run() -> Vec<Figure> {
    let federation = Plan::sites(1).start();
    connected(&federation, 1);
    // What starting left behind (page cache warm-up, first heartbeats) is not idleness.
    std::thread::sleep(Duration::from_secs(3));
    let processes = [
        ("server parent", federation.parent("server").process(), 85.0, 52.0, 0.08),
        ("site parent", federation.parent("site-1").process(), 85.0, 51.0, 0.03),
    ];
    let cpu = |process: &Process| process.cpu_fine().expect("it runs").as_secs_f64();
    let before: Vec<f64> = processes.iter().map(|(_, process, ..)| cpu(process)).collect();
    std::thread::sleep(MINUTE);
    let mut figures = Vec::new();
    for ((name, process, resident, own, flare), before) in processes.iter().zip(before) {
        let memory = process.memory().expect("it runs");
        figures.push(
            Figure::new("idle", format!("{name}: resident"), "MiB", vec![mib(memory.resident)])
                .at_most(16.0)
                .flare(*resident),
        );
        figures.push(
            Figure::new("idle", format!("{name}: own memory"), "MiB", vec![mib(memory.own)]).flare(*own),
        );
        figures.push(
            Figure::new("idle", format!("{name}: processor time a minute"), "s", vec![cpu(process) - before])
                .at_most(0.05)
                .flare(*flare),
        );
    }
    figures
}
