//! A job from order to result, and the ways it can end otherwise.

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polder_api::site::{Task, TaskOutcome, TaskResult};
use polder_api::user::{EventKind, Log, Results};
use polder_api::worker::{Ending, Report, RoundDone, Tasks, WorkerLog};
use polder_api::{Payload, ProblemCode};
use polder_transport::blob::{download, hash_file};
use polder_words::TaskId;

pub(super) fn task(attempt: u32, round: u32, model: Option<Payload>) -> Task {
    Task {
        id: TaskId { attempt, round, step: 0 },
        kind: "train".to_owned(),
        total_rounds: 2,
        model,
        params: serde_json::Map::new(),
        timeout_millis: None,
    }
}

pub(super) fn inline(text: &str) -> Payload {
    Payload::Inline { data: STANDARD.encode(text) }
}

pub(super) fn done(task: &Task, model: Payload) -> TaskResult {
    let result = TaskOutcome::Done { model: Some(model), weight: 1.0, metrics: BTreeMap::new() };
    TaskResult { task: task.id, result }
}

pub(super) fn round(n: u32) -> RoundDone {
    RoundDone {
        round: n,
        total_rounds: 2,
        metrics: BTreeMap::from([("accuracy".to_owned(), f64::from(n) / 10.0)]),
        sites: BTreeMap::from([(name("a"), BTreeMap::from([("accuracy".to_owned(), 0.5)]))]),
        millis: 5,
    }
}

impl Site {
    pub(super) async fn gives(&self, job: JobId, result: &TaskResult) -> Result<Ack, Problem> {
        let path = format!("/v1/site/jobs/{job}/results");
        said(self.client.post(&path).json(result).idempotent().fetch().await)
    }

    pub(super) async fn until_task(&mut self, job: JobId, round: u32) -> Task {
        let has = |site: &Self| site.task(job).is_some_and(|task| task.id.round == round);
        self.until("a task", has).await;
        self.task(job).cloned().expect("just seen")
    }

    fn task(&self, job: JobId) -> Option<&Task> {
        self.wanted.get(&job)?.task.as_ref()
    }
}

impl Bed {
    /// A job that has its workers: sites `a` and `b`, and the server's.
    pub(super) async fn running_job(&self, lead: &Client) -> (JobId, Site, Site) {
        let (mut a, mut b) = (self.site("a").await, self.site("b").await);
        a.poll(0).await;
        b.poll(0).await;
        let id = self.submit(lead, &meta(2, &[])).await.expect("accepted");
        a.reserves(id).await;
        b.reserves(id).await;
        a.runs(id).await;
        b.runs(id).await;
        self.worker(id, 1, None);
        (id, a, b)
    }

    pub(super) async fn tasks(&self, job: JobId, task: &Task) -> Result<(), Problem> {
        let tasks = Tasks { tasks: ["a", "b"].map(|site| (name(site), task.clone())).into() };
        self.run().upstream.tasks(&launch(job, task.id.attempt), tasks).await
    }
}

#[tokio::test]
async fn from_order_to_result() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let (id, mut a, mut b) = bed.running_job(&lead).await;
    assert_eq!(bed.run().launches.asked(), [Asked::Run(id)]);
    let up = &bed.run().upstream;
    let assigned = up.assignment(&launch(id, 1)).await.expect("its worker asks");
    assert_eq!(assigned.sites, [name("a"), name("b")]);
    assert_eq!((assigned.min_clients, assigned.job["rounds"].as_u64()), (2, Some(2)));

    // Round 1: small models, in the message.
    bed.tasks(id, &task(1, 1, Some(inline("global 0")))).await.expect("taken");
    let job = bed.until(&lead, id, JobPhase::Running).await;
    assert!(job.started.is_some(), "the first training step was given out");
    for (site, text) in [(&mut a, "from a"), (&mut b, "from b")] {
        let task = site.until_task(id, 1).await;
        assert_eq!(task.model, Some(inline("global 0")));
        site.gives(id, &done(&task, inline(text))).await.expect("taken");
        site.gives(id, &done(&task, inline(text))).await.expect("the same again");
    }
    let next = up.next(&launch(id, 1));
    assert_eq!(next.results.len(), 2);
    assert!(next.roster.values().all(|member| *member == polder_api::worker::Member::Ready), "{next:?}");
    up.round(&launch(id, 1), round(1)).await.expect("noted");
    up.round(&launch(id, 1), round(1)).await.expect("the same again");

    // Round 2: large ones, as files of the run directory and blobs.
    let out = bed.run().launches.dir(id).join("out/model-1-2");
    let large = vec![7_u8; 300_000];
    std::fs::write(&out, &large).expect("written");
    bed.tasks(id, &task(1, 2, Some(Payload::File { path: "out/model-1-2".to_owned(), blob: None })))
        .await
        .expect("taken");
    assert!(up.next(&launch(id, 1)).results.is_empty(), "results of round 1 are not those of round 2");
    let old = done(&task(1, 1, None), inline("late"));
    a.gives(id, &old).await.expect("dropped without a word");
    assert!(up.next(&launch(id, 1)).results.is_empty());
    let given = a.until_task(id, 2).await;
    let Some(Payload::Blob { blob }) = given.model else { panic!("{given:?}") };
    let here = tempfile::tempdir().expect("a temporary folder");
    let prefix = format!("/v1/site/jobs/{id}/blobs");
    let how = Transfer { tries: 1, ..Transfer::default() };
    download(&a.client, &prefix, blob, &here.path().join("model"), &how).await.expect("granted");
    assert_eq!(std::fs::read(here.path().join("model")).expect("reads"), large);
    let refused = download(&bed.client("c"), &prefix, blob, &here.path().join("no"), &how).await;
    assert!(refused.is_err(), "c takes no part");
    for site in [&a, &b] {
        let sent = here.path().join("sent");
        std::fs::write(&sent, vec![9_u8; 100_000]).expect("written");
        let tree = hash_file(&sent).expect("hashes");
        let result = done(&given, Payload::Blob { blob: tree.blob() });
        // Each sends its own, even when another sent the same: nobody learns what others sent.
        assert_eq!(site.gives(id, &result).await.expect_err("not there").code, ProblemCode::Conflict);
        upload(&site.client, &prefix, &sent, &tree, &how).await.expect("uploads");
        site.gives(id, &result).await.expect("taken");
    }
    let next = up.next(&launch(id, 1));
    let Some(TaskOutcome::Done { model: Some(Payload::File { path, .. }), .. }) =
        next.results.get(&name("b")).map(|result| result.result.clone())
    else {
        panic!("{next:?}")
    };
    assert_eq!(std::fs::read(bed.run().launches.dir(id).join(path)).expect("linked").len(), 100_000);
    up.round(&launch(id, 1), round(2)).await.expect("noted");

    // The end.
    std::fs::write(bed.run().launches.dir(id).join("out/final"), b"the model").expect("written");
    let ending = Ending {
        outcome: Outcome::Completed,
        site: None,
        results: BTreeMap::from([("model.safetensors".to_owned(), "out/final".to_owned())]),
    };
    up.ending(&launch(id, 1), &ending).await.expect("taken");
    up.ending(&launch(id, 1), &ending).await.expect("the same again");
    assert_eq!(bed.job(&lead, id).await.phase, JobPhase::Finishing);
    a.ends(id).await;
    b.ends(id).await;
    bed.worker(id, 1, Some(Outcome::Completed));
    let job = bed.until(&lead, id, JobPhase::Completed).await;
    assert_eq!((job.round, job.total_rounds, job.metrics["accuracy"]), (2, 2, 0.2));
    assert_eq!(job.workers.len(), 3, "{:?}", job.workers);
    assert!(job.finished >= job.started && job.failure.is_none());
    a.until("forgotten", |site| site.forgotten.contains(&id)).await;
    assert!(bed.run().launches.asked().contains(&Asked::Forget(id)));
    assert!(
        !bed.state().join("relay").join(id.to_string()).exists(),
        "nothing is left of what passed through"
    );

    // What people see of it.
    let events: Events =
        said(lead.get(&format!("/v1/user/jobs/{id}/events?after=0")).fetch().await).expect("may look");
    assert!(events.end);
    assert_eq!(
        events.events.iter().map(|e| e.n).collect::<Vec<_>>(),
        (1..=events.events.len() as u64).collect::<Vec<_>>()
    );
    let phases: Vec<_> = events
        .events
        .iter()
        .filter_map(|e| match &e.what {
            EventKind::Phase { phase, .. } => Some(phase.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(phases, ["submitted", "deploying", "starting", "running", "finishing", "completed"]);
    let rounds: Vec<_> = events
        .events
        .iter()
        .filter_map(|e| match &e.what {
            EventKind::Round { round, sites, .. } => Some((*round, sites.len())),
            _ => None,
        })
        .collect();
    assert_eq!(rounds, [(1, 1), (2, 1)]);
    let results: Results =
        said(lead.get(&format!("/v1/user/jobs/{id}/results")).fetch().await).expect("may download");
    let prefix = format!("/v1/user/jobs/{id}/blobs");
    let file = here.path().join("provenance.json");
    download(&lead, &prefix, results.files["provenance.json"], &file, &how).await.expect("downloads");
    download(&lead, &prefix, results.files["model.safetensors"], &here.path().join("m"), &how)
        .await
        .expect("downloads");
    assert_eq!(std::fs::read(here.path().join("m")).expect("reads"), b"the model");
    let signed: Value = serde_json::from_slice(&std::fs::read(file).expect("reads")).expect("JSON");
    let text = signed["provenance"].as_str().expect("text");
    let signature = signed["signature"].as_str().expect("text").to_owned().try_into().expect("a signature");
    bed.kit(LEAD)
        .trust()
        .verify_pem(
            signed["certificate"].as_str().expect("PEM"),
            jiff::Timestamp::now(),
            polder_api::order::PROVENANCE_DOMAIN,
            text.as_bytes(),
            &signature,
        )
        .expect("signed by the server");
    let provenance: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(provenance["results"]["model.safetensors"]["size"], 9);
    assert_eq!(provenance["sites"].as_object().map(serde_json::Map::len), Some(2));

    // Deleted, with everything.
    said(lead.delete(&format!("/v1/user/jobs/{id}")).done().await).expect("deleted");
    assert_eq!(std::fs::read_dir(bed.state().join("blobs").join(STUDY)).expect("listing").count(), 0);
    assert_eq!(
        said(lead.get(&format!("/v1/user/jobs/{id}")).fetch::<Job>().await).expect_err("gone").code,
        ProblemCode::NotFound
    );
}

#[tokio::test]
async fn a_busy_site_sends_the_job_back_and_a_freed_one_brings_it_again() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let (mut a, mut b) = (bed.site("a").await, bed.site("b").await);
    a.poll(0).await;
    b.poll(0).await;
    let id = bed.submit(&lead, &meta(2, &[])).await.expect("accepted");
    a.reserves(id).await;
    b.until_goal(id, "reserve").await;
    b.says(id, Stand::Busy { reason: "0 GPUs free of 4, 1 asked for".to_owned() }).await;
    let job = bed.until(&lead, id, JobPhase::Queued).await;
    assert_eq!(job.reason.as_deref(), Some("waiting for site b: 0 GPUs free of 4, 1 asked for"));
    a.until("let go", |site| site.forgotten.contains(&id)).await;
    b.until("let go", |site| site.forgotten.contains(&id)).await;
    // It is asked again by itself, once both have read that they are to let go.
    a.poll(0).await;
    b.reserves(id).await;
    a.reserves(id).await;
    a.until_goal(id, "run").await;
    assert_eq!(bed.run().launches.asked(), [Asked::Run(id)]);
}

#[tokio::test]
async fn an_optional_site_is_done_without_and_a_mandatory_one_is_not() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let (mut a, mut b) = (bed.site("a").await, bed.site("b").await);
    a.poll(0).await;
    b.poll(0).await;
    let refused = Stand::Refused { class: FailureClass::Policy, why: "no job images here".to_owned() };
    let id = bed.submit(&lead, &meta(1, &["b"])).await.expect("accepted");
    a.until_goal(id, "reserve").await;
    a.says(id, refused.clone()).await;
    b.reserves(id).await;
    b.until_goal(id, "run").await;
    a.until("left out", |site| site.forgotten.contains(&id)).await;
    assert_eq!(bed.run().upstream.assignment(&launch(id, 1)).await.expect("asks").sites, [name("b")]);

    let id = bed.submit(&lead, &meta(1, &["b"])).await.expect("accepted");
    a.reserves(id).await;
    b.until_goal(id, "reserve").await;
    b.says(id, refused).await;
    let job = bed.until(&lead, id, JobPhase::Rejected).await;
    assert_eq!(job.reason.as_deref(), Some("site b, which is mandatory, refused: no job images here"));
}

#[tokio::test]
async fn a_job_waits_for_sites_that_are_away() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let mut a = bed.site("a").await;
    a.poll(0).await;
    let id = bed.submit(&lead, &meta(2, &[])).await.expect("accepted");
    let job = bed.until(&lead, id, JobPhase::Queued).await;
    assert_eq!(job.reason.as_deref(), Some("1 of 3 sites connected, min_clients is 2"));
    let mut b = bed.site("b").await;
    b.poll(0).await;
    a.reserves(id).await;
    b.reserves(id).await;
    bed.until(&lead, id, JobPhase::Starting).await;
}

#[tokio::test]
async fn a_failure_says_where_and_why() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let (id, mut a, b) = bed.running_job(&lead).await;
    bed.tasks(id, &task(1, 1, None)).await.expect("taken");
    let report = Report {
        doing: "round 1".to_owned(),
        task: None,
        metrics: Vec::new(),
        log: Some(WorkerLog { offset: 0, data: STANDARD.encode("it begins\n"), dropped: 0 }),
    };
    bed.run().upstream.report(&launch(id, 1), report).await.expect("taken");
    b.says(id, Stand::Ended { attempts: 3, outcome: failed(FailureClass::OutOfMemory, "OOMKilled") }).await;
    a.ends(id).await;
    bed.worker(id, 1, Some(failed(FailureClass::Aborted, "stopped")));
    let job = bed.until(&lead, id, JobPhase::Failed).await;
    let failure = job.failure.expect("said");
    assert_eq!(
        (failure.site, failure.class, failure.cause.as_str()),
        (name("b"), FailureClass::OutOfMemory, "OOMKilled")
    );
    assert_eq!(failure.tail, "last line");
    let log: Log = said(lead.get(&format!("/v1/user/jobs/{id}/logs?site=server&after=0")).fetch().await)
        .expect("may look");
    assert_eq!((log.text.as_str(), log.next, log.end), ("it begins\n", 10, false));
    let log: Log = said(lead.get(&format!("/v1/user/jobs/{id}/logs?site=server&after=10")).fetch().await)
        .expect("may look");
    assert!(log.end);
}

#[tokio::test]
async fn a_server_worker_that_cannot_be_launched_fails_the_job() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    *bed.run().launches.refuses.lock().expect("no test panics here") =
        Some(failed(FailureClass::Config, "no such image"));
    let (mut a, mut b) = (bed.site("a").await, bed.site("b").await);
    a.poll(0).await;
    b.poll(0).await;
    let id = bed.submit(&lead, &meta(2, &[])).await.expect("accepted");
    a.reserves(id).await;
    b.reserves(id).await;
    a.ends(id).await;
    b.ends(id).await;
    let failure = bed.until(&lead, id, JobPhase::Failed).await.failure.expect("said");
    assert_eq!((failure.site, failure.cause.as_str()), (SiteName::server(), "no such image"));
}

#[tokio::test]
async fn a_person_ends_it() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let (id, mut a, mut b) = bed.running_job(&lead).await;
    let refused = said(lead.delete(&format!("/v1/user/jobs/{id}")).done().await).expect_err("it lives");
    assert_eq!(refused.code, ProblemCode::Conflict);
    said(lead.post(&format!("/v1/user/jobs/{id}/abort")).done().await).expect("may");
    let why = format!("aborted by {LEAD}");
    assert!(bed.run().launches.asked().contains(&Asked::Stop(id, why.clone())));
    a.until_goal(id, "stop").await;
    assert!(matches!(&a.wanted[&id].goal, Goal::Stop { why: said, .. } if *said == why));
    a.ends(id).await;
    b.ends(id).await;
    bed.worker(id, 1, Some(failed(FailureClass::Aborted, "stopped")));
    let job = bed.until(&lead, id, JobPhase::Aborted).await;
    assert_eq!(job.reason, Some(why));
    assert_eq!(
        said(lead.post(&format!("/v1/user/jobs/{id}/abort")).done().await).expect_err("over").code,
        ProblemCode::Conflict
    );
    // One that waits is gone at once.
    let id = bed.submit(&lead, &meta(3, &[])).await.expect("accepted");
    said(lead.post(&format!("/v1/user/jobs/{id}/abort")).done().await).expect("may");
    assert_eq!(bed.job(&lead, id).await.phase, JobPhase::Aborted);
}

#[tokio::test]
async fn results_a_server_may_not_keep_fail_the_job() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let (id, mut a, mut b) = bed.running_job(&lead).await;
    let results = BTreeMap::from([("../model".to_owned(), "out/x".to_owned())]);
    let ending = Ending { outcome: Outcome::Completed, site: None, results };
    bed.run().upstream.ending(&launch(id, 1), &ending).await.expect("taken");
    a.ends(id).await;
    b.ends(id).await;
    bed.worker(id, 1, Some(Outcome::Completed));
    let failure = bed.until(&lead, id, JobPhase::Failed).await.failure.expect("said");
    assert!(failure.cause.contains("not one of a file"), "{failure:?}");
}

#[tokio::test]
async fn an_attempt_that_died_is_fenced() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let (id, mut a, _b) = bed.running_job(&lead).await;
    bed.tasks(id, &task(1, 1, Some(inline("old")))).await.expect("taken");
    bed.worker(id, 2, None);
    bed.tasks(id, &task(2, 1, Some(inline("new")))).await.expect("taken");
    let refused = bed.tasks(id, &task(1, 1, Some(inline("zombie")))).await.expect_err("fenced");
    assert_eq!(refused.code, ProblemCode::Conflict);
    a.until("the new task", |site| site.wanted[&id].task.as_ref().is_some_and(|task| task.id.attempt == 2))
        .await;
    a.gives(id, &done(&task(1, 1, None), inline("for the dead"))).await.expect("dropped");
    assert!(bed.run().upstream.next(&launch(id, 2)).results.is_empty());
}
