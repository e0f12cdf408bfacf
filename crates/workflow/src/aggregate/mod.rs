//! The weighted mean of models, read from disk chunk by chunk.
//!
//! Peak memory is a few buffers a thread, whatever the number of models and their size. Each value is
//! summed in f64 in the order in which the parts are given, so the result depends neither on the number
//! of threads nor on the chunks nor on the order in which the sites answered.
//!
//! The result has the tensors, types and layout of the global model. Floating-point tensors hold the
//! weighted mean, rounded once, to nearest, ties to even. Integer tensors (counters such as a batch
//! normalisation's `num_batches_tracked`) hold the weighted mean rounded to the nearest integer; where
//! all sites agree it is exactly their value. BOOL tensors hold the weighted majority, a tie goes to the
//! first site.

mod kernel;

use crate::tensors::{Header, Model, Refusal, check};
use kernel::Sum;
use polder_words::SiteName;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Values summed at a time: what a thread works on stays in its second-level cache.
const CHUNK: u64 = 64 << 10;

/// One site's contribution.
#[derive(Debug)]
pub struct Part<'a> {
    /// Whose.
    pub site: &'a SiteName,
    /// The model.
    pub model: &'a Model,
    /// Finite and above 0.
    pub weight: f64,
}

/// Why there is no mean.
#[derive(Debug, thiserror::Error)]
pub enum AggregateError {
    /// A site's model may not be added up.
    #[error("site {site}: {why}")]
    Refused {
        /// Whose.
        site: SiteName,
        /// What is wrong with it.
        why: Refusal,
    },
    /// A site's model cannot be read any more.
    #[error("site {site}: cannot read its model")]
    Read {
        /// Whose.
        site: SiteName,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The result cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is nothing to take the mean of, or a weight that is no weight.
    #[error("{0}")]
    Parts(&'static str),
}

/// Writes the weighted mean to `out`: under a temporary name beside it first, renamed when complete, not
/// synced. Returns the bytes written.
///
/// # Errors
/// See [`AggregateError`]; nothing is left behind then.
pub fn aggregate(
    base: &Header,
    parts: &[Part<'_>],
    out: &Path,
    threads: usize,
) -> Result<u64, AggregateError> {
    let failed = |source| AggregateError::Write { path: out.to_owned(), source };
    let mut partial = out.as_os_str().to_owned();
    partial.push(".part");
    let partial = PathBuf::from(partial);
    let write = || {
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).open(&partial).map_err(failed)?;
        file.set_len(base.file_len()).map_err(failed)?;
        file.write_all_at(&base.to_bytes(), 0).map_err(failed)?;
        let sink = Sink::File { file: &file, data_at: base.data_at(), path: out };
        Sums::new(base, parts)?.run(&sink, threads)?;
        std::fs::rename(&partial, out).map_err(failed)
    };
    let done = write();
    if done.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    done.map(|()| base.file_len())
}

/// The weighted mean in memory, for models small enough to ride in a message.
///
/// # Errors
/// As [`aggregate`].
pub fn aggregate_in_memory(base: &Header, parts: &[Part<'_>]) -> Result<Vec<u8>, AggregateError> {
    let mut bytes = base.to_bytes();
    let data_at = bytes.len();
    let size = usize::try_from(base.file_len())
        .map_err(|_| AggregateError::Parts("the model does not fit into memory"))?;
    bytes.resize(size, 0);
    let sink = Sink::Memory(Mutex::new(&mut bytes[data_at..]));
    Sums::new(base, parts)?.run(&sink, 1)?;
    Ok(bytes)
}

enum Sink<'a> {
    File { file: &'a File, data_at: u64, path: &'a Path },
    Memory(Mutex<&'a mut [u8]>),
}

impl Sink<'_> {
    fn put(&self, bytes: &[u8], at: u64) -> Result<(), AggregateError> {
        match self {
            Self::File { file, data_at, path } => file
                .write_all_at(bytes, data_at + at)
                .map_err(|source| AggregateError::Write { path: (*path).to_owned(), source }),
            Self::Memory(all) => {
                let at = usize::try_from(at).expect("checked against the size of memory before");
                let mut all = all.lock().expect("no thread panics while it copies");
                all[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// A run of values of one tensor.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Index among the tensors of the global model.
    tensor: usize,
    /// First value.
    first: u64,
    /// How many.
    values: u64,
}

struct Sums<'a> {
    base: &'a Header,
    parts: &'a [Part<'a>],
    weights: Vec<f64>,
    total: f64,
    /// Where each tensor of the global model begins in each part.
    starts: Vec<Vec<u64>>,
    pieces: Vec<Piece>,
    /// Ranges of `pieces` that follow one another in the result.
    chunks: Vec<(usize, usize)>,
}

impl<'a> Sums<'a> {
    fn new(base: &'a Header, parts: &'a [Part<'a>]) -> Result<Self, AggregateError> {
        if parts.is_empty() {
            return Err(AggregateError::Parts("no model to take the mean of"));
        }
        if parts.iter().any(|part| !(part.weight.is_finite() && part.weight > 0.0)) {
            return Err(AggregateError::Parts("a weight is not a finite number above 0"));
        }
        let mut starts = Vec::with_capacity(parts.len());
        for part in parts {
            let header = part.model.header();
            check::same_tensors(header, base)
                .map_err(|why| AggregateError::Refused { site: part.site.clone(), why })?;
            let start =
                |tensor: &crate::tensors::Tensor| header.get(&tensor.name).map_or(0, |found| found.start);
            starts.push(base.tensors().iter().map(start).collect());
        }
        let weights = scale(parts.iter().map(|part| part.weight).collect());
        let total = weights.iter().sum();
        let (pieces, chunks) = divide(base);
        Ok(Self { base, parts, weights, total, starts, pieces, chunks })
    }

    fn run(&self, sink: &Sink<'_>, threads: usize) -> Result<(), AggregateError> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut buffers = Buffers::default();
            loop {
                let Some(&(from, to)) = self.chunks.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return Ok(());
                };
                if let Err(error) = self.chunk(&self.pieces[from..to], &mut buffers, sink) {
                    // The others find nothing more to do.
                    next.store(self.chunks.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        };
        let threads = threads.clamp(1, self.chunks.len().max(1));
        if threads == 1 {
            return work();
        }
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut first = work();
            for other in others {
                let done = other.join().expect("a summing thread does not panic");
                first = first.and(done);
            }
            first
        })
    }

    fn chunk(&self, pieces: &[Piece], buffers: &mut Buffers, sink: &Sink<'_>) -> Result<(), AggregateError> {
        let sizes: Vec<_> = pieces.iter().map(|piece| bytes_of(self.base, piece)).collect();
        let bytes: usize = sizes.iter().sum();
        buffers.fit(bytes, pieces);
        for (index, part) in self.parts.iter().enumerate() {
            let into = if index == 0 { &mut buffers.first } else { &mut buffers.other };
            self.read(index, pieces, &sizes, &mut into[..bytes])?;
            let (mut at, mut value) = (0, 0);
            for (piece, size) in pieces.iter().zip(&sizes) {
                let tensor = &self.base.tensors()[piece.tensor];
                let values = kernel::length(piece.values);
                let raw = if index == 0 { &buffers.first } else { &buffers.other };
                let raw = &raw[at..at + size];
                if !check::is_finite(tensor.dtype, raw) {
                    let why = check::describe(tensor, raw, piece.first);
                    return Err(AggregateError::Refused { site: part.site.clone(), why });
                }
                let sum = &mut buffers.sums[value..value + values];
                let how = Sum { dtype: tensor.dtype, first: &buffers.first[at..at + size] };
                how.add(raw, self.weights[index], index == 0, sum);
                at += size;
                value += values;
            }
        }
        let (mut at, mut value) = (0, 0);
        for (piece, size) in pieces.iter().zip(&sizes) {
            let tensor = &self.base.tensors()[piece.tensor];
            let values = kernel::length(piece.values);
            let how = Sum { dtype: tensor.dtype, first: &buffers.first[at..at + size] };
            how.finish(&buffers.sums[value..value + values], self.total, &mut buffers.other[at..at + size]);
            at += size;
            value += values;
        }
        if let Some(piece) = pieces.first() {
            let tensor = &self.base.tensors()[piece.tensor];
            sink.put(&buffers.other[..bytes], tensor.start + piece.first * tensor.dtype.size())?;
        }
        Ok(())
    }

    /// Reads the pieces of one part, neighbours with one call.
    fn read(
        &self,
        part: usize,
        pieces: &[Piece],
        sizes: &[usize],
        into: &mut [u8],
    ) -> Result<(), AggregateError> {
        let place = |piece: &Piece| {
            let tensor = &self.base.tensors()[piece.tensor];
            self.starts[part][piece.tensor] + piece.first * tensor.dtype.size()
        };
        let (mut piece, mut at) = (0, 0);
        while piece < pieces.len() {
            let begin = place(&pieces[piece]);
            let mut run = sizes[piece];
            piece += 1;
            while piece < pieces.len() && place(&pieces[piece]) == begin + run as u64 {
                run += sizes[piece];
                piece += 1;
            }
            let this = &self.parts[part];
            this.model
                .read_data(&mut into[at..at + run], begin)
                .map_err(|source| AggregateError::Read { site: this.site.clone(), source })?;
            at += run;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Buffers {
    first: Vec<u8>,
    other: Vec<u8>,
    sums: Vec<f64>,
}

impl Buffers {
    fn fit(&mut self, bytes: usize, pieces: &[Piece]) {
        let values: u64 = pieces.iter().map(|piece| piece.values).sum();
        let values = kernel::length(values);
        if self.first.len() < bytes {
            self.first.resize(bytes, 0);
            self.other.resize(bytes, 0);
        }
        if self.sums.len() < values {
            self.sums.resize(values, 0.0);
        }
    }
}

fn bytes_of(base: &Header, piece: &Piece) -> usize {
    kernel::length(piece.values * base.tensors()[piece.tensor].dtype.size())
}

/// Divides by the power of two of the largest weight, which changes no digit of any result, so that
/// neither a product nor the sum of the weights can leave the range of f64. Equal weights become 1: the
/// mean of one model is that model, and n of equal weight are rounded once, not n times.
fn scale(weights: Vec<f64>) -> Vec<f64> {
    if weights.iter().all(|weight| *weight == weights[0]) {
        return vec![1.0; weights.len()];
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let exponent = i32::try_from(largest.to_bits() >> 52).map_or(0, |biased| biased - 1023);
    let power = 2f64.powi(-exponent);
    weights.into_iter().map(|weight| weight * power).collect()
}

/// Cuts the data into chunks of at most [`CHUNK`] values; small tensors share one.
fn divide(base: &Header) -> (Vec<Piece>, Vec<(usize, usize)>) {
    let mut pieces = Vec::new();
    let mut chunks = Vec::new();
    let (mut from, mut room) = (0, CHUNK);
    for (tensor, found) in base.tensors().iter().enumerate() {
        let mut first = 0;
        while first < found.elements() {
            let values = (found.elements() - first).min(room);
            pieces.push(Piece { tensor, first, values });
            first += values;
            room -= values;
            if room == 0 {
                chunks.push((from, pieces.len()));
                (from, room) = (pieces.len(), CHUNK);
            }
        }
    }
    if from < pieces.len() {
        chunks.push((from, pieces.len()));
    }
    (pieces, chunks)
}

#[cfg(test)]
mod tests;
