//! HTTP/1.1 over dialled connections, with a few of them kept for the next request.
//!
//! A connection has no task of its own: whoever waits for its response drives it, and an idle one is
//! not looked at until it is used again. So a request costs no hop between tasks, and an idle
//! connection no CPU. Bulk connections are a class of their own.

use super::dial::Dialer;
use super::error::{ClientError, of_tls};
use crate::body::{Body, BodyError};
use crate::carrier::{Carrier, Class, Exchange};
use crate::link::{Link, Socket};
use crate::server::MAX_BUFFER;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{HOST, HeaderValue};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

/// How long an idle connection is kept: less than proxies (60 s) and our own server (90 s) keep theirs.
const IDLE: Duration = Duration::from_secs(50);
/// How many of a class are kept.
const KEPT: usize = 4;
/// How long a write may make no progress.
const WRITE_STALL: Duration = Duration::from_secs(60);

type Driver = Connection<TokioIo<Link<TlsStream<Socket>>>, Body>;

struct Conn {
    sender: SendRequest<Body>,
    driver: Pin<Box<Driver>>,
    probe: Arc<AtomicBool>,
}

struct Idle {
    conn: Conn,
    since: Instant,
}

#[derive(Default)]
struct Kept {
    control: Vec<Idle>,
    bulk: Vec<Idle>,
}

struct Pool(Mutex<Kept>);

impl Pool {
    fn with<T>(&self, class: Class, f: impl FnOnce(&mut Vec<Idle>) -> T) -> T {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f(match class {
            Class::Control => &mut kept.control,
            Class::Bulk => &mut kept.bulk,
        })
    }

    /// The one that was used last, as it is the least likely to have been cut.
    fn take(&self, class: Class) -> Option<Conn> {
        self.with(class, |kept| {
            kept.retain(|idle| idle.since.elapsed() < IDLE);
            kept.pop().map(|idle| idle.conn)
        })
    }

    fn put(&self, class: Class, conn: Conn) {
        self.with(class, |kept| {
            kept.retain(|idle| idle.since.elapsed() < IDLE);
            if kept.len() < KEPT {
                kept.push(Idle { conn, since: Instant::now() });
            }
        });
    }
}

/// HTTP/1.1 over TLS over TCP or a Unix socket.
pub struct HttpCarrier {
    dialer: Dialer,
    host: HeaderValue,
    pool: Arc<Pool>,
}

impl HttpCarrier {
    /// Over what a dialer opens.
    #[must_use]
    pub fn new(dialer: Dialer) -> Self {
        let host = HeaderValue::from_str(&dialer.host()).unwrap_or(HeaderValue::from_static("polder"));
        Self { dialer, host, pool: Arc::new(Pool(Mutex::default())) }
    }

    /// A connection that is ready, and whether it served before.
    async fn conn(&self, class: Class, fresh: bool) -> Result<(Conn, bool), ClientError> {
        if !fresh {
            while let Some(mut conn) = self.pool.take(class) {
                if conn.ready().await {
                    return Ok((conn, true));
                }
            }
        }
        let stream = self.dialer.dial().await?;
        let link = Link::new(stream, WRITE_STALL);
        let probe = link.probe();
        let (sender, driver) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(link))
            .await
            .map_err(|error| self.broken(&error))?;
        Ok((Conn { sender, driver: Box::pin(driver), probe }, false))
    }

    fn broken(&self, error: &hyper::Error) -> ClientError {
        let to = self.dialer.target();
        if let Some(found) = of_tls(&to, error) {
            return found;
        }
        let mut why = error.to_string();
        let mut at = std::error::Error::source(error);
        while let Some(source) = at {
            why = format!("{why}: {source}");
            at = source.source();
        }
        if error.is_parse() {
            return ClientError::Protocol { to, why };
        }
        ClientError::Broken { to, why }
    }

    async fn run(&self, exchange: Exchange) -> Result<http::Response<Body>, ClientError> {
        let Exchange { mut request, class, idempotent } = exchange;
        request.headers_mut().insert(HOST, self.host.clone());
        let mut fresh = false;
        loop {
            let (mut conn, reused) = self.conn(class, fresh).await?;
            // Kept only when a second try would be allowed.
            let spare = (reused && idempotent).then(|| again(&request)).flatten();
            match conn.send(request).await {
                Ok(response) => {
                    let pool = Arc::downgrade(&self.pool);
                    return Ok(
                        response.map(|body| Body::wrap(Answer { body, conn: Some(conn), pool, class }))
                    );
                }
                // A connection that was cut while idle: nothing of the request left this side.
                Err(Failed { unsent: Some(unsent), .. }) if reused => {
                    request = unsent;
                    fresh = true;
                }
                Err(Failed { error, .. }) => match spare {
                    Some(spare) => {
                        request = spare;
                        fresh = true;
                    }
                    None => return Err(self.broken(&error)),
                },
            }
        }
    }
}

fn again(request: &http::Request<Body>) -> Option<http::Request<Body>> {
    let body = request.body().again()?;
    let mut copy = http::Request::new(body);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

impl Carrier for HttpCarrier {
    fn exchange(&self, exchange: Exchange) -> BoxFuture<'_, Result<http::Response<Body>, ClientError>> {
        Box::pin(self.run(exchange))
    }

    fn target(&self) -> String {
        self.dialer.target()
    }
}

struct Failed {
    error: hyper::Error,
    unsent: Option<http::Request<Body>>,
}

impl Conn {
    /// Lets the connection see what happened while it was idle.
    async fn ready(&mut self) -> bool {
        poll_fn(|cx| {
            self.probe.store(true, Ordering::Relaxed);
            let ended = self.driver.as_mut().poll(cx).is_ready();
            self.probe.store(false, Ordering::Relaxed);
            if ended {
                return Poll::Ready(false);
            }
            Poll::Ready(self.sender.poll_ready(cx).is_ready() && !self.sender.is_closed())
        })
        .await
    }

    async fn send(&mut self, request: http::Request<Body>) -> Result<http::Response<Incoming>, Failed> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        let mut ended = false;
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            if !ended {
                ended = driver.as_mut().poll(cx).is_ready();
            }
            // The driver may just have brought it.
            answer.as_mut().poll(cx)
        })
        .await
        .map_err(|mut failed| Failed { unsent: failed.take_message(), error: failed.into_error() })
    }
}

/// A response's body, which carries its connection and gives it back at the end.
struct Answer {
    body: Incoming,
    conn: Option<Conn>,
    pool: Weak<Pool>,
    class: Class,
}

impl Answer {
    fn give_back(&mut self, cx: &mut Context<'_>) {
        let Some(mut conn) = self.conn.take() else { return };
        // One more step, in which the connection notices that the response is over.
        // Not ready means that the request is still being sent: the server answered before its end.
        if conn.driver.as_mut().poll(cx).is_pending()
            && conn.sender.is_ready()
            && let Some(pool) = self.pool.upgrade()
        {
            pool.put(self.class, conn);
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut frame = Pin::new(&mut this.body).poll_frame(cx);
        if frame.is_pending()
            && let Some(conn) = &mut this.conn
        {
            if conn.driver.as_mut().poll(cx).is_ready() {
                // Closed by the other side after its last byte, or broken: the body knows which.
                this.conn = None;
            }
            frame = Pin::new(&mut this.body).poll_frame(cx);
        }
        match frame {
            Poll::Ready(None) => {
                this.give_back(cx);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(Some(Err(error))) => {
                this.conn = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        // Said by the `None` alone, because that is when the connection goes back.
        false
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
