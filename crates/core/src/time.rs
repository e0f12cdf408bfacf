//! Spans of time as people write them: `90s`, `10m`, `2h`, `1h30m`, or a number of seconds.

use std::fmt::Write;
use std::time::Duration;

/// What is allowed, in words.
pub const ALLOWED: &str =
    "a span such as 90s, 10m, 2h, 1h30m, 1d or 250ms, or a number of seconds, up to 1000 days";

const MAX: Duration = Duration::from_secs(1000 * 86_400);
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads a span; `None` when it is none. Units go from large to small, each once.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let unit_len = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(unit_len);
        let (_, factor) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*factor)?)?;
        rest = tail;
    }
    let span = Duration::from_millis(total);
    (!text.is_empty() && span <= MAX).then_some(span)
}

/// From a number of seconds, to the millisecond.
#[must_use]
pub fn from_seconds(seconds: f64) -> Option<Duration> {
    let span = Duration::try_from_secs_f64((seconds * 1000.0).round() / 1000.0).ok()?;
    (span <= MAX).then(|| Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
}

/// Writes a span back, exact to the millisecond.
#[must_use]
pub fn print(span: Duration) -> String {
    let mut rest = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut out = String::new();
    for (unit, factor) in UNITS {
        // Days are only used for whole days: `36h` reads better than `1d12h`.
        if unit == "d" && rest % factor != 0 {
            continue;
        }
        if rest >= factor {
            let _ = write!(out, "{}{unit}", rest / factor);
            rest %= factor;
        }
    }
    if out.is_empty() {
        out.push_str("0s");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans() {
        assert_eq!(parse("2h"), Some(Duration::from_secs(7200)));
        assert_eq!(parse("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(parse("250ms"), Some(Duration::from_millis(250)));
        for bad in ["", "h", "10", "2 h", "-1s", "1s1h", "1.5h", "1x", "99999999999999999999s", "9000d", "٣s"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(from_seconds(600.0), Some(Duration::from_secs(600)));
        for bad in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(from_seconds(bad), None);
        }
    }

    proptest! {
        #[test]
        fn reads_back(ms in 0u64..86_400_000_000) {
            let span = Duration::from_millis(ms);
            prop_assert_eq!(parse(&print(span)), Some(span));
        }

        #[test]
        fn nothing_panics(text in ".{0,20}", number: f64) {
            let _ = parse(&text);
            let _ = from_seconds(number);
        }
    }
}
