//! From the start of a parent until it says that it is ready.

use super::millis;
use crate::table::Figure;
use polder_tests::federation::Plan;
use std::time::Instant;

const TIMES: usize = 9;

pub(crate) fn run() -> Vec<Figure> {
    let mut federation = Plan::sites(1).start();
    let mut figures = Vec::new();
    for (name, what) in
        [("server", "server parent: start to ready"), ("site-1", "site parent: start to registered")]
    {
        let mut values = Vec::new();
        for _ in 0..TIMES {
            let _ = federation.parent_mut(name).stop();
            let began = Instant::now();
            federation.parent_mut(name).restart();
            federation.parent(name).wait_ready();
            values.push(millis(began.elapsed()));
        }
        let mut figure = Figure::new("start", what, "ms", values).at_most(150.0);
        if name == "site-1" {
            figure = figure.flare(2000.0);
        }
        figures.push(figure);
    }
    figures
}
