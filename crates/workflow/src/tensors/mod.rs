//! Safetensors files as Polder reads them: strictly, and never whole.
//!
//! A model from a site is foreign input. [`header`] accepts exactly what the format says (an
//! eight-byte length, a JSON object, tensors that cover the data without gap or overlap) within limits;
//! [`model`] reads bytes at a position from a file or from memory, so that nothing is mapped and the
//! memory in use does not depend on the model; [`check`] compares with the global model and looks for
//! values that are not finite.

pub mod check;
pub mod header;
pub mod model;

pub use check::Refusal;
pub use header::{Dtype, Header, HeaderError, Tensor};
pub use model::Model;
