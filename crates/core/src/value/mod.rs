//! Documents: YAML 1.2 and JSON read into one ordered value, with lines for errors.
//!
//! Why not a serde loader: a duplicate key must be refused, a plain scalar that YAML 1.1 readers take for
//! something else must be told from the same text in quotes, integers have no size limit, and an error has to
//! name the place. `load` builds the value, [`At`] walks it, `print` writes it back.

mod at;
mod int;
mod json;
mod plain;
mod print;
mod yaml;

pub(crate) use at::unknown_key;
pub use at::{At, Fields};
pub use int::Int;
pub use json::from_json;
pub use print::{python_float, to_json, to_json_pretty, to_yaml};
pub use yaml::from_yaml;

use crate::error::Result;
use indexmap::IndexMap;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

/// Deepest nesting of a document.
pub const MAX_DEPTH: usize = 100;
/// Most values in a document, aliases written out.
pub const MAX_VALUES: usize = 200_000;
/// Longest document, and most text in it with aliases written out, in bytes.
pub const MAX_BYTES: usize = 8 << 20;

/// One value of a document and the line it began on (0 when made by a program).
#[derive(Debug, Clone, Default)]
pub struct Value {
    /// What it is.
    pub data: Data,
    /// From 1; 0 when it was made by a program.
    pub line: u32,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Data {
    /// Nothing.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer of any size.
    Int(Int),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    Seq(Vec<Value>),
    /// A map, in the order of the document.
    Map(Map),
}

/// A map in the order of the document.
pub type Map = IndexMap<Key, Value>;

/// A key of a map. Two keys that print alike are one, so `1` and `'1'` cannot both stand in a map.
#[derive(Debug, Clone, Eq)]
pub struct Key {
    text: Box<str>,
    /// `false` for a key that is a number or a boolean; it is found by nobody who looks for text.
    is_text: bool,
}

impl Key {
    /// A key that is text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self { text: text.into(), is_text: true }
    }

    /// A key that is a number or a boolean, in the way JSON would print it.
    #[must_use]
    pub fn scalar(text: &str) -> Self {
        Self { text: text.into(), is_text: false }
    }

    /// How it prints.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it was written as text.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.is_text
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (*self.text).hash(state);
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

impl Value {
    /// A map of pairs.
    pub fn map<K: AsRef<str>>(pairs: impl IntoIterator<Item = (K, Self)>) -> Self {
        Data::Map(pairs.into_iter().map(|(key, value)| (Key::text(key.as_ref()), value)).collect()).into()
    }

    /// A list.
    pub fn seq(items: impl IntoIterator<Item = Self>) -> Self {
        Data::Seq(items.into_iter().collect()).into()
    }

    /// The text, if it is text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The map, if it is one.
    #[must_use]
    pub fn as_map(&self) -> Option<&Map> {
        match &self.data {
            Data::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The integer, if it is one.
    #[must_use]
    pub fn as_int(&self) -> Option<&Int> {
        match &self.data {
            Data::Int(int) => Some(int),
            _ => None,
        }
    }

    /// Whether it is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.data == Data::Null
    }

    /// The value under a text key of a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        lookup(self.as_map()?, key)
    }

    /// One word for errors: `a map`, `text`, `a number`...
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.data {
            Data::Null => "null",
            Data::Bool(_) => "a boolean",
            Data::Int(_) => "an integer",
            Data::Float(_) => "a number",
            Data::Text(_) => "text",
            Data::Seq(_) => "a list",
            Data::Map(_) => "a map",
        }
    }
}

/// The value under a text key; a key that is a number is not found by its digits.
#[must_use]
pub fn lookup<'a>(map: &'a Map, key: &str) -> Option<&'a Value> {
    map.get_key_value(key).filter(|(k, _)| k.is_text()).map(|(_, v)| v)
}

impl From<Data> for Value {
    fn from(data: Data) -> Self {
        Self { data, line: 0 }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Data::Text(text.to_owned()).into()
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Data::Text(text).into()
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Data::Bool(value).into()
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Data::Int(number.into()).into()
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Data::Int(number.into()).into()
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Data::Int(number.into()).into()
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Data::Float(number).into()
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Data::Map(map).into()
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(Self::default, Into::into)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match &self.data {
            Data::Null => serializer.serialize_unit(),
            Data::Bool(value) => serializer.serialize_bool(*value),
            Data::Int(int) => int.serialize(serializer),
            Data::Float(number) => serializer.serialize_f64(*number),
            Data::Text(text) => serializer.serialize_str(text),
            Data::Seq(items) => serializer.collect_seq(items),
            Data::Map(map) => {
                let mut out = serializer.serialize_map(Some(map.len()))?;
                for (key, value) in map {
                    out.serialize_entry(key.as_str(), value)?;
                }
                out.end()
            }
        }
    }
}

/// Reads a document, as JSON when the file's name ends in `.json` and as YAML otherwise.
///
/// # Errors
/// When it is not one well-formed document within the limits, or a key stands twice.
pub fn from_bytes(file: &str, bytes: &[u8]) -> Result<Value> {
    if file.rsplit('.').next().is_some_and(|ext| ext.eq_ignore_ascii_case("json")) {
        from_json(file, bytes)
    } else {
        from_yaml(file, bytes)
    }
}

/// The text of a document: UTF-8, with or without a byte order mark, within [`MAX_BYTES`].
fn decode<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a str> {
    use crate::error::Error;
    if bytes.len() > MAX_BYTES {
        let found = format!("{} bytes", bytes.len());
        return Err(Error::new(file, "", &found, &format!("at most {MAX_BYTES} bytes"), "is too long"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = format!("byte {}", error.valid_up_to());
        Error::new(file, &at, "", "UTF-8", "is not UTF-8")
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}
