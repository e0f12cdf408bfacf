//! An HTTP CONNECT proxy as hospitals have them: asks for credentials, cuts idle connections, and, if told
//! so, breaks TLS open with a certificate of its own. It counts what passes.
//!
//! A thread a tunnel and blocking sockets: a test stops it by dropping it.

use base64::Engine as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How the proxy behaves.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    /// User and password it wants, as HTTP basic authentication.
    pub credentials: Option<(String, String)>,
    /// A tunnel over which nothing passed for this long is cut without a word.
    pub cut_idle_after: Option<Duration>,
    /// Answers TLS itself instead of passing it on, as an inspecting proxy does.
    pub intercept: bool,
}

/// What the proxy saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Tunnels opened.
    pub tunnels: AtomicU64,
    /// Requests turned away for their credentials.
    pub refused: AtomicU64,
    /// Tunnels cut for being idle.
    pub cut: AtomicU64,
    /// Bytes towards the server.
    pub up: AtomicU64,
    /// Bytes from the server.
    pub down: AtomicU64,
}

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    behaviour: Behaviour,
    seen: Seen,
    stopped: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    news: (Mutex<()>, Condvar),
}

impl Proxy {
    /// Starts one on a free loopback port.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(behaviour: Behaviour) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            behaviour,
            seen: Seen::default(),
            stopped: AtomicBool::new(false),
            open: Mutex::default(),
            news: Default::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), serving) = (stream, Arc::clone(&accepting)) else { continue };
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        Ok(Self { address, shared })
    }

    /// `127.0.0.1:port`.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it saw so far.
    #[must_use]
    pub fn seen(&self) -> &Seen {
        &self.shared.seen
    }

    /// Waits until what was seen satisfies something.
    ///
    /// # Errors
    /// When the time is over.
    pub fn wait(&self, limit: Duration, wanted: impl Fn(&Seen) -> bool) -> io::Result<()> {
        let end = Instant::now() + limit;
        let mut news = self.shared.news.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !wanted(&self.shared.seen) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{:?}", self.shared.seen)));
            }
            news = self.shared.news.1.wait_timeout(news, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(news);
        Ok(())
    }

    /// Cuts every open tunnel now.
    pub fn cut_all(&self) {
        for stream in self.shared.lock().drain(..) {
            // One that is gone already is cut as well.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.cut_all();
        // Wakes the accepting thread so that it sees the flag.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut client: TcpStream) {
        // A tunnel that breaks is what tests do to each other all the time; nobody to tell.
        let _ = self.tunnel(&mut client);
        let _ = client.shutdown(Shutdown::Both);
        drop(self.news.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.news.1.notify_all();
    }

    fn tunnel(&self, client: &mut TcpStream) -> io::Result<()> {
        let head = read_head(client)?;
        let mut lines = head.split("\r\n");
        let mut request = lines.next().unwrap_or_default().split(' ');
        let (Some("CONNECT"), Some(target)) = (request.next(), request.next()) else {
            return client.write_all(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n");
        };
        let given = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("proxy-authorization").then(|| value.trim().to_owned())
        });
        if let Some((user, password)) = &self.behaviour.credentials {
            let word = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            if given != Some(format!("Basic {word}")) {
                self.seen.refused.fetch_add(1, Ordering::SeqCst);
                return client.write_all(
                    b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic realm=\"hospital\"\r\ncontent-length: 0\r\n\r\n",
                );
            }
        }
        self.seen.tunnels.fetch_add(1, Ordering::SeqCst);
        if self.behaviour.intercept {
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
            return intercept(client, target);
        }
        let mut server = match TcpStream::connect(target) {
            Ok(server) => server,
            Err(_) => return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"),
        };
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        self.lock().extend([client.try_clone()?, server.try_clone()?]);
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
        let result = self.pass(client, &mut server);
        let _ = server.shutdown(Shutdown::Both);
        result
    }

    fn pass(&self, client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
        let limit = self.behaviour.cut_idle_after.map(|limit| Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let (from_client, from_server) = {
                let mut fds = [PollFd::new(&*client, PollFlags::IN), PollFd::new(&*server, PollFlags::IN)];
                if poll(&mut fds, limit.as_ref())? == 0 {
                    self.seen.cut.fetch_add(1, Ordering::SeqCst);
                    return Ok(());
                }
                (!fds[0].revents().is_empty(), !fds[1].revents().is_empty())
            };
            if from_client && !copy(client, server, &mut buffer, &self.seen.up)? {
                return Ok(());
            }
            if from_server && !copy(server, client, &mut buffer, &self.seen.down)? {
                return Ok(());
            }
        }
    }
}

/// False at the end of the stream.
fn copy(from: &mut TcpStream, to: &mut TcpStream, buffer: &mut [u8], count: &AtomicU64) -> io::Result<bool> {
    let n = from.read(buffer)?;
    to.write_all(&buffer[..n])?;
    count.fetch_add(n as u64, Ordering::SeqCst);
    Ok(n > 0)
}

fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 16 * 1024 || stream.read(&mut byte)? == 0 {
            return Err(io::Error::other("no request"));
        }
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Plays the server with a certificate nobody vouches for.
fn intercept(client: &mut TcpStream, target: &str) -> io::Result<()> {
    let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
    let made = rcgen::generate_simple_self_signed([host.to_owned()]).map_err(io::Error::other)?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .map_err(io::Error::other)?;
    let mut session = rustls::ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
    // Ends with the client's refusal of the certificate.
    session.complete_io(client).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (mut from, mut to) = (stream.try_clone().expect("a copy"), stream);
                std::thread::spawn(move || io::copy(&mut from, &mut to));
            }
        });
        address
    }

    fn through(proxy: &Proxy, target: SocketAddr, password: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(proxy.address()).expect("connected");
        let word = base64::engine::general_purpose::STANDARD.encode(format!("site:{password}"));
        write!(stream, "CONNECT {target} HTTP/1.1\r\nproxy-authorization: Basic {word}\r\n\r\n")
            .expect("sent");
        let head = read_head(&mut stream).expect("an answer");
        (stream, head)
    }

    #[test]
    fn credentials_are_wanted_bytes_counted_and_idle_tunnels_cut() {
        let target = echo();
        let proxy = Proxy::start(Behaviour {
            credentials: Some(("site".into(), "right".into())),
            cut_idle_after: Some(Duration::from_millis(200)),
            intercept: false,
        })
        .expect("started");
        let (_, head) = through(&proxy, target, "wrong");
        assert!(head.starts_with("HTTP/1.1 407"), "{head}");
        let (mut stream, head) = through(&proxy, target, "right");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        stream.write_all(b"hello").expect("sent");
        let mut back = [0; 5];
        stream.read_exact(&mut back).expect("an echo");
        assert_eq!(&back, b"hello");
        assert_eq!(stream.read(&mut back).expect("the end"), 0, "cut after its idle time");
        assert_eq!(proxy.seen().cut.load(Ordering::SeqCst), 1);
        assert_eq!(proxy.seen().up.load(Ordering::SeqCst), 5);
        assert_eq!(proxy.seen().refused.load(Ordering::SeqCst), 1);
    }
}
