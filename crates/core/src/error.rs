//! The one error of every parser here: which file, where in it, what was found and what is allowed.
//!
//! People see it as one line; programs as `{"error": {"file", "at", "found", "allowed", "message"}}`.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::fmt;

/// Longest piece of a document repeated in an error, in characters.
const FOUND_MAX: usize = 120;

/// A document, or a part of it, that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    file: Box<str>,
    at: Box<str>,
    found: Box<str>,
    allowed: Box<str>,
    message: Box<str>,
    line: u32,
}

/// What parsers return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error at a place of a document. `at` is a path such as `studies.a.env.X`, empty for the whole document.
    #[must_use]
    pub fn new(file: &str, at: &str, found: &str, allowed: &str, message: &str) -> Self {
        Self {
            file: file.into(),
            at: at.into(),
            found: shorten(found).into(),
            allowed: allowed.into(),
            message: message.into(),
            line: 0,
        }
    }

    /// The same with the line (from 1) it was found at.
    #[must_use]
    pub fn on_line(mut self, line: u32) -> Self {
        self.line = line;
        self
    }

    /// The name of the file as it was given to the parser.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The path in the document, such as `studies.a.env.X`; empty for the whole document.
    #[must_use]
    pub fn at(&self) -> &str {
        &self.at
    }

    /// What stands there.
    #[must_use]
    pub fn found(&self) -> &str {
        &self.found
    }

    /// What may stand there.
    #[must_use]
    pub fn allowed(&self) -> &str {
        &self.allowed
    }

    /// What is wrong, without file and place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The line, when it is known.
    #[must_use]
    pub fn line(&self) -> Option<u32> {
        (self.line > 0).then_some(self.line)
    }

    /// The contract's shape: `{"error": {...}}`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({"error": self})
    }
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= FOUND_MAX {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(FOUND_MAX).collect();
    cut.push('…');
    cut
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.at.is_empty() {
            write!(f, ": {}", self.at)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.found.is_empty() {
            write!(f, "; found {}", self.found)?;
        }
        if !self.allowed.is_empty() {
            write!(f, "; allowed: {}", self.allowed)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(5))?;
        map.serialize_entry("file", &self.file)?;
        map.serialize_entry("at", &self.at)?;
        map.serialize_entry("found", &self.found)?;
        map.serialize_entry("allowed", &self.allowed)?;
        map.serialize_entry("message", &self.message)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_file_place_value_and_rule() {
        let error = Error::new("meta.json", "min_clients", "true", "an integer from 1", "is not an integer")
            .on_line(3);
        assert_eq!(
            error.to_string(),
            "meta.json:3: min_clients: is not an integer; found true; allowed: an integer from 1"
        );
        assert_eq!(error.to_json()["error"]["at"], "min_clients");
    }

    #[test]
    fn long_values_are_cut() {
        let error = Error::new("f", "", &"ä".repeat(500), "", "no");
        assert_eq!(error.found().chars().count(), 121);
    }
}
