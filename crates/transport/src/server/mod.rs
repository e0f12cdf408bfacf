//! The answering side: listeners, handshakes, limits, requests.
//!
//! ```text
//! Listener --accept--> TLS handshake (timeout) --> HTTP/1.1 connection: request, answer, request, ...
//!    |  full: waits                |  failed: alert sent, rest drained       |  idle or slow: closed
//!    '-- stop: accepts no more     '-- stop: closed                          '-- stop: ends after its answer
//! ```
//! A slow client costs one connection and a timer: heads must come within a time, bodies must make
//! progress, answers must be taken. A connection that is idle holds a few KiB.

mod call;
mod listener;
mod router;

pub use call::{Call, Params, Response, json, no_content, respond};
pub use listener::{ListenError, Listener, PeerAddr};
pub(crate) use listener::{prepared, unix_stream};
pub use polder_api::{Problem, ProblemCode};
pub use router::Router;
pub(crate) use router::decode;

use crate::body::Body;
use crate::link::{Link, Socket};
use crate::tls::{Acceptor, Holder};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What a server puts up with.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time; more wait in the system's backlog.
    pub connections: usize,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// From one answer to the whole head of the next request. It is also how long an idle connection
    /// is kept, so it is above the interval in which an idle peer asks.
    pub head: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// For a body that is read whole, and for each part of one that is read piece by piece.
    pub body: Duration,
    /// How long an answer may find no taker.
    pub write_stall: Duration,
    /// How long requests may go on after the stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(90),
            head_bytes: 16 * 1024,
            body: Duration::from_secs(30),
            write_stall: Duration::from_secs(60),
            grace: Duration::from_secs(10),
        }
    }
}

/// Who asks, and from where.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Who the certificate says it is.
    pub holder: Holder,
    /// Address, or the account at the other end of a Unix socket.
    pub addr: PeerAddr,
}

/// What answers requests; a [`Router`] is one.
pub trait Service: Send + Sync + 'static {
    /// Answers one request.
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Response>;
}

/// Serves until `stop`, then lets requests finish for [`Limits::grace`].
///
/// Long polls should watch [`Call::stopping`] and answer at once.
pub async fn serve(
    listener: Listener,
    acceptor: Acceptor,
    service: Arc<dyn Service>,
    limits: Limits,
    stop: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(limits.connections));
    let tracker = TaskTracker::new();
    // Cancelled when the grace is over: whatever still runs is dropped.
    let kill = CancellationToken::new();
    let shared = Arc::new(Shared {
        tls: TlsAcceptor::from(acceptor.config()),
        acceptor,
        service,
        limits,
        stop: stop.clone(),
    });
    loop {
        let permit = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            permit = permits.clone().acquire_owned() => permit.expect("the semaphore is never closed"),
        };
        let (socket, addr) = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, usually: a connection that ends will free one.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let shared = shared.clone();
        let kill = kill.clone();
        tracker.spawn(async move {
            tokio::select! {
                biased;
                () = kill.cancelled() => {}
                () = connection(shared, socket, addr) => {}
            }
            drop(permit);
        });
    }
    // The socket closes now, so that whoever dials is told at once.
    drop(listener);
    tracker.close();
    if tokio::time::timeout(shared.limits.grace, tracker.wait()).await.is_err() {
        tracing::warn!(connections = tracker.len(), "closing connections that did not finish in time");
        kill.cancel();
        tracker.wait().await;
    }
}

struct Shared {
    tls: TlsAcceptor,
    acceptor: Acceptor,
    service: Arc<dyn Service>,
    limits: Limits,
    stop: CancellationToken,
}

async fn connection(shared: Arc<Shared>, socket: Socket, addr: PeerAddr) {
    let handshake = tokio::time::timeout(shared.limits.handshake, shared.tls.accept(socket).into_fallible());
    let stream = tokio::select! {
        biased;
        () = shared.stop.cancelled() => return,
        outcome = handshake => match outcome {
            Ok(Ok(stream)) => stream,
            Ok(Err((error, socket))) => {
                tracing::debug!(%addr, %error, "handshake failed");
                drain(socket).await;
                return;
            }
            Err(_) => {
                tracing::debug!(%addr, "handshake took too long");
                return;
            }
        },
    };
    let holder = match shared.acceptor.holder(stream.get_ref().1.peer_certificates()) {
        Ok(holder) => holder,
        Err(error) => {
            tracing::warn!(%addr, %error, "certificate of another form");
            return;
        }
    };
    let peer = Arc::new(Peer { holder, addr });
    let io = TokioIo::new(Link::new(stream, shared.limits.write_stall));
    let service = {
        let shared = shared.clone();
        let peer = peer.clone();
        service_fn(move |request| Box::pin(answer(shared.clone(), peer.clone(), request)))
    };
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.limits.head)
        .max_header_size(shared.limits.head_bytes)
        .max_buf_size(MAX_BUFFER)
        .auto_date_header(false)
        .serve_connection(io, service);
    let outcome = tokio::select! {
        outcome = poll_fn(|cx| connection.poll_without_shutdown(cx)) => outcome,
        () = shared.stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    match outcome {
        Ok(()) => {
            let mut stream = connection.into_parts().io.into_inner();
            if shared.stop.is_cancelled() {
                // Idle peers do not look at their connections: nobody would answer the farewell.
                let _ = tokio::time::timeout(LINGER, stream.shutdown()).await;
            } else {
                drain(stream).await;
            }
        }
        Err(error) => tracing::debug!(addr = %peer.addr, %error, "connection ended"),
    }
}

/// hyper's read buffer grows up to this on connections that carry bodies, and stays at 8 KiB on others.
/// Larger ones were measured: no faster, because what waits for the disk falls out of the cache.
pub(crate) const MAX_BUFFER: usize = 64 * 1024;

async fn answer(
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    if let Err(why) = shared.acceptor.still_good(&peer.holder, Timestamp::now()) {
        return Ok(call::refuse(&Problem::new(ProblemCode::Unauthenticated, why.to_string()), true));
    }
    let call = Call::new(peer, shared.stop.clone(), shared.limits.body, request.map(Body::from));
    Ok(shared.service.clone().call(call).await)
}

/// Closes a connection without losing what was sent last (an alert, or the refusal of an upload of which
/// most is still to come): closing on unread bytes would reset it, so they are read for a moment.
async fn drain(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let _ = tokio::time::timeout(LINGER, async {
        stream.shutdown().await?;
        let mut scrap = vec![0; 16 * 1024];
        while stream.read(&mut scrap).await? > 0 {}
        std::io::Result::Ok(())
    })
    .await;
}

/// How long the other side may go on sending after the last answer.
const LINGER: Duration = Duration::from_secs(2);
