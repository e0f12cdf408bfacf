//! Requests over real sockets: who may, who may not, and what each side is told.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Federation, Server, limits, plan};
use http::Method;
use jiff::Timestamp;
use polder_transport::client::{Client, ClientError, Dialer};
use polder_transport::identity::{Kind, Kit, PrivateKey, WorkerAuthority, WorkerKey, provision};
use polder_transport::server::{
    Call, Limits, Listener, PeerAddr, Problem, ProblemCode, Response, Router, json, no_content,
};
use polder_transport::tls::{Acceptor, Holder};
use polder_words::LaunchId;
use rustls::AlertDescription;
use serde_json::{Value, json as value};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Default)]
struct App {
    calls: AtomicUsize,
}

async fn whoami(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    app.calls.fetch_add(1, Ordering::Relaxed);
    Ok(json(&match &call.peer.holder {
        Holder::Participant(identity) => {
            value!({"kind": identity.kind(), "name": identity.name(), "role": identity.role()})
        }
        Holder::Worker(worker) => value!({"launch": worker.launch}),
        Holder::Nobody => value!({"nobody": true}),
    }))
}

async fn echo(_: Arc<App>, mut call: Call) -> Result<Response, Problem> {
    let name: String = call.param("name")?;
    let times: Option<u32> = call.query("times")?;
    let body: Value = call.json(1024).await?;
    Ok(json(&value!({"name": name, "times": times, "body": body})))
}

fn router() -> Router<App> {
    Router::new(Arc::default())
        .get("/v1/whoami", whoami)
        .post("/v1/echo/{name}", echo)
        .delete("/v1/thing", |_, _| async { Ok(no_content()) })
}

#[tokio::test]
async fn the_server_knows_who_asks() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let site: Value = federation.client("hospital-a", &server).get("/v1/whoami").fetch().await.unwrap();
    assert_eq!(site, value!({"kind": "site", "name": "hospital-a", "role": null}));
    let lead: Value = federation.client("lead@org_a.com", &server).get("/v1/whoami").fetch().await.unwrap();
    assert_eq!(lead, value!({"kind": "user", "name": "lead@org_a.com", "role": "lead"}));
}

#[tokio::test]
async fn the_fastest_cipher_first_and_nothing_old() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let suite = async |config: Arc<rustls::ClientConfig>| {
        let socket = tokio::net::TcpStream::connect(server.addr.unwrap()).await.unwrap();
        let name = "fl.example.org".try_into().unwrap();
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.unwrap();
        stream.get_ref().1.negotiated_cipher_suite().unwrap().suite()
    };
    let kit = federation.kit("hospital-a");
    let config = polder_transport::tls::client_config(&kit).unwrap();
    assert_eq!(suite(config).await, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);

    // Only TLS 1.2, as an old proxy would have it, and the other order of preference.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(kit.trust().certificate().clone()).unwrap();
    use rustls_pki_types::pem::PemObject as _;
    let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(kit.key().to_pem().as_bytes()).unwrap();
    let mut provider = (*polder_transport::tls::provider()).clone();
    provider.cipher_suites.reverse();
    let old = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![kit.certificate().clone()], key)
        .unwrap();
    let old = Arc::new(old);
    assert_eq!(suite(old.clone()).await, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
    let dialer = Dialer::to(&plan().server, old).unwrap().address(server.addr.unwrap());
    let answer: Value = Client::new(dialer).get("/v1/whoami").fetch().await.unwrap();
    assert_eq!(answer["name"], "hospital-a");
}

#[tokio::test]
async fn json_goes_and_comes_and_errors_say_where() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let client = federation.client("hospital-a", &server);
    let answer: Value =
        client.post("/v1/echo/a%20b?times=3").json(&value!({"x": [1, 2]})).fetch().await.unwrap();
    assert_eq!(answer, value!({"name": "a b", "times": 3, "body": {"x": [1, 2]}}));

    let status = |error: ClientError| match error {
        ClientError::Status { status, problem } => (status, *problem),
        other => panic!("{other}"),
    };
    let (code, problem) = status(client.post("/v1/echo/x?times=many").json(&1).send().await.unwrap_err());
    assert_eq!((code, problem.found.as_deref(), problem.at.as_deref()), (400, Some("many"), Some("times")));
    let (code, problem) = status(client.get("/v1/nothing").send().await.unwrap_err());
    assert_eq!((code, problem.code), (404, ProblemCode::NotFound));
    let (code, problem) = status(client.get("/v1/thing").send().await.unwrap_err());
    assert_eq!(code, 405);
    assert!(problem.message.contains("DELETE"), "{problem}");
    let large = "x".repeat(2000);
    let (code, problem) = status(client.post("/v1/echo/x").json(&large).send().await.unwrap_err());
    assert_eq!(code, 413);
    assert!(problem.message.contains("1024"), "{problem}");
    client.delete("/v1/thing").done().await.unwrap();
}

#[tokio::test]
async fn a_site_cannot_pose_as_the_server() {
    let federation = Federation::new();
    let acceptor = Acceptor::participants(&federation.kit("hospital-a"), Arc::default()).unwrap();
    let server = Server::tcp(acceptor, router(), limits()).await;
    let error = federation.client("lead@org_a.com", &server).get("/v1/whoami").send().await.unwrap_err();
    assert!(matches!(error, ClientError::ServerRefused { .. }), "{error}");
}

#[tokio::test]
async fn another_name_than_the_one_dialled_is_refused() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let dialer = federation.dialer("hospital-a", &server).server_name("elsewhere.example.org").unwrap();
    let error = Client::new(dialer).get("/v1/whoami").send().await.unwrap_err().to_string();
    assert!(error.contains("fl.example.org") && error.contains("elsewhere.example.org"), "{error}");
}

#[tokio::test]
async fn an_intercepting_proxy_is_named() {
    let (ours, theirs) = (Federation::new(), Federation::new());
    let server = Server::tcp(theirs.acceptor(), router(), limits()).await;
    let error = ours.client("hospital-a", &server).get("/v1/whoami").send().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ClientError::ServerRefused { .. }), "{text}");
    assert!(text.contains("issued by \"O=cancer-net, CN=polder project CA "), "{text}");
    assert!(text.contains("a proxy that opens TLS may stand in between"), "{text}");
    assert!(!error.is_transient());
}

#[tokio::test]
async fn a_foreign_client_is_told_so() {
    let (ours, theirs) = (Federation::new(), Federation::new());
    let server = Server::tcp(ours.acceptor(), router(), limits()).await;
    // Their certificate, but believing in our CA: as somebody who has our ca.pem would.
    let config = {
        let kit = theirs.kit("hospital-a");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ours.kit("hospital-a").trust().certificate().clone()).unwrap();
        let key = rustls_pki_types::PrivateKeyDer::Pkcs8(
            rustls_pki_types::pem::PemObject::from_pem_slice(kit.key().to_pem().as_bytes()).unwrap(),
        );
        rustls::ClientConfig::builder_with_provider(polder_transport::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![kit.certificate().clone()], key)
            .unwrap()
    };
    let dialer = Dialer::to(&plan().server, Arc::new(config)).unwrap().address(server.addr.unwrap());
    // Whether it sends much or little.
    for size in [0, 300_000] {
        let ask = Client::new(dialer.clone());
        let error = ask.post("/v1/echo/x").json(&"y".repeat(size)).send().await.unwrap_err();
        assert!(
            matches!(error, ClientError::ClientRefused { alert: AlertDescription::UnknownCA, .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn an_expired_client_is_told_so() {
    let federation = Federation::new();
    let past = Timestamp::now() - Duration::from_secs(400 * 86_400);
    let mut plan = plan();
    plan.participants.push(common::site("old"));
    provision(&plan, federation.dir.path(), past).unwrap();
    assert!(
        Kit::open(&federation.path("old"), Timestamp::now()).unwrap_err().to_string().contains("expired")
    );
    let kit = Kit::open(&federation.path("old"), past).unwrap();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let client = Client::new(Dialer::federation(&kit).unwrap().address(server.addr.unwrap()));
    let error = client.get("/v1/whoami").send().await.unwrap_err();
    assert!(error.to_string().contains("refuses this certificate: it is expired"), "{error}");
}

#[tokio::test]
async fn a_revoked_client_is_told_so_even_on_an_open_connection() {
    let federation = Federation::new();
    let server = Server::tcp(federation.acceptor(), router(), limits()).await;
    let client = federation.client("hospital-a", &server);
    client.get("/v1/whoami").done().await.unwrap();
    let list = federation.authority().revoke("hospital-a", "lost laptop", Timestamp::now()).unwrap();
    federation.revocations.replace(&list).unwrap();
    let open = client.get("/v1/whoami").send().await.unwrap_err();
    assert!(matches!(open, ClientError::Status { status: 401, .. }), "{open}");
    assert!(open.to_string().contains("revoked"), "{open}");
    let anew = client.get("/v1/whoami").send().await.unwrap_err();
    assert!(anew.to_string().contains("refuses this certificate: it is revoked"), "{anew}");
}

fn launch() -> LaunchId {
    "00112233445566778899aabbccddeeff.hospital-a.client.1".parse().unwrap()
}

#[tokio::test]
async fn a_worker_enrols_over_a_unix_socket_and_is_known_then() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let authority = Arc::new(WorkerAuthority::open_or_create(&dir.path().join("ca"), now).unwrap());
    let path = dir.path().join("worker.sock");
    let listener = Listener::unix(&path, 0o600).unwrap();
    let server = Server::on(listener, Acceptor::workers(authority.clone()).unwrap(), router(), limits());

    let nobody = Client::new(Dialer::worker_unix(&path, authority.pin(), None).unwrap());
    let answer: Value = nobody.get("/v1/whoami").fetch().await.unwrap();
    assert_eq!(answer, value!({"nobody": true}));

    let key = WorkerKey::generate(&launch()).unwrap();
    let pem = authority.issue(key.request(), &launch(), now, now + Duration::from_secs(3600)).unwrap();
    let known = Client::new(Dialer::worker_unix(&path, authority.pin(), Some((&pem, key.key()))).unwrap());
    let answer: Value = known.get("/v1/whoami").fetch().await.unwrap();
    assert_eq!(answer, value!({"launch": launch()}));

    // Another parent's CA, even of the same name, is not this one.
    let other = WorkerAuthority::open_or_create(&dir.path().join("other"), now).unwrap();
    let unpinned = Client::new(Dialer::worker_unix(&path, other.pin(), None).unwrap());
    let error = unpinned.get("/v1/whoami").send().await.unwrap_err();
    assert!(error.to_string().contains("was not issued by the worker CA key"), "{error}");
    // A worker's certificate of that CA is not accepted here.
    let pem = other.issue(key.request(), &launch(), now, now + Duration::from_secs(3600)).unwrap();
    let foreign = Client::new(Dialer::worker_unix(&path, authority.pin(), Some((&pem, key.key()))).unwrap());
    let error = foreign.get("/v1/whoami").send().await.unwrap_err();
    assert!(matches!(error, ClientError::ClientRefused { .. }), "{error:?}");

    server.stop.cancel();
    server.task.await.unwrap();
    assert!(!path.exists(), "the socket file goes with the server");
    let error = known.get("/v1/whoami").send().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_worker_cannot_pose_as_the_parent() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let authority = WorkerAuthority::open_or_create(&dir.path().join("ca"), now).unwrap();
    let key = WorkerKey::generate(&launch()).unwrap();
    let pem = authority.issue(key.request(), &launch(), now, now + Duration::from_secs(3600)).unwrap();
    use rustls_pki_types::pem::PemObject as _;
    let chain = vec![
        rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap(),
        authority.trust().certificate().clone(),
    ];
    let secret = rustls_pki_types::PrivateKeyDer::from_pem_slice(key.key().to_pem().as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(polder_transport::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let _ = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(socket).await;
    });
    let client = Client::new(Dialer::worker_tcp(addr, authority.pin(), None).unwrap());
    let error = client.get("/").send().await.unwrap_err();
    assert!(matches!(error, ClientError::ServerRefused { .. }), "{error:?}");
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let federation = Federation::new();
    let seen = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let router = Router::new(seen.clone()).get("/addr", |seen, call: Call| async move {
        let PeerAddr::Tcp(addr) = call.peer.addr else { panic!("not TCP") };
        seen.lock().unwrap().insert(addr);
        Ok(json(&1))
    });
    let server = Server::tcp(federation.acceptor(), router, limits()).await;
    let client = federation.client("hospital-a", &server);
    for _ in 0..20 {
        client.get("/addr").done().await.unwrap();
    }
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_stop_lets_requests_finish_and_ends_long_polls() {
    let federation = Federation::new();
    let started = Arc::new(tokio::sync::Notify::new());
    let router = Router::new(started.clone())
        .get("/slow", |started: Arc<tokio::sync::Notify>, _| async move {
            started.notify_one();
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(json(&"done"))
        })
        .get("/poll", |started: Arc<tokio::sync::Notify>, call: Call| async move {
            started.notify_one();
            call.stopping.cancelled().await;
            Ok(json(&"stopping"))
        });
    let server = Server::tcp(federation.acceptor(), router, limits()).await;
    let client = federation.client("hospital-a", &server);
    let ask = |path: &'static str| {
        let client = client.clone();
        tokio::spawn(async move { client.get(path).fetch::<String>().await })
    };
    let slow = ask("/slow");
    started.notified().await;
    let poll = ask("/poll");
    started.notified().await;
    server.stop.cancel();
    assert_eq!(slow.await.unwrap().unwrap(), "done");
    assert_eq!(poll.await.unwrap().unwrap(), "stopping");
    tokio::time::timeout(Duration::from_secs(2), server.task).await.unwrap().unwrap();
    assert!(client.get("/slow").send().await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let federation = Federation::new();
    let started = Arc::new(tokio::sync::Notify::new());
    let router =
        Router::new(started.clone()).get("/stuck", |started: Arc<tokio::sync::Notify>, _| async move {
            started.notify_one();
            std::future::pending::<Result<Response, Problem>>().await
        });
    let server =
        Server::tcp(federation.acceptor(), router, Limits { grace: Duration::from_millis(100), ..limits() })
            .await;
    let client = federation.client("hospital-a", &server);
    let stuck = tokio::spawn(async move { client.get("/stuck").send().await });
    started.notified().await;
    server.stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), server.task).await.unwrap().unwrap();
    assert!(matches!(stuck.await.unwrap(), Err(ClientError::Broken { .. })));
}

#[tokio::test]
async fn nobody_there_and_no_tls_there_are_told_apart() {
    let federation = Federation::new();
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = free.local_addr().unwrap();
    drop(free);
    let dialer = Dialer::federation(&federation.kit("hospital-a")).unwrap();
    let error = Client::new(dialer.clone().address(addr)).get("/").send().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert!(error.is_transient());

    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = plain.local_addr().unwrap();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        let (mut socket, _) = plain.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let error = Client::new(dialer.address(addr)).get("/").send().await.unwrap_err();
    assert!(matches!(error, ClientError::Handshake { .. }), "{error}");
}

#[tokio::test]
async fn paths_that_are_none_are_refused_before_anything_is_sent() {
    let federation = Federation::new();
    let client = Client::new(Dialer::federation(&federation.kit("hospital-a")).unwrap());
    for path in ["", "v1", "https://elsewhere/v1", "/a b"] {
        let error = client.ask(Method::GET, path).send().await.unwrap_err();
        assert!(matches!(error, ClientError::Request { .. }), "{path:?}: {error}");
    }
}

#[test]
fn kinds_have_words() {
    assert_eq!(Kind::Server.to_string(), "server");
    assert!(PrivateKey::from_pem("nothing").is_err());
}
