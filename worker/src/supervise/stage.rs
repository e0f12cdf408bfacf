//! The last steps on the way to the worker: everything a process has to do to itself.
//!
//! Standard input is a socket to the shim. One line of it says what to do; what is written back is why that failed; its
//! end without a word means that the worker runs (the socket is closed by the `exec`).

use super::fence;
use polder_api::shim::{Fence, Limits};
use polder_words::{FailureClass, Isolation};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What to become.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stage {
    /// Program and arguments.
    pub(super) command: Vec<String>,
    /// Whether that program is this one: it can be run by descriptor where its path is closed to the account.
    pub(super) same_program: bool,
    /// The shim.
    pub(super) shim: u32,
    /// Its fence.
    pub(super) fence: Fence,
    /// Its limits, those that are a process's own.
    pub(super) limits: Limits,
}

/// Why it cannot become that.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) class: FailureClass,
    pub(super) cause: String,
}

impl Failure {
    pub(super) fn of(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Self {
        Self { class: FailureClass::Infrastructure, cause: format!("{what}: {error}") }
    }
}

/// Becomes the worker, or says why not.
pub(super) fn run() -> ExitCode {
    let mut line = String::new();
    let mut talk = match listen(&mut line) {
        Ok(talk) => talk,
        Err(error) => {
            eprintln!("polder-worker supervise --stage: {error}");
            return ExitCode::FAILURE;
        }
    };
    let failure = match serde_json::from_str::<Stage>(&line) {
        Ok(stage) => become_worker(&stage),
        Err(error) => Failure::of("order", error),
    };
    let _ = serde_json::to_writer(&mut talk, &failure);
    let _ = talk.flush();
    ExitCode::FAILURE
}

/// Takes the order and gives standard input back as nothing; answers with the way to the shim.
fn listen(line: &mut String) -> io::Result<File> {
    io::stdin().lock().read_line(line)?;
    let talk = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(File::from(talk))
}

/// Only comes back when it failed.
fn become_worker(stage: &Stage) -> Failure {
    // From now on it ends with the shim: nothing that nobody watches goes on running.
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return Failure::of("parent death signal", error);
    }
    if rustix::process::getppid().map(Pid::as_raw_pid) != i32::try_from(stage.shim).ok() {
        return Failure::of("shim", "it is gone already");
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(Resource::Core, none);
    if let Some(files) = stage.limits.files {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        if let Err(error) = rustix::process::setrlimit(Resource::Nofile, limit) {
            return Failure::of("limit of open files", error);
        }
    }
    let fenced = match stage.fence.isolation {
        Isolation::Landlock => fence::landlock(&stage.fence),
        Isolation::UserNamespace => fence::user_namespace(&stage.fence),
        // The account was changed when this process was made.
        Isolation::OwnUid | Isolation::None | Isolation::Container => Ok(()),
    };
    if let Err(failure) = fenced.and_then(|()| fence::no_privileges()) {
        return failure;
    }
    let Some((program, arguments)) = stage.command.split_first() else {
        return Failure::of("command", "it is empty");
    };
    let mut error = Command::new(program).args(arguments).exec();
    if stage.same_program
        && error.kind() == io::ErrorKind::PermissionDenied
        && Path::new(program).is_absolute()
    {
        error = Command::new("/proc/self/exe").arg0(program).args(arguments).exec();
    }
    Failure { class: FailureClass::Config, cause: format!("cannot run {program}: {error}") }
}
