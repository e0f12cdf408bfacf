//! How workers reach their parent, and how files go between them.

use super::launcher::{LauncherConfig, text};
use crate::error::Result;
use crate::value::Fields;
use polder_words::FileWay;
use std::net::IpAddr;

/// The port workers dial where none is named.
pub const WORKER_PORT: u16 = 8102;

/// A TCP port of the parent that workers of other hosts dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPort {
    /// `parent_host`: the name or address workers dial, resolved by the parent at each launch; absent: see
    /// [`LauncherConfig::worker_port`].
    pub host: Option<String>,
    /// `internal_port`. Default 8102.
    pub port: u16,
    /// `internal_listen`: the address to listen on; absent: the one that is dialled.
    pub listen: Option<IpAddr>,
}

impl Default for WorkerPort {
    fn default() -> Self {
        Self { host: None, port: WORKER_PORT, listen: None }
    }
}

impl WorkerPort {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self> {
        let port = match fields.given("internal_port") {
            None => WORKER_PORT,
            Some(at) => u16::try_from(at.count(1, 65535)?).expect("bounded above"),
        };
        let listen = fields
            .given("internal_listen")
            .map(|at| {
                let address = at.text()?.parse().ok();
                address.ok_or_else(|| {
                    at.refuse("is not an address of this host", "such as 10.0.0.1, 0.0.0.0 or ::")
                })
            })
            .transpose()?;
        Ok(Self { host: text(fields, "parent_host")?, port, listen })
    }

    /// Where a port is not needed: only when somebody names it.
    pub(super) fn wanted(fields: &Fields<'_>) -> Result<Option<Self>> {
        let given = |key: &str| fields.given(key).is_some();
        if given("internal_port") || given("parent_host") {
            return Self::read(fields).map(Some);
        }
        match fields.given("internal_listen") {
            Some(at) => {
                Err(at.refuse("says where to listen, but not on which port", "internal_port beside it"))
            }
            None => Ok(None),
        }
    }
}

impl LauncherConfig {
    /// The port workers dial; `None`: they are on this host and dial the parent's socket.
    ///
    /// Where the port names no host, workers of `process` dial `127.0.0.1`, those of `kubernetes` and `slurm` this
    /// host by its name (the pod's address, for a parent in a pod).
    #[must_use]
    pub fn worker_port(&self) -> Option<&WorkerPort> {
        match self {
            Self::Process(process) => process.channel.as_ref(),
            Self::Docker(docker) => docker.channel.as_ref(),
            Self::K8s(k8s) => Some(&k8s.channel),
            Self::Slurm(slurm) => Some(&slurm.channel),
        }
    }

    /// How files go between workers and parent: pods share no folder with it.
    #[must_use]
    pub fn file_way(&self) -> FileWay {
        match self {
            Self::Process(process) => process.files,
            Self::Docker(_) | Self::Slurm(_) => FileWay::Shared,
            Self::K8s(_) => FileWay::Channel,
        }
    }
}
