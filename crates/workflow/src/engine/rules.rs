//! What a job's rounds go by, checked before the first begins.

use super::Failure;
use crate::spec::{JobSpec, SpecError, Weighting, Workflow};
use polder_words::SiteName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What the rounds go by.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Who takes part, in the order in which results are added up.
    pub sites: Vec<SiteName>,
    /// Who must stay.
    pub mandatory: BTreeSet<SiteName>,
    /// Fewest sites that must stay.
    pub min_clients: u32,
    /// Fewest results of a round.
    pub min_responses: u32,
    /// How many rounds.
    pub rounds: u32,
    /// How long a site may take for one.
    pub round_timeout: Duration,
    /// What a result counts for.
    pub weighting: Weighting,
    /// Attempt of the server's worker: part of every task's id.
    pub attempt: u32,
}

/// Where to continue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// Rounds made; 0 for a new job.
    pub round: u32,
    /// Who was late in that round.
    pub late: BTreeSet<SiteName>,
    /// Who has failed.
    pub lost: BTreeMap<SiteName, Failure>,
}

impl Rules {
    /// The rules of a job at these sites.
    ///
    /// # Errors
    /// When the workflow is one of a later version, or the numbers contradict each other.
    pub fn new(
        spec: &JobSpec,
        sites: Vec<SiteName>,
        min_clients: u32,
        mandatory: impl IntoIterator<Item = SiteName>,
        attempt: u32,
    ) -> Result<Self, SpecError> {
        if spec.workflow != Workflow::Fedavg {
            return Err(SpecError::Workflow { found: spec.workflow });
        }
        if sites.is_empty() || spec.rounds == 0 {
            return Err(SpecError::Empty(format!("{} sites and {} rounds", sites.len(), spec.rounds)));
        }
        let mandatory: BTreeSet<_> = mandatory.into_iter().collect();
        if let Some(site) = mandatory.iter().find(|site| !sites.contains(site)) {
            return Err(SpecError::Empty(format!("mandatory site {site} does not take part")));
        }
        let min_clients = min_clients.max(1);
        let min_responses = spec.aggregation.min_responses.unwrap_or(min_clients).max(1);
        for found in [min_clients, min_responses] {
            if usize::try_from(found).is_ok_and(|found| found > sites.len()) {
                return Err(SpecError::MinResponses { found, sites: sites.len() });
            }
        }
        Ok(Self {
            sites,
            mandatory,
            min_clients,
            min_responses,
            rounds: spec.rounds,
            round_timeout: spec.aggregation.round_timeout,
            weighting: spec.aggregation.weight,
            attempt,
        })
    }

    /// How long the engine itself waits for a site, milliseconds. The site's worker looks at the same
    /// clock and knows more (the last lines of the log), so it gets the time to say so first.
    #[must_use]
    pub fn patience(&self) -> u64 {
        let timeout = u64::try_from(self.round_timeout.as_millis()).unwrap_or(u64::MAX / 4);
        timeout.saturating_add((timeout / 10).clamp(2_000, 60_000))
    }

    pub(super) fn weigh(&self, weight: f64) -> f64 {
        match self.weighting {
            Weighting::NumSamples => weight,
            Weighting::Equal => 1.0,
        }
    }
}
