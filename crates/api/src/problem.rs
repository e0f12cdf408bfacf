//! What a refusal looks like on the wire and, with `--json`, on the screen.

use serde::{Deserialize, Serialize};

/// What kind of refusal; it decides the HTTP status and the exit code of the CLI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemCode {
    /// The request is malformed or a file in it is (400, exit 1).
    Invalid,
    /// No session, an ended session or a certificate that is not accepted (401, exit 3).
    Unauthenticated,
    /// A rule forbids it (403, exit 3).
    Forbidden,
    /// It does not exist, or not for this study (404, exit 1).
    NotFound,
    /// It exists already or changed meanwhile (409, exit 1).
    Conflict,
    /// Larger than allowed (413, exit 1).
    TooLarge,
    /// Too many or not now; try again later (429 or 503, exit 4).
    Busy,
    /// The other side, or something behind it, cannot be reached (502, exit 4). The CLI says it itself
    /// when the server does not answer.
    Unreachable,
    /// The command line is wrong (400, exit 2). Said by the CLI only.
    Usage,
    /// A defect of the answering side (500, exit 5).
    Internal,
}

/// One clear error: file, place, value and what is allowed, where they apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What kind.
    pub code: ProblemCode,
    /// One sentence, lower case, no full stop.
    pub message: String,
    /// The file it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Where in the file: `studies.pathology.env.X`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// What stands there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What may stand there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<String>,
}

impl Problem {
    /// A problem with a sentence only.
    #[must_use]
    pub fn new(code: ProblemCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), file: None, at: None, found: None, allowed: None }
    }
}

impl ProblemCode {
    /// The HTTP status that carries it.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::Busy => 503,
            Self::Unreachable => 502,
            Self::Usage => 400,
            Self::Internal => 500,
        }
    }
}

impl ProblemCode {
    /// The exit code of a command that ends with it.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Invalid | Self::NotFound | Self::Conflict | Self::TooLarge => 1,
            Self::Usage => 2,
            Self::Unauthenticated | Self::Forbidden => 3,
            Self::Busy | Self::Unreachable => 4,
            Self::Internal => 5,
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}
