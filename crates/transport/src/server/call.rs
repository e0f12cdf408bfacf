//! One request as a handler sees it, and the answers it gives.

use super::Peer;
use crate::body::{Body, ReadError};
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, StatusCode, Uri};
use polder_api::{Problem, ProblemCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// An answer.
pub type Response = http::Response<Body>;

/// What a route's pattern captured, percent-decoded.
#[derive(Debug, Default, Clone)]
pub struct Params(pub(super) Vec<(&'static str, String)>);

/// One request.
#[derive(Debug)]
pub struct Call {
    /// Who asks.
    pub peer: Arc<Peer>,
    /// Cancelled when the server stops: a long poll answers then.
    pub stopping: CancellationToken,
    /// How long a body, or a part of one that is read in parts, may take to come.
    pub body_time: Duration,
    pub(super) params: Params,
    head: http::request::Parts,
    /// Behind a lock only so that a handler may hold `&Call` while it waits: a body is not `Sync`.
    body: Mutex<Body>,
}

impl Call {
    pub(super) fn new(
        peer: Arc<Peer>,
        stopping: CancellationToken,
        body_time: Duration,
        request: http::Request<Body>,
    ) -> Self {
        let (head, body) = request.into_parts();
        Self { peer, stopping, body_time, params: Params::default(), head, body: Mutex::new(body) }
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.head.method
    }

    /// Path and query.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.head.uri
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// A header as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// A captured part of the path, as the type it stands for.
    ///
    /// # Errors
    /// `invalid` when it is not one.
    pub fn param<T>(&self, name: &str) -> Result<T, Problem>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
    {
        let text = self.params.0.iter().find(|(n, _)| *n == name).map_or("", |(_, text)| text);
        parsed(text, "path", name)
    }

    /// A parameter of the query; `None` when it is not there.
    ///
    /// # Errors
    /// `invalid` when it is there and not of the type.
    pub fn query<T>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
    {
        let query = self.head.uri.query().unwrap_or_default();
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if key == name {
                let text = super::router::decode(value).ok_or_else(|| Problem {
                    at: Some(name.to_owned()),
                    ..Problem::new(ProblemCode::Invalid, "query is not UTF-8")
                })?;
                return parsed(&text, "query", name).map(Some);
            }
        }
        Ok(None)
    }

    /// The body as JSON of a type, at most `limit` bytes of it.
    ///
    /// # Errors
    /// `too_large`, or `invalid` with the place in the text.
    pub async fn json<T: DeserializeOwned>(&mut self, limit: usize) -> Result<T, Problem> {
        let bytes = self.bytes(limit).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Problem::new(ProblemCode::Invalid, format!("body: {error}")))
    }

    /// The body's bytes, at most `limit` of them.
    ///
    /// # Errors
    /// `too_large`, or `invalid` when it broke off.
    pub async fn bytes(&mut self, limit: usize) -> Result<bytes::Bytes, Problem> {
        self.take_body().whole(limit, self.body_time).await.map_err(|error| read_problem(&error))
    }

    /// The body, to be read piece by piece. Empty when it was taken before.
    pub fn take_body(&mut self) -> Body {
        let body = self.body.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(body, Body::empty())
    }
}

fn parsed<T>(text: &str, place: &str, name: &str) -> Result<T, Problem>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| Problem {
        at: Some(name.to_owned()),
        found: Some(text.chars().take(80).collect()),
        ..Problem::new(ProblemCode::Invalid, format!("{place} {name}: {error}"))
    })
}

/// What a body that could not be read means for who sent it.
pub(crate) fn read_problem(error: &ReadError) -> Problem {
    let code = match error {
        ReadError::TooLarge { .. } => ProblemCode::TooLarge,
        ReadError::Idle(_) | ReadError::Broken(_) => ProblemCode::Invalid,
    };
    Problem::new(code, error.to_string())
}

/// 200 with JSON.
#[must_use]
pub fn json<T: Serialize + ?Sized>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => json_bytes(StatusCode::OK, bytes),
        Err(error) => refuse(
            &Problem::new(ProblemCode::Internal, format!("an answer could not be written: {error}")),
            false,
        ),
    }
}

/// 204 without a body.
#[must_use]
pub fn no_content() -> Response {
    let mut response = http::Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// 200 with a body and a content type.
#[must_use]
pub fn respond(content_type: &'static str, body: Body) -> Response {
    let mut response = http::Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn json_bytes(status: StatusCode, bytes: Vec<u8>) -> Response {
    let mut response = respond("application/json", Body::full(bytes));
    *response.status_mut() = status;
    response
}

/// The answer to a refused request; `close` ends the connection after it.
pub(crate) fn refuse(problem: &Problem, close: bool) -> Response {
    let status = StatusCode::from_u16(problem.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let bytes = serde_json::to_vec(problem).unwrap_or_default();
    let mut response = json_bytes(status, bytes);
    if close {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// 405, with the methods that are there.
pub(super) fn wrong_method(allowed: &str) -> Response {
    let mut response =
        refuse(&Problem::new(ProblemCode::Invalid, format!("method not allowed; allowed: {allowed}")), false);
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    if let Ok(value) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(ALLOW, value);
    }
    response
}
