//! What a row becomes when something is seen, and what is to be done next. Pure: no clock, no I/O, no lock.
//!
//! [`Row`] is what is on disk. [`Mind`] is what only this run of the parent knows and may forget: it only ever makes
//! the ledger more careful (an empty mind asks the backend before it sends anything).

use crate::clock::Time;
use crate::launcher::{Cause, Down, End, Exit, LaunchError, Native, NativeId, Plan, Proof, Refusal};
use crate::row::{Past, Row, State, Stop, Unknown, Why, Word};
use polder_words::{FailureClass, Outcome};
use std::time::Duration;

/// After an unclear request: how long it may still be on its way before the backend is asked.
const SETTLE: Duration = Duration::from_millis(500);
/// Between TERM and KILL when a worker is ended by force.
const FORCE: Duration = Duration::from_secs(5);
/// When an end that was asked for does not come, it is asked for again after this.
const AGAIN: Duration = Duration::from_secs(10);
/// A worker that said how it ended has this long to exit.
const LINGER: Duration = Duration::from_secs(30);
/// Removals that may fail before a new attempt is made nevertheless (what is left is dead).
const REMOVALS: u32 = 3;
/// Attempts that provably never came to be, before the launch is given up.
const STILLBORN: usize = 8;

/// What this run of the parent knows about the current attempt besides the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mind {
    /// Whether a native request of this attempt was sent.
    pub sent: Sent,
    /// Whether `start` went through.
    pub started: bool,
    /// When `end` went through last.
    pub ended: Option<Time>,
    /// Whether the backend must be asked before anything else.
    pub suspect: bool,
    /// Failures in a row, for the back-off.
    pub failures: u32,
    /// Nothing is tried before.
    pub not_before: Option<Time>,
}

/// Whether a native request was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// The row was written by this run and nothing was sent since.
    Never,
    /// By an earlier run, or with an unclear end.
    Maybe,
    /// It was, or not, but nothing is there and nothing can come any more.
    Gone(Proof),
}

impl Mind {
    /// Of a row that was read from disk.
    #[must_use]
    pub fn reborn() -> Self {
        Self { sent: Sent::Maybe, ..Self::fresh() }
    }

    /// Of a row that this run makes.
    #[must_use]
    pub fn fresh() -> Self {
        Self { sent: Sent::Never, started: false, ended: None, suspect: false, failures: 0, not_before: None }
    }

    fn back_off(&mut self, now: Time) {
        let steps = self.failures.min(6);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now.plus(Duration::from_millis(200) * 2u32.pow(steps)));
    }

    fn well(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }
}

/// Something that became known about the current attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// The backend shows it.
    Native(NativeId, Native),
    /// It is not there and cannot come any more.
    Gone(Proof),
    /// The backend cannot say.
    Unsure(Cause),
    /// A full list did not have it: ask.
    Missing,
    /// `prepare` came back.
    Prepared(Result<NativeId, LaunchError>),
    /// `start` came back.
    Started(Result<(), LaunchError>),
    /// `end` came back.
    Ended(Result<(), LaunchError>),
    /// `remove` came back.
    Removed(Result<(), LaunchError>),
    /// It shall end.
    Stop(Stop),
    /// The worker's own word.
    Word(Outcome),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Send the native request.
    Prepare,
    /// Let it run.
    Start(NativeId),
    /// Ask the backend.
    Find,
    /// End it.
    End(End),
    /// Remove what is left.
    Remove,
    /// Make the next attempt: [`renew`].
    Renew,
    /// Give up a launch of which nothing native exists: [`withdraw`].
    Withdraw,
    /// Decide that it shall end: [`Seen::Stop`].
    Stop(Stop),
    /// Nothing, until something is seen or this time has come.
    Wait(Option<Time>),
}

/// Takes in what was seen.
pub fn observe(row: &mut Row, mind: &mut Mind, seen: Seen, now: Time) {
    match seen {
        Seen::Stop(stop) => ask_to_stop(row, stop),
        Seen::Word(outcome) => {
            if row.is_live() && row.word.is_none() {
                row.word = Some(Word { at: now, outcome });
            }
        }
        Seen::Removed(Ok(())) => {
            if let State::Exited { removed, .. } = &mut row.state {
                *removed = true;
                mind.well();
            }
        }
        Seen::Removed(Err(_)) => mind.back_off(now),
        Seen::Ended(Ok(())) => {
            mind.ended = Some(now);
            mind.well();
        }
        Seen::Ended(Err(error)) => unclear(row, mind, &error, now),
        // What comes in late about an attempt that has ended changes nothing.
        _ if !row.is_live() => {}
        Seen::Native(native, state) => sighted(row, mind, native, state, now),
        Seen::Gone(proof) => {
            row.unknown = None;
            mind.suspect = false;
            mind.well();
            if matches!(row.state, State::Planned { .. }) {
                mind.sent = Sent::Gone(proof);
            } else {
                let native = row.native().cloned();
                let lost = Outcome::failed(FailureClass::Lost, proof.0);
                conclude(row, mind, native, now, now, &lost);
            }
        }
        Seen::Unsure(cause) => {
            mind.suspect = true;
            unknown(row, now, cause);
            mind.back_off(now);
        }
        Seen::Missing => mind.suspect = true,
        Seen::Prepared(Ok(native)) => {
            if matches!(row.state, State::Planned { .. }) {
                row.state = State::Submitted { native, since: now };
                row.unknown = None;
                mind.well();
            }
        }
        Seen::Prepared(Err(error)) => match error {
            _ if !matches!(row.state, State::Planned { .. }) => {}
            LaunchError::Refused(refusal) => conclude(row, mind, None, now, now, &refusal.outcome()),
            LaunchError::NotSent(_) => unclear(row, mind, &error, now),
            LaunchError::Unclear(_) => {
                mind.sent = Sent::Maybe;
                unclear(row, mind, &error, now);
                mind.not_before = mind.not_before.max(Some(now.plus(SETTLE)));
            }
        },
        Seen::Started(Ok(())) => {
            mind.started = true;
            row.unknown = None;
            mind.well();
        }
        Seen::Started(Err(LaunchError::Refused(refusal))) => {
            let why = Why::Refused { outcome: refusal.outcome() };
            ask_to_stop(row, Stop { at: now, grace_ms: 0, why });
        }
        Seen::Started(Err(error)) => unclear(row, mind, &error, now),
    }
}

/// A request that did not go through, or perhaps did.
fn unclear(row: &mut Row, mind: &mut Mind, error: &LaunchError, now: Time) {
    mind.back_off(now);
    match error {
        LaunchError::NotSent(Down { why, .. }) => unknown(row, now, why.clone()),
        LaunchError::Unclear(Down { why, .. }) => {
            mind.suspect = true;
            unknown(row, now, why.clone());
        }
        LaunchError::Refused(refusal) => unknown(row, now, Cause(refusal.to_string())),
    }
}

/// The first reason stays, so that `since` says how long it lasts already.
fn unknown(row: &mut Row, now: Time, why: Cause) {
    if row.is_live() && row.unknown.is_none() {
        row.unknown = Some(Unknown { since: now, why: why.0 });
    }
}

fn ask_to_stop(row: &mut Row, stop: Stop) {
    if let State::Exited { retry, .. } = &mut row.state {
        *retry = None;
        return;
    }
    match &mut row.stop {
        None => row.stop = Some(stop),
        // The reason stays; the time only becomes shorter.
        Some(old) => {
            let end = |stop: &Stop| stop.at.plus(Duration::from_millis(stop.grace_ms));
            if end(&stop) < end(old) {
                (old.at, old.grace_ms) = (stop.at, stop.grace_ms);
            }
        }
    }
}

/// The backend shows it. States only go forward: what is older than what is known is no news.
fn sighted(row: &mut Row, mind: &mut Mind, native: NativeId, state: Native, now: Time) {
    row.unknown = None;
    mind.suspect = false;
    mind.well();
    let submitted = match &row.state {
        State::Planned { .. } => now,
        State::Submitted { since, .. } | State::Pending { since, .. } => *since,
        State::Running { .. } | State::Exited { .. } => {
            if let Native::Exited(exit) = state {
                conclude(row, mind, Some(native), exit.at, now, &exit.outcome);
            }
            return;
        }
    };
    match state {
        Native::Waiting => {
            // Perhaps `start` did not reach it; it is no-op if it did.
            mind.started = false;
            if matches!(row.state, State::Planned { .. }) {
                row.state = State::Submitted { native, since: now };
            }
        }
        Native::Pending { reason } => {
            mind.started = true;
            row.state = State::Pending { native, since: submitted, reason };
        }
        Native::Running { since } => {
            mind.started = true;
            row.state = State::Running { native, since };
        }
        Native::Exited(Exit { outcome, at }) => conclude(row, mind, Some(native), at, now, &outcome),
    }
}

/// The end of an attempt, natively proven; what it means, and whether another one follows.
fn conclude(
    row: &mut Row,
    mind: &mut Mind,
    native: Option<NativeId>,
    at: Time,
    now: Time,
    native_end: &Outcome,
) {
    let outcome = outcome(row.word.as_ref(), row.stop.as_ref(), native_end);
    let worth = matches!(&outcome, Outcome::Failed { class, .. } if class.is_worth_retrying());
    let retry = (worth && row.stop.is_none() && row.restarts < row.want.max_restarts)
        .then(|| now.plus(Duration::from_millis(100) * 4u32.pow(row.restarts.min(5))));
    row.unknown = None;
    row.state = State::Exited { native, at, outcome, retry, removed: false };
    *mind = Mind { failures: 0, not_before: None, suspect: false, ..mind.clone() };
}

/// The worker's own word comes first, then why it was ended, then what the backend says.
fn outcome(word: Option<&Word>, stop: Option<&Stop>, native: &Outcome) -> Outcome {
    if let Some(Word { outcome: word, .. }) = word {
        return match (word, native) {
            // A worker sees its trainer killed and takes it for the trainer's fault; the kernel's counter knows better.
            (
                Outcome::Failed { class: FailureClass::UserCode | FailureClass::Infrastructure, cause, tail },
                Outcome::Failed { class: FailureClass::OutOfMemory, cause: oom, .. },
            ) => Outcome::Failed {
                class: FailureClass::OutOfMemory,
                cause: format!("{oom}; {cause}"),
                tail: tail.clone(),
            },
            _ => word.clone(),
        };
    }
    let tail = match native {
        Outcome::Completed => return Outcome::Completed,
        Outcome::Failed { tail, .. } => tail.clone(),
    };
    match stop.map(|stop| &stop.why) {
        Some(Why::Asked { text }) => {
            Outcome::Failed { class: FailureClass::Aborted, cause: text.clone(), tail }
        }
        Some(Why::PendingTimeout { text }) => {
            Outcome::Failed { class: FailureClass::Timeout, cause: text.clone(), tail }
        }
        Some(Why::Refused { outcome }) => outcome.clone(),
        Some(Why::Lingering) | None => native.clone(),
    }
}

/// What to do next about a row.
#[must_use]
pub fn next(row: &Row, mind: &Mind, now: Time) -> Next {
    if let Some(at) = mind.not_before.filter(|at| now < *at) {
        return Next::Wait(Some(at));
    }
    match &row.state {
        State::Planned { since } => planned(row, mind, *since, now),
        State::Submitted { .. } | State::Pending { .. } | State::Running { .. } => submitted(row, mind, now),
        State::Exited { retry, removed, .. } => match retry {
            _ if !removed && (mind.failures < REMOVALS || retry.is_none()) => Next::Remove,
            Some(at) if now < *at => Next::Wait(Some(*at)),
            Some(_) => Next::Renew,
            None => Next::Wait(None),
        },
    }
}

fn planned(row: &Row, mind: &Mind, since: Time, now: Time) -> Next {
    match &mind.sent {
        Sent::Maybe => Next::Find,
        // From here on it is certain that nothing native exists.
        _ if row.stop.is_some() => Next::Withdraw,
        Sent::Never => match pending_until(row, since) {
            Some(until) if now >= until => Next::Stop(timed_out(row, now)),
            _ => Next::Prepare,
        },
        Sent::Gone(_) if row.past.iter().filter(|past| past.outcome.is_none()).count() >= STILLBORN => {
            Next::Withdraw
        }
        Sent::Gone(_) => Next::Renew,
    }
}

fn submitted(row: &Row, mind: &Mind, now: Time) -> Next {
    if mind.suspect {
        return Next::Find;
    }
    let running = matches!(row.state, State::Running { .. });
    if let Some(stop) = &row.stop {
        let grace = if running { Duration::from_millis(stop.grace_ms) } else { Duration::ZERO };
        let due = stop.at.plus(grace);
        if now < due {
            return Next::Wait(Some(due));
        }
        let text = match &stop.why {
            Why::Asked { text } | Why::PendingTimeout { text } => text.clone(),
            Why::Refused { .. } => "it will never run".to_owned(),
            Why::Lingering => "it has ended and does not exit".to_owned(),
        };
        return match mind.ended {
            None => Next::End(End { grace: FORCE, why: text }),
            Some(at) if now < at.plus(AGAIN) => Next::Wait(Some(at.plus(AGAIN))),
            Some(_) => Next::End(End { grace: Duration::ZERO, why: text }),
        };
    }
    if let State::Submitted { native, .. } = &row.state
        && !mind.started
    {
        return Next::Start(native.clone());
    }
    let mut wake = None;
    if let Some(word) = &row.word {
        let due = word.at.plus(LINGER);
        if now >= due {
            return Next::Stop(Stop { at: now, grace_ms: 0, why: Why::Lingering });
        }
        wake = Some(due);
    }
    if let State::Submitted { since, .. } | State::Pending { since, .. } = &row.state
        && let Some(until) = pending_until(row, *since)
    {
        // While the backend cannot be asked it may well run: what is unknown does not time out.
        if now >= until && row.unknown.is_none() {
            return Next::Stop(timed_out(row, now));
        }
        wake = wake.map_or(Some(until), |at: Time| Some(at.min(until)));
    }
    Next::Wait(wake)
}

fn pending_until(row: &Row, since: Time) -> Option<Time> {
    row.want.pending_timeout_ms.map(|ms| since.plus(Duration::from_millis(ms)))
}

fn timed_out(row: &Row, now: Time) -> Stop {
    let limit = Duration::from_millis(row.want.pending_timeout_ms.unwrap_or_default());
    let reason = row.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
    let text = format!("pending for longer than {limit:?}{reason}");
    Stop { at: now, grace_ms: 0, why: Why::PendingTimeout { text } }
}

/// The next attempt, as a row that is not written yet. Only where [`next`] says so.
pub fn renew(row: &mut Row, mind: &mut Mind, plan: impl FnOnce(&Row) -> Result<Plan, Refusal>, now: Time) {
    let mut past = Past { attempt: row.want.id.attempt, native: None, at: now, outcome: None };
    if let State::Exited { native, at, outcome, .. } = &row.state {
        past = Past { native: native.clone(), at: *at, outcome: Some(outcome.clone()), ..past };
        row.restarts += 1;
    }
    row.past.push(past);
    row.want.id.attempt += 1;
    row.word = None;
    row.unknown = None;
    row.state = State::Planned { since: now };
    *mind = Mind::fresh();
    match plan(row) {
        Ok(plan) => row.plan = plan,
        Err(refusal) => conclude(row, mind, None, now, now, &refusal.outcome()),
    }
}

/// Ends a launch of which nothing native exists.
pub fn withdraw(row: &mut Row, mind: &mut Mind, now: Time) {
    let cause = match &mind.sent {
        Sent::Gone(proof) => format!("never came to be: {proof}"),
        _ => "not started".to_owned(),
    };
    conclude(row, mind, None, now, now, &Outcome::failed(FailureClass::Infrastructure, cause));
    if let State::Exited { retry, removed, .. } = &mut row.state {
        (*retry, *removed) = (None, true);
    }
}

#[cfg(test)]
mod tests;
