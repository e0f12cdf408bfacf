//! A relay between client and server: a CONNECT proxy or a plain wire, which can be cut.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use base64::Engine as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub struct Proxy {
    pub addr: SocketAddr,
    pub shared: Arc<Shared>,
}

pub struct Shared {
    target: SocketAddr,
    /// `user:password`, when it is a CONNECT proxy that wants them.
    credentials: Option<String>,
    connect: bool,
    pub connections: AtomicUsize,
    open: AtomicUsize,
    /// What CONNECT asked for, last.
    pub asked: Mutex<String>,
    /// Bytes to the server and back.
    pub up: AtomicU64,
    pub down: AtomicU64,
    /// The connection that carries this many bytes in one direction is cut, once.
    pub budget: AtomicU64,
    cut: Mutex<CancellationToken>,
}

impl Proxy {
    pub async fn wire(target: SocketAddr) -> Self {
        Self::start(target, false, None).await
    }

    pub async fn connect(target: SocketAddr, credentials: Option<&str>) -> Self {
        Self::start(target, true, credentials.map(str::to_owned)).await
    }

    async fn start(target: SocketAddr, connect: bool, credentials: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target,
            credentials,
            connect,
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            asked: Mutex::default(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            budget: AtomicU64::new(u64::MAX),
            cut: Mutex::default(),
        });
        let inner = shared.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(inner.clone().serve(socket));
            }
        });
        Self { addr, shared }
    }

    /// Cuts every connection there is; they are closed when this returns.
    pub async fn cut(&self) {
        std::mem::take(&mut *self.shared.cut.lock().unwrap()).cancel();
        while self.shared.open.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, mut socket: TcpStream) {
        self.connections.fetch_add(1, Ordering::SeqCst);
        if self.connect && !self.greet(&mut socket).await {
            return;
        }
        let cut = self.cut.lock().unwrap().clone();
        let server = TcpStream::connect(self.target).await.unwrap();
        let (client_read, client_write) = socket.into_split();
        let (server_read, server_write) = server.into_split();
        self.open.fetch_add(1, Ordering::SeqCst);
        tokio::select! {
            () = cut.cancelled() => {}
            () = self.pump(client_read, server_write, &self.up) => {}
            () = self.pump(server_read, client_write, &self.down) => {}
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    async fn pump(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        count: &AtomicU64,
    ) {
        let mut buffer = vec![0; 32 * 1024];
        let mut carried = 0;
        loop {
            let Ok(n @ 1..) = from.read(&mut buffer).await else { return };
            if to.write_all(&buffer[..n]).await.is_err() {
                return;
            }
            count.fetch_add(n as u64, Ordering::SeqCst);
            carried += n as u64;
            if carried > self.budget.load(Ordering::SeqCst) {
                self.budget.store(u64::MAX, Ordering::SeqCst);
                return;
            }
        }
    }

    async fn greet(&self, socket: &mut TcpStream) -> bool {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let target = head.strip_prefix("CONNECT ").unwrap().split(' ').next().unwrap();
        target.clone_into(&mut self.asked.lock().unwrap());
        if let Some(credentials) = &self.credentials {
            let encoded = base64::engine::general_purpose::STANDARD.encode(credentials);
            if !head.contains(&format!("\r\nProxy-Authorization: Basic {encoded}\r\n")) {
                let answer = "HTTP/1.1 407 Proxy Authentication Required\r\n\
                              Proxy-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n";
                socket.write_all(answer.as_bytes()).await.unwrap();
                return false;
            }
        }
        if target.starts_with("forbidden") {
            socket.write_all(b"HTTP/1.1 403 Forbidden by policy\r\n\r\n").await.unwrap();
            return false;
        }
        socket.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
        true
    }
}
