//! The worker's program against a parent that the test plays.

mod client;
mod parent;
mod server;
