//! Is this model one that may be added up: the same tensors as the global one, every value finite?
//!
//! The same checks run where a trainer hands its model to its worker, where it leaves a site and where it
//! is added up; the last finds non-finite values while it reads them anyway.

use super::header::{Dtype, Header, Tensor};
use super::model::Model;
use std::io;

/// Bytes read at a time when a whole model is looked at.
const CHUNK: usize = 256 << 10;

/// What is wrong with a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A tensor of the global model is not there.
    #[error("tensor {name:?} is missing")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor that the global model does not have.
    #[error("tensor {name:?} is not one of the model's {known}")]
    Unknown {
        /// Its name.
        name: String,
        /// Number of tensors of the global model.
        known: usize,
    },
    /// Another type.
    #[error("tensor {name:?} has data type {found} where the model has {wanted}")]
    Dtype {
        /// Its name.
        name: String,
        /// Its type.
        found: Dtype,
        /// The global model's.
        wanted: Dtype,
    },
    /// Another shape.
    #[error("tensor {name:?} has shape {found:?} where the model has {wanted:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Its shape.
        found: Vec<u64>,
        /// The global model's.
        wanted: Vec<u64>,
    },
    /// NaN or infinite.
    #[error("tensor {name:?} holds {what} at position {at}")]
    NotFinite {
        /// Its name.
        name: String,
        /// `NaN`, `an infinite value` or, of a BOOL, `a byte that is neither 0 nor 1`.
        what: &'static str,
        /// Which value, counted from 0 in the flattened tensor.
        at: u64,
    },
}

/// Whether two headers describe the same tensors; where they lie may differ.
///
/// # Errors
/// The first difference.
pub fn same_tensors(found: &Header, wanted: &Header) -> Result<(), Refusal> {
    for want in wanted.tensors() {
        let name = || want.name.to_string();
        let Some(have) = found.get(&want.name) else {
            return Err(Refusal::Missing { name: name() });
        };
        if have.dtype != want.dtype {
            return Err(Refusal::Dtype { name: name(), found: have.dtype, wanted: want.dtype });
        }
        if have.shape != want.shape {
            let (found, wanted) = (have.shape.to_vec(), want.shape.to_vec());
            return Err(Refusal::Shape { name: name(), found, wanted });
        }
    }
    if let Some(more) = found.tensors().iter().find(|tensor| wanted.get(&tensor.name).is_none()) {
        let name = more.name.chars().take(200).collect();
        return Err(Refusal::Unknown { name, known: wanted.tensors().len() });
    }
    Ok(())
}

/// Whether every value of a model is finite.
///
/// # Errors
/// When the model cannot be read; inside, the first value that is not finite.
pub fn all_finite(model: &Model) -> io::Result<Result<(), Refusal>> {
    let mut buffer = vec![0; CHUNK];
    for tensor in model.header().tensors() {
        let mut at = tensor.start;
        while at < tensor.end {
            let len = usize::try_from(tensor.end - at).unwrap_or(CHUNK).min(CHUNK);
            let part = &mut buffer[..len];
            model.read_data(part, at)?;
            if !is_finite(tensor.dtype, part) {
                return Ok(Err(describe(tensor, part, (at - tensor.start) / tensor.dtype.size())));
            }
            at += len as u64;
        }
    }
    Ok(Ok(()))
}

/// Whether all these values are finite (of a BOOL: 0 or 1).
#[must_use]
pub fn is_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    // An exponent of all ones is NaN or infinite. Folding without a branch lets the compiler use
    // vectors; the position is looked for only when there is something to be found.
    macro_rules! scan {
        ($int:ty, $mask:literal) => {
            bytes
                .as_chunks()
                .0
                .iter()
                .fold(false, |bad, raw| bad | (<$int>::from_le_bytes(*raw) & $mask == $mask))
        };
    }
    !match dtype {
        Dtype::F64 => scan!(u64, 0x7ff0_0000_0000_0000),
        Dtype::F32 => scan!(u32, 0x7f80_0000),
        Dtype::F16 => scan!(u16, 0x7c00),
        Dtype::Bf16 => scan!(u16, 0x7f80),
        Dtype::Bool => bytes.iter().fold(false, |bad, byte| bad | (*byte > 1)),
        _ => false,
    }
}

/// Which of these values is not finite; they begin at value `first` of the tensor.
#[must_use]
pub fn describe(tensor: &Tensor, bytes: &[u8], first: u64) -> Refusal {
    let size = usize::try_from(tensor.dtype.size()).unwrap_or(1);
    let found = bytes.chunks_exact(size).position(|value| !is_finite(tensor.dtype, value)).unwrap_or(0);
    let value = &bytes[found * size..(found + 1) * size];
    // An infinite value has no bit set below its exponent.
    let infinite = match (tensor.dtype, value) {
        (Dtype::F64, [low @ .., high, _]) => low.iter().all(|b| *b == 0) && high & 0x0f == 0,
        (Dtype::F32 | Dtype::Bf16, [low @ .., high, _]) => low.iter().all(|b| *b == 0) && high & 0x7f == 0,
        (Dtype::F16, [low, high]) => *low == 0 && high & 0x03 == 0,
        _ => false,
    };
    let what = match (tensor.dtype, infinite) {
        (Dtype::Bool, _) => "a byte that is neither 0 nor 1",
        (_, true) => "an infinite value",
        (_, false) => "NaN",
    };
    Refusal::NotFinite { name: tensor.name.chars().take(200).collect(), what, at: first + found as u64 }
}
