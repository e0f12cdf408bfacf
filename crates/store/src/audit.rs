//! The audit log: JSON lines, each with the hash of the one before.
//!
//! A line reads `{"prev": <hash of the line before, without its newline>, "at": <milliseconds>, "what": ..., ...}`. Whoever
//! changes or removes a line in the middle breaks the chain at the next one; [`verify`] says where. A line that
//! was cut by a crash (no newline at the end of the file) is dropped when the log is opened again.

use crate::error::{Result, StoreError};
use polder_words::Hash;
use serde_json::{Map, Value};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// An open audit log.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    end: Mutex<End>,
}

#[derive(Debug)]
struct End {
    file: File,
    prev: Hash,
}

fn hash(line: &[u8]) -> Hash {
    Hash(*blake3::hash(line).as_bytes())
}

/// What the first line names as the one before.
const BEGINNING: Hash = Hash([0; 32]);

impl Audit {
    /// Opens or begins a log.
    ///
    /// # Errors
    /// When the file cannot be opened, or its last line is not one of this log.
    pub fn open(path: &Path) -> Result<Self> {
        let io = || StoreError::io(path);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(io())?;
        let (whole, last) = last_line(&mut file).map_err(io())?;
        file.set_len(whole).map_err(io())?;
        file.seek(SeekFrom::End(0)).map_err(io())?;
        let prev = last.map_or(BEGINNING, |line| hash(&line));
        Ok(Self { path: path.to_owned(), end: Mutex::new(End { file, prev }) })
    }

    /// Appends a line. Not synced: what must survive a power failure is in the database.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, at: u64, what: &str, fields: &[(&str, Value)]) -> Result<()> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = Map::new();
        line.insert("prev".to_owned(), Value::String(end.prev.to_string()));
        line.insert("at".to_owned(), at.into());
        line.insert("what".to_owned(), what.into());
        for (key, value) in fields {
            line.insert((*key).to_owned(), value.clone());
        }
        let mut text = Value::Object(line).to_string().into_bytes();
        let next = hash(&text);
        text.push(b'\n');
        end.file.write_all(&text).map_err(StoreError::io(&self.path))?;
        end.prev = next;
        Ok(())
    }
}

/// The length up to the last newline, and the line that ends there.
fn last_line(file: &mut File) -> std::io::Result<(u64, Option<Vec<u8>>)> {
    use std::os::unix::fs::FileExt;
    let mut start = file.metadata()?.len();
    let mut tail = Vec::new();
    // From the end in pieces, until two newlines (or the beginning) are in sight.
    while start > 0 && tail.iter().filter(|b| **b == b'\n').count() < 2 {
        let step = start.min(8192);
        start -= step;
        let mut piece = vec![0; usize::try_from(step).unwrap_or(0)];
        file.read_exact_at(&mut piece, start)?;
        piece.extend_from_slice(&tail);
        tail = piece;
    }
    let Some(newline) = tail.iter().rposition(|b| *b == b'\n') else {
        return Ok((0, None));
    };
    let begin = tail[..newline].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    Ok((start + newline as u64 + 1, Some(tail[begin..newline].to_vec())))
}

/// Where a log is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Broken {
    /// Counted from 1.
    pub line: u64,
    /// `does not follow from the line before`, `is no JSON`.
    pub why: &'static str,
}

/// Reads a log from its beginning and counts its lines.
///
/// # Errors
/// The outer one when it cannot be read, the inner one when it was changed.
pub fn verify(path: &Path) -> Result<std::result::Result<u64, Broken>> {
    let file = File::open(path).map_err(StoreError::io(path))?;
    let mut prev = BEGINNING;
    let mut lines = 0;
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(StoreError::io(path))?;
        lines += 1;
        let Ok(value) = serde_json::from_slice::<Value>(&line) else {
            return Ok(Err(Broken { line: lines, why: "is no JSON" }));
        };
        if value.get("prev").and_then(Value::as_str) != Some(&prev.to_string()) {
            return Ok(Err(Broken { line: lines, why: "does not follow from the line before" }));
        }
        prev = hash(&line);
    }
    Ok(Ok(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_shows() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("audit.jsonl");
        for n in 0..3_u64 {
            // Opened anew each time: the chain goes on where it was.
            let audit = Audit::open(&path).expect("opens");
            audit.write(n, "session_opened", &[("user", format!("u{n}").into())]).expect("writes");
        }
        assert_eq!(verify(&path).expect("reads"), Ok(3));
        let text = std::fs::read_to_string(&path).expect("reads");
        std::fs::write(&path, text.replace("u1", "u2")).expect("writes");
        assert_eq!(
            verify(&path).expect("reads"),
            Err(Broken { line: 3, why: "does not follow from the line before" })
        );
        let without: Vec<_> = text.lines().skip(1).collect();
        std::fs::write(&path, without.join("\n")).expect("writes");
        assert_eq!(verify(&path).expect("reads").expect_err("removed").line, 1);
    }

    #[test]
    fn a_line_cut_by_a_crash_is_dropped() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("audit.jsonl");
        let audit = Audit::open(&path).expect("opens");
        audit.write(1, "one", &[("long", "x".repeat(20_000).into())]).expect("writes");
        audit.write(2, "two", &[]).expect("writes");
        let whole = std::fs::read(&path).expect("reads");
        for cut in [whole.len() - 1, whole.len() - 30] {
            std::fs::write(&path, &whole[..cut]).expect("writes");
            Audit::open(&path).expect("opens").write(3, "three", &[]).expect("writes");
            assert_eq!(verify(&path).expect("reads"), Ok(2));
        }
        std::fs::write(&path, b"{\"no newline").expect("writes");
        Audit::open(&path).expect("opens").write(4, "four", &[]).expect("writes");
        assert_eq!(verify(&path).expect("reads"), Ok(1));
    }
}
