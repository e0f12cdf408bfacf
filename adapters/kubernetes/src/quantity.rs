//! Kubernetes' amounts: a decimal number and a suffix.

/// What an amount looks like, in words.
pub const ALLOWED: &str = "a Kubernetes quantity such as 4, 500m or 8Gi";

/// What a quantity comes to, in units (cores, bytes); `None` when it is none, or below zero.
///
/// The grammar is that of `k8s.io/apimachinery/pkg/api/resource`: digits with at most one point, then a binary suffix
/// (`Ki` to `Ei`), a decimal one (`n`, `u`, `m`, `k` to `E`) or an exponent. Good to compare, not to calculate with.
#[must_use]
pub fn units(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    if !number.bytes().any(|b| b.is_ascii_digit()) || number.matches('.').count() > 1 {
        return None;
    }
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "Pi" => 1_125_899_906_842_624.0,
        "Ei" => 1_152_921_504_606_846_976.0,
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || digits.len() > 3 || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            10f64.powi(exponent.parse().ok()?)
        }
    };
    Some(number * factor)
}

/// Bytes as Kubernetes writes them: the largest binary suffix that leaves a whole number.
#[must_use]
pub fn of_bytes(bytes: u64) -> String {
    let suffixes = [(1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    match suffixes.iter().find(|(factor, _)| bytes > 0 && bytes.is_multiple_of(*factor)) {
        Some((factor, suffix)) => format!("{}{suffix}", bytes / factor),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        for (text, value) in [
            ("4", 4.0),
            ("500m", 0.5),
            ("0.5", 0.5),
            ("1.", 1.0),
            (".5", 0.5),
            ("8Gi", 8.0 * 1_073_741_824.0),
            ("1e3", 1000.0),
            ("2E", 2e18),
            ("1E2", 100.0),
            ("15e-1", 1.5),
        ] {
            assert_eq!(units(text), Some(value), "{text}");
        }
        for text in
            ["", "x", "8GB", "-1", "+1", "1..2", "1 Gi", "Gi", "1e", "1e+", "1e9999", "8gi", "\u{664}"]
        {
            assert_eq!(units(text), None, "{text}");
        }
        assert_eq!(of_bytes(64 << 30), "64Gi");
        assert_eq!(of_bytes((1 << 30) + (1 << 20)), "1025Mi");
        assert_eq!((of_bytes(1000).as_str(), of_bytes(0).as_str()), ("1000", "0"));
    }
}
