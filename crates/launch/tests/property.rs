//! The pure ledger against a backend that does its worst, under a parent that dies between any two steps.
//!
//! Proven for every sequence of steps: never two live native objects of one worker; nothing is started before its native
//! id is on disk and nothing prepared before its intent is; no outcome is invented; and once the world calms down every
//! worker that is wanted runs or has ended, with nothing left behind.

use polder_launch::book::{Book, Call, Todo};
use polder_launch::launcher::{Allotted, Offer};
use polder_launch::launcher::{
    Cause, Down, Exit, LaunchError, Native, NativeId, Plan, Proof, Refusal, Resolved, Sighting,
};
use polder_launch::machine::Seen;
use polder_launch::row::{Key, Row, State, Stop, Why};
use polder_launch::{DeviceId, Time};
use polder_words::{FailureClass, Isolation, JobId, LaunchId, Mode, Outcome, Role, SiteName, StudyName};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How a native object is.
#[derive(Debug, Clone, PartialEq)]
enum Object {
    Waiting,
    Started,
    Running,
    Exited(Outcome),
}

impl Object {
    fn is_live(&self) -> bool {
        !matches!(self, Self::Exited(_))
    }
}

/// Whether a request arrives, and what is heard of it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Luck {
    Fine,
    /// Done, but the answer is lost.
    AnswerLost,
    /// On its way: may still arrive, and the sender cannot know.
    OnItsWay,
    /// Never left.
    NotSent,
    Refused,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Want(u8),
    Stop(u8),
    Word(u8, usize),
    /// A request that is on its way arrives.
    Arrive(usize),
    /// An answer reaches the parent.
    Answer(usize),
    /// An object goes one state further.
    Progress(usize, usize),
    /// Somebody deletes an object.
    Vandal(usize),
    /// The watcher says something of one object, or lists all.
    Watch(usize),
    /// All objects, perhaps without one that was made while the list was.
    Relist(Option<usize>),
    Outage(bool),
    Pass(u16),
    /// The parent dies after this many more writes, requests and answers.
    DieIn(u8),
    Restart,
    Luck(Luck),
}

fn outcomes() -> [Outcome; 4] {
    [
        Outcome::Completed,
        Outcome::failed(FailureClass::UserCode, "exit 7"),
        Outcome::failed(FailureClass::Infrastructure, "signal 9 (KILL)"),
        Outcome::failed(FailureClass::OutOfMemory, "out of memory"),
    ]
}

struct World {
    now: Time,
    disk: BTreeMap<Key, Row>,
    book: Option<Book>,
    /// Answers that have not reached the parent.
    answers: Vec<(LaunchId, Seen)>,
    objects: BTreeMap<LaunchId, Object>,
    on_its_way: Vec<LaunchId>,
    fenced: BTreeSet<LaunchId>,
    outage: bool,
    luck: Luck,
    fuel: Option<u8>,
    /// What may truly be said of the end of each launch.
    truth: BTreeMap<LaunchId, Vec<Outcome>>,
    stopped: BTreeSet<Key>,
}

fn key(job: u8) -> Key {
    Key { job: JobId([job; 16]), role: Role::Client }
}

fn want(job: u8) -> Resolved {
    Resolved {
        id: LaunchId {
            job: JobId([job; 16]),
            site: SiteName::new("a").expect("a name"),
            role: Role::Client,
            attempt: 1,
        },
        study: StudyName::new("s").expect("a name"),
        run_dir: "/r".into(),
        worker: "/w".into(),
        files: polder_words::FileWay::Shared,
        gpus: 1,
        cpus: None,
        memory: None,
        options: serde_json::Map::new(),
        runtime: serde_json::Value::Null,
        pending_timeout_ms: None,
        max_restarts: 2,
    }
}

fn plan(want: &Resolved, with: &Allotted) -> Result<Plan, Refusal> {
    let value = serde_json::json!({"launch": want.id, "devices": with.devices});
    let serde_json::Value::Object(native) = value else { unreachable!("an object") };
    Ok(Plan { mode: Mode::Process, native })
}

fn offer() -> Offer {
    Offer {
        mode: Mode::Process,
        architectures: Vec::new(),
        isolation: Isolation::None,
        not_enforced: Vec::new(),
        devices: Some(vec![DeviceId("0".into()), DeviceId("1".into()), DeviceId("2".into())]),
        cpus: None,
        memory: None,
        expected_start: None,
    }
}

fn down() -> Down {
    Down { since: Time(0), why: Cause("no answer".into()) }
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            now: Time(1_000_000),
            disk: BTreeMap::new(),
            book: None,
            answers: Vec::new(),
            objects: BTreeMap::new(),
            on_its_way: Vec::new(),
            fenced: BTreeSet::new(),
            outage: false,
            luck: Luck::Fine,
            fuel: None,
            truth: BTreeMap::new(),
            stopped: BTreeSet::new(),
        };
        world.restart();
        world
    }

    fn restart(&mut self) {
        if self.book.is_some() {
            return;
        }
        // Through its text, as from a disk.
        let rows = self.disk.values().map(|row| {
            let text = serde_json::to_string(row).expect("plain data");
            serde_json::from_str(&text).expect("what was written reads back")
        });
        let mut book = Book::load(rows.collect());
        book.inventory_mut().refresh(&offer());
        self.book = Some(book);
        self.settle_all();
    }

    /// One step of the parent; `false` when it dies instead.
    fn burn(&mut self) -> bool {
        if let Some(fuel) = &mut self.fuel {
            if *fuel == 0 {
                self.fuel = None;
                self.book = None;
                self.answers.clear();
                return false;
            }
            *fuel -= 1;
        }
        true
    }

    fn settle_all(&mut self) {
        let keys = self.book.as_ref().map(Book::keys).unwrap_or_default();
        for key in keys {
            self.settle(key);
        }
    }

    /// As the shell does it: write first, then call.
    fn settle(&mut self, key: Key) {
        loop {
            let now = self.now;
            let Some(book) = &mut self.book else { return };
            match book.settle(key, &plan, now) {
                Todo::Wait(_) => return,
                Todo::Write => {
                    if !self.burn() {
                        return;
                    }
                    let book = self.book.as_mut().expect("it did not die");
                    let row = book.get(key).expect("a row").clone();
                    book.written(key);
                    self.check_outcome(&row);
                    self.disk.insert(key, row);
                }
                Todo::Call(call) => {
                    if !self.burn() {
                        return;
                    }
                    let id =
                        self.book.as_ref().expect("it did not die").get(key).expect("a row").id().clone();
                    let seen = self.call(&id, call);
                    self.answers.push((id, seen));
                }
            }
        }
    }

    fn call(&mut self, id: &LaunchId, call: Call) -> Seen {
        let on_disk = self.disk.get(&Key::of(id)).expect("the intent is on disk");
        assert_eq!(on_disk.id(), id, "the intent on disk is this attempt's");
        let luck = if self.outage { Luck::NotSent } else { self.luck };
        let native = NativeId(id.to_string());
        match call {
            Call::Prepare(want, _) => {
                assert!(matches!(on_disk.state, State::Planned { .. }), "prepared once");
                assert_eq!(want.id, *id);
                match luck {
                    Luck::Fine | Luck::AnswerLost => {
                        assert!(!self.objects.contains_key(id), "{id} is made twice");
                        self.objects.insert(id.clone(), Object::Waiting);
                    }
                    Luck::OnItsWay => self.on_its_way.push(id.clone()),
                    Luck::NotSent | Luck::Refused => {}
                }
                Seen::Prepared(match luck {
                    Luck::Fine => Ok(native),
                    Luck::AnswerLost | Luck::OnItsWay => Err(LaunchError::Unclear(down())),
                    Luck::NotSent => Err(LaunchError::NotSent(down())),
                    Luck::Refused => {
                        let refusal = Refusal::new(FailureClass::Policy, "no");
                        self.truth.entry(id.clone()).or_default().push(refusal.outcome());
                        Err(LaunchError::Refused(refusal))
                    }
                })
            }
            Call::Start(named) => {
                assert_eq!(on_disk.native(), Some(&named), "started after its id is on disk");
                if matches!(luck, Luck::NotSent) {
                    return Seen::Started(Err(LaunchError::NotSent(down())));
                }
                if let Some(object @ Object::Waiting) = self.objects.get_mut(id) {
                    *object = Object::Started;
                }
                Seen::Started(if luck == Luck::AnswerLost {
                    Err(LaunchError::Unclear(down()))
                } else {
                    Ok(())
                })
            }
            Call::Find => self.find(id),
            Call::End(_) => {
                if matches!(luck, Luck::NotSent) {
                    return Seen::Ended(Err(LaunchError::NotSent(down())));
                }
                self.end(id);
                Seen::Ended(if luck == Luck::AnswerLost { Err(LaunchError::Unclear(down())) } else { Ok(()) })
            }
            Call::Remove => {
                assert!(
                    matches!(on_disk.state, State::Exited { .. }),
                    "removed after its outcome is on disk"
                );
                if matches!(luck, Luck::NotSent) {
                    return Seen::Removed(Err(LaunchError::NotSent(down())));
                }
                assert!(!self.objects.get(id).is_some_and(Object::is_live), "what is removed has ended");
                self.objects.remove(id);
                self.fence(id);
                Seen::Removed(Ok(()))
            }
        }
    }

    fn fence(&mut self, id: &LaunchId) {
        self.on_its_way.retain(|other| other != id);
        self.fenced.insert(id.clone());
    }

    fn find(&mut self, id: &LaunchId) -> Seen {
        if self.outage {
            return Seen::Unsure(Cause("no answer".into()));
        }
        match self.sighting(id) {
            Some(sighting) => Seen::Native(sighting.native, sighting.state),
            None => {
                self.fence(id);
                Seen::Gone(Proof("not there".into()))
            }
        }
    }

    fn end(&mut self, id: &LaunchId) {
        let ended = Outcome::failed(FailureClass::Infrastructure, "signal 15 (TERM)");
        match self.objects.get_mut(id) {
            Some(object) if object.is_live() => {
                *object = Object::Exited(ended.clone());
                self.truth.entry(id.clone()).or_default().push(ended);
            }
            Some(_) => {}
            None => self.fence(id),
        }
    }

    fn sighting(&self, id: &LaunchId) -> Option<Sighting> {
        let state = match self.objects.get(id)? {
            Object::Waiting => Native::Waiting,
            Object::Started => Native::Pending { reason: "queue".into() },
            Object::Running => Native::Running { since: self.now },
            Object::Exited(outcome) => Native::Exited(Exit { outcome: outcome.clone(), at: self.now }),
        };
        Some(Sighting { id: id.clone(), native: NativeId(id.to_string()), state })
    }

    /// What is written as an end must be so.
    fn check_outcome(&self, row: &Row) {
        assert!(row.restarts <= row.want.max_restarts);
        let State::Exited { outcome, .. } = &row.state else { return };
        let Outcome::Failed { class, cause, .. } = outcome else {
            assert!(self.truth.get(row.id()).is_some_and(|truth| truth.contains(outcome)), "{outcome:?}");
            return;
        };
        let truth = self.truth.get(row.id()).cloned().unwrap_or_default();
        let known = truth.iter().any(|true_end| match true_end {
            Outcome::Failed { class: true_class, cause: true_cause, .. } => {
                class == true_class && cause.contains(true_cause.as_str())
            }
            Outcome::Completed => false,
        });
        let asked = *class == FailureClass::Aborted && self.stopped.contains(&row.key());
        let lost = *class == FailureClass::Lost && !self.objects.contains_key(row.id());
        let never = *class == FailureClass::Infrastructure
            && cause.starts_with("never came to be")
            && self.fenced.contains(row.id());
        assert!(known || asked || lost || never, "{} ended as {outcome:?}; true is {truth:?}", row.id());
    }

    fn check(&self) {
        let mut live = BTreeMap::new();
        for (id, object) in &self.objects {
            *live.entry(Key::of(id)).or_insert(0) += u32::from(object.is_live());
        }
        assert!(live.values().all(|count| *count <= 1), "two live objects: {:?}", self.objects);
        let mut devices = BTreeSet::new();
        for row in self.disk.values().filter(|row| row.ended().is_none()) {
            for device in &row.lease.devices {
                assert!(devices.insert(device), "{device} is given twice");
            }
        }
    }

    fn strays(&mut self, strays: Vec<LaunchId>) {
        for id in strays {
            self.end(&id);
            self.objects.remove(&id);
        }
    }

    fn watch(&mut self, sighting: Sighting) {
        let now = self.now;
        let key = Key::of(&sighting.id);
        let Some(book) = &mut self.book else { return };
        let stray = book.sighted(sighting, now);
        self.strays(stray.into_iter().collect());
        self.settle(key);
    }

    fn relist(&mut self, missing: Option<usize>) {
        let missing = missing.and_then(|index| self.nth(index));
        let listed = self.objects.keys().filter(|id| Some(*id) != missing.as_ref());
        let complete = listed.filter_map(|id| self.sighting(id)).collect();
        let now = self.now;
        let Some(book) = &mut self.book else { return };
        let strays = book.relisted(complete, now);
        self.strays(strays);
        self.settle_all();
    }

    fn answer(&mut self, index: usize) {
        if self.answers.is_empty() || !self.burn() {
            return;
        }
        let (id, seen) = self.answers.remove(index % self.answers.len());
        let now = self.now;
        self.book.as_mut().expect("answers come to the living").done(&id, seen, now);
        self.settle(Key::of(&id));
    }

    fn nth(&self, index: usize) -> Option<LaunchId> {
        let ids: Vec<_> = self.objects.keys().collect();
        (!ids.is_empty()).then(|| ids[index % ids.len()].clone())
    }

    fn exit(&mut self, id: &LaunchId, outcome: Outcome) {
        self.truth.entry(id.clone()).or_default().push(outcome.clone());
        self.objects.insert(id.clone(), Object::Exited(outcome));
    }

    fn step(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Want(job) => {
                if let Some(book) = &mut self.book {
                    let _ = book.want(want(job), &plan, now);
                    self.settle(key(job));
                }
            }
            Step::Stop(job) => {
                let why = Why::Asked { text: "asked".into() };
                let stop = Stop { at: now, grace_ms: 100, why };
                if let Some(book) = &mut self.book
                    && let Some(id) = book.get(key(job)).map(|row| row.id().clone())
                {
                    self.stopped.insert(key(job));
                    book.observe(&id, Seen::Stop(stop), now);
                    self.settle(key(job));
                }
            }
            Step::Word(job, which) => {
                let Some(id) = self.book.as_ref().and_then(|book| Some(book.get(key(job))?.id().clone()))
                else {
                    return;
                };
                // Only a worker that runs can speak.
                if self.objects.get(&id) == Some(&Object::Running) {
                    let word = outcomes()[which % 4].clone();
                    self.truth.entry(id.clone()).or_default().push(word.clone());
                    self.book.as_mut().expect("looked at above").observe(&id, Seen::Word(word), now);
                    self.settle(key(job));
                }
            }
            Step::Arrive(index) => {
                if !self.on_its_way.is_empty() {
                    let id = self.on_its_way.remove(index % self.on_its_way.len());
                    if !self.fenced.contains(&id) {
                        self.objects.insert(id, Object::Waiting);
                    }
                }
            }
            Step::Answer(index) => self.answer(index),
            Step::Progress(index, which) => {
                if let Some(id) = self.nth(index) {
                    match self.objects[&id] {
                        Object::Waiting | Object::Exited(_) => {}
                        Object::Started => drop(self.objects.insert(id, Object::Running)),
                        Object::Running => self.exit(&id, outcomes()[which % 4].clone()),
                    }
                }
            }
            Step::Vandal(index) => {
                if let Some(id) = self.nth(index) {
                    self.objects.remove(&id);
                    self.fenced.insert(id);
                }
            }
            Step::Watch(index) => {
                if let Some(sighting) = self.nth(index).and_then(|id| self.sighting(&id)) {
                    self.watch(sighting);
                }
            }
            Step::Relist(missing) => self.relist(missing),
            Step::Outage(outage) => {
                self.outage = outage;
                if outage && let Some(book) = &mut self.book {
                    for id in book.to_ask() {
                        book.observe(&id, Seen::Unsure(Cause("outage".into())), now);
                    }
                    self.settle_all();
                }
            }
            Step::Pass(ms) => {
                self.now = self.now.plus(Duration::from_millis(ms.into()));
                self.settle_all();
            }
            Step::DieIn(fuel) => self.fuel = Some(fuel),
            Step::Restart => self.restart(),
            Step::Luck(luck) => self.luck = luck,
        }
    }

    /// The world becomes friendly and time passes; what runs goes on running, or ends.
    fn calm(&mut self, end: bool) {
        (self.outage, self.luck, self.fuel) = (false, Luck::Fine, None);
        self.restart();
        for _ in 0..60 {
            while !self.on_its_way.is_empty() {
                self.step(Step::Arrive(0));
            }
            while !self.answers.is_empty() {
                self.answer(0);
                self.check();
            }
            let ids: Vec<_> = self.objects.keys().cloned().collect();
            for id in ids {
                match self.objects[&id] {
                    Object::Started => drop(self.objects.insert(id, Object::Running)),
                    Object::Running if end => self.exit(&id, Outcome::Completed),
                    _ => {}
                }
            }
            self.relist(None);
            self.step(Step::Pass(5000));
            self.check();
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let job = 1u8..=4;
    let step = prop_oneof![
        3 => job.clone().prop_map(Step::Want),
        1 => job.clone().prop_map(Step::Stop),
        1 => (job, any::<usize>()).prop_map(|(job, which)| Step::Word(job, which)),
        2 => any::<usize>().prop_map(Step::Arrive),
        6 => any::<usize>().prop_map(Step::Answer),
        4 => (any::<usize>(), any::<usize>()).prop_map(|(index, which)| Step::Progress(index, which)),
        1 => any::<usize>().prop_map(Step::Vandal),
        3 => any::<usize>().prop_map(Step::Watch),
        2 => any::<Option<usize>>().prop_map(Step::Relist),
        1 => any::<bool>().prop_map(Step::Outage),
        3 => (0u16..3000).prop_map(Step::Pass),
        2 => (0u8..6).prop_map(Step::DieIn),
        2 => Just(Step::Restart),
        2 => prop_oneof![
            4 => Just(Luck::Fine), 2 => Just(Luck::AnswerLost), 2 => Just(Luck::OnItsWay), 1 => Just(Luck::NotSent),
            1 => Just(Luck::Refused),
        ].prop_map(Step::Luck),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_runs_twice_and_nothing_is_lost(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check();
        }
        world.calm(false);
        for row in world.disk.values() {
            let runs = matches!(row.state, State::Running { .. });
            prop_assert!(runs || row.is_settled(), "{row:?}");
            prop_assert_eq!(runs, world.objects.get(row.id()) == Some(&Object::Running), "{:?}", row);
        }
        world.calm(true);
        for row in world.disk.values() {
            prop_assert!(row.is_settled(), "{row:?}");
        }
        prop_assert_eq!(world.objects.len(), 0, "{:?}", world.objects);
        let free = world.book.as_ref().expect("it lives").inventory().gpus();
        prop_assert_eq!(free, Some((3, 3)));
    }
}
