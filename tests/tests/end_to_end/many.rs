//! Sixty sites with certificates, connections and heartbeats of their own.

use crate::helpers::adding;
use polder_tests::federation::Plan;
use polder_tests::light::{Seen, Sites};
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, Instant};

const SITES: usize = 60;

/// Five different numbers from 1 to [`SITES`].
fn five() -> BTreeSet<u64> {
    let mut chosen = BTreeSet::new();
    while chosen.len() < 5 {
        // Keyed anew for each value: as random as this has to be.
        chosen.insert(RandomState::new().build_hasher().finish() % SITES as u64 + 1);
    }
    chosen
}

#[test]
fn five_of_sixty_idle_sites_get_a_job_within_a_second() {
    let mut federation = Plan::sites(SITES).provision();
    federation.start("server", &[]);
    federation.parent("server").wait_ready();
    let kits: Vec<_> = federation.sites().iter().map(|site| federation.kit(site)).collect();
    let sites = Sites::connect(&kits);
    sites.wait_connected(SITES);
    let shown = federation.lead().json(&["sites"]);
    let connected =
        shown["sites"].as_array().expect("sites").iter().filter(|s| s["connected"] == true).count();
    assert_eq!(connected, SITES);

    let chosen: Vec<String> = five().into_iter().map(|n| format!("site-{n}")).collect();
    let job = adding("five", &[]).rounds(2).min_clients(5).write(&federation.root);
    let job = job.to_string_lossy().into_owned();
    let mut words = vec!["submit", &job, "--json"];
    for site in &chosen {
        words.extend(["--site", site]);
    }
    let began = Instant::now();
    let said = federation.lead().polder(&words).ok().json();
    let id = said["job"].as_str().expect("an id").to_owned();
    let seen = sites.wait(Duration::from_secs(20), |seen| {
        seen.iter().filter(|(_, _, what)| matches!(what, Seen::Asked(_))).count() >= 5
    });
    let asked: HashMap<&str, Instant> = seen
        .iter()
        .filter(|(_, _, what)| matches!(what, Seen::Asked(_)))
        .map(|(at, name, _)| (name.as_str(), *at))
        .collect();
    assert_eq!(asked.keys().copied().collect::<BTreeSet<_>>(), chosen.iter().map(String::as_str).collect());
    let last = asked.values().max().expect("five").duration_since(began);
    assert!(last < Duration::from_secs(1), "the last of {chosen:?} was asked after {last:?}");
    // It runs to its end: the server's own worker is a real one.
    assert_eq!(federation.lead().wait(&id)["phase"], "completed");
    let lost: Vec<_> = seen.iter().filter(|(_, _, what)| matches!(what, Seen::Lost(_))).collect();
    assert!(lost.is_empty(), "{lost:?}");
}
