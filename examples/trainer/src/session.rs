//! The trainer's side of `mode: session`: one line of JSON out, one line of JSON back.

use polder_api::trainer::{Reply, Request, SOCKET_VARIABLE};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A connection to the worker.
#[derive(Debug)]
pub struct Session {
    stream: BufReader<UnixStream>,
    /// The site this program runs at.
    pub site: String,
    /// The job.
    pub job: String,
    /// Where models to be sent are written.
    pub out: PathBuf,
}

/// What the trainer is asked to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Round, from 1; 0 for `init`.
    pub round: u32,
    /// How many there will be.
    pub total_rounds: u32,
    /// `train` or `init`.
    pub kind: String,
    /// The model to start from; none for `init`.
    pub model: Option<PathBuf>,
}

fn wrong(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl Session {
    /// Connects to the worker that started this program.
    ///
    /// # Errors
    /// When `POLDER_SOCKET` is not set or nobody answers there.
    pub fn connect() -> io::Result<Self> {
        let socket = std::env::var_os(SOCKET_VARIABLE)
            .ok_or_else(|| wrong(format!("{SOCKET_VARIABLE} is not set: not started by a Polder worker")))?;
        let stream = BufReader::new(UnixStream::connect(Path::new(&socket))?);
        let mut session = Self { stream, site: String::new(), job: String::new(), out: PathBuf::new() };
        match session.ask(&Request::Init)? {
            Reply::Welcome { site, job, out, .. } => {
                (session.site, session.job, session.out) = (site, job, out.into());
                Ok(session)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// When the worker is gone or answers something else than a reply.
    pub fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_str(&answer).map_err(|error| wrong(format!("{answer:?}: {error}")))
    }

    /// Waits for the next task; `None` when there are no more.
    ///
    /// # Errors
    /// When the worker is gone or refuses.
    pub fn receive(&mut self) -> io::Result<Option<Task>> {
        match self.ask(&Request::Receive)? {
            Reply::Task { round, total_rounds, kind, path, .. } => {
                Ok(Some(Task { round, total_rounds, kind, model: path.map(Into::into) }))
            }
            Reply::Done => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Hands in the model of the task last received.
    ///
    /// # Errors
    /// When the worker is gone or refuses it.
    pub fn send(&mut self, model: &Path, weight: f64, metrics: &[(&str, f64)]) -> io::Result<()> {
        let metrics: BTreeMap<_, _> =
            metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let path = model.to_str().ok_or_else(|| wrong("the path is not UTF-8"))?.to_owned();
        self.expect_ok(&Request::Send { path, weight: Some(weight), metrics })
    }

    /// A line for the log.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn log(&mut self, text: impl Into<String>) -> io::Result<()> {
        self.expect_ok(&Request::Log { text: text.into() })
    }

    fn expect_ok(&mut self, request: &Request) -> io::Result<()> {
        match self.ask(request)? {
            Reply::Ok => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(reply: &Reply) -> io::Error {
    match reply {
        Reply::Error { message } => io::Error::other(message.clone()),
        other => wrong(format!("unexpected answer of the worker: {other:?}")),
    }
}
