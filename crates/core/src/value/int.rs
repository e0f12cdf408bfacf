//! Integers of any size, as Python has them: a job may write `99999999999999999999Ti`.

use serde::{Serialize, Serializer};
use std::fmt;

/// Most digits of an integer in a document; what Python converts from text, too.
pub(super) const MAX_DIGITS: usize = 4300;

/// An integer without a size limit. Small ones are held as numbers, others as canonical decimal digits.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Int(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Small(i64),
    /// Only what does not fit above; no leading zero, `-` or nothing in front.
    Big(Box<str>),
}

impl Int {
    /// From digits in base 2, 8, 10 or 16; `None` when there are none, too many, or one is foreign to the base.
    #[must_use]
    pub fn from_digits(negative: bool, digits: &str, base: u32) -> Option<Self> {
        if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.chars().all(|c| c.is_digit(base)) {
            return None;
        }
        if let Ok(number) = i128::from_str_radix(digits, base) {
            return Some(Self::from_i128(if negative { -number } else { number }));
        }
        // Little-endian base 10^9.
        let mut limbs: Vec<u64> = vec![0];
        for c in digits.chars() {
            multiply_add(&mut limbs, u64::from(base), u64::from(c.to_digit(base)?));
        }
        Some(Self::from_limbs(negative, &limbs))
    }

    /// From decimal text: an optional `-` or `+` and ASCII digits.
    #[must_use]
    pub fn from_decimal(text: &str) -> Option<Self> {
        match text.as_bytes().first()? {
            b'-' => Self::from_digits(true, &text[1..], 10),
            b'+' => Self::from_digits(false, &text[1..], 10),
            _ => Self::from_digits(false, text, 10),
        }
    }

    fn from_i128(number: i128) -> Self {
        match i64::try_from(number) {
            Ok(small) => Self(Repr::Small(small)),
            Err(_) => Self(Repr::Big(number.to_string().into())),
        }
    }

    fn from_limbs(negative: bool, limbs: &[u64]) -> Self {
        let mut text = String::new();
        for limb in limbs.iter().rev() {
            if text.is_empty() {
                if *limb > 0 {
                    text = limb.to_string();
                }
            } else {
                text.push_str(&format!("{limb:09}"));
            }
        }
        if text.is_empty() {
            text.push('0');
        }
        if negative {
            text.insert(0, '-');
        }
        match text.parse() {
            Ok(small) => Self(Repr::Small(small)),
            Err(_) => Self(Repr::Big(text.into())),
        }
    }

    /// As a machine number, when it fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match &self.0 {
            Repr::Small(number) => Some(*number),
            Repr::Big(_) => None,
        }
    }

    /// As an unsigned machine number, when it fits.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match &self.0 {
            Repr::Small(number) => u64::try_from(*number).ok(),
            Repr::Big(text) => text.parse().ok(),
        }
    }

    /// The nearest floating-point number; infinite when it is too large.
    #[must_use]
    pub fn to_f64(&self) -> f64 {
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    /// Whether it is below zero.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        match &self.0 {
            Repr::Small(number) => *number < 0,
            Repr::Big(text) => text.starts_with('-'),
        }
    }

    /// Whether it is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == Repr::Small(0)
    }

    /// Whether it is at least `least`.
    #[must_use]
    pub fn at_least(&self, least: i64) -> bool {
        match &self.0 {
            Repr::Small(number) => *number >= least,
            Repr::Big(text) => !text.starts_with('-'),
        }
    }

    /// The product; exact.
    #[must_use]
    pub fn times(&self, other: &Self) -> Self {
        if let (Repr::Small(a), Repr::Small(b)) = (&self.0, &other.0) {
            return Self::from_i128(i128::from(*a) * i128::from(*b));
        }
        let (a, b) = (self.limbs(), other.limbs());
        let mut out = vec![0u64; a.len() + b.len() + 1];
        for (i, x) in a.iter().enumerate() {
            let mut carry = 0;
            for (j, y) in b.iter().enumerate() {
                let sum = out[i + j] + x * y + carry;
                out[i + j] = sum % BASE;
                carry = sum / BASE;
            }
            let mut at = i + b.len();
            while carry > 0 {
                let sum = out[at] + carry;
                out[at] = sum % BASE;
                carry = sum / BASE;
                at += 1;
            }
        }
        Self::from_limbs(self.is_negative() != other.is_negative(), &out)
    }

    fn limbs(&self) -> Vec<u64> {
        let mut limbs = vec![0];
        for byte in self.to_string().bytes().filter(u8::is_ascii_digit) {
            multiply_add(&mut limbs, 10, u64::from(byte - b'0'));
        }
        limbs
    }
}

const BASE: u64 = 1_000_000_000;

fn multiply_add(limbs: &mut Vec<u64>, factor: u64, add: u64) {
    let mut carry = add;
    for limb in limbs.iter_mut() {
        let sum = *limb * factor + carry;
        *limb = sum % BASE;
        carry = sum / BASE;
    }
    if carry > 0 {
        limbs.push(carry);
    }
}

impl From<i64> for Int {
    fn from(number: i64) -> Self {
        Self(Repr::Small(number))
    }
}

impl From<u64> for Int {
    fn from(number: u64) -> Self {
        Self::from_i128(i128::from(number))
    }
}

impl From<u32> for Int {
    fn from(number: u32) -> Self {
        Self(Repr::Small(i64::from(number)))
    }
}

impl fmt::Display for Int {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Small(number) => write!(f, "{number}"),
            Repr::Big(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Int {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Repr::Small(number) => serializer.serialize_i64(*number),
            // Digits as they are: no JSON number type of this program holds them.
            Repr::Big(text) => serde_json::value::RawValue::from_string(text.to_string())
                .map_err(serde::ser::Error::custom)?
                .serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_no_machine_number_holds_is_exact() {
        let huge = Int::from_decimal("99999999999999999999").expect("digits");
        assert_eq!(huge.times(&Int::from(1_048_576i64)).to_string(), "104857599999999999998951424");
        assert_eq!(
            Int::from_digits(false, &"f".repeat(40), 16).map(|n| n.to_string()),
            Some("1461501637330902918203684832716283019655932542975".to_owned())
        );
        assert_eq!(serde_json::to_string(&huge).expect("JSON"), "99999999999999999999");
        assert!(Int::from_decimal(&"9".repeat(MAX_DIGITS + 1)).is_none());
        assert!(Int::from_decimal("١").is_none(), "digits of other scripts are none");
    }

    proptest! {
        #[test]
        fn products_agree_with_machine_arithmetic(a: i64, b: i64) {
            let product = Int::from(a).times(&Int::from(b));
            prop_assert_eq!(product.to_string(), (i128::from(a) * i128::from(b)).to_string());
            prop_assert_eq!(Int::from_decimal(&product.to_string()), Some(product));
        }

        #[test]
        fn big_products_agree(a in 1u128..1 << 60, b in "[1-9][0-9]{25,60}") {
            // a * b = sum over the digits of b.
            let mut expected = Int::from(0i64).to_string();
            let big = Int::from_decimal(&b).expect("digits");
            let product = Int::from_decimal(&a.to_string()).expect("digits").times(&big);
            // Long multiplication on text, independent of the limbs.
            let mut digits = vec![0u32; 200];
            for (i, x) in a.to_string().bytes().rev().enumerate() {
                for (j, y) in b.bytes().rev().enumerate() {
                    digits[i + j] += u32::from(x - b'0') * u32::from(y - b'0');
                }
            }
            for i in 0..199 {
                digits[i + 1] += digits[i] / 10;
                digits[i] %= 10;
            }
            let text: String = digits.iter().rev().skip_while(|d| **d == 0).map(|d| char::from_digit(*d, 10).expect("digit")).collect();
            if !text.is_empty() { expected = text; }
            prop_assert_eq!(product.to_string(), expected);
        }

        #[test]
        fn nothing_panics(text in ".{0,40}", base in prop::sample::select(vec![2u32, 8, 10, 16])) {
            let _ = Int::from_decimal(&text);
            let _ = Int::from_digits(false, &text, base);
        }
    }
}
