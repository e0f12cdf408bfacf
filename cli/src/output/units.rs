//! Times, sizes and numbers as people read them.

use std::collections::BTreeMap;

/// `820 ms`, `4.2 s`, `3m 12s`, `2h 05m`, `3d 4h`.
pub(crate) fn span(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis} ms"),
        1..60 => format!("{}.{} s", seconds, millis % 1000 / 100),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// How long ago something was: `now`, `12s ago`, `3m ago`, `2h ago`, `3d ago`.
pub(crate) fn ago(at: u64, now: u64) -> String {
    let seconds = now.saturating_sub(at) / 1000;
    match seconds {
        0 => "now".to_owned(),
        1..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86400),
    }
}

/// A time of the day in UTC: `2026-03-01 12:00:05Z`.
pub(crate) fn stamp(millis: u64) -> String {
    i64::try_from(millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok()).map_or_else(
        || format!("{millis} ms"),
        |time| {
            let text = time.strftime("%Y-%m-%d %H:%M:%SZ");
            text.to_string()
        },
    )
}

/// `512 B`, `1.5 KiB`, `256.0 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count;
    let mut unit = 0;
    while value >= 1024 * 1024 && unit + 1 < units.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", value / 1024, value % 1024 * 10 / 1024, units[unit])
}

/// Metrics in one line: `accuracy 0.9532  loss 0.1183`.
pub(crate) fn metrics(values: &BTreeMap<String, f64>) -> String {
    let parts: Vec<String> =
        values.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
    parts.join("  ")
}

/// A number with four places, fewer when it is whole, scientific when it is tiny or huge.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if value == value.trunc() && size < 1e9 {
        format!("{value:.0}")
    } else if (1e-3..1e6).contains(&size) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// `1 site`, `3 sites`.
pub(crate) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Text from elsewhere, made harmless for a terminal: what would steer it (control characters but tabs and
/// line ends), reorder what it shows (bidirectional controls) or hide in it is replaced.
pub(crate) fn plain(text: &str) -> String {
    // The line ends of other systems are line ends.
    let text = text.replace("\r\n", "\n");
    text.chars().map(|c| if steers(c) && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

/// The same for text that has to stay in its line, such as a cell of a table: a name with a line end in it
/// must not look like another row.
pub(crate) fn one_line(text: &str) -> String {
    plain(text.trim_end()).replace(['\n', '\t'], " ")
}

/// Whether a terminal takes a character for more than a sign to show: controls (Unicode Cc), line separators,
/// bidirectional controls (UAX 9), invisible marks, annotations and tags.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn nothing_foreign_steers_a_terminal(text in "(\\PC|[\u{0}-\u{a0}\u{61c}\u{200b}-\u{206f}\u{feff}])*") {
            let shown = plain(&text);
            proptest::prop_assert!(shown.chars().all(|c| !steers(c) || matches!(c, '\n' | '\t')), "{shown:?}");
            proptest::prop_assert_eq!(&plain(&shown), &shown);
            proptest::prop_assert!(!one_line(&text).chars().any(steers));
            let harmless: String = text.chars().filter(|c| !steers(*c)).collect();
            proptest::prop_assert_eq!(plain(&harmless), harmless);
        }
    }

    #[test]
    fn reads_well() {
        assert_eq!(
            [span(82), span(4_250), span(192_000), span(7_500_000)],
            ["82 ms", "4.2 s", "3m 12s", "2h 05m"]
        );
        assert_eq!([ago(5_000, 4_000), ago(0, 61_000)], ["now", "1m ago"]);
        assert_eq!(plain("a\x1b[31mb\n"), "a\u{fffd}[31mb\n");
        assert_eq!(stamp(1_700_000_000_000), "2023-11-14 22:13:20Z");
        assert_eq!(
            [bytes(12), bytes(1536), bytes(64 << 20), bytes(5 << 40)],
            ["12 B", "1.5 KiB", "64.0 MiB", "5.0 TiB"]
        );
        assert_eq!(
            [number(3.0), number(0.95321), number(1.5e-5), number(-0.25)],
            ["3", "0.9532", "1.500e-5", "-0.2500"]
        );
    }
}
