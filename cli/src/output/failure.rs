//! How a command ends badly: a refusal that is printed, or an ending of which everything was said.

use polder_api::{Problem, ProblemCode};
use serde_json::{Value, json};

/// A refusal with advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What is wrong, where, what stands there and what may.
    pub(crate) problem: Problem,
    /// What to do, one sentence.
    pub(crate) hint: Option<String>,
}

/// The end of a command that is not success.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Print it; its code decides the exit code.
    Failure(Box<Failure>),
    /// Everything was printed; end with this exit code.
    Said(u8),
    /// Nobody reads the output any more.
    Closed,
}

impl Failure {
    /// A refusal.
    pub(crate) fn new(code: ProblemCode, message: impl Into<String>) -> Self {
        Self { problem: Problem::new(code, message), hint: None }
    }

    /// The same with advice.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same about a file.
    pub(crate) fn file(mut self, file: impl Into<String>) -> Self {
        self.problem.file = Some(file.into());
        self
    }

    /// The same with what was found and what is allowed.
    pub(crate) fn found(mut self, found: impl Into<String>, allowed: impl Into<String>) -> Self {
        self.problem.found = Some(found.into());
        self.problem.allowed = Some(allowed.into());
        self
    }

    /// A file that cannot be read or written.
    pub(crate) fn io(path: &std::path::Path, doing: &str, error: &std::io::Error) -> Self {
        Self::new(ProblemCode::Invalid, format!("cannot {doing}: {error}")).file(path.display().to_string())
    }

    /// The line people see: `FILE: PLACE: what; found X; allowed: Y`.
    pub(crate) fn sentence(&self) -> String {
        let problem = &self.problem;
        let mut text = String::new();
        for part in [&problem.file, &problem.at].into_iter().flatten().filter(|part| !part.is_empty()) {
            text.push_str(part);
            text.push_str(": ");
        }
        text.push_str(&problem.message);
        if let Some(found) = problem.found.as_ref().filter(|text| !text.is_empty()) {
            text.push_str("; found ");
            text.push_str(found);
        }
        if let Some(allowed) = problem.allowed.as_ref().filter(|text| !text.is_empty()) {
            text.push_str("; allowed: ");
            text.push_str(allowed);
        }
        text
    }

    /// What programs read: every key always there.
    pub(crate) fn document(&self) -> Value {
        let problem = &self.problem;
        json!({"error": {
            "code": problem.code,
            "message": problem.message,
            "file": problem.file,
            "at": problem.at,
            "found": problem.found,
            "allowed": problem.allowed,
            "hint": self.hint,
        }})
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self { problem, hint: None }
    }
}

impl From<Failure> for Ending {
    fn from(failure: Failure) -> Self {
        Self::Failure(Box::new(failure))
    }
}

impl From<Problem> for Ending {
    fn from(problem: Problem) -> Self {
        Failure::from(problem).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_names_file_place_value_and_rule() {
        let mut failure = Failure::new(ProblemCode::Invalid, "is not a whole number")
            .file("meta.json")
            .found("true", "an integer from 1")
            .hint("write `min_clients: 2`");
        failure.problem.at = Some("min_clients".to_owned());
        assert_eq!(
            failure.sentence(),
            "meta.json: min_clients: is not a whole number; found true; allowed: an integer from 1"
        );
        insta::assert_json_snapshot!(failure.document(), @r#"
        {
          "error": {
            "code": "invalid",
            "message": "is not a whole number",
            "file": "meta.json",
            "at": "min_clients",
            "found": "true",
            "allowed": "an integer from 1",
            "hint": "write `min_clients: 2`"
          }
        }
        "#);
    }
}
