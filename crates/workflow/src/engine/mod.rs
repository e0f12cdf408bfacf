//! The rounds of a job as a state machine: events in, actions out.
//!
//! ```text
//!             +-- no model yet --> init(site) --failed--> init(next site)
//!             |                       | done: Adopt
//!  begin -----+                       v
//!             +-- a model -------> round r: working --all answered, or late--> adding up
//!                                     ^                                           | Aggregated
//!                                     +---- r < rounds: Publish(r+1), Save(r) ----+
//!                                                                                 | r = rounds: Save(r)
//!  any state --too few sites remain--> failed{site, class, cause}                 v
//!                                                                   last Saved --> finished
//! ```
//! * A site that fails is out for the rest of the job. If it is mandatory, or fewer than `min_clients` or
//!   `min_responses` sites remain, the job fails and names it.
//! * A site that is late (`round_timeout`, counted while its worker is ready) misses the round and may
//!   take part in the next; late twice running it is out. The round closes with what has arrived if that
//!   is at least `min_responses` and every mandatory site is in it.
//! * Round r + 1 begins while the checkpoint of round r is still being written, but it is not added up
//!   before that is done: a worker that is killed repeats at most one round beyond the one it was in.
//!
//! No clock, no I/O, no lock: time is an argument, in milliseconds of any origin.

mod rules;
mod words;

pub use rules::{Rules, Start};
pub use words::{Action, Contribution, Event, Failure, Record, SiteRecord};

use polder_api::payload::Payload;
use polder_api::site::{TaskOutcome, TaskResult};
use polder_api::worker::{Member, RoundDone};
use polder_words::{FailureClass, Outcome, SiteName, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// What a site gave in the current round.
#[derive(Debug)]
struct Answer {
    model: Option<Payload>,
    record: SiteRecord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not begun.
    New,
    /// This site (an index) was asked for the first model.
    Init(usize),
    /// The first model is being taken over.
    Adopting,
    /// Sites work on the round.
    Working,
    /// All that will come is there; the checkpoint before is not.
    Holding,
    /// The mean is being made.
    Adding,
    /// The last round is made, its checkpoint is not.
    Saving,
    /// Finished or failed: nothing more will be done.
    Over,
}

/// The rounds of one job, as one attempt of the server's worker runs them.
#[derive(Debug)]
pub struct Engine {
    rules: Rules,
    state: State,
    round: u32,
    saved: u32,
    began: u64,
    ready: BTreeSet<SiteName>,
    /// Since when a site that owes an answer could have been working on it.
    working: BTreeMap<SiteName, u64>,
    answers: BTreeMap<SiteName, Answer>,
    late: BTreeSet<SiteName>,
    late_before: BTreeSet<SiteName>,
    lost: BTreeMap<SiteName, Failure>,
    /// Rounds made, waiting to be reported.
    unsaved: Vec<Record>,
}

impl Engine {
    /// An engine that continues from `start`; it does nothing before [`Engine::begin`].
    #[must_use]
    pub fn new(rules: Rules, start: Start) -> Self {
        Self {
            rules,
            state: State::New,
            round: start.round,
            saved: start.round,
            began: 0,
            ready: BTreeSet::new(),
            working: BTreeMap::new(),
            answers: BTreeMap::new(),
            late: BTreeSet::new(),
            late_before: start.late,
            lost: start.lost,
            unsaved: Vec::new(),
        }
    }

    /// Begins. `has_model` says whether there is a global model: of a checkpoint, or the job's own.
    pub fn begin(&mut self, has_model: bool, now: u64) -> Vec<Action> {
        let mut out = Vec::new();
        if self.state != State::New {
            return out;
        }
        if self.round >= self.rules.rounds {
            self.state = State::Over;
            out.push(Action::Finish);
        } else if has_model {
            self.next_round(now, &mut out);
        } else {
            self.ask_for_init(0, now, &mut out);
        }
        out
    }

    /// Takes an event.
    pub fn step(&mut self, event: Event<'_>, now: u64) -> Vec<Action> {
        let mut out = Vec::new();
        if matches!(self.state, State::New | State::Over) {
            return out;
        }
        match event {
            Event::Seen { roster, results } => {
                self.results(results, now, &mut out);
                self.roster(roster, now, &mut out);
            }
            Event::Aggregated => self.aggregated(now, &mut out),
            Event::Refused { site, cause } => self.refused(site, cause, now, &mut out),
            Event::Saved { round } => self.saved(round, &mut out),
            Event::Reconnected => self.working.values_mut().for_each(|since| *since = now),
            Event::Tick => {}
        }
        self.look_at_the_clock(now, &mut out);
        self.close_if_complete(&mut out);
        out
    }

    /// When [`Event::Tick`] is due, if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.working.values().min().map(|since| since.saturating_add(self.rules.patience()))
    }

    /// The round that runs or was last made; 0 before the first.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.round
    }

    /// The job's rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The sites that have failed up to now.
    #[must_use]
    pub fn lost(&self) -> &BTreeMap<SiteName, Failure> {
        &self.lost
    }

    fn task(&self) -> TaskId {
        TaskId { attempt: self.rules.attempt, round: self.round, step: 0 }
    }

    fn active(&self) -> impl Iterator<Item = &SiteName> {
        self.rules.sites.iter().filter(|site| !self.lost.contains_key(*site))
    }

    /// Sites that may still answer.
    fn outstanding(&self) -> Vec<SiteName> {
        match self.state {
            State::Init(index) => vec![self.rules.sites[index].clone()],
            State::Working => self
                .active()
                .filter(|site| !self.answers.contains_key(*site) && !self.late.contains(*site))
                .cloned()
                .collect(),
            _ => Vec::new(),
        }
    }

    fn publish(&mut self, sites: Vec<SiteName>, kind: &'static str, now: u64, out: &mut Vec<Action>) {
        self.began = now;
        self.working = sites.iter().filter(|s| self.ready.contains(*s)).map(|s| (s.clone(), now)).collect();
        out.push(Action::Publish { sites, task: self.task(), kind });
    }

    fn next_round(&mut self, now: u64, out: &mut Vec<Action>) {
        self.round += 1;
        self.state = State::Working;
        self.answers.clear();
        self.late.clear();
        let sites = self.active().cloned().collect();
        self.publish(sites, "train", now, out);
    }

    fn ask_for_init(&mut self, from: usize, now: u64, out: &mut Vec<Action>) {
        let found = (from..self.rules.sites.len()).find(|i| !self.lost.contains_key(&self.rules.sites[*i]));
        if let Some(index) = found {
            self.state = State::Init(index);
            self.publish(vec![self.rules.sites[index].clone()], "init", now, out);
        } else {
            let cause = "no site gave the first model".to_owned();
            self.fail(None, Failure { class: FailureClass::UserCode, cause, tail: String::new() }, out);
        }
    }

    fn results(&mut self, results: &BTreeMap<SiteName, TaskResult>, now: u64, out: &mut Vec<Action>) {
        for site in self.outstanding() {
            let Some(result) = results.get(&site).filter(|result| result.task == self.task()) else {
                continue;
            };
            if self.state == State::Over {
                return;
            }
            match &result.result {
                TaskOutcome::Done { model: None, .. } => {
                    let cause = "its result holds no model".to_owned();
                    self.site_failed(&site, FailureClass::UserCode, cause, "", now, out);
                }
                TaskOutcome::Done { weight, .. } if !(weight.is_finite() && *weight > 0.0) => {
                    let cause = format!("its weight is {weight}; allowed is a finite number above 0");
                    self.site_failed(&site, FailureClass::UserCode, cause, "", now, out);
                }
                TaskOutcome::Done { model: Some(model), weight, metrics } => {
                    self.working.remove(&site);
                    let weight = self.rules.weigh(*weight);
                    if matches!(self.state, State::Init(_)) {
                        self.state = State::Adopting;
                        out.push(Action::Adopt(Contribution { site, model: model.clone(), weight }));
                        return;
                    }
                    let metrics = metrics.iter().filter(|(_, v)| v.is_finite()).map(|(k, v)| (k.clone(), *v));
                    let record = SiteRecord { weight, metrics: metrics.collect() };
                    self.answers.insert(site, Answer { model: Some(model.clone()), record });
                }
                TaskOutcome::Failed { class: FailureClass::Timeout, cause, tail } => {
                    self.site_late(&[(site, cause.clone(), tail.clone())], now, out);
                }
                TaskOutcome::Failed { class, cause, tail } => {
                    self.site_failed(&site, *class, cause.clone(), tail, now, out);
                }
            }
        }
    }

    fn roster(&mut self, roster: &BTreeMap<SiteName, Member>, now: u64, out: &mut Vec<Action>) {
        for (site, member) in roster {
            if self.state == State::Over {
                return;
            }
            if self.lost.contains_key(site) || !self.rules.sites.contains(site) {
                continue;
            }
            match member {
                Member::Starting => {
                    self.ready.remove(site);
                    self.working.remove(site);
                }
                Member::Ready => {
                    self.ready.insert(site.clone());
                    if !self.working.contains_key(site) && self.outstanding().contains(site) {
                        self.working.insert(site.clone(), now);
                    }
                }
                // A worker that ended well after it gave its last result owes nothing.
                Member::Gone { outcome: Outcome::Completed } if self.owes_nothing_more(site) => {}
                Member::Gone { outcome: Outcome::Completed } => {
                    let cause = "its worker ended before the job did".to_owned();
                    self.site_failed(site, FailureClass::Lost, cause, "", now, out);
                }
                Member::Gone { outcome: Outcome::Failed { class, cause, tail } } => {
                    self.site_failed(site, *class, cause.clone(), tail, now, out);
                }
            }
        }
    }

    fn owes_nothing_more(&self, site: &SiteName) -> bool {
        let answered = self.answers.contains_key(site) || self.late.contains(site);
        self.round >= self.rules.rounds
            && (answered || !matches!(self.state, State::Working | State::Init(_)))
    }

    fn mandatory(&self, gone: &[&SiteName]) -> Option<String> {
        let site = gone.iter().find(|site| self.rules.mandatory.contains(**site))?;
        Some(format!("site {site} is mandatory"))
    }

    /// Whether so many sites are too few.
    fn too_few(&self, found: usize, least: u32) -> bool {
        u32::try_from(found).is_ok_and(|found| found < least)
    }

    /// `1 of 3 sites remain, 2 needed`.
    fn shortage(&self, found: usize, what: &str, least: u32) -> String {
        format!("{found} of {} sites {what}, {least} needed", self.rules.sites.len())
    }

    fn site_failed(
        &mut self,
        site: &SiteName,
        class: FailureClass,
        cause: String,
        tail: &str,
        now: u64,
        out: &mut Vec<Action>,
    ) {
        let failure = Failure { class, cause, tail: tail.to_owned() };
        self.working.remove(site);
        self.lost.insert(site.clone(), failure.clone());
        let least = self.rules.min_clients.max(self.rules.min_responses);
        // Once the last round is made nothing depends on the site any more; it is recorded all the same.
        if self.state == State::Saving {
            return;
        }
        let left = self.active().count();
        let short = || self.too_few(left, least).then(|| self.shortage(left, "remain", least));
        if let Some(why) = self.mandatory(&[site]).or_else(short) {
            let before: Vec<_> = self.lost.keys().filter(|lost| *lost != site).map(AsRef::as_ref).collect();
            let also = if before.is_empty() {
                String::new()
            } else {
                format!("; failed before: {}", before.join(", "))
            };
            let cause = format!("{} ({why}{also})", failure.cause);
            self.fail(Some(site), Failure { cause, ..failure }, out);
        } else if matches!(self.state, State::Init(index) if self.rules.sites[index] == *site) {
            let State::Init(index) = self.state else { return };
            self.ask_for_init(index + 1, now, out);
        } else if self.state == State::Working {
            // What it gave in this round it gave in good order; what it owes will not come.
            self.check_responses(site, &failure, out);
        }
    }

    fn check_responses(&mut self, site: &SiteName, failure: &Failure, out: &mut Vec<Action>) {
        let possible = self.answers.len() + self.outstanding().len();
        let least = self.rules.min_responses;
        if self.too_few(possible, least) {
            let why = self.shortage(possible, "can answer", least);
            let cause = format!("{} ({why} in round {})", failure.cause, self.round);
            self.fail(Some(site), Failure { cause, ..failure.clone() }, out);
        }
    }

    /// These sites did not answer in time.
    fn site_late(&mut self, who: &[(SiteName, String, String)], now: u64, out: &mut Vec<Action>) {
        if let State::Init(_) = self.state {
            for (site, cause, tail) in who {
                self.site_failed(site, FailureClass::Timeout, cause.clone(), tail, now, out);
            }
            return;
        }
        for (site, ..) in who {
            self.working.remove(site);
            self.late.insert(site.clone());
        }
        let names: Vec<_> = who.iter().map(|(site, ..)| site).collect();
        let possible = self.answers.len() + self.outstanding().len();
        let least = self.rules.min_responses;
        let short =
            || self.too_few(possible, least).then(|| self.shortage(self.answers.len(), "answered", least));
        if let Some(why) = self.mandatory(&names).or_else(short) {
            // All that still owe an answer are named: who is first past the hour is chance.
            let mut silent: Vec<_> = self.late.iter().cloned().collect();
            silent.extend(self.outstanding());
            let (_, cause, tail) = &who[0];
            let from: Vec<_> = silent.iter().map(AsRef::as_ref).collect();
            let from = if from.len() > 1 { format!(" from {}", from.join(", ")) } else { String::new() };
            let cause = format!("{cause}{from} ({why} in round {})", self.round);
            let failure = Failure { class: FailureClass::Timeout, cause, tail: tail.clone() };
            self.fail(silent.first(), failure, out);
            return;
        }
        for (site, cause, tail) in who {
            if self.state != State::Over && self.late_before.contains(site) {
                let cause = format!("{cause}, for the second time running");
                self.site_failed(site, FailureClass::Timeout, cause, tail, now, out);
            }
        }
    }

    fn look_at_the_clock(&mut self, now: u64, out: &mut Vec<Action>) {
        if self.state == State::Over {
            return;
        }
        let patience = self.rules.patience();
        let past = self.working.iter().filter(|(_, since)| now >= since.saturating_add(patience));
        let cause = format!("no answer within {:?}", self.rules.round_timeout);
        let late: Vec<_> = past.map(|(site, _)| (site.clone(), cause.clone(), String::new())).collect();
        if !late.is_empty() {
            self.site_late(&late, now, out);
        }
    }

    fn close_if_complete(&mut self, out: &mut Vec<Action>) {
        if self.state == State::Working && self.outstanding().is_empty() {
            self.state = State::Holding;
        }
        // A site that failed while the round was held may have taken its result's place in the count
        // with it, but not the result: what was given stays given.
        if self.state == State::Holding && self.saved + 1 >= self.round {
            self.state = State::Adding;
            out.push(Action::Aggregate { round: self.round, parts: self.contributions() });
        }
    }

    fn contributions(&self) -> Vec<Contribution> {
        let part = |site: &SiteName| {
            let answer = self.answers.get(site)?;
            Some(Contribution {
                site: site.clone(),
                model: answer.model.clone()?,
                weight: answer.record.weight,
            })
        };
        self.rules.sites.iter().filter_map(part).collect()
    }

    fn aggregated(&mut self, now: u64, out: &mut Vec<Action>) {
        match self.state {
            State::Adopting => self.next_round(now, out),
            State::Adding => {
                let record = Record {
                    round: self.round,
                    metrics: mean_of_metrics(self.answers.values()),
                    sites: self
                        .answers
                        .iter()
                        .map(|(site, answer)| (site.clone(), answer.record.clone()))
                        .collect(),
                    late: self.late.clone(),
                    lost: self.lost.clone(),
                    millis: now.saturating_sub(self.began),
                };
                self.late_before = std::mem::take(&mut self.late);
                self.unsaved.push(record.clone());
                if self.round < self.rules.rounds {
                    self.next_round(now, out);
                } else {
                    self.state = State::Saving;
                    self.working.clear();
                }
                out.push(Action::Save(record));
            }
            _ => {}
        }
    }

    fn refused(&mut self, site: &SiteName, cause: &str, now: u64, out: &mut Vec<Action>) {
        match self.state {
            State::Adopting => {
                if let Some(index) = self.rules.sites.iter().position(|known| known == site) {
                    self.state = State::Init(index);
                }
            }
            State::Adding => {
                self.answers.remove(site);
                self.state = State::Working;
            }
            _ => return,
        }
        self.site_failed(site, FailureClass::UserCode, cause.to_owned(), "", now, out);
    }

    fn saved(&mut self, round: u32, out: &mut Vec<Action>) {
        self.saved = self.saved.max(round);
        while self.unsaved.first().is_some_and(|record| record.round <= round) {
            let record = self.unsaved.remove(0);
            out.push(Action::Report(RoundDone {
                round: record.round,
                total_rounds: self.rules.rounds,
                metrics: record.metrics,
                sites: record.sites.into_iter().map(|(site, record)| (site, record.metrics)).collect(),
                millis: record.millis,
            }));
        }
        if self.state == State::Saving && self.saved >= self.rules.rounds {
            self.state = State::Over;
            out.push(Action::Finish);
        }
    }

    fn fail(&mut self, site: Option<&SiteName>, failure: Failure, out: &mut Vec<Action>) {
        self.state = State::Over;
        self.working.clear();
        out.push(Action::Fail { site: site.cloned(), failure });
    }
}

/// Each metric's mean over the sites that measured it, by their weight, in the order of their names.
fn mean_of_metrics<'a>(answers: impl Iterator<Item = &'a Answer>) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for Answer { record, .. } in answers {
        for (name, value) in &record.metrics {
            let (sum, weight) = sums.entry(name.clone()).or_default();
            *sum += value * record.weight;
            *weight += record.weight;
        }
    }
    let means = sums.into_iter().map(|(name, (sum, weight))| (name, sum / weight));
    means.filter(|(_, mean)| mean.is_finite()).collect()
}

#[cfg(test)]
mod tests;
