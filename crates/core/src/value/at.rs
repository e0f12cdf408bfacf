//! A place in a document: what stands there, and errors that say where.

use super::{Data, Int, Map, Value, lookup, to_json};
use crate::error::{Error, Result};
use std::time::Duration;

/// A value together with the file and path it came from.
#[derive(Debug, Clone)]
pub struct At<'a> {
    file: &'a str,
    path: String,
    value: &'a Value,
}

/// The known keys of a map.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    at: At<'a>,
    map: &'a Map,
}

impl<'a> At<'a> {
    /// The whole document.
    #[must_use]
    pub fn root(file: &'a str, value: &'a Value) -> Self {
        Self { file, path: String::new(), value }
    }

    /// The same value under another path; for parts that are read apart from their document.
    #[must_use]
    pub fn under(file: &'a str, path: &str, value: &'a Value) -> Self {
        Self { file, path: path.to_owned(), value }
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// The file, as it was named.
    #[must_use]
    pub fn file(&self) -> &'a str {
        self.file
    }

    /// Where it is: `studies.a.env.X`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A value below a key of this one.
    #[must_use]
    pub fn child(&self, key: &str, value: &'a Value) -> Self {
        Self { file: self.file, path: self.path_of(key), value }
    }

    /// The path of a key of this value.
    #[must_use]
    pub fn path_of(&self, key: &str) -> String {
        let simple = !key.is_empty() && key.chars().all(|c| !c.is_control() && !c.is_whitespace());
        let key = if simple { key.to_owned() } else { format!("{key:?}") };
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    /// A refusal of this value.
    #[must_use]
    pub fn refuse(&self, message: &str, allowed: &str) -> Error {
        Error::new(self.file, &self.path, &to_json(self.value), allowed, message).on_line(self.value.line)
    }

    /// A refusal of this value that shows something else than all of it.
    #[must_use]
    pub fn refuse_showing(&self, found: &str, message: &str, allowed: &str) -> Error {
        Error::new(self.file, &self.path, found, allowed, message).on_line(self.value.line)
    }

    /// A refusal of something that is missing or wrong below this value.
    #[must_use]
    pub fn refuse_below(&self, key: &str, found: &str, message: &str, allowed: &str) -> Error {
        Error::new(self.file, &self.path_of(key), found, allowed, message).on_line(self.value.line)
    }

    /// Its map.
    ///
    /// # Errors
    /// When it is something else.
    pub fn map(&self) -> Result<&'a Map> {
        match &self.value.data {
            Data::Map(map) => Ok(map),
            _ => Err(self.refuse(&format!("is {}", self.value.kind()), "a map")),
        }
    }

    /// Its entries, whose keys must be text.
    ///
    /// # Errors
    /// When it is no map, or a key is a number, a boolean or null.
    pub fn entries(&self) -> Result<Vec<(&'a str, At<'a>)>> {
        let mut out = Vec::new();
        for (key, value) in self.map()? {
            if !key.is_text() {
                let message = "is a key that is not text";
                return Err(self.refuse_below(key.as_str(), key.as_str(), message, "a key in quotes"));
            }
            out.push((key.as_str(), self.child(key.as_str(), value)));
        }
        Ok(out)
    }

    /// Its map, with no key but these.
    ///
    /// # Errors
    /// When it is no map or has a key that is not among `known`; the nearest known key is offered.
    pub fn fields(&self, known: &[&str]) -> Result<Fields<'a>> {
        let map = self.map()?;
        for (key, value) in map {
            if !key.is_text() || !known.contains(&key.as_str()) {
                return Err(unknown_key(&self.child(key.as_str(), value), key.as_str(), known));
            }
        }
        Ok(Fields { at: self.clone(), map })
    }

    /// Its list.
    ///
    /// # Errors
    /// When it is something else.
    pub fn seq(&self) -> Result<Vec<At<'a>>> {
        match &self.value.data {
            Data::Seq(items) => Ok(items
                .iter()
                .enumerate()
                .map(|(i, value)| At { file: self.file, path: format!("{}[{i}]", self.path), value })
                .collect()),
            _ => Err(self.refuse(&format!("is {}", self.value.kind()), "a list")),
        }
    }

    /// Its text, which may be empty.
    ///
    /// # Errors
    /// When it is something else.
    pub fn any_text(&self) -> Result<&'a str> {
        match &self.value.data {
            Data::Text(text) => Ok(text),
            _ => Err(self.refuse(&format!("is {}", self.value.kind()), "text")),
        }
    }

    /// Its text.
    ///
    /// # Errors
    /// When it is empty or something else.
    pub fn text(&self) -> Result<&'a str> {
        match self.any_text()? {
            "" => Err(self.refuse("is empty", "text that is not empty")),
            text => Ok(text),
        }
    }

    /// Its text without NUL.
    ///
    /// # Errors
    /// When it is empty, holds a NUL or is something else.
    pub fn clean_text(&self) -> Result<&'a str> {
        let text = self.text()?;
        if text.contains('\0') {
            return Err(self.refuse("holds a NUL", "text without NUL"));
        }
        Ok(text)
    }

    /// Its list of texts.
    ///
    /// # Errors
    /// When it is something else, or an item is empty.
    pub fn texts(&self) -> Result<Vec<String>> {
        self.seq()?.iter().map(|item| item.text().map(str::to_owned)).collect()
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn bool(&self) -> Result<bool> {
        match &self.value.data {
            Data::Bool(value) => Ok(*value),
            _ => Err(self.refuse(&format!("is {}", self.value.kind()), "true or false")),
        }
    }

    /// An integer of any size, at least `least`. A boolean is none, nor is `1.0`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn int(&self, least: i64) -> Result<&'a Int> {
        let allowed = format!("an integer from {least}");
        match &self.value.data {
            Data::Int(int) if int.at_least(least) => Ok(int),
            Data::Int(_) => Err(self.refuse("is too small", &allowed)),
            _ => Err(self.refuse(&format!("is {}", self.value.kind()), &allowed)),
        }
    }

    /// An integer between two bounds.
    ///
    /// # Errors
    /// When it is something else.
    pub fn count(&self, least: u32, most: u32) -> Result<u32> {
        let allowed = format!("an integer from {least} to {most}");
        let Data::Int(int) = &self.value.data else {
            return Err(self.refuse(&format!("is {}", self.value.kind()), &allowed));
        };
        int.as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (least..=most).contains(n))
            .ok_or_else(|| self.refuse("is out of range", &allowed))
    }

    /// A finite number, integer or not; a boolean is none.
    ///
    /// # Errors
    /// When it is something else.
    pub fn number(&self) -> Result<f64> {
        let number = match &self.value.data {
            Data::Int(int) => int.to_f64(),
            Data::Float(number) => *number,
            _ => return Err(self.refuse(&format!("is {}", self.value.kind()), "a number")),
        };
        if number.is_finite() { Ok(number) } else { Err(self.refuse("is not finite", "a finite number")) }
    }

    /// A span of time: `90s`, `10m`, `2h`, `1d`, `250ms`, or a number of seconds.
    ///
    /// # Errors
    /// When it is something else.
    pub fn duration(&self) -> Result<Duration> {
        let parsed = match &self.value.data {
            Data::Text(text) => crate::time::parse(text),
            Data::Int(_) | Data::Float(_) => crate::time::from_seconds(self.number()?),
            _ => None,
        };
        parsed.ok_or_else(|| self.refuse("is not a span of time", crate::time::ALLOWED))
    }

    /// One of a few words.
    ///
    /// # Errors
    /// When it is something else.
    pub fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T> {
        let found = self.value.as_text().and_then(|text| words.iter().find(|(word, _)| *word == text));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.refuse("is not one of the words allowed", &allowed.join(", "))
        })
    }

    /// A name, id or other type that checks its own text.
    ///
    /// # Errors
    /// When it is no text or not such a name.
    pub fn name<T: std::str::FromStr<Err = polder_words::NameError>>(&self) -> Result<T> {
        self.any_text()?.parse().map_err(|error: polder_words::NameError| {
            self.refuse(&format!("is not a {}", error.what), error.allowed)
        })
    }
}

impl<'a> Fields<'a> {
    /// The place of the map itself.
    #[must_use]
    pub fn at(&self) -> &At<'a> {
        &self.at
    }

    /// Whether the key is there, be it null.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        lookup(self.map, key).is_some()
    }

    /// The value of a key, if it is there (null included).
    #[must_use]
    pub fn get(&self, key: &str) -> Option<At<'a>> {
        lookup(self.map, key).map(|value| self.at.child(key, value))
    }

    /// The value of a key, if it is there and not null.
    #[must_use]
    pub fn given(&self, key: &str) -> Option<At<'a>> {
        self.get(key).filter(|at| !at.value.is_null())
    }

    /// The value of a key that has an older name; null counts as absent.
    ///
    /// # Errors
    /// When both names are there.
    pub fn either(&self, key: &str, older: &str) -> Result<Option<At<'a>>> {
        match (self.given(key), self.given(older)) {
            (Some(_), Some(old)) => {
                Err(old.refuse(&format!("says the same as `{key}`"), &format!("only `{key}`")))
            }
            (new, old) => Ok(new.or(old)),
        }
    }

    /// The value of a key that must be there.
    ///
    /// # Errors
    /// When it is not; `allowed` says what it would be.
    pub fn need(&self, key: &str, allowed: &str) -> Result<At<'a>> {
        self.get(key).ok_or_else(|| self.at.refuse_below(key, "", "is missing", allowed))
    }
}

/// The refusal of a key nobody knows, with the nearest known one.
#[must_use]
pub(crate) fn unknown_key(at: &At<'_>, key: &str, known: &[&str]) -> Error {
    let nearest = nearest(key, known);
    let message = match nearest {
        Some(near) => format!("is an unknown key; is `{near}` meant?"),
        None => "is an unknown key".to_owned(),
    };
    Error::new(at.file, &at.path, key, &known.join(", "), &message).on_line(at.value.line)
}

/// The nearest of some words, if it is near: few slips, or the same beginning.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    // A comparison costs the product of the lengths.
    if word.len() > 64 {
        return None;
    }
    known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), *candidate))
        .filter(|(distance, candidate)| {
            *distance <= 1 + candidate.len() / 5 || strsim::jaro_winkler(word, candidate) > 0.86
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
