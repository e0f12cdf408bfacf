//! The port that workers of other hosts dial, where the launcher has one: what it listens on, and what a worker is
//! told to dial. Names are resolved here, at each launch, so that no worker needs a resolver.

use anyhow::Context as _;
use polder_api::worker::Dial;
use polder_core::parent::{LauncherConfig, WorkerPort};
use polder_transport::server::Listener;
use polder_words::Mode;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// How workers of a parent reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// By its socket: they are on this host.
    Socket,
    /// By a port.
    Port {
        /// As configured.
        port: WorkerPort,
        /// Whose setting it is, for messages and defaults.
        mode: Mode,
    },
}

impl Reach {
    /// As `parent.yaml` says.
    pub(crate) fn of(launcher: &LauncherConfig) -> Self {
        match launcher.worker_port() {
            None => Self::Socket,
            Some(port) => Self::Port { port: port.clone(), mode: launcher.mode() },
        }
    }

    /// Opens the port; `None` where the socket is enough.
    pub(crate) async fn listen(&self) -> anyhow::Result<Option<Listener>> {
        let Self::Port { port, mode } = self else { return Ok(None) };
        let at = setting(*mode);
        let tcp = async |address: IpAddr| {
            let address = SocketAddr::from((address, port.port));
            Listener::tcp(&address.to_string()).await.with_context(|| {
                format!(
                    "{at}.internal_listen: workers cannot be listened for; allowed: an address of this host"
                )
            })
        };
        let listener = match (port.listen, mode) {
            (Some(address), _) => tcp(address).await?,
            // A pod has one address and a Service in front of it, which is none of its own.
            (None, Mode::K8s) => match tcp(Ipv6Addr::UNSPECIFIED.into()).await {
                Ok(listener) => listener,
                Err(_) => tcp(Ipv4Addr::UNSPECIFIED.into()).await?,
            },
            (None, _) => {
                let dialled = self.addresses().await?;
                let first = dialled.first().context("nothing to listen on")?;
                tcp(first.ip()).await?
            }
        };
        Ok(Some(listener))
    }

    /// What a worker dials, in order of preference.
    pub(crate) async fn dial(&self, socket: &Path) -> anyhow::Result<Vec<Dial>> {
        if *self == Self::Socket {
            return Ok(vec![Dial::Unix { path: socket.display().to_string() }]);
        }
        let addresses = self.addresses().await?;
        Ok(addresses.iter().map(|address| Dial::Tcp { address: address.to_string() }).collect())
    }

    /// The addresses of the port, as workers reach them; never none.
    async fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let Self::Port { port, mode } = self else { return Ok(Vec::new()) };
        let at = setting(*mode);
        let host = match (&port.host, mode) {
            (Some(host), _) => host.clone(),
            (None, Mode::Process) => Ipv4Addr::LOCALHOST.to_string(),
            (None, _) => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        };
        let found = tokio::net::lookup_host((host.as_str(), port.port)).await.with_context(|| {
            format!("{at}.parent_host: {host:?} has no address; allowed: what workers reach this host by")
        })?;
        // Debian's /etc/hosts gives a host's own name a loopback address, which leads other hosts to themselves.
        let other_hosts = port.host.is_none() && *mode != Mode::Process;
        let mut all: Vec<SocketAddr> = Vec::new();
        for address in found.filter(|address| !(other_hosts && address.ip().is_loopback())) {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        anyhow::ensure!(
            !all.is_empty(),
            "{at}.parent_host: is missing, and this host's name {host} has no address that other hosts reach; \
             allowed: a name or address they reach it by"
        );
        Ok(all)
    }
}

fn setting(mode: Mode) -> String {
    let name = if mode == Mode::K8s { "kubernetes" } else { mode.as_str() };
    format!("parent.yaml: launcher.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(mode: Mode, host: Option<&str>, listen: Option<&str>) -> Reach {
        let listen = listen.map(|text| text.parse().expect("an address"));
        Reach::Port { port: WorkerPort { host: host.map(str::to_owned), port: 1, listen }, mode }
    }

    #[tokio::test]
    async fn what_is_dialled_is_numeric() {
        let socket = Path::new("/s");
        let dial = async |reach: Reach| reach.dial(socket).await.map_err(|error| format!("{error:#}"));
        assert_eq!(dial(Reach::Socket).await, Ok(vec![Dial::Unix { path: "/s".to_owned() }]));
        let tcp = |text: &str| Ok(vec![Dial::Tcp { address: text.to_owned() }]);
        assert_eq!(dial(port(Mode::Process, None, None)).await, tcp("127.0.0.1:1"));
        assert_eq!(dial(port(Mode::Slurm, Some("10.1.2.3"), None)).await, tcp("10.1.2.3:1"));
        assert_eq!(dial(port(Mode::K8s, Some("::1"), None)).await, tcp("[::1]:1"));
        let error = dial(port(Mode::Slurm, Some("no such host"), None)).await.expect_err("no name");
        assert!(error.contains("launcher.slurm.parent_host") && error.contains("no such host"), "{error}");
    }

    #[tokio::test]
    async fn another_hosts_address_cannot_be_listened_on() {
        // TEST-NET-1 is nobody's.
        for reach in [port(Mode::Slurm, Some("192.0.2.1"), None), port(Mode::K8s, None, Some("192.0.2.1"))] {
            let error = format!("{:#}", reach.listen().await.expect_err("not ours"));
            assert!(error.contains("internal_listen") && error.contains("192.0.2.1:1"), "{error}");
        }
        assert!(Reach::Socket.listen().await.expect("nothing to do").is_none());
    }
}
