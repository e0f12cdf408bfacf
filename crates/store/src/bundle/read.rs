//! Reading an archive under limits, entry by entry.

use super::{BundleError, Limits, clean};
use flate2::read::GzDecoder;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::rc::Rc;
use tar::EntryType;

/// Longest extended header or long name that is read into memory.
const LONG_HEADER: u64 = 64 * 1024;

/// Counts what goes into the decoder.
struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.count.set(self.count.get() + n as u64);
        Ok(n)
    }
}

/// Watches what comes out of it.
struct Guarded<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
    given: u64,
    limits: Limits,
}

impl<R: Read> Read for Guarded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.given += n as u64;
        if self.given > self.limits.bytes {
            return Err(io::Error::other(BundleError::TooLarge { allowed: self.limits.bytes }));
        }
        if self.given > Limits::FREE_BYTES && self.given / self.limits.ratio > self.taken.get() {
            return Err(io::Error::other(BundleError::Swells { allowed: self.limits.ratio }));
        }
        Ok(n)
    }
}

/// One accepted entry.
pub(super) enum Member<'a> {
    Folder,
    File { size: u64, executable: bool, body: &'a mut dyn Read },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Folder { named: bool },
    File,
}

/// Walks through an archive to its very end (so that the checksum of the compressed stream counts) and
/// hands each accepted entry to `each`.
pub(super) fn walk(
    archive: impl Read,
    limits: &Limits,
    mut each: impl FnMut(&str, Member<'_>) -> Result<(), BundleError>,
) -> Result<(), BundleError> {
    let taken = Rc::new(Cell::new(0));
    let counted = Counted { inner: archive, count: Rc::clone(&taken) };
    let guarded = Guarded { inner: GzDecoder::new(counted), taken, given: 0, limits: *limits };
    let mut tar = tar::Archive::new(guarded);
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    let mut entries = 0_u64;
    let mut long_name: Option<Vec<u8>> = None;

    for entry in tar.entries().map_err(BundleError::unreadable)?.raw(true) {
        let mut entry = entry.map_err(BundleError::unreadable)?;
        entries += 1;
        if entries > limits.entries.saturating_mul(2) {
            return Err(BundleError::TooMany { allowed: limits.entries });
        }
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => {
                let mut name = read_header(&mut entry)?;
                while name.last() == Some(&0) {
                    name.pop();
                }
                long_name = Some(name);
                continue;
            }
            EntryType::XHeader => {
                if let Some(path) = extended_path(&read_header(&mut entry)?)? {
                    long_name = Some(path);
                }
                continue;
            }
            _ => {}
        }
        let raw = long_name.take().unwrap_or_else(|| entry.path_bytes().into_owned());
        let path = clean(&raw, limits)?;
        let folder = match kind {
            EntryType::Regular | EntryType::Continuous => raw.last() == Some(&b'/'),
            EntryType::Directory => true,
            other => return Err(BundleError::Kind { path, kind: name_of(other) }),
        };
        if path.is_empty() {
            if folder {
                continue;
            }
            return Err(BundleError::Path { path, why: "a file without a name" });
        }
        place(&mut seen, &path, folder)?;
        if seen.len() as u64 > limits.entries {
            return Err(BundleError::TooMany { allowed: limits.entries });
        }
        if folder {
            each(&path, Member::Folder)?;
        } else {
            let size = entry.header().entry_size().map_err(BundleError::unreadable)?;
            if size > limits.bytes {
                return Err(BundleError::TooLarge { allowed: limits.bytes });
            }
            let executable = entry.header().mode().map_err(BundleError::unreadable)? & 0o100 != 0;
            each(&path, Member::File { size, executable, body: &mut entry })?;
        }
    }
    let mut rest = tar.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(BundleError::unreadable)?;
    Ok(())
}

/// Notes a path and the folders above it; a path has one meaning in an archive.
fn place(seen: &mut BTreeMap<String, Seen>, path: &str, folder: bool) -> Result<(), BundleError> {
    let twice = |path: &str| BundleError::Twice { path: path.to_owned() };
    for (at, _) in path.match_indices('/') {
        let above = &path[..at];
        match seen.get(above) {
            None => {
                seen.insert(above.to_owned(), Seen::Folder { named: false });
            }
            Some(Seen::Folder { .. }) => {}
            Some(Seen::File) => return Err(twice(above)),
        }
    }
    match (seen.get(path), folder) {
        (None, true) | (Some(Seen::Folder { named: false }), true) => {
            seen.insert(path.to_owned(), Seen::Folder { named: true });
            Ok(())
        }
        (None, false) => {
            seen.insert(path.to_owned(), Seen::File);
            Ok(())
        }
        _ => Err(twice(path)),
    }
}

fn read_header(entry: &mut impl Read) -> Result<Vec<u8>, BundleError> {
    let mut body = Vec::new();
    entry.take(LONG_HEADER + 1).read_to_end(&mut body).map_err(BundleError::unreadable)?;
    if body.len() as u64 > LONG_HEADER {
        return Err(BundleError::Path { path: String::new(), why: "longer than a path may be" });
    }
    Ok(body)
}

/// The `path` record of an extended header. What would change how the archive is read is refused, the
/// rest (times, owners, attributes) means nothing here.
fn extended_path(body: &[u8]) -> Result<Option<Vec<u8>>, BundleError> {
    let broken = || BundleError::Unreadable { source: io::Error::other("a broken extended header") };
    let mut path = None;
    let mut rest = body;
    while !rest.is_empty() {
        let space = rest.iter().position(|b| *b == b' ').ok_or_else(broken)?;
        let length: usize =
            std::str::from_utf8(&rest[..space]).ok().and_then(|text| text.parse().ok()).ok_or_else(broken)?;
        if length <= space + 1 || length > rest.len() || rest[length - 1] != b'\n' {
            return Err(broken());
        }
        let record = &rest[space + 1..length - 1];
        let equals = record.iter().position(|b| *b == b'=').ok_or_else(broken)?;
        match &record[..equals] {
            b"path" => path = Some(record[equals + 1..].to_vec()),
            key if key == b"size" || key.starts_with(b"GNU.sparse") => {
                return Err(BundleError::Kind {
                    path: String::new(),
                    kind: "a sparse file or one with an extended size",
                });
            }
            _ => {}
        }
        rest = &rest[length..];
    }
    Ok(path)
}

fn name_of(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Link => "a hard link",
        EntryType::Symlink => "a symbolic link",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a pipe",
        EntryType::GNUSparse => "a sparse file",
        _ => "of an unknown kind",
    }
}

/// What [`inspect`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspected {
    /// Files by path, with their sizes.
    pub files: BTreeMap<String, u64>,
    /// Bytes of all files.
    pub bytes: u64,
    /// The bodies asked for, as far as they are there.
    pub wanted: BTreeMap<String, Vec<u8>>,
}

/// Largest file [`inspect`] hands back.
const WANTED: u64 = 1 << 20;

/// Reads an archive to its end, checks every rule, stores nothing. The bodies of `wanted` (paths of small text
/// files such as `job.yaml`, at most 1 MiB each) come back.
///
/// # Errors
/// When a rule is broken; when a wanted file is larger than 1 MiB.
pub fn inspect(archive: impl Read, limits: &Limits, wanted: &[&str]) -> Result<Inspected, BundleError> {
    let mut found = Inspected::default();
    walk(archive, limits, |path, member| {
        let Member::File { size, body, .. } = member else {
            return Ok(());
        };
        found.bytes += size;
        found.files.insert(path.to_owned(), size);
        if wanted.contains(&path) {
            if size > WANTED {
                return Err(BundleError::TooLarge { allowed: WANTED });
            }
            let mut text = Vec::new();
            body.read_to_end(&mut text).map_err(BundleError::unreadable)?;
            found.wanted.insert(path.to_owned(), text);
        }
        Ok(())
    })?;
    Ok(found)
}
