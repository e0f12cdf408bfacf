//! `job.yaml` as the parent hands it down: JSON, checked and completed with defaults by `polder-core`.

use serde::Deserialize;
use serde_json::Value;
use std::fmt;
use std::time::Duration;

/// What the workflows of this version are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workflow {
    /// All sites train at once, results are averaged.
    Fedavg,
    /// As `fedavg`, with an optimiser on the server.
    Fedopt,
    /// One site after the other.
    Cyclic,
    /// Every site evaluates every site's model.
    CrossSiteEval,
    /// Counts, means, histograms.
    Statistics,
}

impl fmt::Display for Workflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fedavg => "fedavg",
            Self::Fedopt => "fedopt",
            Self::Cyclic => "cyclic",
            Self::CrossSiteEval => "cross_site_eval",
            Self::Statistics => "statistics",
        })
    }
}

/// How the trainer's program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainerMode {
    /// One process for the job; it asks for tasks over a socket.
    #[default]
    Session,
    /// One process a round, called with `--in` and `--out`.
    PerRound,
}

/// What a result counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weighting {
    /// The weight the trainer sends, its number of samples.
    #[default]
    NumSamples,
    /// The same for every site.
    Equal,
}

/// The user's program at a site.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Trainer {
    /// Program and arguments; no shell.
    pub command: Vec<String>,
    /// How it is run.
    #[serde(default)]
    pub mode: TrainerMode,
}

/// How results become one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Aggregation {
    /// What a result counts for.
    pub weight: Weighting,
    /// Results without which a round fails; absent: the job's `min_clients`.
    pub min_responses: Option<u32>,
    /// After which a round closes with what has arrived.
    #[serde(deserialize_with = "span")]
    pub round_timeout: Duration,
}

impl Default for Aggregation {
    fn default() -> Self {
        Self { weight: Weighting::default(), min_responses: None, round_timeout: Duration::from_secs(86_400) }
    }
}

/// `job.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct JobSpec {
    /// The workflow.
    pub workflow: Workflow,
    /// Rounds, at least 1.
    pub rounds: u32,
    /// A file of the server's app folder to begin with; absent: the first site's `init`.
    #[serde(default)]
    pub initial_model: Option<String>,
    /// The user's program.
    pub trainer: Trainer,
    /// How results become one.
    #[serde(default)]
    pub aggregation: Aggregation,
}

/// Why a job cannot be run by this worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not the JSON it should be.
    #[error("job.yaml as the parent handed it down cannot be read: {0}")]
    Malformed(String),
    /// A workflow of a later version.
    #[error("workflow: {found} is not available in this version; available is fedavg")]
    Workflow {
        /// Which.
        found: Workflow,
    },
    /// More answers are asked for than there are sites.
    #[error("aggregation.min_responses: {found} is more than the {sites} sites of the job")]
    MinResponses {
        /// What is asked for.
        found: u32,
        /// What there is.
        sites: usize,
    },
    /// No round, no site, or a site that must stay and does not take part.
    #[error("{0}")]
    Empty(String),
}

impl JobSpec {
    /// Reads the parent's JSON.
    ///
    /// # Errors
    /// When a key is missing or has a value that is not allowed.
    pub fn read(value: &Value) -> Result<Self, SpecError> {
        let spec = Self::deserialize(value).map_err(|error| SpecError::Malformed(error.to_string()))?;
        if spec.trainer.command.is_empty() {
            return Err(SpecError::Malformed("trainer.command is empty".to_owned()));
        }
        Ok(spec)
    }
}

/// `1h30m`, a number of seconds, or seconds and nanoseconds as serde writes a `Duration`.
fn span<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    use serde::de::Error;
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Parts(Duration),
        Seconds(f64),
        Text(String),
    }
    match Form::deserialize(from)? {
        Form::Parts(span) => Ok(span),
        Form::Seconds(seconds) => Duration::try_from_secs_f64(seconds).map_err(D::Error::custom),
        Form::Text(text) => {
            parse_span(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is not a span of time")))
        }
    }
}

fn parse_span(text: &str) -> Option<Duration> {
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let factor = match unit {
            "d" => 86_400_000,
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            _ => return None,
        };
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(factor)?)?;
        rest = tail;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_form_a_parent_may_write() {
        for (timeout, millis) in [
            (json!("1h30m"), 5_400_000),
            (json!("250ms"), 250),
            (json!(2.5), 2500),
            (json!({"secs": 7, "nanos": 0}), 7000),
        ] {
            let spec = JobSpec::read(&json!({
                "workflow": "fedavg", "rounds": 3, "trainer": {"command": ["x"], "mode": "per_round"},
                "aggregation": {"weight": "equal", "min_responses": 2, "round_timeout": timeout},
            }))
            .expect("a job");
            assert_eq!(spec.aggregation.round_timeout, Duration::from_millis(millis));
            assert_eq!(
                (spec.trainer.mode, spec.aggregation.weight),
                (TrainerMode::PerRound, Weighting::Equal)
            );
        }
        let least = JobSpec::read(&json!({"workflow": "cyclic", "rounds": 1, "trainer": {"command": ["x"]}}));
        assert_eq!(least.expect("a job").aggregation, Aggregation::default());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (job, part) in [
            (json!({"rounds": 1, "trainer": {"command": ["x"]}}), "missing field `workflow`"),
            (
                json!({"workflow": "fedavg", "rounds": 1, "trainer": {"command": []}}),
                "trainer.command is empty",
            ),
            (
                json!({"workflow": "fedavg", "rounds": 1, "trainer": {"command": ["x"]}, "aggregation": {"round_timeout": "soon"}}),
                "not a span of time",
            ),
        ] {
            let error = JobSpec::read(&job).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
