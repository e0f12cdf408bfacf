//! How Polder's processes reach each other: identities, mutual TLS, HTTP/1.1 in both directions, verified
//! blobs and long polls. It knows nothing of jobs, studies or models.
//!
//! ```text
//! identity   the project CA, kits, certificates, signatures, revocation; a parent's worker CA
//! tls        who shows and demands which certificate
//! server     listeners, limits, requests and answers, a router, graceful stop
//! client     dialling (TCP, Unix socket, CONNECT proxy), a small pool, retries, errors a person can act upon
//! carrier    the one seam between the two: a request goes, a response comes
//! blob       BLAKE3 trees, verified and resumable transfer
//! longpoll   versioned maps that a reader follows by snapshot and changes
//! ```
//! Everything that needs the time takes it as an argument, except where bytes are moved.

pub mod blob;
pub mod body;
pub mod carrier;
pub mod client;
pub mod endpoint;
pub mod identity;
mod link;
pub mod longpoll;
pub mod server;
pub mod tls;

pub use body::Body;
pub use endpoint::Endpoint;
