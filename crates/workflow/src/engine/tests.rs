use super::*;
use crate::spec::JobSpec;
use proptest::prelude::*;
use serde_json::json;

fn name(n: usize) -> SiteName {
    SiteName::new(&format!("site-{n}")).expect("a good name")
}

fn rules(sites: usize, rounds: u32, min_clients: u32, mandatory: &[usize], attempt: u32) -> Rules {
    let spec = JobSpec::read(&json!({
        "workflow": "fedavg", "rounds": rounds, "trainer": {"command": ["x"]},
        "aggregation": {"round_timeout": "10s"},
    }))
    .expect("a job");
    let sites = (0..sites).map(name).collect();
    Rules::new(&spec, sites, min_clients, mandatory.iter().map(|n| name(*n)), attempt).expect("good rules")
}

fn done(task: TaskId, weight: f64, data: &str) -> TaskResult {
    let metrics = BTreeMap::from([("loss".to_owned(), weight)]);
    let model = Some(Payload::Inline { data: data.to_owned() });
    TaskResult { task, result: TaskOutcome::Done { model, weight, metrics } }
}

fn failed(task: TaskId, class: FailureClass, cause: &str) -> TaskResult {
    let tail = "last words".to_owned();
    TaskResult { task, result: TaskOutcome::Failed { class, cause: cause.to_owned(), tail } }
}

fn everybody_ready(n: usize) -> BTreeMap<SiteName, Member> {
    (0..n).map(|n| (name(n), Member::Ready)).collect()
}

fn seen(engine: &mut Engine, results: &[(usize, TaskResult)], now: u64) -> Vec<Action> {
    let roster = everybody_ready(engine.rules().sites.len());
    let results = results.iter().map(|(n, result)| (name(*n), result.clone())).collect();
    engine.step(Event::Seen { roster: &roster, results: &results }, now)
}

fn id(round: u32) -> TaskId {
    TaskId { attempt: 1, round, step: 0 }
}

fn failure(actions: &[Action]) -> &Failure {
    match actions {
        [Action::Fail { failure, .. }] => failure,
        other => panic!("not a failure: {other:?}"),
    }
}

#[test]
fn the_first_site_gives_the_first_model_and_the_next_one_if_it_fails() {
    let mut engine = Engine::new(rules(3, 2, 2, &[], 1), Start::default());
    let asked = |n: usize| Action::Publish { sites: vec![name(n)], task: id(0), kind: "init" };
    assert_eq!(engine.begin(false, 0), [asked(0)]);
    let out = seen(&mut engine, &[(0, failed(id(0), FailureClass::UserCode, "exit 3"))], 5);
    assert_eq!(out, [asked(1)]);
    let out = seen(&mut engine, &[(1, done(id(0), 2.0, "m"))], 6);
    let model = Payload::Inline { data: "m".to_owned() };
    assert_eq!(out, [Action::Adopt(Contribution { site: name(1), model, weight: 2.0 })]);
    let out = engine.step(Event::Refused { site: &name(1), cause: "NaN" }, 7);
    assert!(failure(&out).cause.contains("NaN (1 of 3 sites remain, 2 needed"), "{out:?}");
}

#[test]
fn the_round_after_begins_at_once_but_is_not_added_up_before_the_checkpoint() {
    let mut engine = Engine::new(rules(2, 3, 2, &[], 1), Start::default());
    let publish = |round| Action::Publish { sites: vec![name(0), name(1)], task: id(round), kind: "train" };
    assert_eq!(engine.begin(true, 0), [publish(1)]);
    let out = seen(&mut engine, &[(1, done(id(1), 1.0, "b"))], 5);
    assert_eq!(out, []);
    let out = seen(&mut engine, &[(1, done(id(1), 1.0, "b")), (0, done(id(1), 3.0, "a"))], 8);
    let [Action::Aggregate { round: 1, parts }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(
        parts.iter().map(|p| (&p.site, p.weight)).collect::<Vec<_>>(),
        [(&name(0), 3.0), (&name(1), 1.0)]
    );
    let out = engine.step(Event::Aggregated, 9);
    let [Action::Publish { .. }, Action::Save(record)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((record.round, record.millis, record.metrics["loss"]), (1, 9, 2.5));
    // Round 2 is complete before the checkpoint of round 1 is on disk.
    let out = seen(&mut engine, &[(0, done(id(2), 1.0, "a")), (1, done(id(2), 1.0, "b"))], 12);
    assert_eq!(out, []);
    let out = engine.step(Event::Saved { round: 1 }, 20);
    assert!(
        matches!(&out[..], [Action::Report(RoundDone { round: 1, .. }), Action::Aggregate { round: 2, .. }]),
        "{out:?}"
    );
    engine.step(Event::Aggregated, 21);
    engine.step(Event::Saved { round: 2 }, 22);
    seen(&mut engine, &[(0, done(id(3), 1.0, "a")), (1, done(id(3), 1.0, "b"))], 23);
    assert!(matches!(&engine.step(Event::Aggregated, 24)[..], [Action::Save(Record { round: 3, .. })]));
    // A site that ends before the last checkpoint is written changes nothing any more.
    let gone =
        BTreeMap::from([(name(0), Member::Gone { outcome: Outcome::failed(FailureClass::Lost, "gone") })]);
    assert_eq!(engine.step(Event::Seen { roster: &gone, results: &BTreeMap::new() }, 25), []);
    let out = engine.step(Event::Saved { round: 3 }, 26);
    assert!(matches!(&out[..], [Action::Report(_), Action::Finish]), "{out:?}");
}

#[test]
fn a_failed_site_fails_the_job_when_it_is_mandatory_or_too_few_remain() {
    for (mandatory, min, who, part) in [
        (&[1][..], 1, 1, Some("exit 7 (site site-1 is mandatory)")),
        (&[1][..], 1, 0, None),
        (&[][..], 3, 2, Some("exit 7 (2 of 3 sites remain, 3 needed)")),
        (&[][..], 2, 2, None),
    ] {
        let mut engine = Engine::new(rules(3, 2, min, mandatory, 1), Start::default());
        engine.begin(true, 0);
        let out = seen(&mut engine, &[(who, failed(id(1), FailureClass::UserCode, "exit 7"))], 1);
        match part {
            Some(part) => {
                let failure = failure(&out);
                assert_eq!((failure.class, failure.tail.as_str()), (FailureClass::UserCode, "last words"));
                assert_eq!(failure.cause, part);
            }
            None => {
                assert_eq!(out, []);
                let rest: Vec<_> = (0..3).filter(|n| *n != who).map(|n| (n, done(id(1), 1.0, "m"))).collect();
                let out = seen(&mut engine, &rest, 2);
                assert!(matches!(&out[..], [Action::Aggregate { parts, .. }] if parts.len() == 2), "{out:?}");
                let out = engine.step(Event::Aggregated, 3);
                let [Action::Publish { sites, .. }, Action::Save(record)] = &out[..] else {
                    panic!("{out:?}")
                };
                assert!(sites.len() == 2 && record.lost.contains_key(&name(who)));
            }
        }
    }
}

#[test]
fn a_round_that_takes_too_long_names_everybody_who_did_not_answer() {
    let mut engine = Engine::new(rules(3, 2, 2, &[], 1), Start::default());
    engine.begin(true, 0);
    assert_eq!(engine.deadline(), None, "nobody is ready: nobody is late");
    seen(&mut engine, &[(1, done(id(1), 1.0, "m"))], 1000);
    assert_eq!(engine.deadline(), Some(13_000));
    assert_eq!(engine.step(Event::Tick, 12_999), []);
    let out = engine.step(Event::Tick, 13_000);
    let failure = failure(&out);
    assert_eq!(failure.class, FailureClass::Timeout);
    assert!(failure.cause.starts_with("no answer within 10s from site-0, site-2 ("), "{}", failure.cause);
    assert_eq!(engine.deadline(), None);
}

#[test]
fn a_late_site_misses_one_round_and_is_out_when_late_again() {
    let mut engine = Engine::new(rules(3, 5, 2, &[], 1), Start::default());
    engine.begin(true, 0);
    let both = |round| [(0, done(id(round), 1.0, "a")), (1, done(id(round), 1.0, "b"))];
    seen(&mut engine, &both(1), 0);
    // The site's own worker says so, with the last lines.
    let late = |round| (2, failed(id(round), FailureClass::Timeout, "no answer within 10s"));
    let [a, b] = both(1);
    let out = seen(&mut engine, &[a, b, late(1)], 10_000);
    assert!(matches!(&out[..], [Action::Aggregate { parts, .. }] if parts.len() == 2), "{out:?}");
    let out = engine.step(Event::Aggregated, 10_001);
    assert!(
        matches!(&out[..], [Action::Publish { sites, .. }, Action::Save(_)] if sites.len() == 3),
        "{out:?}"
    );
    engine.step(Event::Saved { round: 1 }, 10_002);
    // What it sends for round 1 now is not taken.
    let [a, b] = both(2);
    let out = seen(&mut engine, &[a.clone(), b.clone(), (2, done(id(1), 1.0, "old"))], 10_010);
    assert_eq!(out, []);
    seen(&mut engine, &[a, b, late(2)], 20_020);
    let out = engine.step(Event::Aggregated, 20_021);
    assert!(
        matches!(&out[..], [Action::Publish { sites, .. }, Action::Save(_)] if sites.len() == 2),
        "{out:?}"
    );
    assert_eq!(engine.lost()[&name(2)].cause, "no answer within 10s, for the second time running");
}

#[test]
fn time_does_not_run_while_a_worker_starts_or_the_link_is_down() {
    let mut engine = Engine::new(rules(1, 1, 1, &[], 1), Start::default());
    engine.begin(true, 0);
    let starting = BTreeMap::from([(name(0), Member::Starting)]);
    engine.step(Event::Seen { roster: &starting, results: &BTreeMap::new() }, 0);
    assert_eq!(engine.step(Event::Tick, 1_000_000), []);
    seen(&mut engine, &[], 1_000_000);
    engine.step(Event::Seen { roster: &starting, results: &BTreeMap::new() }, 1_005_000);
    seen(&mut engine, &[], 1_100_000);
    engine.step(Event::Reconnected, 1_111_000);
    assert_eq!(engine.deadline(), Some(1_123_000));
}

#[test]
fn later_workflows_and_impossible_numbers_are_refused() {
    let read = |job| JobSpec::read(&job).expect("a job");
    let spec = read(json!({"workflow": "cyclic", "rounds": 1, "trainer": {"command": ["x"]}}));
    let error = Rules::new(&spec, vec![name(0)], 1, [], 1).expect_err("a later version");
    assert_eq!(error.to_string(), "workflow: cyclic is not available in this version; available is fedavg");
    let spec = read(
        json!({"workflow": "fedavg", "rounds": 1, "trainer": {"command": ["x"]}, "aggregation": {"min_responses": 3}}),
    );
    let error = Rules::new(&spec, vec![name(0), name(1)], 1, [], 1).expect_err("too many");
    assert_eq!(error.to_string(), "aggregation.min_responses: 3 is more than the 2 sites of the job");
}

/// What a site does in a round.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    Answers,
    Fails,
    Hangs,
    Nan,
    Ends,
}

type Job = (usize, u32, Vec<Vec<Does>>, u32, Vec<usize>, bool);

fn a_job() -> impl Strategy<Value = Job> {
    let does = prop_oneof![
        12 => Just(Does::Answers), 1 => Just(Does::Fails), 1 => Just(Does::Hangs),
        1 => Just(Does::Nan), 1 => Just(Does::Ends),
    ];
    (1usize..5, 1u32..5).prop_flat_map(move |(sites, rounds)| {
        let a_site = prop::collection::vec(does.clone(), usize::try_from(rounds).expect("small") + 1);
        let min = 1..=u32::try_from(sites).expect("small");
        let plan = prop::collection::vec(a_site, sites);
        (Just(sites), Just(rounds), plan, min, prop::collection::vec(0..sites, 0..2), any::<bool>())
    })
}

/// A job's world: sites that follow a plan, a parent that repeats itself, a worker that may be killed.
struct World {
    plan: Vec<Vec<Does>>,
    roster: BTreeMap<SiteName, Member>,
    results: BTreeMap<SiteName, TaskResult>,
    tasks: BTreeMap<SiteName, TaskId>,
    adding: Option<Vec<SiteName>>,
    save: Option<Record>,
    on_disk: Option<Record>,
    reported: Vec<u32>,
    end: Option<Action>,
    now: u64,
}

impl World {
    fn take(&mut self, actions: Vec<Action>, rules: &Rules) -> Result<(), TestCaseError> {
        for action in actions {
            prop_assert!(self.end.is_none(), "{action:?} after the end");
            match action {
                Action::Publish { sites, task, .. } => {
                    prop_assert_eq!(task.attempt, rules.attempt);
                    self.tasks = sites.into_iter().map(|site| (site, task)).collect();
                    let tasks = &self.tasks;
                    self.results.retain(|site, result| tasks.get(site) == Some(&result.task));
                }
                Action::Adopt(part) => self.adding = Some(vec![part.site]),
                Action::Aggregate { round, parts } => {
                    let names: Vec<_> = parts.into_iter().map(|part| part.site).collect();
                    prop_assert!(names.len() >= usize::try_from(rules.min_responses).expect("small"));
                    prop_assert!(rules.mandatory.iter().all(|site| names.contains(site)));
                    prop_assert!(names.is_sorted(), "{:?}", names);
                    prop_assert!(names.iter().all(|site| self.results[site].task.round == round));
                    let durable = self.on_disk.as_ref().map_or(0, |record| record.round);
                    prop_assert_eq!(round, durable + 1, "added up before the checkpoint");
                    self.adding = Some(names);
                }
                Action::Save(record) => self.save = Some(record),
                Action::Report(done) => {
                    let durable = self.on_disk.as_ref().map_or(0, |record| record.round);
                    prop_assert!(done.round <= durable, "reported before it was on disk");
                    self.reported.push(done.round);
                }
                end @ (Action::Finish | Action::Fail { .. }) => self.end = Some(end),
            }
        }
        Ok(())
    }

    fn does(&self, site: &SiteName, round: u32) -> Does {
        let n: usize = site.as_ref()["site-".len()..].parse().expect("a number");
        self.plan[n][usize::try_from(round).expect("small")]
    }

    /// One site makes a step.
    fn act(&mut self, n: usize) {
        let site = name(n);
        let Some(task) = self.tasks.get(&site).copied() else { return };
        if self.roster.get(&site) != Some(&Member::Ready) {
            if !matches!(self.roster.get(&site), Some(Member::Gone { .. })) {
                self.roster.insert(site, Member::Ready);
            }
            return;
        }
        match self.does(&site, task.round) {
            Does::Answers | Does::Nan => {
                self.results.insert(site, done(task, 1.0, "m"));
            }
            Does::Fails => {
                self.results.insert(site, failed(task, FailureClass::UserCode, "exit 1"));
            }
            Does::Ends => {
                let outcome = Outcome::failed(FailureClass::Lost, "its node is gone");
                self.roster.insert(site, Member::Gone { outcome });
            }
            Does::Hangs => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn every_job_ends_and_keeps_its_rules(job in a_job(), luck in prop::collection::vec(0u8..=255, 0..120)) {
        let (sites, rounds, plan, min, mandatory, has_model) = job;
        let trouble = plan.iter().flatten().any(|does| *does != Does::Answers);
        let mut world = World {
            plan, roster: (0..sites).map(|n| (name(n), Member::Starting)).collect(), results: BTreeMap::new(), tasks: BTreeMap::new(),
            adding: None, save: None, on_disk: None, reported: Vec::new(), end: None, now: 0,
        };
        let mut attempt = 1;
        let mut engine = Engine::new(rules(sites, rounds, min, &mandatory, attempt), Start::default());
        let first = engine.begin(has_model, 0);
        world.take(first, &engine.rules().clone())?;
        let mut luck = luck.into_iter();
        let mut steps = 0;
        while world.end.is_none() {
            steps += 1;
            prop_assert!(steps < 2000, "the job does not end: {engine:?}");
            // When the luck runs out everything happens in turn.
            let dice = luck.next().map_or(steps, usize::from);
            let rules = engine.rules().clone();
            let out = match dice % 7 {
                0 | 1 => { world.act((dice / 7) % sites); continue; }
                2 => engine.step(Event::Seen { roster: &world.roster, results: &world.results }, world.now),
                3 => {
                    let Some(parts) = world.adding.take() else { continue };
                    let round = engine.round();
                    match parts.iter().find(|site| world.does(site, round) == Does::Nan) {
                        Some(site) => engine.step(Event::Refused { site, cause: "NaN" }, world.now),
                        None => engine.step(Event::Aggregated, world.now),
                    }
                }
                4 => {
                    let Some(record) = world.save.take() else { continue };
                    let round = record.round;
                    world.on_disk = Some(record);
                    engine.step(Event::Saved { round }, world.now)
                }
                5 if dice / 7 == 9 => {
                    // Killed; the next attempt knows what is on disk and nothing else.
                    attempt += 1;
                    let (start, made) = match &world.on_disk {
                        Some(r) => (Start { round: r.round, late: r.late.clone(), lost: r.lost.clone() }, true),
                        None => (Start::default(), false),
                    };
                    world.adding = None;
                    world.save = None;
                    engine = Engine::new(self::rules(sites, rounds, min, &mandatory, attempt), start);
                    let out = engine.begin(has_model || made, world.now);
                    world.take(out, &engine.rules().clone())?;
                    continue;
                }
                _ => {
                    // Time runs out only for those who will not answer.
                    let hangs = world.tasks.iter().all(|(site, task)| {
                        world.results.contains_key(site) || world.does(site, task.round) == Does::Hangs
                            || matches!(world.roster[site], Member::Gone { .. })
                    });
                    if !hangs { continue; }
                    world.now = engine.deadline().unwrap_or(world.now).max(world.now);
                    let seen = engine.step(Event::Seen { roster: &world.roster, results: &world.results }, world.now);
                    world.take(seen, &rules)?;
                    engine.step(Event::Tick, world.now)
                }
            };
            world.take(out, &rules)?;
        }
        match world.end {
            Some(Action::Finish) => {
                prop_assert_eq!(world.on_disk.map(|record| record.round), Some(rounds));
                prop_assert!(world.reported.is_sorted());
                if attempt == 1 {
                    prop_assert_eq!(world.reported, (1..=rounds).collect::<Vec<_>>());
                }
            }
            Some(Action::Fail { site, failure }) => {
                prop_assert!(trouble, "no reason to fail: {failure:?}");
                prop_assert!(site.is_some() || failure.cause.contains("no site"), "{failure:?}");
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
