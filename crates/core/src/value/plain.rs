//! What a plain (unquoted) YAML scalar means, to a YAML 1.2 reader and to the YAML 1.1 readers of FLARE.
//!
//! The 1.2 reading is the core schema; the 1.1 reading is what PyYAML's safe loader makes of the text. Where
//! the two differ, a file means different things to different programs, so it is refused and must be quoted.

use super::{Data, Int};

/// What a plain scalar means.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plain {
    /// The same to everybody.
    Data(Data),
    /// The merge key.
    Merge,
    /// Something else to YAML 1.1 readers; in words.
    Differs(String),
}

/// Reads a plain scalar.
pub(super) fn resolve(text: &str) -> Plain {
    let new = core_schema(text);
    let old = match yaml_1_1(text) {
        Old::Data(data) => data,
        Old::Merge => return Plain::Merge,
        Old::Other(what) => return Plain::Differs(what.to_owned()),
    };
    if same(&new, &old) {
        return Plain::Data(new);
    }
    Plain::Differs(match old {
        Data::Text(_) => match new {
            Data::Int(_) | Data::Float(_) => "text, and a number to YAML 1.2 readers".to_owned(),
            _ => "text".to_owned(),
        },
        Data::Bool(value) => format!("the boolean {value}"),
        Data::Int(int) => format!("the integer {int}"),
        Data::Float(number) => format!("the number {number}"),
        _ => "null".to_owned(),
    })
}

fn same(a: &Data, b: &Data) -> bool {
    match (a, b) {
        (Data::Float(x), Data::Float(y)) => x == y || (x.is_nan() && y.is_nan()),
        _ => a == b,
    }
}

/// The core schema of YAML 1.2.
pub(super) fn core_schema(text: &str) -> Data {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Data::Null,
        "true" | "True" | "TRUE" => return Data::Bool(true),
        "false" | "False" | "FALSE" => return Data::Bool(false),
        _ => {}
    }
    let as_text = || Data::Text(text.to_owned());
    let (negative, rest) = sign(text);
    if all(rest, |b| b.is_ascii_digit()) {
        return Int::from_digits(negative, rest, 10).map_or_else(as_text, Data::Int);
    }
    for (prefix, base) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            return Int::from_digits(false, digits, base).map_or_else(as_text, Data::Int);
        }
    }
    if let Some(special) = special_float(text, rest, negative) {
        return Data::Float(special);
    }
    if is_core_float(rest) {
        return text.parse().map_or_else(|_| as_text(), Data::Float);
    }
    as_text()
}

enum Old {
    Data(Data),
    Merge,
    Other(&'static str),
}

/// PyYAML's implicit resolvers and constructors.
fn yaml_1_1(text: &str) -> Old {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Old::Data(Data::Null),
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Old::Data(Data::Bool(true));
        }
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Old::Data(Data::Bool(false));
        }
        "<<" => return Old::Merge,
        "=" => return Old::Other("the default value of a map"),
        _ => {}
    }
    let (negative, rest) = sign(text);
    if let Some(special) = special_float(text, rest, negative) {
        return Old::Data(Data::Float(special));
    }
    let as_text = || Old::Data(Data::Text(text.to_owned()));
    // A number has to begin like one; `_1` or `.` alone do not.
    if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return as_text();
    }
    if let Some(number) = old_float(text, rest) {
        return Old::Data(Data::Float(number));
    }
    if is_sexagesimal_float(rest) {
        return Old::Other("a number in base 60");
    }
    if let Some((digits, base)) = old_int(rest) {
        return Int::from_digits(negative, &digits, base)
            .map_or_else(as_text, |int| Old::Data(Data::Int(int)));
    }
    if is_sexagesimal_int(rest) {
        return Old::Other("an integer in base 60");
    }
    if is_timestamp(text) {
        return Old::Other("a date");
    }
    as_text()
}

fn sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn all(text: &str, test: impl Fn(u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(test)
}

fn special_float(text: &str, rest: &str, negative: bool) -> Option<f64> {
    if matches!(rest, ".inf" | ".Inf" | ".INF") {
        return Some(if negative { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    matches!(text, ".nan" | ".NaN" | ".NAN").then_some(f64::NAN)
}

/// `(\.[0-9]+ | [0-9]+ (\.[0-9]*)?) ([eE][-+]?[0-9]+)?`
fn is_core_float(rest: &str) -> bool {
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let good_mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => all(fraction, |b| b.is_ascii_digit()),
        Some((whole, fraction)) => {
            all(whole, |b| b.is_ascii_digit()) && fraction.bytes().all(|b| b.is_ascii_digit())
        }
        None => all(mantissa, |b| b.is_ascii_digit()),
    };
    good_mantissa && exponent.is_none_or(|e| all(sign(e).1, |b| b.is_ascii_digit()))
}

/// `[-+]? [0-9][0-9_]* \. [0-9_]* ([eE][-+][0-9]+)?` or `\. [0-9][0-9_]* ([eE][-+][0-9]+)?`, without the signs.
fn old_float(text: &str, rest: &str) -> Option<f64> {
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let underscored = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let begins = |part: &str| part.starts_with(|c: char| c.is_ascii_digit()) && underscored(part);
    let (whole, fraction) = mantissa.split_once('.')?;
    let good = if whole.is_empty() {
        text.starts_with('.') && begins(fraction)
    } else {
        begins(whole) && underscored(fraction)
    };
    let good_exponent = exponent
        .is_none_or(|e| e.strip_prefix(['-', '+']).is_some_and(|digits| all(digits, |b| b.is_ascii_digit())));
    if !(good && good_exponent) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// `0b[0-1_]+ | 0[0-7_]+ | 0 | [1-9][0-9_]* | 0x[0-9a-fA-F_]+`: the digits without `_`, and their base.
fn old_int(rest: &str) -> Option<(String, u32)> {
    let class = |text: &str, base: u32| all(text, |b| b == b'_' || char::from(b).is_digit(base));
    let strip = |text: &str| text.replace('_', "");
    if rest == "0" {
        return Some(("0".to_owned(), 10));
    }
    if let Some(digits) = rest.strip_prefix("0b") {
        return class(digits, 2).then(|| (strip(digits), 2));
    }
    if let Some(digits) = rest.strip_prefix("0x") {
        return class(digits, 16).then(|| (strip(digits), 16));
    }
    if let Some(digits) = rest.strip_prefix('0') {
        return class(digits, 8).then(|| (format!("0{}", strip(digits)), 8));
    }
    class(rest, 10).then(|| (strip(rest), 10))
}

/// `[1-9][0-9_]*(:[0-5]?[0-9])+`
fn is_sexagesimal_int(rest: &str) -> bool {
    let Some((head, tail)) = rest.split_once(':') else { return false };
    head.starts_with(|c: char| matches!(c, '1'..='9'))
        && all(head, |b| b.is_ascii_digit() || b == b'_')
        && tail.split(':').all(is_base_60_digit)
}

/// `[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*`
fn is_sexagesimal_float(rest: &str) -> bool {
    let Some((places, fraction)) = rest.split_once('.') else { return false };
    let Some((head, tail)) = places.split_once(':') else { return false };
    head.starts_with(|c: char| c.is_ascii_digit())
        && all(head, |b| b.is_ascii_digit() || b == b'_')
        && tail.split(':').all(is_base_60_digit)
        && fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

fn is_base_60_digit(text: &str) -> bool {
    match text.as_bytes() {
        [b] => b.is_ascii_digit(),
        [a, b] => matches!(a, b'0'..=b'5') && b.is_ascii_digit(),
        _ => false,
    }
}

/// A day, or a day and a time, as YAML 1.1 writes them.
fn is_timestamp(text: &str) -> bool {
    let digits = |part: &str, least: usize, most: usize| {
        (least..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
    };
    let mut parts = text.splitn(3, '-');
    let (Some(year), Some(month), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    if !digits(year, 4, 4) {
        return false;
    }
    if digits(month, 2, 2) && digits(rest, 2, 2) {
        return true;
    }
    let day_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (day, time) = rest.split_at(day_end);
    if !digits(month, 1, 2) || !digits(day, 1, 2) {
        return false;
    }
    let time = if let Some(time) = time.strip_prefix(['T', 't']) {
        time
    } else {
        let trimmed = time.trim_start_matches([' ', '\t']);
        if trimmed.len() == time.len() {
            return false;
        }
        trimmed
    };
    let mut parts = time.splitn(3, ':');
    let (Some(hour), Some(minute), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    if !digits(hour, 1, 2) || !digits(minute, 2, 2) || rest.len() < 2 || !rest.is_char_boundary(2) {
        return false;
    }
    let (second, rest) = rest.split_at(2);
    if !digits(second, 2, 2) {
        return false;
    }
    let rest = rest.strip_prefix('.').map_or(rest, |f| f.trim_start_matches(|c: char| c.is_ascii_digit()));
    let zone = rest.trim_start_matches([' ', '\t']);
    if zone.is_empty() {
        return rest.is_empty();
    }
    if zone == "Z" {
        return true;
    }
    let Some(offset) = zone.strip_prefix(['-', '+']) else { return false };
    match offset.split_once(':') {
        Some((hours, minutes)) => digits(hours, 1, 2) && digits(minutes, 2, 2),
        None => digits(offset, 1, 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_yaml_1_1_reads_differently_is_refused() {
        for text in [
            "off",
            "Yes",
            "no",
            "ON",
            "014",
            "0o14",
            "08",
            "12:30:00",
            "1:30",
            "1_000",
            "2024-01-01",
            "2001-12-14t21:59:43.10-05:00",
            "0b11",
            "1e3",
            "1.5e3",
            "-0x1f",
            "=",
            "-.5",
            "1:30.5",
            "09",
        ] {
            assert!(matches!(resolve(text), Plain::Differs(_)), "{text}: {:?}", resolve(text));
        }
    }

    #[test]
    fn what_all_readers_agree_on_is_taken() {
        let int = |n: i64| Plain::Data(Data::Int(n.into()));
        let text = |t: &str| Plain::Data(Data::Text(t.to_owned()));
        assert_eq!(resolve("12"), int(12));
        assert_eq!(resolve("-7"), int(-7));
        assert_eq!(resolve("+7"), int(7));
        assert_eq!(resolve("0x1F"), int(31));
        assert_eq!(resolve("07"), int(7));
        assert_eq!(resolve("1.5"), Plain::Data(Data::Float(1.5)));
        assert_eq!(resolve("1.0e+16"), Plain::Data(Data::Float(1e16)));
        assert_eq!(resolve(".5"), Plain::Data(Data::Float(0.5)));
        assert_eq!(resolve(".inf"), Plain::Data(Data::Float(f64::INFINITY)));
        assert_eq!(resolve("~"), Plain::Data(Data::Null));
        assert_eq!(resolve("True"), Plain::Data(Data::Bool(true)));
        assert_eq!(resolve("<<"), Plain::Merge);
        for word in
            ["y", "n", "a", "1.2.3", "10m", "host:80", "1.2.3.4:80", ".", "-", "2024-1-1", "..", "١", "_1"]
        {
            assert_eq!(resolve(word), text(word), "{word}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[-+0-9a-fxob.:_eETtZ \u{661}é]{0,24}") {
            let _ = resolve(&text);
        }
    }
}
