//! Trainers in Rust: what a program needs to take part in a job, and the logistic regression of the demo.
//!
//! * [`session`]: the trainer contract, over the socket the worker names in `POLDER_SOCKET`.
//! * `polder-test-trainer`: adds 1 to every value, or misbehaves in a chosen way.

pub mod session;
