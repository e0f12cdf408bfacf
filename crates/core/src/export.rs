//! What of a study may leave a site: the policy and the checks of it.
//!
//! The site parent applies these to the bytes themselves, as they were spooled from the worker; a worker or
//! trainer is never asked. Nothing here trusts what a worker says about its own result: shapes and finiteness
//! come from the parent's own reading of the file.

use crate::error::Result;
use crate::value::{At, Value};
use polder_words::{FailureClass, Outcome};
use serde::{Deserialize, Serialize};

/// Most bytes of a log's end that `tail` lets out.
pub const TAIL_BYTES: usize = 16 * 1024;
/// Most lines of a log's end that `tail` lets out.
pub const TAIL_LINES: usize = 100;

/// How much of a log leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogExport {
    /// Nothing: of a failure only whether it may be tried again.
    None,
    /// Of a failure its class, not its cause.
    ClassOnly,
    /// The last lines, when a worker has ended; class and cause of a failure.
    #[default]
    Tail,
    /// Everything, as it is written.
    Full,
}

const LOGS: [(&str, LogExport); 4] = [
    ("none", LogExport::None),
    ("class_only", LogExport::ClassOnly),
    ("tail", LogExport::Tail),
    ("full", LogExport::Full),
];

/// What may leave a site.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Export {
    /// How much of logs. Default `tail`.
    pub logs: LogExport,
    /// The names of metrics; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Vec<String>>,
    /// The largest result, in bytes; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// One tensor of a result, as the parent read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSummary {
    /// Its name.
    pub name: String,
    /// Its element type, in safetensors' spelling: `F32`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Whether every element is finite.
    pub finite: bool,
}

/// What the parent found in a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultSummary {
    /// Size of the file.
    pub bytes: u64,
    /// Its tensors.
    pub tensors: Vec<TensorSummary>,
}

/// Why a result may not leave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Withheld {
    /// It is too large.
    #[error("the result has {bytes} bytes; the study's export policy allows {max}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// It has a number that is none.
    #[error("tensor {tensor:?} holds NaN or infinity")]
    NotFinite {
        /// Its name.
        tensor: String,
    },
    /// A tensor that the model does not have.
    #[error("tensor {tensor:?} is not part of the model")]
    Unexpected {
        /// Its name.
        tensor: String,
    },
    /// A tensor that the model has and the result has not.
    #[error("tensor {tensor:?} of the model is missing")]
    Missing {
        /// Its name.
        tensor: String,
    },
    /// Another shape than the model's.
    #[error("tensor {tensor:?} has shape {found:?}; the model has {expected:?}")]
    Shape {
        /// Its name.
        tensor: String,
        /// The result's.
        found: Vec<u64>,
        /// The model's.
        expected: Vec<u64>,
    },
    /// Another element type than the model's.
    #[error("tensor {tensor:?} is {found}; the model has {expected}")]
    Dtype {
        /// Its name.
        tensor: String,
        /// The result's.
        found: String,
        /// The model's.
        expected: String,
    },
}

impl Withheld {
    /// A policy's refusal, or the trainer's fault.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        match self {
            Self::TooLarge { .. } => FailureClass::Policy,
            _ => FailureClass::UserCode,
        }
    }
}

impl Export {
    /// Reads `export: {logs, metrics, max_bytes}`.
    ///
    /// # Errors
    /// When it is not that.
    pub fn parse(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&["logs", "metrics", "max_bytes"])?;
        let mut out = Self::default();
        if let Some(logs) = fields.get("logs") {
            out.logs = logs.word(&LOGS)?;
        }
        if let Some(metrics) = fields.get("metrics") {
            out.metrics = Some(metrics.texts()?);
        }
        if let Some(max) = fields.get("max_bytes") {
            let bytes = max.int(0)?.as_u64();
            out.max_bytes = Some(bytes.ok_or_else(|| max.refuse("is too large", "at most 2^64-1 bytes"))?);
        }
        Ok(out)
    }

    /// Writes it back.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let logs = LOGS.iter().find(|(_, value)| *value == self.logs).map_or("tail", |(word, _)| word);
        let mut pairs = vec![("logs", Value::from(logs))];
        if let Some(metrics) = &self.metrics {
            pairs.push(("metrics", Value::seq(metrics.iter().map(|name| Value::from(name.as_str())))));
        }
        if let Some(max) = self.max_bytes {
            pairs.push(("max_bytes", Value::from(max)));
        }
        Value::map(pairs)
    }

    /// Whether lines of a log may leave while the worker runs.
    #[must_use]
    pub fn streams_logs(&self) -> bool {
        self.logs == LogExport::Full
    }

    /// The part of a running worker's log that may leave.
    #[must_use]
    pub fn log_chunk<'a>(&self, chunk: &'a str) -> &'a str {
        if self.streams_logs() { chunk } else { "" }
    }

    /// The part of an ended worker's log that may leave: its last lines, whole where they can be.
    #[must_use]
    pub fn log_tail<'a>(&self, log: &'a str) -> &'a str {
        if self.logs < LogExport::Tail {
            return "";
        }
        let mut start = log.len().saturating_sub(TAIL_BYTES);
        while !log.is_char_boundary(start) {
            start += 1;
        }
        let tail = &log[start..];
        // Begin at a line, unless the last line alone is longer than all that may leave.
        let tail = if start > 0 {
            tail.split_once('\n').filter(|(_, rest)| !rest.is_empty()).map_or(tail, |(_, rest)| rest)
        } else {
            tail
        };
        let body = tail.strip_suffix('\n').unwrap_or(tail);
        match body.rmatch_indices('\n').nth(TAIL_LINES - 1) {
            Some((at, _)) => &tail[at + 1..],
            None => tail,
        }
    }

    /// What of an outcome may leave.
    #[must_use]
    pub fn outcome(&self, outcome: &Outcome) -> Outcome {
        const WITHHELD: &str = "withheld by the study's export policy";
        let Outcome::Failed { class, cause, tail } = outcome else { return outcome.clone() };
        match self.logs {
            LogExport::Full | LogExport::Tail => {
                Outcome::Failed { class: *class, cause: cause.clone(), tail: self.log_tail(tail).to_owned() }
            }
            LogExport::ClassOnly => Outcome::failed(*class, WITHHELD),
            // Whether to try again has to be known; more is not said.
            LogExport::None if class.is_worth_retrying() => {
                Outcome::failed(FailureClass::Infrastructure, WITHHELD)
            }
            LogExport::None => Outcome::failed(FailureClass::UserCode, WITHHELD),
        }
    }

    /// Whether a metric of this name and value may leave. What is not finite never does: JSON has no word for it.
    #[must_use]
    pub fn allows_metric(&self, name: &str, value: f64) -> bool {
        value.is_finite() && self.metrics.as_ref().is_none_or(|names| names.iter().any(|n| n == name))
    }

    /// Checks a result against the policy and, where it is known, the model it has to fit.
    ///
    /// # Errors
    /// The first reason why it may not leave.
    pub fn check_result(
        &self,
        result: &ResultSummary,
        model: Option<&[TensorSummary]>,
    ) -> std::result::Result<(), Withheld> {
        if let Some(max) = self.max_bytes.filter(|max| result.bytes > *max) {
            return Err(Withheld::TooLarge { bytes: result.bytes, max });
        }
        if let Some(bad) = result.tensors.iter().find(|tensor| !tensor.finite) {
            return Err(Withheld::NotFinite { tensor: bad.name.clone() });
        }
        let Some(model) = model else { return Ok(()) };
        for tensor in &result.tensors {
            let Some(expected) = model.iter().find(|m| m.name == tensor.name) else {
                return Err(Withheld::Unexpected { tensor: tensor.name.clone() });
            };
            if tensor.shape != expected.shape {
                return Err(Withheld::Shape {
                    tensor: tensor.name.clone(),
                    found: tensor.shape.clone(),
                    expected: expected.shape.clone(),
                });
            }
            if tensor.dtype != expected.dtype {
                return Err(Withheld::Dtype {
                    tensor: tensor.name.clone(),
                    found: tensor.dtype.clone(),
                    expected: expected.dtype.clone(),
                });
            }
        }
        match model.iter().find(|m| result.tensors.iter().all(|t| t.name != m.name)) {
            Some(missing) => Err(Withheld::Missing { tensor: missing.name.clone() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(logs: LogExport) -> Export {
        Export { logs, ..Export::default() }
    }

    #[test]
    fn a_failure_shows_no_more_than_the_policy_says() {
        let failed = Outcome::Failed {
            class: FailureClass::OutOfMemory,
            cause: "signal 9 at patient 17".into(),
            tail: "patient 17\n".into(),
        };
        assert_eq!(with(LogExport::Full).outcome(&failed), failed);
        let class_only = with(LogExport::ClassOnly).outcome(&failed);
        assert_eq!(
            class_only,
            Outcome::failed(FailureClass::OutOfMemory, "withheld by the study's export policy")
        );
        let none = with(LogExport::None).outcome(&failed);
        assert!(matches!(none, Outcome::Failed { class: FailureClass::UserCode, .. }));
        assert_eq!(with(LogExport::None).outcome(&Outcome::Completed), Outcome::Completed);
    }

    #[test]
    fn only_named_metrics_leave() {
        let export = Export { metrics: Some(vec!["loss".into()]), ..Export::default() };
        assert!(export.allows_metric("loss", 0.5));
        assert!(!export.allows_metric("name_of_patient", 1.0));
        assert!(!export.allows_metric("loss", f64::NAN));
        assert!(Export::default().allows_metric("anything", 1.0));
    }

    #[test]
    fn a_result_has_to_fit_the_model() {
        let tensor = |name: &str, shape: &[u64]| TensorSummary {
            name: name.into(),
            dtype: "F32".into(),
            shape: shape.to_vec(),
            finite: true,
        };
        let model = [tensor("w", &[3]), tensor("b", &[1])];
        let check = |tensors: Vec<TensorSummary>, max_bytes| {
            Export { max_bytes, ..Export::default() }
                .check_result(&ResultSummary { bytes: 100, tensors }, Some(&model))
        };
        assert_eq!(check(model.to_vec(), Some(100)), Ok(()));
        assert_eq!(check(model.to_vec(), Some(99)), Err(Withheld::TooLarge { bytes: 100, max: 99 }));
        assert_eq!(check(vec![tensor("w", &[3])], None), Err(Withheld::Missing { tensor: "b".into() }));
        let wrong = check(vec![tensor("w", &[4]), tensor("b", &[1])], None);
        assert_eq!(
            wrong.map_err(|e| e.to_string()),
            Err("tensor \"w\" has shape [4]; the model has [3]".into())
        );
        let mut nan = model.to_vec();
        nan[0].finite = false;
        assert_eq!(check(nan, None), Err(Withheld::NotFinite { tensor: "w".into() }));
        let mut extra = model.to_vec();
        extra.push(tensor("patients", &[569, 30]));
        assert_eq!(check(extra, None), Err(Withheld::Unexpected { tensor: "patients".into() }));
    }

    proptest! {
        #[test]
        fn a_tail_is_an_end_and_bounded(log in "(?s).{0,300}", repeat in 1usize..200) {
            let log = log.repeat(repeat);
            let export = with(LogExport::Tail);
            let tail = export.log_tail(&log);
            prop_assert!(log.ends_with(tail));
            prop_assert!(tail.len() <= TAIL_BYTES && tail.lines().count() <= TAIL_LINES);
            prop_assert!(log.is_empty() || !tail.is_empty());
            prop_assert_eq!(with(LogExport::ClassOnly).log_tail(&log), "");
        }
    }
}
