//! The asking side: [`Client`] over a [`Carrier`], with JSON, streams, timeouts and retries.
//!
//! ```text
//! Client --Ask--> Carrier (HttpCarrier: pool, Dialer: proxy, TCP or Unix, TLS) --> server
//! ```
//! What is retried without asking: a request on a kept connection that turns out to be dead, when
//! nothing of it was sent or when it is idempotent, once, on a new connection. A long poll that is cut on its
//! way (proxies cut idle connections) is asked again until its time is over. All else is the caller's.

mod dial;
mod error;
mod pool;

pub use dial::{Dialer, Proxy, ProxyParseError};
pub use error::{ClientError, ProxyProblem};
pub use pool::HttpCarrier;

use crate::body::Body;
use crate::carrier::{Carrier, Class, Exchange};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use polder_api::{Problem, ProblemCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a request may wait for the head of its answer when nobody says.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long an answer's body may stand still.
const BODY_IDLE: Duration = Duration::from_secs(60);
/// Largest JSON answer that is read.
const JSON_LIMIT: usize = 64 * 1024 * 1024;
/// Beyond the time a long poll asks for, until it counts as lost.
const POLL_MARGIN: Duration = Duration::from_secs(15);

/// Asks one server.
#[derive(Clone)]
pub struct Client {
    carrier: Arc<dyn Carrier>,
    headers: HeaderMap,
}

impl Client {
    /// Over HTTP, as a dialer connects.
    #[must_use]
    pub fn new(dialer: Dialer) -> Self {
        Self::over(Arc::new(HttpCarrier::new(dialer)))
    }

    /// Over any carrier.
    #[must_use]
    pub fn over(carrier: Arc<dyn Carrier>) -> Self {
        Self { carrier, headers: HeaderMap::new() }
    }

    /// A header that goes with every request, such as a session's.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(mut value) = HeaderValue::from_str(value) {
            value.set_sensitive(true);
            self.headers.insert(HeaderName::from_static(name), value);
        }
        self
    }

    /// Where it asks, for messages.
    #[must_use]
    pub fn target(&self) -> String {
        self.carrier.target()
    }

    /// Begins a request to a path (and query).
    pub fn ask(&self, method: Method, path: &str) -> Ask<'_> {
        let idempotent = method.is_idempotent();
        Ask {
            client: self,
            request: request(method, path, self.headers.clone()),
            class: Class::Control,
            idempotent,
            timeout: TIMEOUT,
            poll: None,
        }
    }

    /// `GET`.
    pub fn get(&self, path: &str) -> Ask<'_> {
        self.ask(Method::GET, path)
    }

    /// `POST`.
    pub fn post(&self, path: &str) -> Ask<'_> {
        self.ask(Method::POST, path)
    }

    /// `PUT`.
    pub fn put(&self, path: &str) -> Ask<'_> {
        self.ask(Method::PUT, path)
    }

    /// `DELETE`.
    pub fn delete(&self, path: &str) -> Ask<'_> {
        self.ask(Method::DELETE, path)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.target())
    }
}

fn request(method: Method, path: &str, headers: HeaderMap) -> Result<http::Request<Body>, ClientError> {
    let uri = path.parse().ok().filter(|uri: &http::Uri| uri.path().starts_with('/') && uri.host().is_none());
    let Some(uri) = uri else {
        let why = "not a path and query (escape what is not a letter, digit or -._~)".to_owned();
        return Err(ClientError::Request { path: path.chars().take(200).collect(), why });
    };
    let mut request = http::Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// A request being put together.
#[must_use = "a request goes when it is sent"]
pub struct Ask<'a> {
    client: &'a Client,
    request: Result<http::Request<Body>, ClientError>,
    class: Class,
    idempotent: bool,
    timeout: Duration,
    poll: Option<Duration>,
}

impl Ask<'_> {
    /// With a value as JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        if let Ok(request) = &mut self.request {
            match serde_json::to_vec(value) {
                Ok(bytes) => {
                    *request.body_mut() = Body::full(bytes);
                    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                }
                Err(error) => {
                    self.request =
                        Err(ClientError::Request { path: request.uri().to_string(), why: error.to_string() });
                }
            }
        }
        self
    }

    /// With a body.
    pub fn body(mut self, body: Body) -> Self {
        if let Ok(request) = &mut self.request {
            *request.body_mut() = body;
        }
        self
    }

    /// With a header.
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        if let (Ok(request), Ok(value)) = (&mut self.request, HeaderValue::from_str(value)) {
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
        self
    }

    /// How long to wait for the head of the answer; the body may take longer as long as it moves.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// On a connection for large bodies.
    pub fn bulk(mut self) -> Self {
        self.class = Class::Bulk;
        self
    }

    /// May be sent twice though it is a `POST`.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// A long poll the server answers within `wait`: asked again when the connection is cut meanwhile.
    pub fn long_poll(mut self, wait: Duration) -> Self {
        self.poll = Some(wait);
        self.timeout = wait + POLL_MARGIN;
        self.idempotent = true;
        self
    }

    /// Sends it; an answer that is not 2xx is an error.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send(self) -> Result<Reply, ClientError> {
        let mut request = self.request?;
        let client = self.client;
        let until = self.poll.map(|wait| Instant::now() + wait);
        let mut quick_cuts = 0;
        loop {
            let spare = until.and_then(|_| {
                let mut copy = http::Request::new(request.body().again()?);
                *copy.method_mut() = request.method().clone();
                *copy.uri_mut() = request.uri().clone();
                *copy.headers_mut() = request.headers().clone();
                Some(copy)
            });
            let began = Instant::now();
            let exchange = Exchange { request, class: self.class, idempotent: self.idempotent };
            let outcome = match tokio::time::timeout(self.timeout, client.carrier.exchange(exchange)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(ClientError::TimedOut { to: client.target(), after: self.timeout }),
            };
            match (outcome, spare, until) {
                (Ok(response), ..) => return Reply { response, to: client.target() }.good().await,
                (Err(ClientError::Broken { .. }), Some(spare), Some(until)) if Instant::now() < until => {
                    // Cut at once, twice: nobody is there, and asking on would be a busy loop.
                    quick_cuts += u32::from(began.elapsed() < Duration::from_secs(1));
                    if quick_cuts >= 2 {
                        return Err(ClientError::Broken {
                            to: client.target(),
                            why: "it was cut at once, twice".to_owned(),
                        });
                    }
                    request = spare;
                }
                (Err(error), ..) => return Err(error),
            }
        }
    }

    /// Sends it and reads the answer as JSON of a type.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn fetch<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        self.send().await?.json().await
    }

    /// Sends it; the answer's body does not matter.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn done(self) -> Result<(), ClientError> {
        // Read to its end all the same, so that the connection can be used again.
        self.send().await?.bytes(JSON_LIMIT).await.map(drop)
    }
}

/// A good answer.
#[derive(Debug)]
pub struct Reply {
    response: http::Response<Body>,
    to: String,
}

impl Reply {
    async fn good(self) -> Result<Self, ClientError> {
        let status = self.response.status();
        if status.is_success() {
            return Ok(self);
        }
        let bytes = self.response.into_body().whole(256 * 1024, BODY_IDLE).await.unwrap_or_default();
        let problem = serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            let text: String = String::from_utf8_lossy(&bytes).chars().take(200).collect();
            let code = match status {
                StatusCode::UNAUTHORIZED => ProblemCode::Unauthenticated,
                StatusCode::FORBIDDEN => ProblemCode::Forbidden,
                StatusCode::NOT_FOUND => ProblemCode::NotFound,
                StatusCode::CONFLICT => ProblemCode::Conflict,
                StatusCode::PAYLOAD_TOO_LARGE => ProblemCode::TooLarge,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => ProblemCode::Busy,
                status if status.is_server_error() => ProblemCode::Internal,
                _ => ProblemCode::Invalid,
            };
            Problem::new(code, format!("{} answered {status}: {}", self.to, text.trim()))
        });
        Err(ClientError::Status { status: status.as_u16(), problem: Box::new(problem) })
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// A header as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// The body, to be read piece by piece.
    #[must_use]
    pub fn into_body(self) -> Body {
        self.response.into_body()
    }

    /// The body's bytes, at most `limit` of them.
    ///
    /// # Errors
    /// When there are more or they do not come.
    pub async fn bytes(self, limit: usize) -> Result<Bytes, ClientError> {
        let to = self.to;
        self.response
            .into_body()
            .whole(limit, BODY_IDLE)
            .await
            .map_err(|source| ClientError::Body { to, source })
    }

    /// The body as JSON of a type.
    ///
    /// # Errors
    /// When it is not.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        let to = self.to.clone();
        let bytes = self.bytes(JSON_LIMIT).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Protocol { to, why: error.to_string() })
    }
}

/// Escapes one segment of a path or one value of a query.
#[must_use]
pub fn escape(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
