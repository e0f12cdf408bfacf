//! Where the programs under test lie, and running them so that nothing hangs.

use crate::process::Process;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A command that takes longer than this hangs.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The folder of the programs: beside this test's own binary, of the same profile, or the folder that
/// `POLDER_PROGRAMS` names (the benchmark measures a release build).
///
/// # Panics
/// When this program's own path cannot be told.
#[must_use]
pub fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("POLDER_PROGRAMS") {
        return folder.into();
    }
    let this = std::env::current_exe().expect("a program knows its path");
    let mut folder = this.parent().expect("a program lies in a folder");
    if folder.ends_with("deps") || folder.ends_with("examples") {
        folder = folder.parent().expect("cargo's folder lies in a profile's");
    }
    folder.to_owned()
}

/// Path of one program.
///
/// # Panics
/// When it has not been built: `cargo build --workspace --bins` comes first.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let path = folder().join(name);
    assert!(path.is_file(), "{} is not built; run `cargo build --workspace --bins`", path.display());
    path
}

/// What a finished command left.
#[derive(Debug, Clone)]
pub struct Said {
    /// Exit code; absent when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// As typed, for messages.
    pub command: String,
}

impl Said {
    /// Itself, when the exit code is 0.
    ///
    /// # Panics
    /// Otherwise, with everything it said.
    #[must_use]
    #[track_caller]
    pub fn ok(self) -> Self {
        self.with_code(0)
    }

    /// Itself, when the exit code is this one.
    ///
    /// # Panics
    /// Otherwise, with everything it said.
    #[must_use]
    #[track_caller]
    pub fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n-- out:\n{}\n-- err:\n{}", self.command, self.out, self.err);
        self
    }

    /// The whole output as one JSON document.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{}: {error} in {:?}; err: {}", self.command, self.out, self.err))
    }

    /// The last line of the output as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    #[track_caller]
    pub fn last_json(&self) -> serde_json::Value {
        let line = self.out.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error} in {line:?}", self.command))
    }
}

/// Runs a command to its end, at most for [`LIMIT`].
///
/// # Panics
/// When it cannot be started or takes longer (it is killed then).
#[must_use]
#[track_caller]
pub fn run(command: &mut Command) -> Said {
    run_within(command, LIMIT)
}

/// Runs a command to its end, at most for `limit`.
///
/// # Panics
/// When it cannot be started or takes longer (it is killed then).
#[must_use]
#[track_caller]
pub fn run_within(command: &mut Command, limit: Duration) -> Said {
    let shown = show(command);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{shown}: {error}"));
    let process = Process::of(child.id()).expect("a child that nobody has reaped is there");
    // Both outputs have to be read while it runs, or a full pipe would block it.
    let reader = std::thread::spawn(move || child.wait_with_output());
    let in_time = process.ended_within(limit);
    if !in_time {
        // It may end by itself this very moment.
        let _ = process.kill();
    }
    let Output { status, stdout, stderr } =
        reader.join().expect("reading does not panic").expect("its output");
    let said = Said {
        code: status.code(),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
        command: shown,
    };
    assert!(
        in_time,
        "{} took longer than {limit:?}\n-- out:\n{}\n-- err:\n{}",
        said.command, said.out, said.err
    );
    said
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Reads to the end what is there; for logs of processes that may still write.
///
/// # Errors
/// When the file cannot be read.
pub fn read_lossy(path: &std::path::Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
