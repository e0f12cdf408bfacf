//! The connection to an engine, and what its errors mean.

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, Docker};
use polder_launch::Down;
use tokio::sync::Mutex;

/// Seconds the engine may take to begin an answer. Pulling and stopping take longer and are not waited for.
const PATIENCE: u64 = 120;

/// An engine, whether it runs just now or not.
#[derive(Debug)]
pub(crate) struct Engine {
    socket: String,
    /// With the version of the API that was agreed on.
    docker: Mutex<Option<Docker>>,
}

impl Engine {
    pub(crate) fn new(socket: &str) -> Self {
        Self { socket: socket.to_owned(), docker: Mutex::default() }
    }

    /// The client; each request has a connection of its own.
    pub(crate) async fn get(&self) -> Result<Docker, Down> {
        let mut kept = self.docker.lock().await;
        if let Some(docker) = &*kept {
            return Ok(docker.clone());
        }
        let down = |error: Error| Down::now(format!("{}: {error}", self.socket));
        let docker = Docker::connect_with_unix(&self.socket, PATIENCE, API_DEFAULT_VERSION).map_err(down)?;
        // An engine refuses a version it does not know yet.
        let docker = docker.negotiate_version().await.map_err(down)?;
        *kept = Some(docker.clone());
        Ok(docker)
    }

    /// The engine went away: another one may come back.
    pub(crate) async fn forget(&self) {
        *self.docker.lock().await = None;
    }
}

/// What an error says about a request.
pub(crate) enum Trouble {
    /// It never reached the engine.
    NotSent,
    /// The engine answered: status and message.
    Said(u16, String),
    /// Nobody knows.
    Unclear,
}

pub(crate) fn trouble(error: &Error) -> Trouble {
    match error {
        Error::SocketNotFoundError(_) => Trouble::NotSent,
        Error::HyperLegacyError { err } if err.is_connect() => Trouble::NotSent,
        Error::DockerResponseServerError { status_code, message } => {
            Trouble::Said(*status_code, message.clone())
        }
        Error::DockerStreamError { error } => Trouble::Said(500, error.clone()),
        _ => Trouble::Unclear,
    }
}
