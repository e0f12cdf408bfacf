//! Paths to handlers: `/v1/jobs/{id}/logs`, where `{id}` is one segment.

use super::call::{refuse, wrong_method};
use super::{Call, Problem, ProblemCode, Response, Service};
use futures_util::future::BoxFuture;
use http::Method;
use std::future::Future;
use std::sync::Arc;

type Handler<S> = Box<dyn Fn(Arc<S>, Call) -> BoxFuture<'static, Result<Response, Problem>> + Send + Sync>;

/// Routes over a shared state. What no route takes is `not_found`.
pub struct Router<S> {
    state: Arc<S>,
    routes: Vec<Route<S>>,
}

struct Route<S> {
    method: Method,
    segments: Vec<Segment>,
    handler: Handler<S>,
}

enum Segment {
    Text(&'static str),
    Capture(&'static str),
}

impl<S: Send + Sync + 'static> Router<S> {
    /// Without routes.
    #[must_use]
    pub fn new(state: Arc<S>) -> Self {
        Self { state, routes: Vec::new() }
    }

    /// Adds a route. Patterns are `/` and segments; `{name}` takes one segment.
    #[must_use]
    pub fn route<F, R>(mut self, method: Method, pattern: &'static str, handler: F) -> Self
    where
        F: Fn(Arc<S>, Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Problem>> + Send + 'static,
    {
        let segments = segments(pattern)
            .map(|text| match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
                Some(name) => Segment::Capture(name),
                None => Segment::Text(text),
            })
            .collect();
        let handler: Handler<S> = Box::new(move |state, call| Box::pin(handler(state, call)));
        self.routes.push(Route { method, segments, handler });
        self
    }

    /// Adds a route for `GET`.
    #[must_use]
    pub fn get<F, R>(self, pattern: &'static str, handler: F) -> Self
    where
        F: Fn(Arc<S>, Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Problem>> + Send + 'static,
    {
        self.route(Method::GET, pattern, handler)
    }

    /// Adds a route for `POST`.
    #[must_use]
    pub fn post<F, R>(self, pattern: &'static str, handler: F) -> Self
    where
        F: Fn(Arc<S>, Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Problem>> + Send + 'static,
    {
        self.route(Method::POST, pattern, handler)
    }

    /// Adds a route for `PUT`.
    #[must_use]
    pub fn put<F, R>(self, pattern: &'static str, handler: F) -> Self
    where
        F: Fn(Arc<S>, Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Problem>> + Send + 'static,
    {
        self.route(Method::PUT, pattern, handler)
    }

    /// Adds a route for `DELETE`.
    #[must_use]
    pub fn delete<F, R>(self, pattern: &'static str, handler: F) -> Self
    where
        F: Fn(Arc<S>, Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response, Problem>> + Send + 'static,
    {
        self.route(Method::DELETE, pattern, handler)
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('/').unwrap_or(path).split('/')
}

/// Percent-decoding; `None` when the result is not UTF-8 or an escape is broken.
pub(crate) fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let digits = bytes.get(at + 1..at + 3)?;
            let digits = std::str::from_utf8(digits).ok()?;
            if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            out.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

impl<S> Route<S> {
    fn captures(&self, path: &str) -> Option<Vec<(&'static str, String)>> {
        let mut found = Vec::new();
        let mut given = segments(path);
        for wanted in &self.segments {
            let text = given.next()?;
            match wanted {
                Segment::Text(wanted) if *wanted == text => {}
                Segment::Text(_) => return None,
                Segment::Capture(name) => {
                    found.push((*name, decode(text).filter(|text| !text.is_empty())?));
                }
            }
        }
        given.next().is_none().then_some(found)
    }
}

impl<S: Send + Sync + 'static> Service for Router<S> {
    fn call(self: Arc<Self>, mut call: Call) -> BoxFuture<'static, Response> {
        let path = call.uri().path();
        let mut allowed: Vec<&str> = Vec::new();
        for route in &self.routes {
            if let Some(captures) = route.captures(path) {
                if route.method == *call.method() {
                    call.params.0 = captures;
                    let answer = (route.handler)(self.state.clone(), call);
                    return Box::pin(async move {
                        answer.await.unwrap_or_else(|problem| refuse(&problem, false))
                    });
                }
                allowed.push(route.method.as_str());
            }
        }
        let response = if allowed.is_empty() {
            let shown: String = path.chars().take(200).collect();
            refuse(&Problem::new(ProblemCode::NotFound, format!("no such path: {shown}")), false)
        } else {
            wrong_method(&allowed.join(", "))
        };
        Box::pin(std::future::ready(response))
    }
}
