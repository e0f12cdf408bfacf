//! Where connections come from: a TCP port or a Unix socket.

use crate::link::Socket;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAddr {
    /// An address.
    Tcp(SocketAddr),
    /// A process on this host.
    Unix {
        /// The account it ran under when it connected.
        uid: u32,
        /// Its process id, where the kernel says.
        pid: Option<i32>,
    },
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix { uid, pid: Some(pid) } => write!(f, "uid {uid} pid {pid}"),
            Self::Unix { uid, pid: None } => write!(f, "uid {uid}"),
        }
    }
}

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The system refused.
    #[error("cannot listen on {what}: {source}")]
    Io {
        /// Address or path.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A path the kernel cannot take.
    #[error("cannot listen on {}: the path of a socket may have at most 107 bytes, this has {}", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// Somebody listens there.
    #[error("cannot listen on {}: another process listens there", .0.display())]
    InUse(PathBuf),
    /// Something else lies there.
    #[error("cannot listen on {}: a file that is not a socket lies there", .0.display())]
    NotASocket(PathBuf),
}

/// A TCP port or a Unix socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket; its file is removed on drop.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Opens a TCP port: `0.0.0.0:8443`, `[::]:8443`, or port 0 for any.
    ///
    /// # Errors
    /// When the address is not one or taken.
    pub async fn tcp(address: &str) -> Result<Self, ListenError> {
        match TcpListener::bind(address).await {
            Ok(listener) => Ok(Self::Tcp(listener)),
            Err(source) => Err(ListenError::Io { what: address.to_owned(), source }),
        }
    }

    /// Opens a Unix socket with a mode (`0o600`, or `0o666` where workers run under other accounts).
    /// A socket that a dead process left is replaced.
    ///
    /// # Errors
    /// When the path is too long, or taken by a living process or another kind of file.
    pub fn unix(path: &Path, mode: u32) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Io { what: path.display().to_string(), source };
        if path.as_os_str().len() > 107 {
            return Err(ListenError::PathTooLong(path.to_owned()));
        }
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.file_type().is_socket() => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(ListenError::InUse(path.to_owned()));
                }
                std::fs::remove_file(path).map_err(failed)?;
            }
            Ok(_) => return Err(ListenError::NotASocket(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
        Ok(Self::Unix(listener, path.to_owned()))
    }

    /// The port, when it is TCP.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// The next connection. One that is gone before it was looked at is no error.
    pub(crate) async fn accept(&self) -> io::Result<(Socket, PeerAddr)> {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, addr)| prepared(stream).map(|socket| (socket, PeerAddr::Tcp(addr)))),
                Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                    let peer = stream.peer_cred()?;
                    Ok((Socket::Unix(stream), PeerAddr::Unix { uid: peer.uid(), pid: peer.pid() }))
                }),
            };
            match accepted {
                Ok(Ok(accepted)) => return Ok(accepted),
                Ok(Err(error)) => tracing::debug!(%error, "a connection went before it was served"),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What every TCP connection has: no waiting to fill packets, and a probe that finds a dead peer.
pub(crate) fn prepared(stream: TcpStream) -> io::Result<Socket> {
    stream.set_nodelay(true)?;
    // Kept out of the way of idle CPU: one probe a minute and connection at most.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, std::time::Duration::from_secs(60))?;
    rustix::net::sockopt::set_tcp_keepintvl(&stream, std::time::Duration::from_secs(20))?;
    rustix::net::sockopt::set_tcp_keepcnt(&stream, 3)?;
    Ok(Socket::Tcp(stream))
}

/// The client's side of a Unix socket.
pub(crate) async fn unix_stream(path: &Path) -> io::Result<Socket> {
    UnixStream::connect(path).await.map(Socket::Unix)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}
