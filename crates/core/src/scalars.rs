//! The small texts with rules of their own: portable memory and Docker's `shm_size`.

use crate::error::Result;
use crate::value::{At, Data, Int, Value};
use std::fmt;

/// What is allowed as portable memory, in words.
pub const MEMORY: &str = "a positive integer without leading zeros, followed by Mi, Gi or Ti";
/// What is allowed as shared memory, in words.
pub const SHM_SIZE: &str =
    "an integer of bytes from 0, or text such as 512m, 4g or 0.5gb, below 2^63 bytes in all";

/// Portable memory, `^[1-9][0-9]*(Mi|Gi|Ti)$`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    text: Box<str>,
    mib: Int,
}

impl Memory {
    /// Reads it; `None` when it is none. Digits of other scripts are none, as are white space and signs.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let unit = text.len().checked_sub(2).filter(|at| text.is_char_boundary(*at))?;
        let (digits, unit) = text.split_at(unit);
        let factor: i64 = match unit {
            "Mi" => 1,
            "Gi" => 1024,
            "Ti" => 1024 * 1024,
            _ => return None,
        };
        if !digits.starts_with(|c: char| matches!(c, '1'..='9')) {
            return None;
        }
        let mib = Int::from_digits(false, digits, 10)?.times(&Int::from(factor));
        Some(Self { text: text.into(), mib })
    }

    /// Reads it from a document.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(at: &At<'_>) -> Result<Self> {
        at.value()
            .as_text()
            .and_then(Self::parse)
            .ok_or_else(|| at.refuse("is not an amount of memory", MEMORY))
    }

    /// As written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// In MiB, exactly.
    #[must_use]
    pub fn mib(&self) -> &Int {
        &self.mib
    }

    /// In bytes, exactly.
    #[must_use]
    pub fn bytes(&self) -> Int {
        self.mib.times(&Int::from(1_048_576i64))
    }

    /// In bytes as a machine number; `None` beyond 2^64.
    #[must_use]
    pub fn bytes_u64(&self) -> Option<u64> {
        self.bytes().as_u64()
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// Docker's shared memory: an integer of bytes, or text with a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmSize {
    value: Written,
    bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Written {
    Bytes,
    Text(Box<str>),
}

impl ShmSize {
    /// Reads it from a value; `None` when it is none.
    #[must_use]
    pub fn of(value: &Value) -> Option<Self> {
        match &value.data {
            Data::Int(int) => {
                let bytes = int.as_i64().and_then(|n| u64::try_from(n).ok())?;
                Some(Self { value: Written::Bytes, bytes })
            }
            Data::Text(text) => {
                let bytes = shm_bytes(text)?;
                Some(Self { value: Written::Text(text.as_str().into()), bytes })
            }
            _ => None,
        }
    }

    /// Reads it from a document.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(at: &At<'_>) -> Result<Self> {
        Self::of(at.value()).ok_or_else(|| at.refuse("is not a size of shared memory", SHM_SIZE))
    }

    /// In bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// As it was written.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match &self.value {
            Written::Bytes => Value::from(self.bytes),
            Written::Text(text) => Value::from(&**text),
        }
    }
}

/// `^[0-9]+(\.[0-9]+)?([bB]|[kKmMgG][bB]?)?$`, and what it comes to.
///
/// Docker's client reads the number as a float and cuts the product to an integer; so does this, and what
/// reaches 2^63 that way is refused. Hence `9223372036854775807` is too large: as a float it is 2^63.
fn shm_bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(digits);
    let good = match number.split_once('.') {
        Some((whole, fraction)) => !whole.is_empty() && !fraction.is_empty() && !fraction.contains('.'),
        None => !number.is_empty(),
    };
    let factor: f64 = match unit {
        "" | "b" | "B" => 1.0,
        _ => {
            let mut letters = unit.chars();
            let factor = match letters.next()? {
                'k' | 'K' => 1024.0,
                'm' | 'M' => 1_048_576.0,
                'g' | 'G' => 1_073_741_824.0,
                _ => return None,
            };
            match letters.as_str() {
                "" | "b" | "B" => factor,
                _ => return None,
            }
        }
    };
    if !good {
        return None;
    }
    let bytes = number.parse::<f64>().ok()? * factor;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded, and cut on purpose"
    )]
    (bytes < 9_223_372_036_854_775_808.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_is_exact() {
        let memory = Memory::parse("64Gi").expect("memory");
        assert_eq!((memory.mib().as_i64(), memory.bytes_u64()), (Some(65536), Some(68_719_476_736)));
        let huge = Memory::parse("99999999999999999999Ti").expect("memory");
        assert_eq!(huge.mib().to_string(), "104857599999999999998951424");
        assert_eq!(huge.bytes_u64(), None);
    }

    proptest! {
        #[test]
        fn memory_prints_back(n in 1u64.., unit in prop::sample::select(vec!["Mi", "Gi", "Ti"])) {
            let text = format!("{n}{unit}");
            let memory = Memory::parse(&text).expect("memory");
            prop_assert_eq!(memory.to_string(), text);
        }

        #[test]
        fn nothing_panics(text in ".{0,12}", close in "[0-9.bBkKmMgGtTi]{0,12}") {
            for text in [&text, &close] {
                let _ = Memory::parse(text);
                if let Some(size) = ShmSize::of(&Value::from(text.as_str())) {
                    prop_assert_eq!(ShmSize::of(&size.to_value()), Some(size));
                }
            }
        }
    }
}
