//! JSON, strictly: no duplicate keys, no lone surrogates, no `NaN`, integers of any size.

use super::{Data, Int, Key, MAX_DEPTH, MAX_VALUES, Map, Value, decode};
use crate::error::{Error, Result};

/// Reads one JSON document.
///
/// # Errors
/// When it is not one JSON value within the limits, or a key stands twice.
pub fn from_json(file: &str, bytes: &[u8]) -> Result<Value> {
    let text = decode(file, bytes)?;
    let mut reader = Reader { file, text, at: 0, line: 1, values: 0 };
    reader.space();
    let value = reader.value(0)?;
    reader.space();
    if reader.at < text.len() {
        return Err(reader.fail("goes on after its end", "one JSON value"));
    }
    Ok(value)
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    at: usize,
    line: u32,
    values: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn fail(&self, message: &str, allowed: &str) -> Error {
        let found: String = self.text[self.at..].chars().take(20).collect();
        let found = if found.is_empty() { "the end of the file".to_owned() } else { format!("{found:?}") };
        Error::new(self.file, &format!("line {}", self.line), &found, allowed, message).on_line(self.line)
    }

    fn space(&mut self) {
        while let Some(byte @ (b' ' | b'\t' | b'\r' | b'\n')) = self.peek() {
            self.at += 1;
            self.line += u32::from(byte == b'\n');
        }
    }

    fn word(&mut self, word: &str, data: Data) -> Result<Data> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(data)
        } else {
            Err(self.fail("is not JSON", "a JSON value"))
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        self.values += 1;
        if depth > MAX_DEPTH || self.values > MAX_VALUES {
            return Err(
                self.fail("is too deep or too large", &format!("{MAX_DEPTH} levels and {MAX_VALUES} values"))
            );
        }
        let line = self.line;
        let data = match self.peek() {
            Some(b'{') => Data::Map(self.map(depth)?),
            Some(b'[') => Data::Seq(self.seq(depth)?),
            Some(b'"') => Data::Text(self.string()?),
            Some(b't') => self.word("true", Data::Bool(true))?,
            Some(b'f') => self.word("false", Data::Bool(false))?,
            Some(b'n') => self.word("null", Data::Null)?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => return Err(self.fail("is not JSON", "a JSON value")),
        };
        Ok(Value { data, line })
    }

    fn map(&mut self, depth: usize) -> Result<Map> {
        let mut map = Map::new();
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(map);
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.fail("is not JSON", "a key in double quotes"));
            }
            let line = self.line;
            let key = self.string()?;
            if map.contains_key(key.as_str()) {
                return Err(Error::new(
                    self.file,
                    &format!("line {line}"),
                    &format!("{key:?}"),
                    "each key once",
                    "is a key that stands twice",
                )
                .on_line(line));
            }
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.fail("is not JSON", "a colon"));
            }
            self.at += 1;
            self.space();
            let value = self.value(depth + 1)?;
            map.insert(Key::text(&key), value);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(map);
                }
                _ => return Err(self.fail("is not JSON", "a comma or a closing brace")),
            }
            self.space();
        }
    }

    fn seq(&mut self, depth: usize) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(items);
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(items);
                }
                _ => return Err(self.fail("is not JSON", "a comma or a closing bracket")),
            }
            self.space();
        }
    }

    fn string(&mut self) -> Result<String> {
        let mut out = String::new();
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(rest.len());
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                _ => {
                    return Err(self.fail("is not JSON", "text without control characters, in double quotes"));
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        let Some(byte) = self.peek() else { return Err(self.fail("is not JSON", "an escape")) };
        let simple = match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                let first = self.hex4()?;
                let code = if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
                    self.at += 2;
                    let second = self.hex4()?;
                    if (0xdc00..0xe000).contains(&second) {
                        0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
                    } else {
                        first
                    }
                } else {
                    first
                };
                return char::from_u32(code)
                    .ok_or_else(|| self.fail("holds half of a surrogate pair", "whole characters"));
            }
            _ => return Err(self.fail("is not JSON", r#"one of \" \\ \/ \b \f \n \r \t \uXXXX"#)),
        };
        self.at += 1;
        Ok(simple)
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(digits) = digits else { return Err(self.fail("is not JSON", "four hexadecimal digits")) };
        self.at += 4;
        Ok(u32::from_str_radix(digits, 16).expect("four hexadecimal digits fit"))
    }

    fn digits(&mut self) -> usize {
        let from = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - from
    }

    fn number(&mut self) -> Result<Data> {
        let from = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let zero = self.peek() == Some(b'0');
        let whole = self.digits();
        if whole == 0 || (zero && whole > 1) {
            self.at = from;
            return Err(self.fail("is not JSON", "a number without leading zeros"));
        }
        let mut float = false;
        if self.peek() == Some(b'.') {
            self.at += 1;
            float = true;
            if self.digits() == 0 {
                return Err(self.fail("is not JSON", "digits after the point"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            float = true;
            if matches!(self.peek(), Some(b'-' | b'+')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.fail("is not JSON", "digits of an exponent"));
            }
        }
        let text = &self.text[from..self.at];
        if !float {
            return Int::from_decimal(text)
                .map(Data::Int)
                .ok_or_else(|| self.fail("has too many digits", "at most 4300 digits"));
        }
        Ok(Data::Float(text.parse().expect("a JSON number is a number")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::to_json;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Value> {
        from_json("t.json", text.as_bytes())
    }

    #[test]
    fn strict() {
        for bad in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "NaN",
            "Infinity",
            "'a'",
            "\"\\ud800\"",
            "\"a\nb\"",
            "1 2",
            "{\"a\":1,\"a\":2}",
            "tru",
            "\"\\x\"",
            "[1 2]",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(read("\"\\ud83d\\ude00\"").expect("pair").as_text(), Some("😀"));
        assert!(read(&"[".repeat(1000)).is_err(), "too deep");
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{}":,0-9.eE+\-a\\u tfn]{0,24}"#) {
            let ours = read(&text);
            if let Ok(value) = &ours {
                let theirs: serde_json::Value = serde_json::from_str(&text).expect("what we take is JSON");
                prop_assert_eq!(serde_json::to_value(value).expect("prints"), theirs);
                prop_assert_eq!(&read(&to_json(value)).expect("prints back"), value);
            }
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = from_json("t.json", &bytes);
        }
    }
}
