//! Parsing and every backend-neutral decision of Polder. No I/O, no async, no unsafe: text in, values out.
//!
//! Each module owns one document or one decision. Parsing is total: a typed value, or an [`Error`] that names
//! the file, the path in the document, what was found and what is allowed. What is accepted prints back and
//! parses to the same.

pub mod authz;
pub mod check;
pub mod error;
pub mod export;
pub mod images;
pub mod job;
pub mod launcher;
pub mod meta;
pub mod parent;
pub mod project;
pub mod registry;
pub mod resources;
pub mod scalars;
pub mod schedule;
pub mod study_runtime;
pub mod time;
pub mod value;

pub use error::{Error, Result};
