//! Trainers in Rust: what a program needs to take part in a job, and the logistic regression of the demo.
//!
//! * [`session`]: the trainer contract, over the socket the worker names in `POLDER_SOCKET`.
//! * [`data`], [`features`], [`split`], [`logistic`]: the Wisconsin breast-cancer data, divided unevenly and
//!   by label among three sites, and a logistic regression on it. A site's program sees its own rows only.
//! * `polder-demo-trainer`: the demo's trainer; also divides the data and computes the baselines.
//! * [`misbehave`]: `polder-test-trainer`, which adds 1 to every value, or misbehaves in a chosen way.

pub mod data;
pub mod features;
pub mod logistic;
pub mod misbehave;
pub mod session;
pub mod split;
