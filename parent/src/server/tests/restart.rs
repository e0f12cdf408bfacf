//! The server dies at any moment and comes back with its disk: every job is taken up where it was.

use super::life::{done, inline, round, task};
use super::*;
use polder_api::worker::Ending;

#[tokio::test]
async fn a_job_survives_a_restart_in_every_phase() {
    let mut bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    // Queued.
    let id = bed.submit(&lead, &meta(2, &[])).await.expect("accepted");
    bed.until(&lead, id, JobPhase::Queued).await;
    bed.restart().await;
    let (mut a, mut b) = (bed.site("a").await, bed.site("b").await);
    a.poll(0).await;
    b.poll(0).await;
    // Deploying: one had reserved, the other not yet.
    a.reserves(id).await;
    b.until_goal(id, "reserve").await;
    bed.restart().await;
    a.poll(1).await;
    assert_eq!(a.goal(id), Some("reserve"), "it is wanted again, with its order");
    a.says(id, Stand::Reserved { terms: None }).await;
    b.reserves(id).await;
    bed.until(&lead, id, JobPhase::Starting).await;
    // Starting: the launch is asked for again, which the ledger knows.
    bed.restart().await;
    assert_eq!(bed.run().launches.asked(), [Asked::Run(id)]);
    a.runs(id).await;
    b.runs(id).await;
    bed.worker(id, 1, None);
    bed.tasks(id, &task(1, 1, Some(inline("global")))).await.expect("taken");
    let current = a.until_task(id, 1).await;
    a.gives(id, &done(&current, inline("a"))).await.expect("taken");
    bed.run().upstream.round(&launch(id, 1), round(1)).await.expect("noted");
    let started = bed.job(&lead, id).await.started;
    // Running: tasks and results are said again, rounds are known.
    bed.restart().await;
    let job = bed.job(&lead, id).await;
    assert_eq!((job.phase, job.round, job.started), (JobPhase::Running, 1, started));
    a.poll(1).await;
    assert_eq!(
        (a.goal(id), a.wanted[&id].task.is_none(), a.wanted[&id].tasks_unknown),
        (Some("run"), true, true)
    );
    let early =
        a.gives(id, &done(&current, inline("a"))).await.expect_err("nobody knows whether it is current");
    assert_eq!(early.code, polder_api::ProblemCode::Busy);
    let next = bed.run().upstream.next(&launch(id, 1));
    assert!(next.results.is_empty() && next.roster.is_empty(), "nobody has said anything yet: {next:?}");
    bed.worker(id, 1, None);
    a.says(id, running(1)).await;
    b.says(id, running(1)).await;
    bed.run().upstream.round(&launch(id, 1), round(1)).await.expect("known");
    bed.tasks(id, &task(1, 1, Some(inline("global")))).await.expect("said again");
    a.gives(id, &done(&current, inline("a"))).await.expect("taken again");
    assert_eq!(bed.run().upstream.next(&launch(id, 1)).results.len(), 1);
    a.until("the task again", |site| site.wanted[&id].task.is_some() && !site.wanted[&id].tasks_unknown)
        .await;
    bed.tasks(id, &task(1, 2, Some(inline("global")))).await.expect("taken");
    let current = a.until_task(id, 2).await;
    a.gives(id, &done(&current, inline("a"))).await.expect("taken");
    assert_eq!(bed.run().upstream.next(&launch(id, 1)).results.len(), 1);
    bed.run().upstream.round(&launch(id, 1), round(2)).await.expect("noted");
    std::fs::write(bed.run().launches.dir(id).join("out/final"), b"the model").expect("written");
    let results = BTreeMap::from([("model.safetensors".to_owned(), "out/final".to_owned())]);
    let ending = Ending { outcome: Outcome::Completed, site: None, results };
    bed.run().upstream.ending(&launch(id, 1), &ending).await.expect("taken");
    // Finishing: what was acknowledged is there.
    bed.restart().await;
    assert!(
        matches!(bed.run().launches.asked().as_slice(), [Asked::Stop(job, why)] if *job == id && why == "finished")
    );
    a.ends(id).await;
    b.ends(id).await;
    let job = bed.until(&lead, id, JobPhase::Completed).await;
    assert_eq!((job.round, job.failure), (2, None));
    // Over.
    bed.restart().await;
    assert_eq!(bed.job(&lead, id).await.phase, JobPhase::Completed);
    assert!(bed.run().launches.asked().is_empty());
    let results =
        said(lead.get(&format!("/v1/user/jobs/{id}/results")).fetch::<Value>().await).expect("may download");
    assert_eq!(results["files"]["model.safetensors"]["size"], 9);
}

#[tokio::test]
async fn an_abort_that_was_acknowledged_is_not_forgotten() {
    let mut bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let (id, mut a, mut b) = bed.running_job(&lead).await;
    said(lead.post(&format!("/v1/user/jobs/{id}/abort")).done().await).expect("may");
    bed.restart().await;
    a.ends(id).await;
    b.ends(id).await;
    bed.until(&lead, id, JobPhase::Aborted).await;
}

#[tokio::test]
async fn what_a_site_said_of_itself_is_known_after_a_restart() {
    let mut bed = Bed::new().await;
    let mut a = bed.site("a").await;
    a.poll(0).await;
    let cursor = a.cursor.clone();
    bed.restart().await;
    // It need not say hello again: the cursor's epoch tells it that the server is another.
    a.poll(0).await;
    assert_ne!(a.cursor.split(':').next(), cursor.split(':').next());
    let lead = bed.login(LEAD, STUDY).await;
    let sites = said(lead.get("/v1/user/sites").fetch::<polder_api::user::Sites>().await).expect("may look");
    let a = sites.sites.iter().find(|site| site.name == name("a")).expect("it is of the study");
    assert_eq!(
        (a.connected, a.version.as_deref(), a.isolation),
        (true, Some("1"), Some(Isolation::Landlock))
    );
    let c = sites.sites.iter().find(|site| site.name == name("c")).expect("it is of the study");
    assert_eq!((c.connected, c.last_seen), (false, None));
}
