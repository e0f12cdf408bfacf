//! Measures a federation of real processes and prints the figures beside those of FLARE 2.9.0.
//!
//! Run by `scripts/bench`, which builds the programs in release first. Each part has a federation of its
//! own; processor time comes from a control group, memory from `/proc`, times from the jobs' own events and
//! the trainers' trace.

mod meter;
mod parts;
mod peaks;
mod table;

use serde_json::json;
use std::process::ExitCode;

type Part = (&'static str, fn() -> Vec<table::Figure>);

const PARTS: [Part; 6] = [
    ("idle", parts::idle::run),
    ("start", parts::start::run),
    ("submit", parts::submit::run),
    ("rounds", parts::rounds::run),
    ("models", parts::models::run),
    ("sites", parts::sites::run),
];

fn main() -> ExitCode {
    let names: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
    let (mut only, mut as_json) = (None, false);
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--json" => as_json = true,
            name if names.contains(&name) && only.is_none() => only = Some(word),
            _ => {
                eprintln!("usage: scripts/bench [PART] [--json]; parts: {}", names.join(" "));
                return ExitCode::from(2);
            }
        }
    }
    let mut figures = Vec::new();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    for (name, run) in PARTS.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)) {
        eprintln!("measuring: {name}");
        figures.extend(run());
    }
    if as_json {
        let machine = json!({
            "cores": std::thread::available_parallelism().map(usize::from).unwrap_or(0),
            "load_before": load.split(' ').next(),
        });
        println!("{}", table::document(&figures, &machine));
    } else {
        println!("{}", table::print(&figures));
        println!("load before: {}", load.trim());
    }
    ExitCode::SUCCESS
}
