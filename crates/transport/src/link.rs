//! The byte streams beneath HTTP: a socket (TCP or Unix), TLS on it, and what both need beyond that.

use rustix::net::RecvFlags;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep};

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Whether there is nothing to read and no end, asked of the kernel: what tokio knows of a socket that
    /// nobody waits for may be old.
    fn is_silent(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut byte = [0_u8];
        let seen = match self {
            Self::Tcp(socket) => rustix::net::recv(socket, &mut byte, flags),
            Self::Unix(socket) => rustix::net::recv(socket, &mut byte, flags),
        };
        matches!(seen, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
    }
}

/// Whether a kept connection is still whole: asked just before it is used again.
pub(crate) trait Silent {
    /// Nothing came while it was idle: no byte, no end, no reset.
    fn is_silent(&self) -> bool;
}

impl Silent for tokio_rustls::client::TlsStream<Socket> {
    fn is_silent(&self) -> bool {
        self.get_ref().0.is_silent()
    }
}

impl Silent for tokio_rustls::server::TlsStream<Socket> {
    fn is_silent(&self) -> bool {
        self.get_ref().0.is_silent()
    }
}

macro_rules! on_socket {
    ($self:ident, $socket:ident => $call:expr) => {
        match $self.get_mut() {
            Socket::Tcp($socket) => $call,
            Socket::Unix($socket) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, socket => Pin::new(socket).poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_socket!(self, socket => Pin::new(socket).poll_write(cx, buf))
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_socket!(self, socket => Pin::new(socket).poll_write_vectored(cx, bufs))
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, socket => Pin::new(socket).poll_flush(cx))
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self, socket => Pin::new(socket).poll_shutdown(cx))
    }
}

/// A TLS stream as hyper sees it: several records a read, and no write that waits for ever.
#[derive(Debug)]
pub(crate) struct Link<S> {
    stream: S,
    /// An error that came after bytes that were still handed out.
    late: Option<io::Error>,
    /// How long a write may make no progress.
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Set while somebody asks whether this idle connection can be used.
    probe: Arc<AtomicBool>,
}

impl<S> Link<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, late: None, patience, stalled: None, probe: Arc::default() }
    }

    /// The switch of the probe.
    pub(crate) fn probe(&self) -> Arc<AtomicBool> {
        self.probe.clone()
    }

    /// Called with every outcome of a write: starts the clock when it must wait, stops it when it need not.
    fn watch<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let patience = self.patience;
        let stalled =
            self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("the other side took no bytes for {} s", patience.as_secs()),
        )))
    }
}

impl<S: AsyncRead + Silent + Unpin> AsyncRead for Link<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(error) = this.late.take() {
            return Poll::Ready(Err(error));
        }
        let start = buf.filled().len();
        // A TLS stream gives one record (16 KiB) a call; hyper is handed as many as are there, so that
        // a large body moves in large pieces.
        loop {
            let before = buf.filled().len();
            match Pin::new(&mut this.stream).poll_read(cx, buf) {
                Poll::Pending if before == start => {
                    if this.probe.load(Ordering::Relaxed) && !this.stream.is_silent() {
                        let why = "the other side ended it while it was idle";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, why)));
                    }
                    return Poll::Pending;
                }
                Poll::Pending => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) if before == start => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => {
                    this.late = Some(error);
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => {
                    if buf.filled().len() == before || buf.remaining() == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Link<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.watch(cx, outcome)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.watch(cx, outcome)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_flush(cx);
        this.watch(cx, outcome)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.watch(cx, outcome)
    }
}
