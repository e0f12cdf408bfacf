use crate::parent::{Parent, Worker, job, model, trainer, values};
use polder_api::site::TaskOutcome;
use polder_api::worker::Stop;
use polder_words::{FailureClass, Outcome, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::{Value, json};

fn site_parent(args: &[&str], rounds: u32, more: &Value) -> Parent {
    let trainer = trainer();
    let command: Vec<_> = [trainer.as_str()].into_iter().chain(args.iter().copied()).collect();
    Parent::new(Role::Client, job(&command, rounds, more), |_| ())
}

fn done(outcome: TaskOutcome) -> (Vec<f32>, f64) {
    match outcome {
        TaskOutcome::Done { model: Some(model), weight, .. } => (values(&model), weight),
        other => panic!("not done: {other:?}"),
    }
}

/// One round with this trainer fails; returns class, cause, tail.
fn fails(args: &[&str], more: &Value, timeout: Option<u64>) -> (FailureClass, String, String) {
    let parent = site_parent(args, 3, more);
    let mut worker = parent.launch();
    let task = parent.give(1, 3, &model(&[1.0, 2.0]), timeout);
    let TaskOutcome::Failed { class, cause, tail } = parent.result(task) else { panic!("it did not fail") };
    let Outcome::Failed { class: of_end, cause: cause_of_end, .. } = parent.ending().outcome else {
        panic!("the worker did not fail")
    };
    assert_eq!((class, &cause), (of_end, &cause_of_end));
    assert_eq!(worker.code(), Some(1));
    (class, cause, tail)
}

#[test]
fn rounds_in_a_session_and_an_end() {
    let parent = site_parent(&["--weight", "12"], 3, &json!({}));
    let mut worker = parent.launch();
    for round in 1..=3 {
        let start = [f32::from(u8::try_from(round).expect("small")); 2];
        let task = parent.give(round, 3, &model(&start), Some(20_000));
        assert_eq!(done(parent.result(task)), (start.map(|v| v + 1.0).to_vec(), 12.0));
    }
    parent.finish();
    assert_eq!(parent.ending().outcome, Outcome::Completed);
    assert_eq!(worker.code(), Some(0));
    assert_eq!(parent.heard().results.len(), 3, "each result is said once while nothing goes wrong");
    assert_eq!(parent.heard().enrolled, 1);
}

#[test]
fn rounds_with_a_process_each() {
    let trainer = trainer();
    let command = [trainer.as_str(), "--weight", "5"];
    let more = json!({"trainer": {"command": command, "mode": "per_round"}});
    let parent = Parent::new(Role::Client, job(&command, 2, &more), |_| ());
    let mut worker = parent.launch();
    for round in 1..=2 {
        let task = parent.give(round, 2, &model(&[3.0]), None);
        assert_eq!(done(parent.result(task)), (vec![4.0], 5.0));
    }
    parent.finish();
    assert_eq!(parent.ending().outcome, Outcome::Completed);
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn trainers_that_fail_are_told_apart() {
    for (mode, class, part) in [
        ("fail", FailureClass::UserCode, "the trainer ended with exit 7 in round 1"),
        (
            "exit-early",
            FailureClass::UserCode,
            "the trainer ended (exit 0) before it sent the model of round 1",
        ),
        ("nan", FailureClass::UserCode, "tensor \"w\" holds NaN at position 1"),
        ("inf", FailureClass::UserCode, "tensor \"w\" holds an infinite value at position 1"),
        ("shape", FailureClass::UserCode, "tensor \"w\" has shape [3] where the model has [2]"),
        ("dtype", FailureClass::UserCode, "tensor \"w\" has data type I32 where the model has F32"),
        ("missing", FailureClass::UserCode, "tensor \"w\" is missing"),
        ("garbage", FailureClass::UserCode, "the safetensors header has"),
        ("huge-header", FailureClass::UserCode, "the safetensors header has 1099511627776 bytes"),
        (
            "bad-path",
            FailureClass::UserCode,
            "it sent the path \"../../../../etc/passwd\"; allowed is a file below",
        ),
        ("link", FailureClass::UserCode, "it is, or lies behind, a link"),
        ("zero-weight", FailureClass::UserCode, "its weight is 0"),
    ] {
        let (found, cause, tail) = fails(&["--do", mode], &json!({}), None);
        assert_eq!(found, class, "{mode}: {cause}");
        assert!(cause.contains(part), "{mode}: {cause}");
        if mode == "fail" {
            assert!(tail.contains("ValueError: the data is not what it was"), "{tail}");
        }
    }
}

#[test]
fn a_trainer_that_dies_before_its_first_task_or_cannot_be_started() {
    let parent = site_parent(&["--do", "die-at-start"], 1, &json!({}));
    let mut worker = parent.launch();
    let Outcome::Failed { class, cause, tail } = parent.ending().outcome else { panic!("it did not fail") };
    assert_eq!((class, cause.as_str()), (FailureClass::UserCode, "the trainer ended with exit 3"));
    assert!(tail.contains("cannot find my configuration"), "{tail}");
    assert_eq!(worker.code(), Some(1));

    let parent = Parent::new(Role::Client, job(&["no-such-program"], 1, &json!({})), |_| ());
    let mut worker = parent.launch();
    let Outcome::Failed { class, cause, .. } = parent.ending().outcome else { panic!("it did not fail") };
    assert_eq!(class, FailureClass::Config);
    assert!(cause.starts_with("trainer.command: \"no-such-program\" is not in PATH ("), "{cause}");
    assert_eq!(worker.code(), Some(1));
}

#[test]
fn somebody_else_killed_the_trainer_and_a_new_attempt_may_help() {
    let parent = site_parent(&["--do", "kill"], 2, &json!({}));
    let mut worker = parent.launch();
    parent.give(1, 2, &model(&[1.0]), None);
    let Outcome::Failed { class, cause, .. } = parent.ending().outcome else { panic!("it did not fail") };
    assert_eq!(
        (class, cause.as_str()),
        (FailureClass::Infrastructure, "the trainer ended with signal 9 (KILL) in round 1")
    );
    assert_eq!(worker.code(), Some(1));
    assert!(parent.heard().results.is_empty(), "the task is not answered: the next attempt may do it");
}

#[test]
fn a_trainer_that_hangs_is_late_and_ends_with_the_job() {
    let parent = site_parent(&["--do", "hang"], 3, &json!({}));
    let mut worker = parent.launch();
    let task = parent.give(1, 3, &model(&[1.0]), Some(300));
    let TaskOutcome::Failed { class, cause, .. } = parent.result(task) else { panic!("it did not fail") };
    assert_eq!((class, cause.as_str()), (FailureClass::Timeout, "no answer within 300ms"));
    parent.want(|next| {
        next.task = None;
        next.stop = Some(Stop { why: "aborted by lead@org_a.com".to_owned(), grace_seconds: 2 });
    });
    let Outcome::Failed { class, cause, .. } = parent.ending().outcome else { panic!("it was aborted") };
    assert_eq!((class, cause.as_str()), (FailureClass::Aborted, "aborted by lead@org_a.com"));
    assert_eq!(worker.code(), Some(1));
}

#[test]
fn a_flood_is_cut_and_the_rounds_go_on() {
    let parent = site_parent(&["--do", "flood", "--flood-mib", "256"], 2, &json!({}));
    let mut worker = parent.launch();
    for round in 1..=2 {
        let task = parent.give(round, 2, &model(&[1.0]), None);
        assert_eq!(done(parent.result(task)).0, [2.0]);
    }
    let peak = worker.peak_kib();
    assert!(peak < 48 << 10, "{peak} KiB");
    parent.finish();
    assert_eq!(parent.ending().outcome, Outcome::Completed);
    assert_eq!(worker.code(), Some(0));
    let log = parent.log();
    assert!(log.len() < 8 << 20, "{} bytes", log.len());
    assert!(log.contains("bytes of output left out"));
    let disk = std::fs::metadata(parent.dir.path().join("worker.log")).expect("there").len();
    assert!(disk < 8 << 20, "{disk} bytes");
}

#[test]
fn bytes_that_are_no_text_and_lines_without_end_do_no_harm() {
    for mode in ["bad-utf8", "no-newline"] {
        let parent = site_parent(&["--do", mode], 1, &json!({}));
        let mut worker = parent.launch();
        let task = parent.give(1, 1, &model(&[1.0]), None);
        assert_eq!(done(parent.result(task)).0, [2.0], "{mode}");
        parent.finish();
        assert_eq!(parent.ending().outcome, Outcome::Completed);
        assert_eq!(worker.code(), Some(0));
        if mode == "bad-utf8" {
            assert!(parent.heard().log.windows(4).any(|part| part == b"caf\xe9"));
        }
    }
}

#[test]
fn a_parent_that_is_another_run_is_told_everything_again() {
    let mut parent = site_parent(&[], 2, &json!({}));
    let mut worker = parent.launch();
    let task = parent.give(1, 2, &model(&[1.0]), None);
    parent.result(task);
    // It forgets the result and comes back.
    parent.go_away();
    parent.heard().results.clear();
    parent.come_back(|_| ());
    assert_eq!(done(parent.result(task)).0, [2.0]);
    // It is away while the trainer works.
    parent.go_away();
    parent.come_back(|_| ());
    let task = parent.give(2, 2, &model(&[5.0]), None);
    assert_eq!(done(parent.result(task)).0, [6.0]);
    assert!(parent.heard().results.iter().filter(|result| result.task == task).count() >= 1);
    parent.finish();
    assert_eq!(parent.ending().outcome, Outcome::Completed);
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn a_worker_that_is_killed_takes_its_trainer_along() {
    let parent = site_parent(&["--do", "hang"], 1, &json!({}));
    let worker = parent.launch();
    parent.give(1, 1, &model(&[1.0]), None);
    parent.wait_for("training", |heard| {
        heard.reports.iter().any(|r| r.doing == "training, round 1").then_some(())
    });
    let trainer = child_of(&worker);
    let trainer = pidfd_open(trainer, PidfdFlags::empty()).expect("it runs");
    drop(worker);
    let mut ended = [PollFd::new(&trainer, PollFlags::IN)];
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut ended, Some(&patience)), Ok(1), "the trainer lives on");
}

#[test]
fn a_worker_that_is_told_to_end_ends_its_trainer_and_says_so() {
    let parent = site_parent(&["--do", "hang"], 1, &json!({}));
    let mut worker = parent.launch();
    parent.give(1, 1, &model(&[1.0]), None);
    parent.wait_for("training", |heard| {
        heard.reports.iter().any(|r| r.doing == "training, round 1").then_some(())
    });
    let id = i32::try_from(worker.0.id()).ok().and_then(Pid::from_raw).expect("a process");
    rustix::process::kill_process(id, Signal::TERM).expect("sent");
    let Outcome::Failed { class, cause, .. } = parent.ending().outcome else { panic!("it was ended") };
    assert_eq!((class, cause.as_str()), (FailureClass::Preempted, "ended from outside (TERM)"));
    assert_eq!(worker.code(), Some(1));
}

fn child_of(worker: &Worker) -> Pid {
    let id = worker.0.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("it runs");
    let child = children.split_whitespace().next().expect("it has a child").parse().expect("a number");
    Pid::from_raw(child).expect("not 0")
}

#[test]
fn an_orphan_ends_and_a_stranger_is_not_believed() {
    let mut parent = site_parent(&[], 1, &json!({}));
    let mut worker = parent.launch_with(&["--orphan-after", "1"]);
    parent.wait_for("a report", |heard| heard.reports.first().map(|_| ()));
    parent.go_away();
    assert_eq!(worker.code(), Some(1));
    let log = std::fs::read_to_string(parent.dir.path().join("worker.log")).expect("there");
    assert!(log.contains("no answer from the parent for 1 s"), "{log}");
}

#[test]
fn secrets_and_devices_reach_the_trainer_and_no_file() {
    let command =
        ["/bin/sh", "-c", "echo \"$PLAIN $SECRET $CUDA_VISIBLE_DEVICES $POLDER_SITE\" | tr a-z A-Z; exit 9"];
    let parent = Parent::new(Role::Client, job(&command, 1, &json!({})), |assignment| {
        assignment.env.insert("PLAIN".to_owned(), "plain".to_owned());
        assignment.secret_env.insert("SECRET".to_owned(), "geheim".to_owned());
        assignment.gpus = vec!["3".to_owned(), "GPU-ab".to_owned()];
    });
    let mut worker = parent.launch();
    let Outcome::Failed { cause, tail, .. } = parent.ending().outcome else { panic!("it did not fail") };
    assert_eq!(cause, "the trainer ended with exit 9");
    assert!(tail.contains("PLAIN GEHEIM 3,GPU-AB SITE-1"), "{tail}");
    assert_eq!(worker.code(), Some(1));
    assert!(!parent.log().contains("geheim"));
}
