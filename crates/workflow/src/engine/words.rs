//! What the engine hears and says.

use polder_api::payload::Payload;
use polder_api::site::TaskResult;
use polder_api::worker::{Member, RoundDone};
use polder_words::{FailureClass, SiteName, TaskId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What happened.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// The parent's latest word: how far each site is, and every result of the current tasks.
    Seen {
        /// By site; a site that is not named is unchanged.
        roster: &'a BTreeMap<SiteName, Member>,
        /// By site.
        results: &'a BTreeMap<SiteName, TaskResult>,
    },
    /// The action [`Action::Aggregate`] or [`Action::Adopt`] was carried out.
    Aggregated,
    /// It could not be, because this site's model may not be used.
    Refused {
        /// Whose.
        site: &'a SiteName,
        /// What is wrong with it.
        cause: &'a str,
    },
    /// The checkpoint of this round is on disk.
    Saved {
        /// Which.
        round: u32,
    },
    /// The link to the parent was down: nobody could answer meanwhile.
    Reconnected,
    /// Time passed.
    Tick,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Give this task to these sites and none to others, with the current model (none for `init`).
    Publish {
        /// Whom.
        sites: Vec<SiteName>,
        /// Its id.
        task: TaskId,
        /// `train` or `init`.
        kind: &'static str,
    },
    /// Use this model as the first global one.
    Adopt(Contribution),
    /// Make the weighted mean of these the global model of the round.
    Aggregate {
        /// Which round.
        round: u32,
        /// In the order of the job's sites.
        parts: Vec<Contribution>,
    },
    /// Write the checkpoint: the global model is that of this round.
    Save(Record),
    /// Tell the parent.
    Report(RoundDone),
    /// Hand over the results; the job is done.
    Finish,
    /// The job has failed.
    Fail {
        /// Whose failure it is; the first of several.
        site: Option<SiteName>,
        /// Why.
        failure: Failure,
    },
}

/// One site's model.
#[derive(Debug, Clone, PartialEq)]
pub struct Contribution {
    /// Whose.
    pub site: SiteName,
    /// Where it is.
    pub model: Payload,
    /// What it counts for.
    pub weight: f64,
}

/// Why a site, or the job, has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One word.
    pub class: FailureClass,
    /// What exactly.
    pub cause: String,
    /// The last lines of the site's log.
    #[serde(default)]
    pub tail: String,
}

/// What is kept of a round: its line in the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Which.
    pub round: u32,
    /// Weighted means of what the sites measured.
    pub metrics: BTreeMap<String, f64>,
    /// Each site that is in it.
    pub sites: BTreeMap<SiteName, SiteRecord>,
    /// Who was late, and out of it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub late: BTreeSet<SiteName>,
    /// Who has failed up to now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost: BTreeMap<SiteName, Failure>,
    /// From the publishing of its tasks to the global model, milliseconds.
    pub millis: u64,
}

/// One site in a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SiteRecord {
    /// What its model counted for.
    pub weight: f64,
    /// What it measured.
    pub metrics: BTreeMap<String, f64>,
}
