//! What a server puts up with: slow, large, many, and those who do not listen.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{Federation, Server, limits};
use futures_util::stream;
use polder_transport::Body;
use polder_transport::client::{Client, ClientError};
use polder_transport::identity::Kit;
use polder_transport::server::{Call, Limits, Problem, ProblemCode, Router, json, respond};
use polder_transport::tls;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

struct App {
    /// Rung when an answer's body is dropped.
    dropped: Arc<Notify>,
}

struct Ring(Arc<Notify>);

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

fn router() -> Router<App> {
    Router::new(Arc::new(App { dropped: Arc::default() }))
        .get("/ping", |_, _| async { Ok(json(&"pong")) })
        .post("/json", |_, mut call: Call| async move {
            let value: serde_json::Value = call.json(1 << 20).await?;
            Ok(json(&value))
        })
        .put("/refused", |_, _| async { Err(Problem::new(ProblemCode::Conflict, "not now")) })
        .get("/endless", |app: Arc<App>, _| async move {
            let ring = Ring(app.dropped.clone());
            let pieces = stream::unfold(ring, |ring| async move {
                Some((Ok::<_, std::io::Error>(Bytes::from(vec![0; 65_536])), ring))
            });
            Ok(respond("application/octet-stream", Body::stream(None, pieces)))
        })
        .get("/dropped", |app: Arc<App>, _| async move {
            app.dropped.notified().await;
            Ok(json(&"dropped"))
        })
}

async fn raw(kit: &Kit, addr: SocketAddr) -> TlsStream<TcpStream> {
    let socket = TcpStream::connect(addr).await.unwrap();
    let name = "fl.example.org".try_into().unwrap();
    TlsConnector::from(tls::client_config(kit).unwrap()).connect(name, socket).await.unwrap()
}

/// Reads until the other side ends it, at most for a minute.
async fn to_the_end(mut stream: impl tokio::io::AsyncRead + Unpin) -> String {
    let mut all = Vec::new();
    // How it ends (an end of TLS, an end of the stream, a reset) does not matter.
    let _ = timeout(Duration::from_secs(60), stream.read_to_end(&mut all)).await.expect("it is ended");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn who_says_nothing_is_not_kept() {
    let federation = Federation::new();
    let limits = Limits { handshake: Duration::from_millis(300), ..limits() };
    let server = Server::tcp(federation.acceptor(), router(), limits).await;
    to_the_end(TcpStream::connect(server.addr.unwrap()).await.unwrap()).await;
}

#[tokio::test]
async fn a_head_that_drips_in_is_not_waited_for() {
    let federation = Federation::new();
    let limits = Limits { head: Duration::from_millis(500), ..limits() };
    let server = Server::tcp(federation.acceptor(), router(), limits).await;
    let (read, mut write) = tokio::io::split(raw(&federation.kit("hospital-a"), server.addr.unwrap()).await);
    let dripping = tokio::spawn(async move {
        // Without end: a byte now and then keeps nobody waiting.
        write.write_all(b"GET /ping HTTP/1.1\r\nx: ").await.unwrap();
        while write.write_all(b"y").await.is_ok() && write.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(to_the_end(read).await, "");
    dripping.await.unwrap();
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let client = federation.client("hospital-a", &server);
    let error = client.get("/ping").header("x-long", &"y".repeat(20_000)).send().await.unwrap_err();
    assert!(matches!(error, ClientError::Status { status: 431, .. }), "{error}");
    client.get("/ping").header("x-long", &"y".repeat(10_000)).done().await.unwrap();
}

#[tokio::test]
async fn a_body_that_stops_is_not_waited_for() {
    let federation = Federation::new();
    let limits = Limits { body: Duration::from_millis(300), ..limits() };
    let server = Server::tcp(federation.acceptor(), router(), limits).await;
    let mut stream = raw(&federation.kit("hospital-a"), server.addr.unwrap()).await;
    let head = b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"a\":";
    stream.write_all(head).await.unwrap();
    stream.flush().await.unwrap();
    let answer = to_the_end(stream).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("did not come within 0.3 s"), "{answer}");
}

#[tokio::test]
async fn an_answer_nobody_takes_is_given_up() {
    let federation = Federation::new();
    let limits = Limits { write_stall: Duration::from_millis(300), ..limits() };
    let server = Server::tcp(federation.acceptor(), router(), limits).await;
    let mut stream = raw(&federation.kit("hospital-a"), server.addr.unwrap()).await;
    stream.write_all(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    stream.flush().await.unwrap();
    let client = federation.client("hospital-a", &server);
    let told = client.get("/dropped").fetch::<String>();
    assert_eq!(timeout(Duration::from_secs(30), told).await.unwrap().unwrap(), "dropped");
    drop(stream);
}

#[tokio::test]
async fn more_connections_than_allowed_wait() {
    let federation = Federation::new();
    let limits = Limits { connections: 1, ..limits() };
    let server = Server::tcp(federation.acceptor(), router(), limits).await;
    let first = federation.client("hospital-a", &server);
    first.get("/ping").done().await.unwrap();
    let second = federation.client("lead@org_a.com", &server);
    let mut asking = tokio::spawn(async move { second.get("/ping").fetch::<String>().await });
    assert!(timeout(Duration::from_millis(200), &mut asking).await.is_err(), "the only place is taken");
    // Dropping the client closes its kept connection.
    drop(first);
    assert_eq!(asking.await.unwrap().unwrap(), "pong");
}

#[tokio::test]
async fn a_refusal_reaches_who_still_sends() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let client = federation.client("hospital-a", &server);
    for size in [1_u64 << 20, 1 << 26] {
        let piece = Bytes::from(vec![7; 65_536]);
        let pieces = stream::iter((0..size / 65_536).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
        let ask = client.put("/refused").bulk().body(Body::stream(Some(size), pieces));
        let error = ask.send().await.unwrap_err();
        let ClientError::Status { status: 409, problem } = error else { panic!("{size}: {error}") };
        assert_eq!(problem.message, "not now");
        // The connection in the middle of it is not used for the next.
        client.get("/ping").bulk().done().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_no_http_gets_no_further() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    for text in
        ["\0\0\0\0\r\n\r\n", "GET /ping HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET\r\n\r\n"]
    {
        let mut stream = raw(&federation.kit("hospital-a"), server.addr.unwrap()).await;
        stream.write_all(text.as_bytes()).await.unwrap();
        let answer = to_the_end(stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{text:?}: {answer}");
    }
    // Two lengths, a length and chunks: what smuggling is made of.
    for headers in [
        "content-length: 3\r\ncontent-length: 4\r\n",
        "content-length: 3\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: gzip, chunked, identity\r\n",
    ] {
        let mut stream = raw(&federation.kit("hospital-a"), server.addr.unwrap()).await;
        let head = format!("POST /json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n[1]\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = to_the_end(stream).await;
        assert!(!answer.starts_with("HTTP/1.1 2"), "{headers}: {answer}");
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_told_that_one_is_required() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(federation.kit("hospital-a").trust().certificate().clone()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let dialer = polder_transport::client::Dialer::to(&common::plan().server, Arc::new(config)).unwrap();
    let client = Client::new(dialer.address(server.addr.unwrap()));
    let error = client.get("/ping").send().await.unwrap_err().to_string();
    assert!(error.contains("none was shown and one is required"), "{error}");
}
