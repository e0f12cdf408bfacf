//! What the server's worker does with the sites' models: the round engine and the aggregation.
//!
//! ```text
//! spec         job.yaml as the parent hands it down, read into types
//! engine       rounds as a pure state machine: events in, actions out; no clock, no file, no socket
//! tensors      safetensors files: a strict header, positioned reads, checks against the global model
//! aggregate    the weighted mean of any number of models in constant memory
//! checkpoint   round and model on disk, so that a killed worker redoes one round at most
//! ```
//! The engine never sees a tensor and the aggregation never sees a round; `polder-worker` joins them.

pub mod aggregate;
pub mod checkpoint;
pub mod engine;
pub mod spec;
pub mod tensors;

pub use aggregate::{AggregateError, Part, aggregate};
pub use engine::{Action, Engine, Event, Rules};
pub use spec::{JobSpec, SpecError, TrainerMode, Weighting, Workflow};
pub use tensors::{Dtype, Header, Model, Refusal, Tensor};
