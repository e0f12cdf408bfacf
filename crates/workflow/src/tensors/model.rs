//! A model that can be read at any position, from a file or from memory.

use super::header::{Header, HeaderError};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A safetensors model whose header was read and accepted.
///
/// Files are read with positioned reads and never mapped: a file that another process cuts short while
/// it is read is an error here and not a signal, and resident memory does not grow with the model.
#[derive(Debug)]
pub struct Model {
    source: Source,
    header: Header,
}

#[derive(Debug)]
enum Source {
    File(File),
    Bytes(Vec<u8>),
}

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not a file that can be read.
    #[error("cannot read the model")]
    Read(#[from] io::Error),
    /// Not a safetensors file that is accepted.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl Model {
    /// Opens a file the caller trusts the path of.
    ///
    /// # Errors
    /// When it cannot be read or is no safetensors file.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::from_file(File::open(path)?)
    }

    /// Takes an open file.
    ///
    /// # Errors
    /// When it is no regular file, cannot be read or is no safetensors file.
    pub fn from_file(file: File) -> Result<Self, OpenError> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file").into());
        }
        Self::read(Source::File(file), meta.len())
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// When they are no safetensors file.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, OpenError> {
        let size = bytes.len() as u64;
        Self::read(Source::Bytes(bytes), size)
    }

    fn read(source: Source, size: u64) -> Result<Self, OpenError> {
        let mut first = [0; 8];
        if size < 8 {
            return Err(HeaderError::Short { size, header: 0 }.into());
        }
        source.read_at(&mut first, 0)?;
        let mut raw = vec![0; Header::length(first, size)?];
        source.read_at(&mut raw, 8)?;
        let header = Header::parse(raw, size)?;
        Ok(Self { source, header })
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Fills `into` from this position of the data (which begins after the header).
    ///
    /// # Errors
    /// When the file ends before, or cannot be read.
    pub fn read_data(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.source.read_at(into, self.header.data_at() + at)
    }
}

impl Source {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Self::File(file) => file.read_exact_at(into, at),
            Self::Bytes(bytes) => {
                let part = usize::try_from(at)
                    .ok()
                    .and_then(|at| bytes.get(at..at.checked_add(into.len())?))
                    .ok_or(io::ErrorKind::UnexpectedEof)?;
                into.copy_from_slice(part);
                Ok(())
            }
        }
    }
}
