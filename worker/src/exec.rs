//! Becoming the trainer: the last step before `exec`, in the process that will be it.
//!
//! A trainer must not outlive its worker: a new attempt would then run beside it on the same data and
//! devices. The kernel is asked to kill it when the worker's process ends, however that happens.

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// `PARENT-PID PROGRAM [ARG...]`: returns only when it fails.
pub(crate) fn exec(mut args: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    let parent = args.next().and_then(|pid| pid.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let program = args.next().context("no program")?;
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie the trainer to its worker")?;
    // Asked after the request to the kernel: a worker that died before it is noticed here.
    if parent.is_none() || getppid() != parent {
        bail!("the worker is gone");
    }
    let error = Command::new(&program).args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
