//! Opening a connection: directly, to a socket file, or through a CONNECT proxy; then TLS.

use super::error::{ClientError, ProxyProblem, of_tls};
use crate::endpoint::Endpoint;
use crate::identity::worker::WORKER_SERVER_NAME;
use crate::identity::{Kit, PrivateKey};
use crate::link::Socket;
use crate::server::prepared;
use crate::tls::{self, TlsError};
use base64::Engine as _;
use polder_words::Hash;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

/// An HTTP proxy that connects through (`CONNECT`).
#[derive(Clone)]
pub struct Proxy {
    address: Endpoint,
    credentials: Option<(String, Zeroizing<String>)>,
}

/// A text is no proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("proxy: {why}; allowed is http://[USER:PASSWORD@]HOST[:PORT]")]
pub struct ProxyParseError {
    why: &'static str,
}

impl Proxy {
    /// Reads `http://user:password@host:port`; user and password may be percent-encoded.
    ///
    /// # Errors
    /// When it is none. The text is not repeated in the error, as it may hold a password.
    pub fn parse(text: &str) -> Result<Self, ProxyParseError> {
        let wrong = |why| ProxyParseError { why };
        let rest = text.strip_prefix("http://").ok_or_else(|| wrong("it does not begin with http://"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (credentials, address) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((credentials, address)) => {
                let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
                let decode = |text| {
                    crate::server::decode(text)
                        .ok_or_else(|| wrong("a percent escape in the credentials is broken"))
                };
                let user = decode(user)?;
                if user.contains(':') || user.is_empty() {
                    return Err(wrong("the user name is empty or holds a colon"));
                }
                (Some((user, Zeroizing::new(decode(password)?))), address)
            }
        };
        // The same grammar as a server's address; without a port a proxy is on 3128 by custom.
        let with_port = address.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        let endpoint: Endpoint = format!("https://{address}")
            .parse()
            .map_err(|error: crate::endpoint::EndpointError| wrong(error.why))?;
        let port = if with_port { endpoint.port } else { 3128 };
        Ok(Self { address: Endpoint { port, ..endpoint }, credentials })
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address.authority())
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

#[derive(Debug, Clone)]
enum Route {
    Name(String, u16),
    Addr(SocketAddr),
    Unix(PathBuf),
}

/// How to open a connection to one server.
#[derive(Clone)]
pub struct Dialer {
    route: Route,
    name: ServerName<'static>,
    tls: TlsConnector,
    proxy: Option<Proxy>,
    timeout: Duration,
}

impl Dialer {
    /// A site or user: to the server in the kit.
    ///
    /// # Errors
    /// When the kit's key or certificate cannot be used.
    pub fn federation(kit: &Kit) -> Result<Self, TlsError> {
        Self::to(&kit.info().server, tls::client_config(kit)?)
    }

    /// To an endpoint, with a TLS configuration.
    ///
    /// # Errors
    /// When the host is no server name.
    pub fn to(endpoint: &Endpoint, config: Arc<ClientConfig>) -> Result<Self, TlsError> {
        let name = ServerName::try_from(endpoint.host.clone())
            .map_err(|error| rustls::Error::General(format!("{}: {error}", endpoint.host)))?;
        Ok(Self::new(Route::Name(endpoint.host.clone(), endpoint.port), name, config))
    }

    /// A worker: to its parent's socket on this host, pinning the worker CA's key.
    ///
    /// # Errors
    /// When key or certificate cannot be used.
    pub fn worker_unix(
        path: &Path,
        pin: Hash,
        certificate: Option<(&str, &PrivateKey)>,
    ) -> Result<Self, TlsError> {
        Ok(Self::worker(Route::Unix(path.to_owned()), tls::worker_client_config(pin, certificate)?))
    }

    /// A worker: to its parent's port, by numeric address, pinning the worker CA's key.
    ///
    /// # Errors
    /// When key or certificate cannot be used.
    pub fn worker_tcp(
        address: SocketAddr,
        pin: Hash,
        certificate: Option<(&str, &PrivateKey)>,
    ) -> Result<Self, TlsError> {
        Ok(Self::worker(Route::Addr(address), tls::worker_client_config(pin, certificate)?))
    }

    fn worker(route: Route, config: Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from(WORKER_SERVER_NAME).expect("a constant DNS name");
        Self::new(route, name, config)
    }

    fn new(route: Route, name: ServerName<'static>, config: Arc<ClientConfig>) -> Self {
        Self { route, name, tls: TlsConnector::from(config), proxy: None, timeout: Duration::from_secs(10) }
    }

    /// Through a proxy. A Unix socket is always dialled directly.
    #[must_use]
    pub fn proxy(mut self, proxy: Option<Proxy>) -> Self {
        self.proxy = proxy;
        self
    }

    /// Expects this name in the server's certificate instead of the host that is dialled.
    ///
    /// # Errors
    /// When it is no server name.
    pub fn server_name(mut self, name: &str) -> Result<Self, TlsError> {
        self.name = ServerName::try_from(name.to_owned())
            .map_err(|error| rustls::Error::General(format!("{name}: {error}")))?;
        Ok(self)
    }

    /// Dials this address instead of resolving the host.
    #[must_use]
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.route = Route::Addr(address);
        self
    }

    /// How long connecting and the handshake may take, each.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Where it dials, for messages.
    #[must_use]
    pub fn target(&self) -> String {
        match &self.route {
            Route::Name(host, port) => format!("{host}:{port}"),
            Route::Addr(addr) => addr.to_string(),
            Route::Unix(path) => path.display().to_string(),
        }
    }

    /// What goes into `host`.
    pub(super) fn host(&self) -> String {
        self.name.to_str().into_owned()
    }

    pub(super) async fn dial(&self) -> Result<TlsStream<Socket>, ClientError> {
        let to = self.target();
        let socket = match (&self.proxy, &self.route) {
            (Some(proxy), Route::Name(..) | Route::Addr(_)) => self.through(proxy, &to).await?,
            _ => self.direct().await.map_err(|source| ClientError::Unreachable { to: to.clone(), source })?,
        };
        match tokio::time::timeout(self.timeout, self.tls.connect(self.name.clone(), socket)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(of_tls(&to, &error)
                .unwrap_or_else(|| ClientError::Handshake { to: to.clone(), why: error.to_string() })),
            Err(_) => Err(ClientError::TimedOut { to, after: self.timeout }),
        }
    }

    async fn direct(&self) -> io::Result<Socket> {
        match &self.route {
            Route::Unix(path) => within(self.timeout, crate::server::unix_stream(path)).await,
            Route::Addr(addr) => self.tcp(*addr).await,
            Route::Name(host, port) => self.by_name(host, *port).await,
        }
    }

    async fn by_name(&self, host: &str, port: u16) -> io::Result<Socket> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
        for addr in within(self.timeout, tokio::net::lookup_host((host, port))).await? {
            match self.tcp(addr).await {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn tcp(&self, addr: SocketAddr) -> io::Result<Socket> {
        within(self.timeout, async { prepared(TcpStream::connect(addr).await?) }).await
    }

    async fn through(&self, proxy: &Proxy, to: &str) -> Result<Socket, ClientError> {
        let failed = |why| ClientError::Proxy { proxy: proxy.to_string(), why };
        let mut socket = self
            .by_name(&proxy.address.host, proxy.address.port)
            .await
            .map_err(|error| failed(ProxyProblem::Unreachable(error)))?;
        match tokio::time::timeout(self.timeout, connect(&mut socket, proxy, to)).await {
            Ok(Ok(())) => Ok(socket),
            Ok(Err(why)) => Err(failed(why)),
            Err(_) => Err(failed(ProxyProblem::TimedOut(self.timeout))),
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer")
            .field("route", &self.route)
            .field("proxy", &self.proxy)
            .finish_non_exhaustive()
    }
}

async fn within<T>(timeout: Duration, doing: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(timeout, doing).await.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {} s", timeout.as_secs())))
    })
}

/// Most bytes a proxy may answer before the tunnel begins.
const PROXY_HEAD: usize = 16 * 1024;

async fn connect(socket: &mut Socket, proxy: &Proxy, to: &str) -> Result<(), ProxyProblem> {
    let mut head = Zeroizing::new(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n"));
    if let Some((user, password)) = &proxy.credentials {
        let pair = Zeroizing::new(format!("{user}:{}", password.as_str()));
        let encoded = Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(pair.as_bytes()));
        head.push_str("Proxy-Authorization: Basic ");
        head.push_str(&encoded);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    let broken = |error: io::Error| ProxyProblem::NotAProxy(error.to_string());
    socket.write_all(head.as_bytes()).await.map_err(broken)?;
    // Byte by byte to the blank line: what follows belongs to TLS. It is once a connection.
    let mut answer = Vec::with_capacity(256);
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() == PROXY_HEAD {
            return Err(ProxyProblem::NotAProxy(format!("its answer has more than {PROXY_HEAD} bytes")));
        }
        match socket.read_u8().await {
            Ok(byte) => answer.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ProxyProblem::NotAProxy("it closed the connection".to_owned()));
            }
            Err(error) => return Err(broken(error)),
        }
    }
    let line = String::from_utf8_lossy(&answer);
    let line = line.lines().next().unwrap_or_default();
    let shown = || line.chars().take(120).collect::<String>();
    let rest = line.strip_prefix("HTTP/1.").ok_or_else(|| ProxyProblem::NotAProxy(shown()))?;
    let mut words = rest.splitn(3, ' ').skip(1);
    let status: u16 =
        words.next().and_then(|word| word.parse().ok()).ok_or_else(|| ProxyProblem::NotAProxy(shown()))?;
    match (status, &proxy.credentials) {
        (200..=299, _) => Ok(()),
        (407, None) => Err(ProxyProblem::NoCredentials),
        (407, Some((user, _))) => Err(ProxyProblem::BadCredentials(user.clone())),
        _ => Err(ProxyProblem::Refused {
            to: to.to_owned(),
            status,
            reason: words.next().unwrap_or_default().trim().chars().take(80).collect(),
        }),
    }
}
