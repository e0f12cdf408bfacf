//! From native states to what the ledger needs: pure.

use crate::record::ExitRecord;
use crate::script::{MISSING, OUTSIDE, RESTARTED};
use crate::slurm::Job;
use polder_launch::{Exit, Native, Time};
use polder_words::{FailureClass, Outcome};

/// What the parent did with a launch, from its folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// It was released.
    pub released: bool,
    /// It was told to end, and why.
    pub asked: Option<String>,
    /// What the script left at its end.
    pub exit: Option<ExitRecord>,
}

/// Base states in which a job waits.
const WAITING: [&str; 6] =
    ["PENDING", "CONFIGURING", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "REQUEUED"];
/// Base states and flags in which a job has a node.
const RUNNING: [&str; 6] = ["RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "COMPLETING"];

/// The reason of a job that Slurm put on hold by itself because no node of its partition will do. A held submission is not
/// looked at, so an impossible request is found out when it is released (seen with 22.05).
const NEVER: &str = "BadConstraints";

/// A job's state for the ledger; `None` when Slurm says what nobody here knows, which is never an end.
#[must_use]
pub fn native(job: &Job, known: &Known, now: Time) -> Option<Native> {
    let has = |names: &[&str]| {
        names.contains(&job.state.as_str()) || job.flags.iter().any(|flag| names.contains(&flag.as_str()))
    };
    let seconds = |time: u64| Time(time.saturating_mul(1000));
    if has(&WAITING) {
        if job.held && !known.released && job.state == "PENDING" {
            return Some(Native::Waiting);
        }
        if known.released && job.held && job.reason == NEVER {
            let text = format!("no node can ever run this ({NEVER})");
            return Some(Native::Exited(Exit {
                outcome: Outcome::failed(FailureClass::Resources, text),
                at: now,
            }));
        }
        return Some(Native::Pending { reason: reason(job, now) });
    }
    if has(&RUNNING) {
        let since = if job.start == 0 { now } else { seconds(job.start) };
        return Some(Native::Running { since });
    }
    let outcome = outcome(job, known)?;
    let at = if job.end == 0 { now } else { seconds(job.end) };
    Some(Native::Exited(Exit { outcome, at }))
}

/// `Priority, start in 2 h 10 min`.
fn reason(job: &Job, now: Time) -> String {
    let why = match job.reason.as_str() {
        "" | "None" => job.state.clone(),
        reason => reason.to_owned(),
    };
    let seconds = job.start.saturating_sub(now.0 / 1000);
    if job.start == 0 || seconds == 0 {
        return why;
    }
    let (hours, minutes) = (seconds / 3600, seconds % 3600 / 60);
    match (hours, minutes) {
        (0, 0) => format!("{why}, start in {seconds} s"),
        (0, _) => format!("{why}, start in {minutes} min"),
        _ => format!("{why}, start in {hours} h {minutes} min"),
    }
}

/// The end of a job; `None` for states that are none.
fn outcome(job: &Job, known: &Known) -> Option<Outcome> {
    let state = job.state.as_str();
    let because = |text: &str| match job.reason.as_str() {
        "" | "None" => text.to_owned(),
        reason => format!("{text} ({reason})"),
    };
    let class = match state {
        "COMPLETED" => return Some(Outcome::Completed),
        "FAILED" => return Some(failed(job.exit_code, job.signal, known)),
        "CANCELLED" => match &known.asked {
            Some(why) => return Some(Outcome::failed(FailureClass::Aborted, format!("{why} (CANCELLED)"))),
            None => FailureClass::Infrastructure,
        },
        "TIMEOUT" | "DEADLINE" => FailureClass::Timeout,
        "OUT_OF_MEMORY" => FailureClass::OutOfMemory,
        "PREEMPTED" => FailureClass::Preempted,
        "NODE_FAIL" | "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL" | "REVOKED" => {
            FailureClass::Infrastructure
        }
        _ => return None,
    };
    Some(Outcome::failed(class, because(state)))
}

/// The end of the script: its own refusals first.
fn failed(code: u32, signal: u32, known: &Known) -> Outcome {
    if let Some(why) = &known.asked {
        return Outcome::failed(FailureClass::Aborted, format!("{why} (exit {code})"));
    }
    if signal > 0 {
        return Outcome::failed(FailureClass::Infrastructure, format!("signal {signal}"));
    }
    let setup = known.exit.as_ref().is_some_and(|exit| exit.stage == "setup");
    let is = |own: i32| i64::from(code) == i64::from(own);
    let (class, cause) = if is(RESTARTED) {
        (FailureClass::Infrastructure, "Slurm started the job again, which a launch refuses".to_owned())
    } else if is(OUTSIDE) {
        (FailureClass::Config, "the node did not take the step into the study".to_owned())
    } else if is(MISSING) {
        (FailureClass::Config, "the node lacks a program that the sandbox needs".to_owned())
    } else if setup {
        (FailureClass::Config, format!("setup of the site ended with exit {code}"))
    } else {
        (FailureClass::Infrastructure, format!("exit {code}"))
    };
    Outcome::failed(class, cause)
}

/// The end of a job that Slurm does not remember any more, from what its script left.
#[must_use]
pub fn remembered(known: &Known) -> Option<Exit> {
    let exit = known.exit.as_ref()?;
    let outcome = match u32::try_from(exit.code) {
        Ok(0) => Outcome::Completed,
        // The shell's way to say that a signal ended what it ran.
        Ok(code) => {
            failed(code, code.checked_sub(128).filter(|signal| (1..=64).contains(signal)).unwrap_or(0), known)
        }
        Err(_) => return None,
    };
    Some(Exit { outcome, at: Time(exit.at.saturating_mul(1000)) })
}
