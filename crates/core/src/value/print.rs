//! Values written back: JSON, and YAML that every reader takes for the same.

use super::plain::{Plain, resolve};
use super::{Data, Key, Value};
use std::fmt::Write;

/// Compact JSON.
#[must_use]
pub fn to_json(value: &Value) -> String {
    serde_json::to_string(value).expect("a value has only text keys in JSON")
}

/// JSON over several lines.
#[must_use]
pub fn to_json_pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a value has only text keys in JSON")
}

/// A number the way Python's `str` prints it; environment values of studies are written so.
#[must_use]
pub fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let (digits, exponent) = shortest(number);
    let mut out = String::new();
    if number.is_sign_negative() {
        out.push('-');
    }
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    if (-4..16).contains(&exponent) {
        if exponent < 0 {
            out.push_str("0.");
            out.extend(std::iter::repeat_n('0', usize::try_from(-exponent - 1).unwrap_or(0)));
            out.push_str(&digits);
        } else if exponent + 1 >= count {
            out.push_str(&digits);
            out.extend(std::iter::repeat_n('0', usize::try_from(exponent + 1 - count).unwrap_or(0)));
            out.push_str(".0");
        } else {
            let point = usize::try_from(exponent + 1).unwrap_or(0);
            out.push_str(&digits[..point]);
            out.push('.');
            out.push_str(&digits[point..]);
        }
    } else {
        out.push_str(&digits[..1]);
        if digits.len() > 1 {
            out.push('.');
            out.push_str(&digits[1..]);
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "e{sign}{:02}", exponent.abs());
    }
    out
}

/// The shortest digits that read back to the number, and the exponent of the first.
fn shortest(number: f64) -> (String, i32) {
    let text = format!("{:e}", number.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (mantissa.replace('.', ""), exponent.parse().unwrap_or(0))
}

/// A number as both YAML 1.1 and 1.2 read it: always with a point, a signed exponent when there is one.
pub(super) fn yaml_float(number: f64) -> String {
    if number.is_nan() {
        return ".nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let text = python_float(number);
    match text.split_once('e') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
        _ => text,
    }
}

/// YAML in block style.
#[must_use]
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    block(&mut out, value, 0);
    out.push('\n');
    out
}

/// Writes a value at the current place; further lines are indented by `indent`.
fn block(out: &mut String, value: &Value, indent: usize) {
    match &value.data {
        Data::Map(map) if !map.is_empty() => {
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    newline(out, indent);
                }
                let key = key_text(key);
                // Longer keys are not recognised as keys without the question mark.
                if key.len() > 500 {
                    out.push_str("? ");
                    out.push_str(&key);
                    newline(out, indent);
                } else {
                    out.push_str(&key);
                }
                out.push(':');
                match &item.data {
                    Data::Map(inner) if !inner.is_empty() => newline(out, indent + 2),
                    Data::Seq(inner) if !inner.is_empty() => newline(out, indent + 2),
                    _ => out.push(' '),
                }
                block(out, item, indent + 2);
            }
        }
        Data::Seq(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    newline(out, indent);
                }
                out.push_str("- ");
                block(out, item, indent + 2);
            }
        }
        Data::Map(_) => out.push_str("{}"),
        Data::Seq(_) => out.push_str("[]"),
        Data::Null => out.push_str("null"),
        Data::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Data::Int(int) => {
            let _ = write!(out, "{int}");
        }
        Data::Float(number) => out.push_str(&yaml_float(*number)),
        Data::Text(text) => out.push_str(&scalar(text)),
    }
}

fn newline(out: &mut String, indent: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent));
}

fn key_text(key: &Key) -> String {
    if key.is_text() { scalar(key.as_str()) } else { key.as_str().to_owned() }
}

/// Text, plain where nobody can take it for something else, in double quotes otherwise.
fn scalar(text: &str) -> String {
    let plain = !text.is_empty()
        && text.len() < 200
        && text.bytes().all(|b| {
            b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/' | b'+' | b'@' | b' ')
        })
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/'))
        && !text.ends_with(' ')
        && matches!(resolve(text), Plain::Data(Data::Text(_)));
    if plain { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            ' '..='~' => out.push(c),
            '\u{a1}'..='\u{2027}' | '\u{202a}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}' | '\u{10000}'.. => {
                out.push(c);
            }
            _ => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_does() {
        for (number, text) in [
            (1.0, "1.0"),
            (1.5, "1.5"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-10, "1.5e-10"),
            (1e300, "1e+300"),
            (0.1, "0.1"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(python_float(number), text);
        }
    }

    #[test]
    fn block_style() {
        let value = Value::map([
            ("name", Value::from("hospital-a")),
            (
                "list",
                Value::seq([
                    Value::from(1u32),
                    Value::map([("a", Value::from("off")), ("b", Value::default())]),
                ]),
            ),
            ("empty", Value::map::<&str>([])),
            ("text", Value::from("a\nb: c")),
        ]);
        assert_eq!(
            to_yaml(&value),
            "name: hospital-a\nlist:\n  - 1\n  - a: \"off\"\n    b: null\nempty: {}\ntext: \"a\\nb: c\"\n"
        );
    }
}
