//! The seam between a request and how it travels.
//!
//! A carrier takes one request and brings one response; nothing is pushed. TCP and Unix sockets are one
//! carrier ([`crate::client::HttpCarrier`]) over two kinds of socket. Room is kept for a third: where two
//! processes share nothing but a directory, a request is a file `<n>.request` (head as JSON, a blank line,
//! the body), renamed into place and answered by `<n>.response` beside it; a long poll is a file that is
//! answered late. All it must offer is what this trait says, and that is why the trait says no more:
//! no connection, no address, no TLS.

use crate::body::Body;
use crate::client::ClientError;
use futures_util::future::BoxFuture;

/// What a request is, as far as its carrier cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Small and answered soon, or a long poll.
    Control,
    /// Large bodies: on connections of their own, so that nothing small waits behind them.
    Bulk,
}

/// A request and how it may be treated.
#[derive(Debug)]
pub struct Exchange {
    /// The request; its URI is a path and query.
    pub request: http::Request<Body>,
    /// What kind it is.
    pub class: Class,
    /// Whether it may be sent a second time when nobody knows if the first arrived.
    pub idempotent: bool,
}

/// Brings requests to one server.
pub trait Carrier: Send + Sync + 'static {
    /// Sends a request, returns when the head of the response is there.
    fn exchange(&self, exchange: Exchange) -> BoxFuture<'_, Result<http::Response<Body>, ClientError>>;

    /// Where it goes, for messages: `fl.example.org:8443`, `/run/polder/worker.sock`.
    fn target(&self) -> String;
}
