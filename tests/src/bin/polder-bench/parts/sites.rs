//! Sixty connected sites with nothing to do, then a job for five of them.

use super::mib;
use crate::table::Figure;
use polder_tests::federation::Plan;
use polder_tests::light::{Seen, Sites};
use std::time::{Duration, Instant};

const SITES: usize = 60;

pub(crate) fn run() -> Vec<Figure> {
    let mut federation = Plan::sites(SITES).provision();
    federation.start("server", &[]);
    federation.parent("server").wait_ready();
    let kits: Vec<_> = federation.sites().iter().map(|site| federation.kit(site)).collect();
    let sites = Sites::connect(&kits);
    sites.wait_connected(SITES);
    std::thread::sleep(Duration::from_secs(3));
    let process = federation.parent("server").process();
    let before = process.cpu_fine().expect("it runs");
    std::thread::sleep(Duration::from_secs(60));
    let cpu = (process.cpu_fine().expect("it runs") - before).as_secs_f64();
    let memory = process.memory().expect("it runs");
    let job = super::adding("five", 1024, 1, 5).write(&federation.root);
    let mut arguments = vec!["submit".to_owned(), job.to_string_lossy().into_owned(), "--json".to_owned()];
    for n in [7, 19, 23, 42, 58] {
        arguments.extend(["--site".to_owned(), format!("site-{n}")]);
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let began = Instant::now();
    let _ = federation.lead().polder(&words).ok();
    let seen = sites.wait(Duration::from_secs(30), |seen| {
        seen.iter().filter(|(_, _, what)| matches!(what, Seen::Asked(_))).count() >= 5
    });
    let last = seen.iter().filter(|(_, _, what)| matches!(what, Seen::Asked(_))).map(|(at, ..)| *at).max();
    let given = last.expect("five were asked").duration_since(began).as_secs_f64();
    vec![
        Figure::new("sites", "60 idle sites, server parent: resident", "MiB", vec![mib(memory.resident)])
            .at_most(64.0)
            .flare(99.0),
        Figure::new("sites", "60 idle sites, server parent: processor time a minute", "s", vec![cpu])
            .at_most(0.5)
            .flare(0.52),
        Figure::new("sites", "five of sixty sites have a new job after", "s", vec![given]).at_most(1.0),
    ]
}
