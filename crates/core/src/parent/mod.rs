//! `parent.yaml`: what a site (or the server) says about itself to its own parent.
//!
//! One file for both roles. Paths are kept as written and are relative to the folder of the file; see
//! [`ParentConfig::resolve`]. FLARE's names of launcher settings are accepted where Polder's differ, so that
//! settings can be moved over without renaming.

pub(crate) use launcher::directive;

mod channel;
mod launcher;
mod print;

pub use channel::{WORKER_PORT, WorkerPort};

pub use launcher::{
    Devices, DockerLauncher, IsolationRequired, K8sLauncher, LauncherConfig, ProcessLauncher, Pull,
    SlurmLauncher,
};

use crate::error::Result;
use crate::launcher::SlurmSandbox;
use crate::study_runtime::{Files, Reading};
use crate::value::{At, from_bytes, to_yaml};
use polder_words::{Mode, Role, SiteName};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file's usual name.
pub const FILE: &str = "parent.yaml";
/// How often a worker that died of no fault of its own is started again.
pub const MAX_RESTARTS: u32 = 2;
/// The port of the server.
pub const PORT: u16 = 8443;

/// The server's address, `https://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerUrl {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// 8443 when the address names none.
    pub port: u16,
}

impl ServerUrl {
    /// Reads `https://host`, `https://host:port` or `https://[v6]:port`; a slash may follow.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = host_and_port(text.strip_prefix("https://")?, PORT)?;
        Some(Self { host, port })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", join_host(&self.host, self.port))
    }
}

/// An HTTP proxy that tunnels with CONNECT.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ProxyUrl {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    /// 3128 when the address names none.
    pub port: u16,
    /// User and password, when it wants them; never printed in debug output.
    pub credentials: Option<(String, String)>,
}

impl ProxyUrl {
    /// Reads `http://[user:password@]host[:port]`; user and password may hold `%XX`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("http://")?;
        let (credentials, rest) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((user, rest)) => {
                let (user, password) = user.split_once(':')?;
                (Some((percent_decode(user)?, percent_decode(password)?)), rest)
            }
        };
        let (host, port) = host_and_port(rest, 3128)?;
        Some(Self { host, port, credentials })
    }

    /// With the password; for printing the file back.
    #[must_use]
    pub fn to_text(&self) -> String {
        let user = self
            .credentials
            .as_ref()
            .map(|(user, password)| format!("{}:{}@", percent_encode(user), percent_encode(password)));
        format!("http://{}{}", user.unwrap_or_default(), join_host(&self.host, self.port))
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.credentials.as_ref().map(|(user, _)| format!("{}:***@", percent_encode(user)));
        write!(f, "http://{}{}", user.unwrap_or_default(), join_host(&self.host, self.port))
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn join_host(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
    if host.is_empty() || host.len() > 253 || !host.chars().all(good) {
        return None;
    }
    let port = match port {
        None => default,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port > 0)?
        }
        Some(_) => return None,
    };
    Some((host.to_owned(), port))
}

fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |b: Option<u8>| char::from(b?).to_digit(16);
            let code = digit(bytes.next())? * 16 + digit(bytes.next())?;
            out.push(u8::try_from(code).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok().filter(|text| !text.contains(['\0', '\r', '\n']))
}

fn percent_encode(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

/// How long things may be silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// How long a request waits for news before it is answered without; below what proxies cut. Default 25 s.
    pub poll: Duration,
    /// How often a site and a worker say that they are there. Default 10 s.
    pub heartbeat: Duration,
    /// After what silence a site counts as not connected. Default 60 s.
    pub lost_after: Duration,
}

impl Default for Idle {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(25),
            heartbeat: Duration::from_secs(10),
            lost_after: Duration::from_secs(60),
        }
    }
}

/// `parent.yaml`.
#[derive(Debug, Clone, PartialEq)]
pub struct ParentConfig {
    /// The site's name in the federation; for the server, its host name there.
    pub name: SiteName,
    /// `server`, or `client` for a site.
    pub role: Role,
    /// Where the server is; a site's.
    pub server: Option<ServerUrl>,
    /// Where the server listens. Default `0.0.0.0:8443`.
    pub listen: Option<SocketAddr>,
    /// The folder made by `polder provision`. Default `kit`.
    pub kit: PathBuf,
    /// Everything the parent writes. Default `state`.
    pub state: PathBuf,
    /// Default `local/study_runtime.yaml`.
    pub study_runtime: PathBuf,
    /// Default `local/authorization.json`; FLARE's defaults apply when it is not there.
    pub authorization: PathBuf,
    /// What workers are started with.
    pub launcher: LauncherConfig,
    /// Whether a job may bring its image. Default yes (it then counts as bringing code).
    pub job_images: bool,
    /// How often a worker that died of no fault of its own is started again. Default 2.
    pub max_restarts: u32,
    /// How a site reaches the server, when not directly.
    pub proxy: Option<ProxyUrl>,
    /// How long things may be silent.
    pub idle: Idle,
}

const KEYS: [&str; 13] = [
    "name",
    "role",
    "server",
    "listen",
    "kit",
    "state",
    "study_runtime",
    "authorization",
    "launcher",
    "job_images",
    "max_restarts",
    "proxy",
    "idle",
];

impl ParentConfig {
    /// Reads `parent.yaml`.
    ///
    /// # Errors
    /// When it is not YAML, a key is unknown or missing, or a value is not allowed.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let value = from_bytes(file, bytes)?;
        Self::read(&At::root(file, &value))
    }

    fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&KEYS)?;
        let name = fields.need("name", "the site's name")?.name()?;
        let role = fields
            .given("role")
            .map(|role| {
                role.word(&[("site", Role::Client), ("client", Role::Client), ("server", Role::Server)])
            })
            .transpose()?
            .unwrap_or(Role::Client);
        let foreign = |key: &str, what: &str| match fields.given(key) {
            Some(at) => Err(at.refuse(&format!("is only for {what}"), "nothing")),
            None => Ok(()),
        };
        let (mut server, mut listen) = (None, None);
        match role {
            Role::Client => {
                foreign("listen", "role: server")?;
                let at = fields.need("server", "https://host:port")?;
                let url = ServerUrl::parse(at.text()?);
                server = Some(url.ok_or_else(|| at.refuse("is not an address", "https://host:port"))?);
            }
            Role::Server => {
                foreign("server", "sites")?;
                foreign("proxy", "sites")?;
                listen = Some(match fields.given("listen") {
                    None => SocketAddr::from(([0, 0, 0, 0], PORT)),
                    Some(at) => at.text()?.parse().map_err(|_| {
                        at.refuse("is not an address to listen on", "such as 0.0.0.0:8443 or [::]:8443")
                    })?,
                });
            }
        }
        let proxy = fields
            .given("proxy")
            .map(|at| {
                let url = ProxyUrl::parse(at.text()?);
                // The value is not repeated: it may hold a password.
                url.ok_or_else(|| {
                    at.refuse_showing("", "is not an address of a proxy", "http://[user:password@]host:port")
                })
            })
            .transpose()?;
        let path = |key: &str, default: &str| match fields.given(key) {
            None => Ok(PathBuf::from(default)),
            Some(at) => at.clean_text().map(PathBuf::from),
        };
        Ok(Self {
            name,
            role,
            server,
            listen,
            kit: path("kit", "kit")?,
            state: path("state", "state")?,
            study_runtime: path("study_runtime", "local/study_runtime.yaml")?,
            authorization: path("authorization", "local/authorization.json")?,
            launcher: LauncherConfig::read(&fields.need("launcher", launcher::ONE_OF)?)?,
            job_images: fields.given("job_images").map_or(Ok(true), |at| at.bool())?,
            max_restarts: fields.given("max_restarts").map_or(Ok(MAX_RESTARTS), |at| at.count(0, 1000))?,
            proxy,
            idle: fields.given("idle").map_or_else(|| Ok(Idle::default()), |at| read_idle(&at))?,
        })
    }

    /// What the launcher is.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.launcher.mode()
    }

    /// How Slurm steps are closed off where a study does not say; `none` for other launchers.
    #[must_use]
    pub fn slurm_sandbox(&self) -> SlurmSandbox {
        match &self.launcher {
            LauncherConfig::Slurm(slurm) => slurm.sandbox,
            _ => SlurmSandbox::None,
        }
    }

    /// How this site reads its study file; `files` are those beside it.
    #[must_use]
    pub fn reading<'a>(&self, files: &'a dyn Files) -> Reading<'a> {
        let pyxis_pulls = matches!(&self.launcher, LauncherConfig::Slurm(slurm) if slurm.pyxis_pulls);
        Reading { mode: self.mode(), files, pyxis_pulls }
    }

    /// A path of this file: relative ones are beside the file.
    #[must_use]
    pub fn resolve(folder_of_file: &Path, path: &Path) -> PathBuf {
        folder_of_file.join(path)
    }
}

impl fmt::Display for ParentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_yaml(&self.to_value()))
    }
}

fn read_idle(at: &At<'_>) -> Result<Idle> {
    let fields = at.fields(&["poll", "heartbeat", "lost_after"])?;
    let mut out = Idle::default();
    for (key, slot) in
        [("poll", &mut out.poll), ("heartbeat", &mut out.heartbeat), ("lost_after", &mut out.lost_after)]
    {
        if let Some(at) = fields.given(key) {
            *slot = at.duration()?;
            if slot.is_zero() {
                return Err(at.refuse("is no time at all", "more than 0s"));
            }
        }
    }
    if out.lost_after <= out.heartbeat {
        return Err(at.refuse_below(
            "lost_after",
            &crate::time::print(out.lost_after),
            "is not longer than `heartbeat`",
            &format!("more than {}", crate::time::print(out.heartbeat)),
        ));
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
