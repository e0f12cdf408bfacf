//! Every message that crosses a process boundary in Polder, as versioned serde types without logic.
//!
//! Four APIs, one room each: [`user`] (CLI and Python to the server parent), [`site`] (site parent to
//! server parent), [`worker`] (worker to its own parent) and [`trainer`] (the user's program to its
//! worker, line JSON). All but the last are HTTP/1.1 over mTLS with JSON bodies; a [`Problem`] is the
//! body of every answer that is not 2xx. Unknown fields are ignored by readers, so that a newer peer
//! may add some; a change of meaning needs a new path version.

pub mod order;
pub mod payload;
pub mod problem;
pub mod rundir;
pub mod shim;
pub mod site;
pub mod trainer;
pub mod user;
pub mod worker;

pub use order::{Order, OrderSites, SignedOrder};
pub use payload::{INLINE_LIMIT, Payload};
pub use polder_words::id::BlobRef;
pub use problem::{Problem, ProblemCode};

/// The protocol version spoken by this build; peers state theirs in the first message.
pub const PROTOCOL: u32 = 1;

/// How long a long poll may wait for news, in seconds: below the 60 s after which many proxies cut.
pub const LONG_POLL_SECONDS: u64 = 50;
