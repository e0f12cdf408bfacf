//! Ending workers, and finding out about those that ended by themselves.

use crate::common::{One, Site, failed, file, gone, is_alive};
use polder_launch::{Fate, Native};
use polder_words::FailureClass;
use std::fs;
use std::time::Duration;

#[tokio::test]
async fn a_worker_that_listens_ends_by_itself() {
    let one =
        One::new(&Site::new("trap 'echo bye; exit 0' TERM; echo up > out/up; while :; do sleep 0.01; done"));
    one.start().await;
    file(&one.out("up")).await;
    one.end(Duration::from_secs(30)).await;
    one.exit().await;
    assert!(one.log().ends_with("bye\n"), "{}", one.log());
    assert_eq!(one.exit_record().asked.as_deref(), Some("the test says so"));
}

#[tokio::test]
async fn a_worker_that_does_not_is_killed_with_all_it_started() {
    // A child in a session of its own that has lost its parent: only the reaper or the group finds it.
    let orphan = "trap \"\" TERM; echo $$ > out/orphan; while :; do sleep 1000; done";
    let script =
        format!("trap '' TERM; (setsid sh -c '{orphan}' &); echo $$ > out/pid; while :; do sleep 1000; done");
    let one = One::new(&Site::new(&script));
    one.start().await;
    let orphan: u32 = file(&one.out("orphan")).await.trim().parse().expect("a pid");
    let pid: u32 = file(&one.out("pid")).await.trim().parse().expect("a pid");
    one.end(Duration::from_millis(50)).await;
    let exit = one.exit().await;
    let (class, cause, _) = failed(&exit.outcome);
    assert_eq!((class, cause), (FailureClass::Aborted, "the test says so (signal 9 (KILL))"));
    gone(pid).await;
    gone(orphan).await;
}

#[tokio::test]
async fn what_a_worker_leaves_behind_ends_with_it() {
    let one = One::new(&Site::new(
        "setsid sh -c 'echo $$ > out/left; exec sleep 1000' & while ! [ -s out/left ]; do :; done",
    ));
    let exit = one.run().await;
    assert_eq!(exit.outcome, polder_words::Outcome::Completed);
    let left: u32 = file(&one.out("left")).await.trim().parse().expect("a pid");
    assert!(!is_alive(left), "exit.json is written after everything has ended");
}

#[tokio::test]
async fn one_that_waits_ends_without_having_run() {
    let one = One::new(&Site::new("echo x > out/ran"));
    one.prepare().await.expect("prepared");
    one.end(Duration::from_secs(30)).await;
    let exit = one.exit().await;
    assert_eq!(failed(&exit.outcome).0, FailureClass::Aborted);
    assert!(!one.out("ran").exists());
}

#[tokio::test]
async fn a_dead_shim_is_no_proof_while_something_of_it_lives() {
    // The worker dies with its shim; what it started in its own session does not.
    let one = One::new(&Site::new("sh -c 'echo $$ > out/left; exec sleep 1000' & echo $$ > out/pid; wait"));
    one.start().await;
    let left: u32 = file(&one.out("left")).await.trim().parse().expect("a pid");
    let pid: u32 = file(&one.out("pid")).await.trim().parse().expect("a pid");
    one.until(|state| matches!(state, Native::Running { .. })).await;
    let claim: polder_api::shim::Claim =
        serde_json::from_slice(&fs::read(one.attempt().join("shim.json")).expect("shim.json"))
            .expect("readable");
    let shim = rustix::process::Pid::from_raw(i32::try_from(claim.pid).expect("a pid")).expect("a pid");
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).expect("killed");
    gone(claim.pid).await;
    gone(pid).await;
    let fate = one.fate().await;
    if let Fate::Unsure(why) = &fate {
        assert!(why.0.contains("left 1 process"), "{why}");
    }
    gone(left).await;
    assert!(matches!(one.fate().await, Fate::Gone(_)));
}
