//! `polder-worker`: one per job and site, started through the site's own runtime, gone when the job ends.
//!
//! ```text
//! polder-worker run --handover FILE [--orphan-after SECONDS]   enrol with the parent and do the job
//! polder-worker supervise --dir FOLDER                         limit a worker and say how it ended
//! polder-worker exec-trainer PARENT-PID PROGRAM [ARG...]       (internal) become the trainer
//! ```
//! A single binary without dependencies, which the launcher brings along. It talks to its own parent and
//! to nobody else.

mod client;
mod exec;
mod link;
mod log;
mod run;
mod say;
mod server;
mod supervise;

use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let command = args.next();
    let done = match command.as_ref().and_then(|command| command.to_str()) {
        Some("run") => options(args).and_then(|options| run::run(&options)),
        Some("exec-trainer") => exec::exec(args),
        Some("supervise") => return supervise::run(args),
        Some("--version") => {
            println!("polder-worker {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("usage: polder-worker run --handover FILE [--orphan-after SECONDS]");
            return ExitCode::from(2);
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("polder-worker: {error:#}");
        ExitCode::FAILURE
    })
}

fn options(mut args: impl Iterator<Item = std::ffi::OsString>) -> Result<run::Options> {
    let mut handover = None;
    let mut orphan_after = Duration::from_secs(24 * 3600);
    while let Some(name) = args.next() {
        let value = args.next().with_context(|| format!("{} needs a value", name.display()))?;
        match name.to_str() {
            Some("--handover") => handover = Some(PathBuf::from(value)),
            Some("--orphan-after") => {
                let seconds = value.to_str().and_then(|text| text.parse().ok());
                orphan_after = Duration::from_secs(seconds.context("--orphan-after wants whole seconds")?);
            }
            _ => bail!("unknown option {}", name.display()),
        }
    }
    Ok(run::Options { handover: handover.context("--handover is missing")?, orphan_after })
}
