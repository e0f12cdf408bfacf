//! Single decisions; all of them together are in `tests/property.rs`.

use super::*;
use crate::launcher::{Allotted, Resolved};
use crate::row::Key;
use polder_words::{JobId, LaunchId, Mode, Role, SiteName, StudyName};

const T: Time = Time(1_000_000);

fn after(ms: u64) -> Time {
    T.plus(Duration::from_millis(ms))
}

fn row() -> Row {
    let id = LaunchId {
        job: JobId([1; 16]),
        site: SiteName::new("a").expect("a name"),
        role: Role::Client,
        attempt: 1,
    };
    let want = Resolved {
        id,
        study: StudyName::new("s").expect("a name"),
        run_dir: "/r".into(),
        worker: "/w".into(),
        files: polder_words::FileWay::Shared,
        gpus: 0,
        cpus: None,
        memory: None,
        options: serde_json::Map::new(),
        runtime: serde_json::Value::Null,
        pending_timeout_ms: Some(60_000),
        max_restarts: 2,
    };
    Row::new(want, Allotted::default(), a_plan(), T)
}

fn a_plan() -> Plan {
    Plan { mode: Mode::Process, native: serde_json::Map::new() }
}

fn native() -> NativeId {
    NativeId("n".into())
}

struct Case {
    row: Row,
    mind: Mind,
}

impl Case {
    fn planned() -> Self {
        Self { row: row(), mind: Mind::fresh() }
    }

    fn submitted() -> Self {
        Self::planned().seen(Seen::Prepared(Ok(native())), T).seen(Seen::Started(Ok(())), T)
    }

    fn running() -> Self {
        Self::submitted().seen(Seen::Native(native(), Native::Running { since: T }), T)
    }

    fn seen(mut self, seen: Seen, now: Time) -> Self {
        observe(&mut self.row, &mut self.mind, seen, now);
        self
    }

    fn exits(self, outcome: Outcome, now: Time) -> Self {
        self.seen(Seen::Native(native(), Native::Exited(Exit { outcome, at: now })), now)
    }

    fn next(&self, now: Time) -> Next {
        next(&self.row, &self.mind, now)
    }

    fn end(&self) -> (FailureClass, String) {
        match &self.row.state {
            State::Exited { outcome: Outcome::Failed { class, cause, .. }, .. } => (*class, cause.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn retry(&self) -> Option<Time> {
        match &self.row.state {
            State::Exited { retry, .. } => *retry,
            other => panic!("{other:?}"),
        }
    }
}

fn killed() -> Outcome {
    Outcome::failed(FailureClass::Infrastructure, "signal 9 (KILL)")
}

fn stop(grace_ms: u64, at: Time) -> Seen {
    Seen::Stop(Stop { at, grace_ms, why: Why::Asked { text: "aborted by lead@org".into() } })
}

#[test]
fn the_order_of_a_launch() {
    let case = Case::planned();
    assert_eq!(case.next(T), Next::Prepare);
    let case = case.seen(Seen::Prepared(Ok(native())), T);
    assert_eq!(case.next(T), Next::Start(native()));
    let case = case.seen(Seen::Started(Ok(())), T);
    assert_eq!(case.next(T), Next::Wait(Some(after(60_000))));
    let case = case.seen(Seen::Native(native(), Native::Running { since: T }), T);
    assert_eq!(case.next(after(100_000)), Next::Wait(None));
    let case = case.exits(Outcome::Completed, after(5));
    assert_eq!(case.next(after(5)), Next::Remove);
    let case = case.seen(Seen::Removed(Ok(())), after(6));
    assert_eq!(case.next(after(6)), Next::Wait(None));
    assert!(case.row.is_settled());
}

#[test]
fn a_row_from_disk_is_asked_for_before_anything_is_sent() {
    let mut case = Case::planned();
    case.mind = Mind::reborn();
    assert_eq!(case.next(T), Next::Find);
    let there = Case { row: case.row.clone(), mind: case.mind.clone() };
    let there = there.seen(Seen::Native(native(), Native::Waiting), T);
    assert_eq!(there.next(T), Next::Start(native()));
    let mut gone = case.seen(Seen::Gone(Proof("not there".into())), T);
    assert_eq!(gone.next(T), Next::Renew);
    renew(&mut gone.row, &mut gone.mind, |_| Ok(a_plan()), T);
    assert_eq!((gone.row.id().attempt, gone.row.restarts), (2, 0), "that was nobody's restart");
    assert_eq!(gone.next(T), Next::Prepare);
}

#[test]
fn what_happened_to_an_unclear_request_is_asked_after_a_while() {
    let unclear = Seen::Prepared(Err(LaunchError::Unclear(Down { since: T, why: Cause("timeout".into()) })));
    let case = Case::planned().seen(unclear, T);
    assert!(matches!(case.next(T), Next::Wait(Some(at)) if at >= after(500)));
    assert_eq!(case.next(after(60_000)), Next::Find);
    assert_eq!(case.row.unknown.as_ref().map(|unknown| unknown.why.as_str()), Some("timeout"));
}

#[test]
fn an_outage_is_not_the_end() {
    let case = Case::running().seen(Seen::Unsure(Cause("no answer".into())), after(10));
    let case = case.seen(Seen::Unsure(Cause("still none".into())), after(5000));
    assert_eq!(case.row.phase(), polder_words::WorkerPhase::Running);
    assert_eq!(case.row.unknown, Some(Unknown { since: after(10), why: "no answer".into() }));
    assert_eq!(case.next(after(60_000)), Next::Find);
    let case = case.seen(Seen::Native(native(), Native::Running { since: T }), after(60_001));
    assert_eq!(case.row.unknown, None);
}

#[test]
fn only_ends_that_are_nobodys_fault_are_tried_again_and_not_for_ever() {
    let case = Case::running().exits(Outcome::failed(FailureClass::UserCode, "exit 1"), after(1));
    assert_eq!(case.retry(), None);

    let mut case = Case::running();
    for restart in 0..=2 {
        case = case.exits(killed(), after(10)).seen(Seen::Removed(Ok(())), after(10));
        let Some(at) = case.retry() else {
            assert_eq!(restart, 2, "two new attempts");
            break;
        };
        assert_eq!(case.next(after(10)), Next::Wait(Some(at)));
        assert_eq!(case.next(at), Next::Renew);
        renew(&mut case.row, &mut case.mind, |_| Ok(a_plan()), at);
        assert_eq!(case.row.id().attempt, restart + 2);
        let up = Native::Running { since: at };
        case = case.seen(Seen::Prepared(Ok(native())), at).seen(Seen::Native(native(), up), at);
    }
    assert_eq!(case.row.past.len(), 2);
    assert_eq!(case.row.past[0].outcome, Some(killed()));
    assert!(case.row.ended().is_some());
}

#[test]
fn gone_is_lost_and_lost_is_tried_again() {
    let case = Case::running().seen(Seen::Gone(Proof("the host was started again since".into())), after(1));
    assert_eq!(case.end(), (FailureClass::Lost, "the host was started again since".into()));
    assert!(case.retry().is_some());
}

#[test]
fn the_workers_own_word_comes_first() {
    let word = || Outcome::failed(FailureClass::UserCode, "NaN in \"weight\"");
    let case = Case::running().seen(Seen::Word(word()), after(1)).exits(killed(), after(2));
    assert_eq!(case.end(), (FailureClass::UserCode, "NaN in \"weight\"".into()));
    let case = Case::running().seen(Seen::Word(Outcome::Completed), after(1)).exits(killed(), after(2));
    assert_eq!(case.row.ended(), Some(&Outcome::Completed));
    // Except where the kernel knows better.
    let word = Outcome::failed(FailureClass::UserCode, "trainer: signal 9 (KILL)");
    let memory = Outcome::failed(FailureClass::OutOfMemory, "out of memory, 1 killed");
    let case = Case::running().seen(Seen::Word(word), after(1)).exits(memory, after(2));
    let cause = "out of memory, 1 killed; trainer: signal 9 (KILL)";
    assert_eq!(case.end(), (FailureClass::OutOfMemory, cause.into()));
    // A second word, and a word after the end, change nothing.
    let case = case.seen(Seen::Word(Outcome::Completed), after(3));
    assert_eq!(case.end().0, FailureClass::OutOfMemory);
}

#[test]
fn a_worker_that_said_its_last_word_has_to_go() {
    let case = Case::running().seen(Seen::Word(Outcome::Completed), T);
    assert_eq!(case.next(after(1)), Next::Wait(Some(after(30_000))));
    let Next::Stop(stop) = case.next(after(30_000)) else { panic!("{:?}", case.next(after(30_000))) };
    let case = case.seen(Seen::Stop(stop), after(30_000));
    assert!(matches!(case.next(after(30_000)), Next::End(_)));
    assert_eq!(case.exits(killed(), after(30_001)).row.ended(), Some(&Outcome::Completed));
}

#[test]
fn stopping_gives_a_running_worker_its_grace_and_nothing_else_any() {
    let case = Case::running().seen(stop(5000, T), T);
    assert_eq!(case.next(after(4999)), Next::Wait(Some(after(5000))));
    assert!(matches!(case.next(after(5000)), Next::End(End { grace, .. }) if grace > Duration::ZERO));
    // Again, without mercy, when it does not help.
    let case = case.seen(Seen::Ended(Ok(())), after(5000));
    assert!(matches!(case.next(after(16_000)), Next::End(End { grace: Duration::ZERO, .. })));
    let case = case.exits(killed(), after(16_001));
    assert_eq!((case.end(), case.retry()), ((FailureClass::Aborted, "aborted by lead@org".into()), None));

    assert!(matches!(Case::submitted().seen(stop(5000, T), T).next(T), Next::End(_)));
    let never = Case::planned().seen(stop(5000, T), T);
    assert_eq!(never.next(T), Next::Withdraw);
    // Patience only shrinks.
    let case =
        Case::running().seen(stop(5000, T), T).seen(stop(50_000, T), T).seen(stop(0, after(1)), after(1));
    assert!(matches!(case.next(after(1)), Next::End(_)));
}

#[test]
fn a_stop_ends_the_back_off() {
    let case = Case::running().exits(killed(), after(1)).seen(stop(0, after(2)), after(2));
    assert_eq!(case.retry(), None);
    assert_eq!(case.row.ended(), Some(&killed()));
}

#[test]
fn pending_times_out_with_the_reason_but_not_while_nobody_can_say() {
    let pending = Native::Pending { reason: "Priority".into() };
    let case = Case::submitted().seen(Seen::Native(native(), pending), after(10));
    assert_eq!(case.row.reason(), Some("Priority"));
    let unsure = Case { row: case.row.clone(), mind: case.mind.clone() };
    let unsure = unsure.seen(Seen::Unsure(Cause("no answer".into())), after(59_000));
    assert_eq!(unsure.next(after(70_000)), Next::Find);
    let Next::Stop(stop) = case.next(after(60_000)) else { panic!("{:?}", case.next(after(60_000))) };
    let case = case.seen(Seen::Stop(stop), after(60_000));
    assert!(matches!(case.next(after(60_000)), Next::End(_)));
    let case = case.exits(killed(), after(60_001));
    assert_eq!(case.end(), (FailureClass::Timeout, "pending for longer than 60s: Priority".into()));
    assert_eq!(case.retry(), None);
}

#[test]
fn a_refusal_is_an_end() {
    let refusal = Refusal::new(FailureClass::Config, "no such image").at("meta", "image", "x", "an image");
    let case = Case::planned().seen(Seen::Prepared(Err(LaunchError::Refused(refusal.clone()))), T);
    let text = "meta: image: no such image; found x; allowed: an image";
    assert_eq!((case.end(), case.retry()), ((FailureClass::Config, text.into()), None));
    // At the start, the object is there and has to go first.
    let started = Seen::Started(Err(LaunchError::Refused(refusal)));
    let case = Case::planned().seen(Seen::Prepared(Ok(native())), T).seen(started, T);
    assert!(matches!(case.next(T), Next::End(_)));
    assert_eq!(case.exits(killed(), after(1)).end(), (FailureClass::Config, text.into()));
}

#[test]
fn news_that_are_old_are_none() {
    let case = Case::running().seen(Seen::Native(native(), Native::Waiting), after(1));
    assert_eq!(case.row.phase(), polder_words::WorkerPhase::Running);
    let case =
        case.exits(killed(), after(2)).seen(Seen::Native(native(), Native::Running { since: T }), after(3));
    assert_eq!(case.row.phase(), polder_words::WorkerPhase::Exited);
}

#[test]
fn keys_read_back() {
    let key = Key::of(row().id());
    assert_eq!(key.to_string().parse(), Ok(key));
    assert!("nothing".parse::<Key>().is_err());
}
