//! Through a CONNECT proxy, and over connections that are cut.
#![allow(clippy::unwrap_used)]

mod common;

use common::proxy::Proxy as TestProxy;
use common::{Federation, Server, limits};
use polder_transport::client::{Client, ClientError, Dialer, Proxy, ProxyProblem};
use polder_transport::server::{Call, Router, json};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

/// Requests that wait until the test lets them go.
struct Gate {
    started: Semaphore,
    open: Notify,
    posts: AtomicUsize,
}

fn gate() -> Arc<Gate> {
    Arc::new(Gate { started: Semaphore::new(0), open: Notify::new(), posts: AtomicUsize::new(0) })
}

impl Gate {
    async fn one_more(&self) {
        self.started.acquire().await.unwrap().forget();
    }
}

fn router(gate: Arc<Gate>) -> Router<Gate> {
    Router::new(gate)
        .get("/ping", |_, _| async { Ok(json(&"pong")) })
        .get("/poll", |gate: Arc<Gate>, _| async move {
            gate.started.add_permits(1);
            gate.open.notified().await;
            Ok(json(&"news"))
        })
        .post("/once", |gate: Arc<Gate>, mut call: Call| async move {
            call.bytes(1024).await?;
            gate.posts.fetch_add(1, Ordering::SeqCst);
            gate.started.add_permits(1);
            gate.open.notified().await;
            Ok(json(&"done"))
        })
        .post("/count", |gate: Arc<Gate>, mut call: Call| async move {
            call.bytes(1024).await?;
            Ok(json(&gate.posts.fetch_add(1, Ordering::SeqCst)))
        })
}

fn dialer(federation: &Federation) -> Dialer {
    // By name: the name is the proxy's to resolve, and this one has no address.
    Dialer::federation(&federation.kit("hospital-a")).unwrap()
}

#[tokio::test]
async fn through_a_proxy_with_credentials() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(gate()), limits()).await;
    let proxy = TestProxy::connect(server.addr.unwrap(), Some("site:s3cret:x")).await;
    let through = |text: String| Client::new(dialer(&federation).proxy(Some(Proxy::parse(&text).unwrap())));

    let good = through(format!("http://site:s3cret%3Ax@{}", proxy.addr));
    assert_eq!(good.get("/ping").fetch::<String>().await.unwrap(), "pong");
    assert_eq!(*proxy.shared.asked.lock().unwrap(), "fl.example.org:8443");

    let none = through(format!("http://{}", proxy.addr)).get("/ping").send().await.unwrap_err();
    assert!(matches!(none, ClientError::Proxy { why: ProxyProblem::NoCredentials, .. }), "{none}");
    let bad =
        through(format!("http://site:wrong-pass@{}", proxy.addr)).get("/ping").send().await.unwrap_err();
    let text = bad.to_string();
    assert!(matches!(bad, ClientError::Proxy { why: ProxyProblem::BadCredentials(_), .. }), "{text}");
    assert!(
        text.contains(&proxy.addr.to_string()) && text.contains("\"site\"") && !text.contains("wrong-pass"),
        "{text}"
    );
    assert!(!bad.is_transient());
}

#[tokio::test]
async fn a_proxy_that_will_not_or_is_none_is_told_apart() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(gate()), limits()).await;
    let proxy = TestProxy::connect(server.addr.unwrap(), None).await;
    let config = polder_transport::tls::client_config(&federation.kit("hospital-a")).unwrap();
    let forbidden = "https://forbidden.example.org:8443".parse().unwrap();
    let through = Proxy::parse(&format!("http://{}", proxy.addr)).unwrap();
    let dialer_there = Dialer::to(&forbidden, config).unwrap().proxy(Some(through));
    let error = Client::new(dialer_there).get("/ping").send().await.unwrap_err().to_string();
    assert!(
        error.contains("will not connect to forbidden.example.org:8443: 403 Forbidden by policy"),
        "{error}"
    );

    // The server itself is no proxy: it answers with a TLS alert.
    let not_one = Proxy::parse(&format!("http://{}", server.addr.unwrap())).unwrap();
    let error = Client::new(dialer(&federation).proxy(Some(not_one))).get("/ping").send().await.unwrap_err();
    assert!(matches!(error, ClientError::Proxy { why: ProxyProblem::NotAProxy(_), .. }), "{error}");

    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = Proxy::parse(&format!("http://{}", closed.local_addr().unwrap())).unwrap();
    drop(closed);
    let error = Client::new(dialer(&federation).proxy(Some(nobody))).get("/ping").send().await.unwrap_err();
    assert!(matches!(error, ClientError::Proxy { why: ProxyProblem::Unreachable(_), .. }), "{error}");
    assert!(error.is_transient());
}

#[tokio::test]
async fn a_long_poll_that_a_proxy_cuts_is_asked_again() {
    let federation = Federation::new();
    let gate = gate();
    let server = Server::tcp(federation.acceptor(), router(gate.clone()), limits()).await;
    let proxy = TestProxy::connect(server.addr.unwrap(), None).await;
    let through = Proxy::parse(&format!("http://{}", proxy.addr)).unwrap();
    let client = Client::new(dialer(&federation).proxy(Some(through)));
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.get("/poll").long_poll(Duration::from_secs(50)).fetch::<String>().await }
    });
    gate.one_more().await;
    proxy.cut().await;
    gate.one_more().await;
    gate.open.notify_waiters();
    assert_eq!(asking.await.unwrap().unwrap(), "news");
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_kept_connection_that_was_cut_is_replaced_whatever_the_request() {
    let federation = Federation::new();
    let gate = gate();
    let server = Server::tcp(federation.acceptor(), router(gate.clone()), limits()).await;
    let wire = TestProxy::wire(server.addr.unwrap()).await;
    let client = Client::new(dialer(&federation).address(wire.addr));
    for n in 0..5 {
        // Also one that must not be sent twice: nothing of it had left.
        assert_eq!(client.post("/count").json(&0).fetch::<usize>().await.unwrap(), n);
        wire.cut().await;
    }
    assert_eq!(wire.connections(), 5);
}

#[tokio::test]
async fn what_may_have_arrived_is_not_sent_twice() {
    let federation = Federation::new();
    let gate = gate();
    let server = Server::tcp(federation.acceptor(), router(gate.clone()), limits()).await;
    let wire = TestProxy::wire(server.addr.unwrap()).await;
    let client = Client::new(dialer(&federation).address(wire.addr));
    client.get("/ping").done().await.unwrap();
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.post("/once").json(&1).fetch::<String>().await }
    });
    gate.one_more().await;
    wire.cut().await;
    let error = asking.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Broken { .. }), "{error}");
    assert_eq!(gate.posts.load(Ordering::SeqCst), 1);

    // The same, when its sender says that twice is once.
    let asking = tokio::spawn({
        let client = client.clone();
        async move {
            client.get("/ping").done().await.unwrap();
            client.post("/once").json(&1).idempotent().fetch::<String>().await
        }
    });
    gate.one_more().await;
    wire.cut().await;
    gate.one_more().await;
    gate.open.notify_waiters();
    assert_eq!(asking.await.unwrap().unwrap(), "done");
    assert_eq!(gate.posts.load(Ordering::SeqCst), 3);
}

#[test]
fn proxies_are_read_and_never_repeat_a_password() {
    assert_eq!(Proxy::parse("http://proxy.example.org").unwrap().to_string(), "proxy.example.org:3128");
    assert_eq!(Proxy::parse("http://u:p%40@10.0.0.1:8080/").unwrap().to_string(), "10.0.0.1:8080");
    assert_eq!(Proxy::parse("http://[::1]:8080").unwrap().to_string(), "[::1]:8080");
    assert_eq!(Proxy::parse("http://u:p@[::1]").unwrap().to_string(), "[::1]:3128");
    for bad in [
        "https://p:1",
        "http://",
        "http://user:hunter2@",
        "http://us%zz:hunter2@p",
        "http://:hunter2@p",
        "socks5://hunter2@p",
    ] {
        let error = Proxy::parse(bad).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
    assert!(!format!("{:?}", Proxy::parse("http://u:hunter2@p").unwrap()).contains("hunter2"));
}

proptest! {
    #[test]
    fn no_proxy_text_panics(text in "(http://)?.{0,40}") {
        let _ = Proxy::parse(&text);
    }
}
