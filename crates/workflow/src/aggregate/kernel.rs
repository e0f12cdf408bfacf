//! The inner loops: bytes to f64, weighted, added; and f64 back to bytes, rounded once.
//!
//! Written so that the compiler turns them into vector code: no branch on a value, fixed-size chunks.
//! The 16-bit types are converted here and not by a library, because a conversion by way of f32 rounds
//! twice and because what hardware offers differs between processors, and results must not.

use crate::tensors::Dtype;

/// A length that is known to fit: it counts what a buffer in memory holds.
pub(super) fn length(n: u64) -> usize {
    usize::try_from(n).expect("a chunk fits into memory")
}

/// How the values of one piece are summed.
pub(super) struct Sum<'a> {
    pub(super) dtype: Dtype,
    /// The first part's values: integers are summed as differences from them, which stay exact far
    /// beyond 2^53.
    pub(super) first: &'a [u8],
}

macro_rules! floats {
    ($raw:expr, $weight:expr, $begin:expr, $sum:expr, $n:literal, $read:expr) => {{
        let read = $read;
        let values = $raw.as_chunks::<$n>().0;
        if $begin {
            for (sum, raw) in $sum.iter_mut().zip(values) {
                *sum = $weight * read(*raw);
            }
        } else {
            for (sum, raw) in $sum.iter_mut().zip(values) {
                *sum += $weight * read(*raw);
            }
        }
    }};
}

macro_rules! integers {
    ($raw:expr, $first:expr, $weight:expr, $begin:expr, $sum:expr, $t:ty) => {{
        if $begin {
            $sum.fill(0.0);
        } else {
            for ((sum, raw), first) in $sum.iter_mut().zip($raw.as_chunks().0).zip($first.as_chunks().0) {
                let difference =
                    i128::from(<$t>::from_le_bytes(*raw)) - i128::from(<$t>::from_le_bytes(*first));
                *sum += $weight * difference as f64;
            }
        }
    }};
}

macro_rules! put {
    ($sum:expr, $total:expr, $into:expr, $n:literal, $write:expr) => {{
        let write = $write;
        for (sum, into) in $sum.iter().zip($into.as_chunks_mut::<$n>().0) {
            *into = write(*sum / $total);
        }
    }};
}

macro_rules! put_integers {
    ($sum:expr, $total:expr, $first:expr, $into:expr, $t:ty) => {{
        for ((sum, first), into) in $sum.iter().zip($first.as_chunks().0).zip($into.as_chunks_mut().0) {
            #[allow(clippy::cast_possible_truncation, reason = "saturates; a mean lies between its values")]
            let mean = i128::from(<$t>::from_le_bytes(*first)) + (*sum / $total).round_ties_even() as i128;
            let mean = mean.clamp(i128::from(<$t>::MIN), i128::from(<$t>::MAX));
            *into = <$t>::try_from(mean).unwrap_or_default().to_le_bytes();
        }
    }};
}

impl Sum<'_> {
    /// Adds one part's values; with `begin`, it is the first part.
    pub(super) fn add(&self, raw: &[u8], weight: f64, begin: bool, sum: &mut [f64]) {
        match self.dtype {
            Dtype::F64 => floats!(raw, weight, begin, sum, 8, f64::from_le_bytes),
            Dtype::F32 => floats!(raw, weight, begin, sum, 4, |raw| f64::from(f32::from_le_bytes(raw))),
            Dtype::F16 => floats!(raw, weight, begin, sum, 2, |raw| f16_to_f64(u16::from_le_bytes(raw))),
            Dtype::Bf16 => floats!(raw, weight, begin, sum, 2, |raw| bf16_to_f64(u16::from_le_bytes(raw))),
            Dtype::Bool | Dtype::U8 => integers!(raw, self.first, weight, begin, sum, u8),
            Dtype::I8 => integers!(raw, self.first, weight, begin, sum, i8),
            Dtype::U16 => integers!(raw, self.first, weight, begin, sum, u16),
            Dtype::I16 => integers!(raw, self.first, weight, begin, sum, i16),
            Dtype::U32 => integers!(raw, self.first, weight, begin, sum, u32),
            Dtype::I32 => integers!(raw, self.first, weight, begin, sum, i32),
            Dtype::U64 => integers!(raw, self.first, weight, begin, sum, u64),
            Dtype::I64 => integers!(raw, self.first, weight, begin, sum, i64),
        }
    }

    /// Divides by the sum of the weights and writes the values.
    pub(super) fn finish(&self, sum: &[f64], total: f64, into: &mut [u8]) {
        match self.dtype {
            Dtype::F64 => put!(sum, total, into, 8, f64::to_le_bytes),
            #[allow(clippy::cast_possible_truncation, reason = "the rounding that is meant")]
            Dtype::F32 => put!(sum, total, into, 4, |mean| (mean as f32).to_le_bytes()),
            Dtype::F16 => put!(sum, total, into, 2, |mean| f64_to_f16(mean).to_le_bytes()),
            Dtype::Bf16 => put!(sum, total, into, 2, |mean| f64_to_bf16(mean).to_le_bytes()),
            Dtype::Bool | Dtype::U8 => put_integers!(sum, total, self.first, into, u8),
            Dtype::I8 => put_integers!(sum, total, self.first, into, i8),
            Dtype::U16 => put_integers!(sum, total, self.first, into, u16),
            Dtype::I16 => put_integers!(sum, total, self.first, into, i16),
            Dtype::U32 => put_integers!(sum, total, self.first, into, u32),
            Dtype::I32 => put_integers!(sum, total, self.first, into, i32),
            Dtype::U64 => put_integers!(sum, total, self.first, into, u64),
            Dtype::I64 => put_integers!(sum, total, self.first, into, i64),
        }
    }
}

fn bf16_to_f64(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

fn f16_to_f64(bits: u16) -> f64 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff);
    // As an f32 with the exponent's bias still that of f16: a multiplication by 2^112 puts it right, for
    // subnormal numbers as well. Infinite values and NaN do not come here: they were refused.
    let value = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
    f64::from(f32::from_bits(value.to_bits() | sign))
}

const SIGN: u64 = 1 << 63;
const EXPONENT: u64 = 0x7ff << 52;

/// Rounds a magnitude to a multiple of `2^-digits` of its power of two (not below `2^least`), ties to even.
fn round_to(magnitude: f64, digits: i64, least: f64) -> f64 {
    // Adding 2^52 units of the wanted last place and taking them away again rounds by the hardware's own
    // rule. The power of two of a number is the number without its fraction bits.
    let power = f64::from_bits(magnitude.to_bits() & EXPONENT).max(least);
    let magic = f64::from_bits(power.to_bits() + (((52 - digits) as u64) << 52));
    (magnitude + magic) - magic
}

fn f64_to_f16(value: f64) -> u16 {
    let sign = ((value.to_bits() & SIGN) >> 48) as u16;
    let rounded = round_to(f64::from_bits(value.to_bits() & !SIGN), 10, f64::from_bits((1023 - 14) << 52));
    let normal = (rounded.to_bits() >> 42).wrapping_sub((1023 - 15) << 10);
    // Below 2^-14 the fraction counts units of 2^-24.
    let units = rounded * f64::from_bits((1023 + 24) << 52);
    let subnormal = (units + f64::from_bits((1023 + 52) << 52)).to_bits() & 0x7ff;
    let bits = if rounded < f64::from_bits((1023 - 14) << 52) { subnormal } else { normal.min(0x7c00) };
    #[allow(clippy::cast_possible_truncation, reason = "at most 0x7c00 on either way")]
    let bits = bits as u16;
    sign | bits
}

fn f64_to_bf16(value: f64) -> u16 {
    // After the rounding the value is exactly an f32 whose lower half is zero.
    let sign = ((value.to_bits() & SIGN) >> 48) as u16;
    let rounded = round_to(f64::from_bits(value.to_bits() & !SIGN), 7, f64::from_bits((1023 - 126) << 52));
    #[allow(
        clippy::cast_possible_truncation,
        reason = "exact; beyond the range it is infinite as it should be"
    )]
    let bits = ((rounded as f32).to_bits() >> 16) as u16;
    sign | bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_finite_16_bit_value_goes_there_and_back() {
        for bits in 0..=u16::MAX {
            if bits & 0x7c00 != 0x7c00 {
                let value = f16_to_f64(bits);
                assert_eq!(value.to_bits(), half::f16::from_bits(bits).to_f64().to_bits(), "{bits:#x}");
                assert_eq!(f64_to_f16(value), bits);
            }
            if bits & 0x7f80 != 0x7f80 {
                let value = bf16_to_f64(bits);
                assert_eq!(value.to_bits(), half::bf16::from_bits(bits).to_f64().to_bits(), "{bits:#x}");
                assert_eq!(f64_to_bf16(value), bits);
            }
        }
    }

    /// The nearest of the two neighbours, the even one in the middle: the definition, slowly.
    fn nearest(value: f64, at: u16, back: fn(u16) -> f64) -> bool {
        let (down, here, up) = (back(at.wrapping_sub(1)), back(at), back(at + 1));
        let off = (value - here).abs();
        let (low, high) = ((value - down).abs(), (value - up).abs());
        off <= low.min(high) && (off < low.min(high) || at.is_multiple_of(2))
    }

    proptest! {
        #[test]
        fn rounding_is_to_nearest_and_even(bits in 1u16..0x7bff, between in 0.0f64..=1.0, middle: bool) {
            let between = if middle { 0.5 } else { between };
            let value = f16_to_f64(bits) * (1.0 - between) + f16_to_f64(bits + 1) * between;
            let got = f64_to_f16(value);
            prop_assert!(got == 0x7c00 - 1 || nearest(value, got, f16_to_f64), "{value} became {got:#x}");
            prop_assert_eq!(f64_to_f16(-value), got | 0x8000);
        }

        #[test]
        fn rounding_of_bf16_too(bits in 1u16..0x7f7e, between in 0.0f64..=1.0, middle: bool) {
            let between = if middle { 0.5 } else { between };
            let value = bf16_to_f64(bits) * (1.0 - between) + bf16_to_f64(bits + 1) * between;
            let got = f64_to_bf16(value);
            prop_assert!(nearest(value, got, bf16_to_f64), "{value} became {got:#x}");
            prop_assert_eq!(f64_to_bf16(-value), got | 0x8000);
        }
    }
}
