//! What several scenarios share.

use polder_tests::federation::User;
use polder_tests::job::{Job, values};
use polder_tests::programs::program;

/// A job whose trainers add one to a model of 256 zeros, or misbehave as told.
pub(crate) fn adding(name: &str, arguments: &[&str]) -> Job {
    let trainer = program("polder-test-trainer").to_string_lossy().into_owned();
    Job::new(name, std::iter::once(trainer.as_str()).chain(arguments.iter().copied()))
}

/// The bytes of a finished job's model.
#[track_caller]
pub(crate) fn result_model(user: &User<'_>, job: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("results");
    let _ = user.polder(&["download", job, "--out", &out.to_string_lossy()]).ok();
    std::fs::read(out.join("model.safetensors")).expect("a model")
}

/// Every value of a finished job's model; they have to be the same.
#[track_caller]
pub(crate) fn result_value(user: &User<'_>, job: &str) -> f32 {
    let values = values(&result_model(user, job));
    assert_eq!(values.len(), 256);
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    values[0]
}

/// Whether the long versions of tests are asked for.
pub(crate) fn long() -> bool {
    std::env::var("POLDER_TEST_LONG").is_ok_and(|long| long == "1")
}
