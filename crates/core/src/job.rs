//! `job.yaml`: the workflow, its rounds, the trainer's command and how results are combined.

use crate::error::Result;
use crate::value::{At, Value, from_bytes, to_yaml};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The file's name inside an app folder.
pub const FILE: &str = "job.yaml";
/// How long a round may take when the job does not say.
pub const ROUND_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Most rounds of a job.
pub const MAX_ROUNDS: u32 = 1_000_000;

/// What the server worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

const WORKFLOWS: [(&str, Workflow); 5] = [
    ("fedavg", Workflow::Fedavg),
    ("fedopt", Workflow::Fedopt),
    ("cyclic", Workflow::Cyclic),
    ("cross_site_eval", Workflow::CrossSiteEval),
    ("statistics", Workflow::Statistics),
];

/// How the trainer's program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainerMode {
    /// One process for the job; it asks for tasks over a socket.
    #[default]
    Session,
    /// One process a round, called with `--in` and `--out`.
    PerRound,
}

const MODES: [(&str, TrainerMode); 2] =
    [("session", TrainerMode::Session), ("per_round", TrainerMode::PerRound)];

/// The user's program at a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trainer {
    /// Program and arguments, run in the app folder; no shell.
    pub command: Vec<String>,
    /// Default `session`.
    pub mode: TrainerMode,
}

/// What a result counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// The weight the trainer sends, its number of samples.
    #[default]
    NumSamples,
    /// The same for every site.
    Equal,
}

const WEIGHTS: [(&str, Weight); 2] = [("num_samples", Weight::NumSamples), ("equal", Weight::Equal)];

/// How results become one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregation {
    /// Default `num_samples`.
    pub weight: Weight,
    /// Results without which a round fails; absent: the job's `min_clients`.
    pub min_responses: Option<u32>,
    /// After which a round closes with what has arrived; default 24 hours.
    pub round_timeout: Duration,
}

impl Default for Aggregation {
    fn default() -> Self {
        Self { weight: Weight::default(), min_responses: None, round_timeout: ROUND_TIMEOUT }
    }
}

/// `job.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobConfig {
    /// Default `fedavg`.
    pub workflow: Workflow,
    /// Default 1.
    pub rounds: u32,
    /// A file of the app folder to begin with; absent: the first trainer's `init`.
    pub initial_model: Option<String>,
    /// The user's program.
    pub trainer: Trainer,
    /// How results become one.
    pub aggregation: Aggregation,
}

impl JobConfig {
    /// Reads `job.yaml`.
    ///
    /// # Errors
    /// When it is not YAML, a key is unknown or missing, or a value is not allowed.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let value = from_bytes(file, bytes)?;
        Self::read(&At::root(file, &value))
    }

    fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&["workflow", "rounds", "initial_model", "trainer", "aggregation"])?;
        let workflow =
            fields.given("workflow").map_or(Ok(Workflow::Fedavg), |workflow| workflow.word(&WORKFLOWS))?;
        let rounds = fields.given("rounds").map_or(Ok(1), |rounds| rounds.count(1, MAX_ROUNDS))?;
        let initial_model = fields.given("initial_model").map(|model| relative_path(&model)).transpose()?;
        let trainer = read_trainer(&fields.need("trainer", "a map such as {command: [python3, train.py]}")?)?;
        let aggregation = fields
            .given("aggregation")
            .map_or_else(|| Ok(Aggregation::default()), |aggregation| read_aggregation(&aggregation))?;
        Ok(Self { workflow, rounds, initial_model, trainer, aggregation })
    }

    /// Writes it back, defaults included.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut pairs = vec![
            ("workflow", Value::from(word(&WORKFLOWS, self.workflow))),
            ("rounds", Value::from(self.rounds)),
        ];
        if let Some(model) = &self.initial_model {
            pairs.push(("initial_model", Value::from(model.as_str())));
        }
        let command = self.trainer.command.iter().map(|part| Value::from(part.as_str()));
        pairs.push((
            "trainer",
            Value::map([
                ("command", Value::seq(command)),
                ("mode", Value::from(word(&MODES, self.trainer.mode))),
            ]),
        ));
        let mut aggregation = vec![("weight", Value::from(word(&WEIGHTS, self.aggregation.weight)))];
        if let Some(min) = self.aggregation.min_responses {
            aggregation.push(("min_responses", Value::from(min)));
        }
        aggregation.push(("round_timeout", Value::from(crate::time::print(self.aggregation.round_timeout))));
        pairs.push(("aggregation", Value::map(aggregation)));
        Value::map(pairs)
    }
}

impl fmt::Display for JobConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_yaml(&self.to_value()))
    }
}

fn word<T: PartialEq + Copy>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, v)| *v == value).map_or("", |(word, _)| word)
}

fn read_trainer(at: &At<'_>) -> Result<Trainer> {
    let fields = at.fields(&["command", "mode"])?;
    let allowed = "a list of program and arguments";
    let command_at = fields.need("command", allowed)?;
    let mut command = Vec::new();
    for (i, part) in command_at.seq()?.iter().enumerate() {
        let text = if i == 0 { part.clean_text()? } else { part.any_text()? };
        if text.contains('\0') {
            return Err(part.refuse("holds a NUL", "text without NUL"));
        }
        command.push(text.to_owned());
    }
    if command.is_empty() {
        return Err(command_at.refuse("is empty", allowed));
    }
    let mode = fields.given("mode").map_or(Ok(TrainerMode::Session), |mode| mode.word(&MODES))?;
    Ok(Trainer { command, mode })
}

fn read_aggregation(at: &At<'_>) -> Result<Aggregation> {
    let fields = at.fields(&["weight", "min_responses", "round_timeout"])?;
    let mut out = Aggregation::default();
    if let Some(weight) = fields.given("weight") {
        out.weight = weight.word(&WEIGHTS)?;
    }
    if let Some(min) = fields.given("min_responses") {
        out.min_responses = Some(min.count(1, crate::meta::MAX_CLIENTS)?);
    }
    if let Some(timeout) = fields.given("round_timeout") {
        out.round_timeout = timeout.duration()?;
        if out.round_timeout.is_zero() {
            return Err(timeout.refuse("is no time at all", "more than 0s"));
        }
    }
    Ok(out)
}

/// A path below a folder: no root, no `..`, no empty or `.` part.
fn relative_path(at: &At<'_>) -> Result<String> {
    let text = at.clean_text()?;
    let good = text.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if good { Ok(text.to_owned()) } else { Err(at.refuse("leaves the app folder", "a path inside it")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> std::result::Result<JobConfig, String> {
        JobConfig::parse("job.yaml", text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults() {
        let job = read("trainer: {command: [./train]}\n").expect("the least");
        assert_eq!(
            job.to_string(),
            "workflow: fedavg\nrounds: 1\ntrainer:\n  command:\n    - \"./train\"\n  mode: session\n\
             aggregation:\n  weight: num_samples\n  round_timeout: 1d\n"
        );
    }

    #[test]
    fn the_documented_example() {
        let job = read(
            "workflow: fedavg\nrounds: 20\ninitial_model: init.safetensors\n\
             trainer: {command: [python3, train.py, --lr, \"0.1\"], mode: session}\n\
             aggregation: {weight: num_samples, min_responses: 2, round_timeout: 2h}\n",
        )
        .expect("the example");
        assert_eq!(job.rounds, 20);
        assert_eq!(job.aggregation.round_timeout, Duration::from_secs(7200));
        assert_eq!(job.trainer.command, ["python3", "train.py", "--lr", "0.1"]);
    }

    #[test]
    fn refusals() {
        for (text, part) in [
            ("{}", "trainer: is missing"),
            ("trainer: {command: []}", "trainer.command: is empty"),
            ("trainer: {command: [a, 0.1]}", "trainer.command[1]: is a number; found 0.1; allowed: text"),
            ("trainer: {command: [a]}\nround: 3", "round: is an unknown key; is `rounds` meant?"),
            ("trainer: {command: [a]}\nrounds: 0", "rounds: is out of range"),
            ("trainer: {command: [a]}\nrounds: true", "rounds: is a boolean"),
            ("trainer: {command: [a]}\nworkflow: fedprox", "workflow: is not one of the words allowed"),
            ("trainer: {command: [a]}\ninitial_model: ../x", "initial_model: leaves the app folder"),
            ("trainer: {command: [a]}\naggregation: {round_timeout: 2 hours}", "is not a span of time"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    pub(crate) fn any_job() -> impl Strategy<Value = JobConfig> {
        (
            prop::sample::select(WORKFLOWS.to_vec()),
            1..=MAX_ROUNDS,
            prop::option::of("[a-z0-9_]{1,8}(/[a-z.]{3,8}t){0,2}"),
            prop::collection::vec("[^\0]{1,12}", 1..4),
            prop::sample::select(MODES.to_vec()),
            prop::sample::select(WEIGHTS.to_vec()),
            prop::option::of(1u32..1000),
            1u64..1_000_000_000,
        )
            .prop_map(
                |(workflow, rounds, initial_model, command, mode, weight, min_responses, ms)| JobConfig {
                    workflow: workflow.1,
                    rounds,
                    initial_model,
                    trainer: Trainer { command, mode: mode.1 },
                    aggregation: Aggregation {
                        weight: weight.1,
                        min_responses,
                        round_timeout: Duration::from_millis(ms),
                    },
                },
            )
    }

    proptest! {
        #[test]
        fn prints_and_reads_back(job in any_job()) {
            prop_assert_eq!(read(&job.to_string()), Ok(job));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "(?s).{0,64}") {
            let _ = JobConfig::parse("job.yaml", &bytes);
            if let Ok(job) = read(&text) {
                prop_assert_eq!(read(&job.to_string()), Ok(job));
            }
        }
    }
}
