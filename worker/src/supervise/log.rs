//! The worker's own output, bounded: its first bytes and its last are kept, and how much is missing between them is said.
//!
//! While it runs: `worker.log` up to the cap of the head, then `worker.log.old` and `worker.log.new`, which take turns.
//! At the end they become one file.

use polder_api::shim::LogCap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The log of one attempt.
pub(super) struct Log {
    path: PathBuf,
    cap: LogCap,
    head: File,
    head_left: u64,
    new: Option<(File, u64)>,
    /// Bytes in `.old`.
    old: u64,
    /// Bytes that came.
    pub(super) bytes: u64,
    /// Bytes that are not kept.
    pub(super) dropped: u64,
}

impl Log {
    /// Starts a log.
    pub(super) fn create(path: &Path, cap: LogCap) -> io::Result<Self> {
        let log = Self {
            head: create(path)?,
            path: path.to_owned(),
            cap,
            head_left: cap.head,
            new: None,
            old: 0,
            bytes: 0,
            dropped: 0,
        };
        let _ = fs::remove_file(log.part("new"));
        let _ = fs::remove_file(log.part("old"));
        Ok(log)
    }

    fn part(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".");
        name.push(suffix);
        self.path.with_file_name(name)
    }

    /// Takes what came. A disk that is full loses output, nothing else.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let split = usize::try_from(self.head_left).unwrap_or(usize::MAX).min(bytes.len());
        let (head, rest) = bytes.split_at(split);
        self.head_left -= head.len() as u64;
        if self.head.write_all(head).is_err() {
            self.dropped += head.len() as u64;
        }
        if !rest.is_empty() && self.take_tail(rest).is_err() {
            self.dropped += rest.len() as u64;
        }
    }

    fn take_tail(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.new.as_ref().is_some_and(|(_, length)| *length >= self.cap.tail) {
            let length = self.new.take().map_or(0, |(_, length)| length);
            fs::rename(self.part("new"), self.part("old"))?;
            self.dropped += std::mem::replace(&mut self.old, length);
        }
        let (file, length) = match &mut self.new {
            Some(new) => new,
            None => self.new.insert((create(&self.part("new"))?, 0)),
        };
        file.write_all(bytes)?;
        *length += bytes.len() as u64;
        Ok(())
    }

    /// Makes one file of it.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if self.dropped > 0 {
            write!(
                self.head,
                "\n[polder: {} of {} bytes of output are left out here]\n",
                self.dropped, self.bytes
            )?;
        }
        self.new = None;
        for suffix in ["old", "new"] {
            let part = self.part(suffix);
            match File::open(&part) {
                Ok(mut file) => {
                    io::copy(&mut file, &mut self.head)?;
                    fs::remove_file(&part)?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(chunks: &[&[u8]]) -> (String, u64, u64) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("worker.log");
        let mut log = Log::create(&path, LogCap { head: 10, tail: 10 }).expect("created");
        for chunk in chunks {
            log.take(chunk);
            let size: u64 = fs::read_dir(dir.path())
                .expect("readable")
                .map(|entry| entry.expect("an entry").metadata().expect("metadata").len())
                .sum();
            assert!(size <= 10 + 2 * (10 + 8), "{size} bytes on disk");
        }
        log.finish().expect("finished");
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
        (fs::read_to_string(&path).expect("readable"), log.bytes, log.dropped)
    }

    #[test]
    fn what_fits_is_kept_whole() {
        assert_eq!(logged(&[b"one\n", b"two\n", b"three\n"]), ("one\ntwo\nthree\n".to_owned(), 14, 0));
        assert_eq!(logged(&[]), (String::new(), 0, 0));
    }

    #[test]
    fn a_flood_keeps_head_and_tail_and_says_what_is_missing() {
        let chunks: Vec<_> = (0..1000).map(|n| format!("{n:07}\n").into_bytes()).collect();
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        let (text, bytes, dropped) = logged(&chunks);
        assert_eq!(bytes, 8000);
        assert!(text.starts_with("0000000\n"), "{text}");
        assert!(text.ends_with("0000998\n0000999\n"), "{text}");
        let line = format!("[polder: {dropped} of 8000 bytes of output are left out here]");
        assert!(text.contains(&line), "{text}");
        assert_eq!(text.len() as u64, bytes - dropped + line.len() as u64 + 2);
    }
}
