use crate::parent::{Parent, job, model, model_of, ready, site, values};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use polder_api::payload::Payload;
use polder_api::site::{TaskOutcome, TaskResult};
use polder_api::worker::{Member, Tasks};
use polder_words::{FailureClass, Outcome, Role, TaskId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn server_parent(rounds: u32, more: &Value) -> Parent {
    let parent = Parent::new(Role::Server, job(&["x"], rounds, more), |_| ());
    std::fs::write(parent.run_dir().join("app/init.safetensors"), model(&[0.0, 10.0])).expect("written");
    parent.want(|next| next.roster = ready(&["a", "b"]));
    parent
}

/// Waits for the tasks of a round.
fn tasks(parent: &Parent, attempt: u32, round: u32) -> Tasks {
    parent.wait_for(&format!("tasks of round {round}"), |heard| {
        let of =
            |tasks: &&Tasks| tasks.tasks.values().any(|t| (t.id.attempt, t.id.round) == (attempt, round));
        heard.tasks.iter().rev().find(of).cloned()
    })
}

fn answer(parent: &Parent, task: TaskId, answers: &[(&str, Payload, f64)]) {
    parent.want(|next| {
        next.results = answers
            .iter()
            .map(|(name, model, weight)| {
                let metrics = BTreeMap::from([("loss".to_owned(), *weight)]);
                let result = TaskOutcome::Done { model: Some(model.clone()), weight: *weight, metrics };
                (site(name), TaskResult { task, result })
            })
            .collect();
    });
}

fn inline(values: &[f32]) -> Payload {
    Payload::Inline { data: BASE64.encode(model(values)) }
}

#[test]
fn rounds_from_the_jobs_own_model_to_its_results() {
    let parent = server_parent(2, &json!({"initial_model": "init.safetensors"}));
    let mut worker = parent.launch();
    let first = tasks(&parent, 1, 1);
    let task = first.tasks[&site("a")].clone();
    assert_eq!(values(task.model.as_ref().expect("a model")), [0.0, 10.0]);
    assert_eq!(first.tasks.len(), 2);
    answer(&parent, task.id, &[("a", inline(&[1.0, 11.0]), 1.0), ("b", inline(&[2.0, 12.0]), 3.0)]);
    let task = tasks(&parent, 1, 2).tasks[&site("b")].clone();
    assert_eq!(values(task.model.as_ref().expect("a model")), [1.75, 11.75]);
    answer(&parent, task.id, &[("b", inline(&[4.0, 4.0]), 3.0), ("a", inline(&[0.0, 0.0]), 1.0)]);
    let ending = parent.ending();
    assert_eq!(ending.outcome, Outcome::Completed);
    assert_eq!(worker.code(), Some(0));
    let rounds: Vec<_> =
        parent.heard().rounds.iter().map(|r| (r.round, r.metrics["loss"], r.sites.len())).collect();
    assert_eq!(rounds, [(1, 2.5, 2), (2, 2.5, 2)]);
    let read = |name: &str| std::fs::read(parent.run_dir().join(&ending.results[name])).expect("a result");
    assert_eq!(values(&Payload::Inline { data: BASE64.encode(read("model.safetensors")) }), [3.0, 3.0]);
    let metrics: Value = serde_json::from_slice(&read("metrics.json")).expect("JSON");
    assert_eq!(metrics["rounds"][1]["sites"]["a"]["weight"], json!(1.0));
}

#[test]
fn without_a_model_the_first_site_is_asked() {
    let parent = server_parent(1, &json!({}));
    let mut worker = parent.launch();
    let asked = tasks(&parent, 1, 0);
    let task = asked.tasks[&site("a")].clone();
    assert_eq!((asked.tasks.len(), task.kind.as_str(), task.model), (1, "init", None));
    answer(&parent, task.id, &[("a", inline(&[7.0]), 1.0)]);
    let task = tasks(&parent, 1, 1).tasks[&site("b")].clone();
    assert_eq!(values(task.model.as_ref().expect("a model")), [7.0]);
    answer(&parent, task.id, &[("a", inline(&[1.0]), 1.0), ("b", inline(&[2.0]), 1.0)]);
    assert_eq!(parent.ending().outcome, Outcome::Completed);
    assert_eq!(worker.code(), Some(0));
}

#[test]
fn a_killed_worker_goes_on_from_its_checkpoint_with_another_attempt() {
    let mut parent = server_parent(3, &json!({"initial_model": "init.safetensors"}));
    let worker = parent.launch();
    let task = tasks(&parent, 1, 1).tasks[&site("a")].clone();
    answer(&parent, task.id, &[("a", inline(&[1.0, 1.0]), 1.0), ("b", inline(&[3.0, 3.0]), 1.0)]);
    parent.wait_for("round 1", |heard| heard.rounds.first().map(|_| ()));
    let old = tasks(&parent, 1, 2).tasks[&site("a")].id;
    drop(worker);
    parent.next_attempt(2);
    // What the first attempt was to get means nothing to the second.
    answer(&parent, old, &[("a", inline(&[9.0, 9.0]), 1.0), ("b", inline(&[9.0, 9.0]), 1.0)]);
    let mut worker = parent.launch();
    let task = tasks(&parent, 2, 2).tasks[&site("a")].clone();
    assert_eq!(values(task.model.as_ref().expect("a model")), [2.0, 2.0]);
    for round in 2..=3 {
        let task = tasks(&parent, 2, round).tasks[&site("a")].id;
        answer(&parent, task, &[("a", inline(&[5.0, 5.0]), 1.0), ("b", inline(&[5.0, 5.0]), 1.0)]);
    }
    assert_eq!(parent.ending().outcome, Outcome::Completed);
    assert_eq!(worker.code(), Some(0));
    let mut rounds: Vec<_> = parent.heard().rounds.iter().map(|r| r.round).collect();
    rounds.dedup();
    assert_eq!(rounds, [1, 2, 3]);
}

#[test]
fn failures_name_site_class_cause_and_last_lines() {
    let parent = server_parent(1, &json!({"initial_model": "init.safetensors"}));
    let mut worker = parent.launch();
    let task = tasks(&parent, 1, 1).tasks[&site("a")].id;
    let failed = TaskOutcome::Failed {
        class: FailureClass::UserCode,
        cause: "the trainer ended with exit 7 in round 1".to_owned(),
        tail: "ValueError".to_owned(),
    };
    parent.want(|next| next.results = BTreeMap::from([(site("b"), TaskResult { task, result: failed })]));
    let ending = parent.ending();
    let Outcome::Failed { class, cause, tail } = ending.outcome else { panic!("it did not fail") };
    assert_eq!((ending.site, class, tail.as_str()), (Some(site("b")), FailureClass::UserCode, "ValueError"));
    assert!(
        cause.starts_with("the trainer ended with exit 7 in round 1 (1 of 2 sites remain, 2 needed"),
        "{cause}"
    );
    assert_eq!(worker.code(), Some(1));

    let parent = server_parent(1, &json!({"initial_model": "init.safetensors"}));
    let mut worker = parent.launch();
    let task = tasks(&parent, 1, 1).tasks[&site("a")].id;
    answer(&parent, task, &[("a", inline(&[1.0, f32::NAN]), 1.0), ("b", inline(&[1.0, 1.0]), 1.0)]);
    let ending = parent.ending();
    let Outcome::Failed { class, cause, .. } = ending.outcome else { panic!("it did not fail") };
    assert_eq!((ending.site, class), (Some(site("a")), FailureClass::UserCode));
    assert!(cause.starts_with("tensor \"w\" holds NaN at position 1"), "{cause}");
    assert_eq!(worker.code(), Some(1));

    let parent = server_parent(
        1,
        &json!({"initial_model": "init.safetensors", "aggregation": {"round_timeout": "200ms"}}),
    );
    let mut worker = parent.launch();
    let task = tasks(&parent, 1, 1).tasks[&site("a")].id;
    answer(&parent, task, &[("a", inline(&[1.0, 1.0]), 1.0)]);
    let ending = parent.ending();
    let Outcome::Failed { class, cause, .. } = ending.outcome else { panic!("it did not fail") };
    assert_eq!((ending.site, class), (Some(site("b")), FailureClass::Timeout));
    assert!(
        cause.starts_with("no answer within 200ms (1 of 2 sites answered, 2 needed in round 1)"),
        "{cause}"
    );
    assert_eq!(worker.code(), Some(1));
}

#[test]
fn what_cannot_be_run_is_said_at_once() {
    for (job, part) in [
        (job(&["x"], 1, &json!({"workflow": "cyclic"})), "workflow: cyclic is not available in this version"),
        (
            job(&["x"], 1, &json!({"initial_model": "none.safetensors"})),
            "initial_model: none.safetensors: cannot read the model",
        ),
        (
            job(&["x"], 1, &json!({"aggregation": {"min_responses": 5}})),
            "aggregation.min_responses: 5 is more than the 2 sites",
        ),
    ] {
        let parent = Parent::new(Role::Server, job, |_| ());
        let mut worker = parent.launch();
        let Outcome::Failed { class, cause, .. } = parent.ending().outcome else { panic!("it did not fail") };
        assert_eq!(class, FailureClass::Config);
        assert!(cause.contains(part), "{cause}");
        assert_eq!(worker.code(), Some(1));
    }
}

#[test]
fn a_site_that_is_gone_before_it_answered_fails_the_job() {
    let parent = server_parent(1, &json!({"initial_model": "init.safetensors"}));
    let mut worker = parent.launch();
    tasks(&parent, 1, 1);
    let outcome = Outcome::failed(FailureClass::Image, "ImagePullBackOff");
    parent.want(|next| {
        next.roster.insert(site("a"), Member::Gone { outcome });
    });
    let ending = parent.ending();
    assert_eq!(ending.site, Some(site("a")));
    assert!(matches!(ending.outcome, Outcome::Failed { class: FailureClass::Image, .. }));
    assert_eq!(worker.code(), Some(1));
}

#[test]
fn large_models_go_through_files_and_little_memory() {
    let rows = 8 << 20;
    let parent = server_parent(2, &json!({"initial_model": "large.safetensors"}));
    let large = |value: f32| model_of(value, rows);
    std::fs::write(parent.run_dir().join("app/large.safetensors"), large(0.0)).expect("written");
    std::fs::write(parent.run_dir().join("in/one"), large(1.0)).expect("written");
    std::fs::write(parent.run_dir().join("in/two"), large(2.0)).expect("written");
    let file = |path: &str| Payload::File { path: path.to_owned(), blob: None };
    let mut worker = parent.launch();
    for round in 1..=2 {
        let task = tasks(&parent, 1, round).tasks[&site("a")].clone();
        assert!(matches!(task.model, Some(Payload::File { .. })));
        answer(&parent, task.id, &[("a", file("in/one"), 1.0), ("b", file("in/two"), 1.0)]);
        parent.wait_for("the round", |heard| heard.rounds.iter().any(|r| r.round == round).then_some(()));
        if round == 1 {
            let peak = worker.peak_kib();
            assert!(peak < 32 << 10, "{peak} KiB");
        }
    }
    let ending = parent.ending();
    assert_eq!(worker.code(), Some(0));
    let path = parent.run_dir().join(&ending.results["model.safetensors"]);
    assert!(std::fs::read(path).expect("a result") == large(1.5));
    let left = std::fs::read_dir(parent.run_dir().join("out")).expect("there").count();
    assert!(left <= 3, "old models are removed; {left} files are left");
}
