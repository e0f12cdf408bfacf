//! The command people type: `polder`.
//!
//! [`run`] is the whole program. Inside: `args` says what may be typed, `commands` does it, `output`
//! prints it, `state` remembers sessions, `server` speaks the user API, `federation` starts a
//! federation on this machine for `demo` and `simulate`.

mod args;
mod commands;
mod federation;
mod job_folder;
mod order;
mod output;
mod provenance;
mod server;
mod state;

use args::Cli;
use clap::Parser as _;
use clap::error::ErrorKind;
use output::{Ending, Failure, Out};
use polder_api::ProblemCode;
use std::ffi::OsString;

/// Runs a command line, the program's name first, and gives the exit code: 0 ok, 1 the job or request
/// failed, 2 usage, 3 not authorised, 4 cannot reach, 5 internal.
pub fn run(line: impl IntoIterator<Item = OsString>) -> u8 {
    let line: Vec<OsString> = line.into_iter().collect();
    let cli = match Cli::try_parse_from(&line) {
        Ok(cli) => cli,
        Err(error) => return misuse(&line, &error),
    };
    let mut out = Out::standard(cli.json);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the system gives a process its event queue");
    let ended = runtime.block_on(Box::pin(commands::run(cli.command, &mut out)));
    // A read of standard input or a name look-up that hangs must not keep the program from ending.
    runtime.shutdown_background();
    end(&mut out, ended)
}

fn end(out: &mut Out, ended: Result<(), Ending>) -> u8 {
    match ended {
        Ok(()) => 0,
        Err(Ending::Said(code)) => code,
        Err(Ending::Closed) => 1,
        Err(Ending::Failure(failure)) => {
            if out.is_json() {
                // A reader that went away needs no error.
                let _ = out.document(&failure.document());
            } else {
                out.note(&format!("error: {}", failure.sentence()));
                if let Some(hint) = &failure.hint {
                    out.note(&format!("hint: {hint}"));
                }
            }
            failure.problem.code.exit_code()
        }
    }
}

/// Wishes of a person or the system that this program end: heard from the moment this is made.
struct Interrupts([tokio::signal::unix::Signal; 3]);

impl Interrupts {
    fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        Self(kinds.map(|kind| signal(kind).expect("signals can be listened to")))
    }

    /// Waits for one.
    async fn wait(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// A command line that clap refuses, or a request for help.
fn misuse(line: &[OsString], error: &clap::Error) -> u8 {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = error.print();
        return 0;
    }
    if line.iter().any(|word| word == "--json") {
        let text = error.render().to_string();
        let sentence = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        let failure = Failure::new(ProblemCode::Usage, sentence);
        return end(&mut Out::standard(true), Err(failure.into()));
    }
    let _ = error.print();
    2
}
