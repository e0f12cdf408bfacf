//! Which image a worker runs, and whether the study lets it.

/// Whether a text is a pattern of images: printable, without white space, `*` for any run of characters.
#[must_use]
pub fn is_pattern(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}
