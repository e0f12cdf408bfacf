//! Many rounds of a model of 1 KiB: what a round itself costs.

use super::{adding, connected, follow};
use crate::meter::Meter;
use crate::table::Figure;
use polder_tests::federation::Plan;

/// The first rounds warm caches and connections.
const WARM: usize = 50;
const ROUNDS: usize = 350;
const TIMES: usize = 3;

pub(crate) fn run() -> Vec<Figure> {
    let mut figures = Vec::new();
    for (sites, target, flare_wall, flare_cpu) in [(2, 6.0, 2510.0, 170.0), (8, 15.0, 2540.0, 700.0)] {
        let meter = Meter::new(&format!("rounds-{sites}"));
        let mut plan = Plan::sites(sites);
        plan.cgroup = meter.as_ref().map(|meter| meter.folder().to_owned());
        let federation = plan.start();
        connected(&federation, sites);
        let (mut walls, mut cpus) = (Vec::new(), Vec::new());
        for n in 0..TIMES {
            let rounds = u32::try_from(ROUNDS).expect("a few hundred");
            let job = adding(&format!("rounds-{n}"), 1024, rounds, sites).write(&federation.root);
            let run = follow(&federation.lead(), &job, meter.as_ref());
            let (wall, cpu) = run.per_round(WARM, ROUNDS);
            walls.push(wall);
            #[expect(clippy::cast_precision_loss, reason = "2 or 8")]
            cpus.push(cpu / sites as f64);
        }
        #[expect(clippy::cast_precision_loss, reason = "2 or 8")]
        let flare_cpu = flare_cpu / sites as f64;
        let what = |rest: &str| format!("1 KiB model, {sites} sites: {rest}");
        figures.push(Figure::new("rounds", what("a round"), "ms", walls).at_most(target).flare(flare_wall));
        figures.push(
            Figure::new("rounds", what("processor time a round and site"), "ms", cpus)
                .at_most(4.0)
                .flare(flare_cpu),
        );
    }
    figures
}
