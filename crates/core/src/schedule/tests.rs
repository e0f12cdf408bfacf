use super::*;
use proptest::prelude::*;

fn name(text: &str) -> SiteName {
    SiteName::new(text).expect("site")
}

fn up(gpus: (u64, u64)) -> Site {
    Site { connected: true, gpus: Some(Stock { free: gpus.0, all: gpus.1 }), ..Site::default() }
}

fn here() -> Site {
    Site { connected: true, ..Site::default() }
}

fn job(order: u8, sites: &[&str], min_clients: u32, gpus: u64) -> Waiting {
    Waiting {
        job: JobId([order; 16]),
        priority: Priority::Normal,
        order: u64::from(order),
        sites: sites.iter().map(|s| name(s)).collect(),
        min_clients,
        mandatory: BTreeSet::new(),
        needs: sites.iter().map(|s| (name(s), Amounts { gpus, ..Amounts::default() })).collect(),
        refused: BTreeMap::new(),
        resting: BTreeMap::new(),
        holds: false,
    }
}

fn federation(sites: &[(&str, Site)]) -> BTreeMap<SiteName, Site> {
    sites.iter().map(|(n, site)| (name(n), site.clone())).collect()
}

/// One line a job: the sites it starts at, or why not.
fn run(jobs: &[Waiting], sites: &BTreeMap<SiteName, Site>) -> Vec<String> {
    schedule(jobs, &here(), sites)
        .into_iter()
        .map(|(_, decision)| match decision {
            Decision::Start { sites } => {
                format!("start {}", sites.iter().map(SiteName::as_str).collect::<Vec<_>>().join(","))
            }
            Decision::Wait { reason } => reason,
            Decision::Impossible { reason } => format!("never: {reason}"),
        })
        .collect()
}

#[test]
fn a_gang_starts_with_every_site_that_can() {
    let sites = federation(&[("a", up((1, 1))), ("b", up((0, 1))), ("c", Site::default())]);
    assert_eq!(run(&[job(1, &["a", "b", "c"], 1, 1)], &sites), ["start a"]);
    assert_eq!(
        run(&[job(1, &["a", "b", "c"], 2, 1)], &sites),
        ["waiting for site b: 0 GPUs free of 1, 1 asked (and 1 more)"]
    );
    assert_eq!(run(&[job(1, &["a", "b", "c"], 3, 0)], &sites), ["2 of 3 sites connected, min_clients is 3"]);
}

#[test]
fn reasons_name_the_site_and_the_amounts() {
    let sites = federation(&[("uni", up((3, 8)))]);
    assert_eq!(run(&[job(1, &["uni"], 1, 4)], &sites), ["waiting for site uni: 3 GPUs free of 8, 4 asked"]);
    let mut memory = job(1, &["uni"], 1, 0);
    memory.needs.insert(name("uni"), Amounts { memory: 64 << 30, ..Amounts::default() });
    let mut site = here();
    site.memory = Some(Stock { free: 512 << 20, all: 128 << 30 });
    assert_eq!(
        run(&[memory], &federation(&[("uni", site)])),
        ["waiting for site uni: 512 MiB memory free of 128 GiB, 64 GiB asked"]
    );
    let mut away = job(1, &["a", "uni"], 1, 0);
    away.mandatory = [name("a")].into();
    assert_eq!(run(&[away], &sites), ["waiting for site a: not connected"]);
    let mut rests = job(1, &["uni"], 1, 0);
    rests.resting.insert(name("uni"), "a disk is full".into());
    assert_eq!(run(&[rests], &sites), ["waiting for site uni: a disk is full"]);
}

#[test]
fn nothing_is_given_twice() {
    let sites = federation(&[("a", up((2, 2)))]);
    let jobs = [job(1, &["a"], 1, 1), job(2, &["a"], 1, 1), job(3, &["a"], 1, 1)];
    assert_eq!(run(&jobs, &sites), ["start a", "start a", "waiting for site a: 0 GPUs free of 2, 1 asked"]);
}

#[test]
fn the_server_has_to_have_a_place_too() {
    let server = Site { jobs: Some(Stock { free: 0, all: 4 }), ..here() };
    let decided = schedule(&[job(1, &["a"], 1, 0)], &server, &federation(&[("a", here())]));
    assert_eq!(
        decided[0].1,
        Decision::Wait { reason: "waiting for the server: 4 jobs at once, all taken".into() }
    );
}

#[test]
fn urgent_jobs_come_first_and_then_who_came_first() {
    let sites = federation(&[("a", up((1, 1)))]);
    let mut urgent = job(3, &["a"], 1, 1);
    urgent.priority = Priority::High;
    let decided = schedule(&[job(2, &["a"], 1, 1), job(1, &["a"], 1, 1), urgent], &here(), &sites);
    let order: Vec<u8> = decided.iter().map(|(id, _)| id.0[0]).collect();
    assert_eq!(order, [3, 1, 2]);
    assert!(matches!(decided[0].1, Decision::Start { .. }));
}

#[test]
fn a_small_job_passes_a_large_one_until_that_holds() {
    let sites = federation(&[("a", up((2, 4)))]);
    let mut large = job(1, &["a"], 1, 4);
    let small = job(2, &["a"], 1, 1);
    assert_eq!(run(&[large.clone(), small.clone()], &sites)[1], "start a");
    large.holds = true;
    assert_eq!(run(&[large, small], &sites)[1], "waiting for site a: 0 GPUs free of 4, 1 asked");
}

#[test]
fn refusals_can_make_a_job_impossible() {
    let sites = federation(&[("a", here()), ("b", here())]);
    let mut refused = job(1, &["a", "b"], 1, 0);
    refused.refused.insert(name("a"), "image not allowed".into());
    assert_eq!(run(&[refused.clone()], &sites), ["start b"]);
    refused.min_clients = 2;
    assert_eq!(
        run(&[refused.clone()], &sites),
        ["never: 1 of 2 sites are left, min_clients is 2: site a refused: image not allowed"]
    );
    refused.min_clients = 1;
    refused.mandatory = [name("a")].into();
    assert_eq!(run(&[refused], &sites), ["never: site a is mandatory and refused: image not allowed"]);
}

type Raw = (u8, Vec<usize>, u32, u64, u64, bool, Vec<usize>);

proptest! {
    #[test]
    fn what_is_started_fits_and_keeps_its_promises(
        stocks in prop::collection::vec((any::<bool>(), 0u64..6, 0u64..6, prop::option::of(0u64..4)), 1..5),
        raw in prop::collection::vec(
            (0u8..3, prop::collection::vec(0usize..5, 1..5), 1u32..4, 0u64..4, 0u64..4, any::<bool>(), prop::collection::vec(0usize..5, 0..2)),
            0..8,
        ) as proptest::collection::VecStrategy<_>,
    ) {
        let raw: Vec<Raw> = raw;
        let sites: BTreeMap<SiteName, Site> = stocks
            .iter()
            .enumerate()
            .map(|(i, (connected, gpus, cpus, jobs))| {
                let site = Site {
                    connected: *connected,
                    gpus: Some(Stock { free: *gpus, all: 6 }),
                    cpus: Some(Stock { free: *cpus, all: 6 }),
                    memory: None,
                    jobs: jobs.map(|free| Stock { free, all: 4 }),
                };
                (name(&format!("s{i}")), site)
            })
            .collect();
        let jobs: Vec<Waiting> = raw
            .iter()
            .enumerate()
            .map(|(i, (priority, targets, min, gpus, cpus, holds, mandatory))| {
                let set: BTreeSet<SiteName> = targets.iter().map(|t| name(&format!("s{t}"))).collect();
                Waiting {
                    job: JobId([u8::try_from(i).expect("few"); 16]),
                    priority: [Priority::Low, Priority::Normal, Priority::High][usize::from(*priority)],
                    order: i as u64,
                    min_clients: *min,
                    mandatory: mandatory.iter().map(|t| name(&format!("s{t}"))).filter(|t| set.contains(t)).collect(),
                    needs: set.iter().map(|s| (s.clone(), Amounts { gpus: *gpus, cpus: *cpus, memory: 0 })).collect(),
                    sites: set,
                    refused: BTreeMap::new(),
                    resting: BTreeMap::new(),
                    holds: *holds,
                }
            })
            .collect();
        let decided = schedule(&jobs, &here(), &sites);
        prop_assert_eq!(decided.len(), jobs.len());
        let mut used: BTreeMap<SiteName, (u64, u64, u64)> = BTreeMap::new();
        for (id, decision) in &decided {
            let job = jobs.iter().find(|j| j.job == *id).expect("a job of the input");
            match decision {
                Decision::Start { sites: chosen } => {
                    prop_assert!(chosen.len() >= job.min_clients as usize);
                    prop_assert!(job.mandatory.iter().all(|m| chosen.contains(m)));
                    for site in chosen {
                        prop_assert!(job.sites.contains(site));
                        let need = job.needs[site];
                        let sum = used.entry(site.clone()).or_default();
                        *sum = (sum.0 + need.gpus, sum.1 + need.cpus, sum.2 + 1);
                    }
                }
                Decision::Wait { reason } => prop_assert!(!reason.is_empty()),
                Decision::Impossible { .. } => prop_assert!(false, "nobody refused"),
            }
        }
        for (site, (gpus, cpus, count)) in used {
            let stock = &sites[&site];
            prop_assert!(stock.connected);
            prop_assert!(gpus <= stock.gpus.expect("stock").free && cpus <= stock.cpus.expect("stock").free);
            prop_assert!(stock.jobs.is_none_or(|jobs| count <= jobs.free));
        }
        // The first in the queue is refused only for what the federation itself lacks.
        prop_assert_eq!(schedule(&jobs, &here(), &sites), decided, "the same question has the same answer");
    }
}
