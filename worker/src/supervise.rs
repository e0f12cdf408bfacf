//! The shim: it outlives the parent, starts the worker inside its limits and its fence, and says how it ended.
//!
//! ```text
//! parent --spawn--> shim --spawn--> stage --exec--> worker --> trainer
//!                   |  own session  | group, limits, Landlock or account, no new privileges
//!                   |  subreaper    | dies with the shim
//!                   '- files of the attempt's folder, see polder_api::shim
//! ```
//!
//! One thread and one `poll`: the shim costs nothing while the worker runs. It takes the attempt by making `shim.json`,
//! which succeeds once, so a parent that was killed and asks again can never have two of them. The stage is this program
//! once more, because everything that a process must do to itself before it becomes the worker needs a process.

mod fence;
mod files;
mod groups;
mod log;
mod shim;
mod stage;
mod tree;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Runs to the end of the worker: `--dir FOLDER`, or `--stage` to become the worker that standard input describes.
pub(crate) fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    match (args.next().as_ref().and_then(|name| name.to_str()), args.next(), args.next()) {
        (Some("--dir"), Some(dir), None) => match shim::run(Path::new(&dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("polder-worker supervise: {}: {error}", dir.display());
                ExitCode::FAILURE
            }
        },
        (Some("--stage"), None, None) => stage::run(),
        _ => {
            eprintln!("usage: polder-worker supervise --dir FOLDER");
            ExitCode::from(2)
        }
    }
}
