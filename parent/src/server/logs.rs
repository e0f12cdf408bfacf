//! Logs of jobs: a file for each site, role and attempt.
//!
//! The length of a file is how far its log was received: a chunk that comes twice is cut by its offset, one after a
//! gap (a worker that flooded drops bytes itself) is preceded by a line that says so. People read all attempts of a
//! worker as one text; offsets they are given count in that text.

use polder_words::{JobId, Role, SiteName};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Most bytes kept of one attempt.
const CAP: u64 = 16 << 20;
/// What a log that reached it ends with.
const NOTE: &[u8] = b"\n[the log is longer than 16 MiB: the rest was not kept]\n";
/// Most bytes handed out at once.
const PAGE: u64 = 256 << 10;

/// What sites measured outside of results; no log's name looks like it.
const METRICS: &str = "metrics.jsonl";

/// All logs.
#[derive(Debug)]
pub(super) struct Logs {
    root: PathBuf,
    /// Appending looks at the length first.
    appending: Mutex<()>,
}

/// A piece of a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    pub(super) next: u64,
}

impl Logs {
    pub(super) fn new(state: &Path) -> Self {
        Self { root: state.join("logs"), appending: Mutex::new(()) }
    }

    fn folder(&self, job: JobId) -> PathBuf {
        self.root.join(job.to_string())
    }

    /// Appends what is new of a chunk; says whether there was anything. Blocks.
    pub(super) fn append(
        &self,
        job: JobId,
        site: &SiteName,
        role: Role,
        attempt: u32,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<bool> {
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.folder(job);
        let path = folder.join(format!("{site}.{role}.{attempt:04}"));
        let open = || OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path);
        let mut file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
                open()?
            }
            opened => opened?,
        };
        let have = file.metadata()?.len();
        let end = offset.saturating_add(bytes.len() as u64);
        if end <= have || have >= CAP - NOTE.len() as u64 {
            return Ok(false);
        }
        let mut out = Vec::new();
        if offset > have {
            // The gap is filled, so that the length stays the offset: a sparse hole costs no disk.
            let note = format!("[{} bytes are missing here]\n", offset - have);
            if offset >= CAP - NOTE.len() as u64 {
                file.write_all(NOTE)?;
                file.set_len(CAP)?;
                return Ok(true);
            }
            file.set_len(offset)?;
            let at = offset - (note.len() as u64).min(offset - have);
            let cut = usize::try_from(offset - at).unwrap_or(0).min(note.len());
            std::os::unix::fs::FileExt::write_all_at(
                &reopen(&path)?,
                &note.as_bytes()[note.len() - cut..],
                at,
            )?;
            out.extend_from_slice(bytes);
        } else {
            let skip = usize::try_from(have - offset).unwrap_or(bytes.len());
            out.extend_from_slice(&bytes[skip..]);
        }
        let now = file.metadata()?.len();
        let room = usize::try_from((CAP - NOTE.len() as u64).saturating_sub(now)).unwrap_or(0);
        if out.len() > room {
            out.truncate(room);
            out.extend_from_slice(NOTE);
        }
        file.write_all(&out)?;
        Ok(true)
    }

    /// Reads on from an offset in the text of all attempts. Blocks.
    pub(super) fn read(&self, job: JobId, site: &SiteName, role: Role, after: u64) -> io::Result<Piece> {
        let prefix = format!("{site}.{role}.");
        let mut files: Vec<PathBuf> = match fs::read_dir(self.folder(job)) {
            Ok(entries) => entries
                .flatten()
                .filter(|entry| entry.file_name().to_str().is_some_and(|name| is_attempt_of(name, &prefix)))
                .map(|entry| entry.path())
                .collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        files.sort();
        let mut before = 0;
        let mut bytes = Vec::new();
        let mut next = after;
        for path in files {
            let mut file = fs::File::open(&path)?;
            let len = file.metadata()?.len();
            if next < before + len && (bytes.len() as u64) < PAGE {
                let from = next.saturating_sub(before);
                file.seek(SeekFrom::Start(from))?;
                let most = (len - from).min(PAGE - bytes.len() as u64);
                let got = file.take(most).read_to_end(&mut bytes)? as u64;
                next = before + from + got;
            }
            before += len;
        }
        // A character that is not whole yet waits for the rest of it; holes of gaps are no text.
        let whole = whole_characters(&bytes);
        if whole > 0 {
            next -= (bytes.len() - whole) as u64;
            bytes.truncate(whole);
        }
        Ok(Piece { bytes, next })
    }

    /// Notes what sites measured, as JSON lines. Blocks.
    pub(super) fn append_metrics(&self, job: JobId, lines: &[u8]) -> io::Result<()> {
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.folder(job);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(folder.join(METRICS))?;
        if file.metadata()?.len() + lines.len() as u64 <= CAP {
            file.write_all(lines)?;
        }
        Ok(())
    }

    /// What sites measured, if they did. Blocks.
    pub(super) fn metrics(&self, job: JobId) -> Option<Vec<u8>> {
        fs::read(self.folder(job).join(METRICS)).ok().filter(|bytes| !bytes.is_empty())
    }

    /// Removes the logs of a job. Blocks.
    pub(super) fn remove(&self, job: JobId) {
        let folder = self.folder(job);
        if let Err(error) = fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %folder.display(), %error, "cannot remove logs");
        }
    }
}

fn reopen(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().write(true).open(path)
}

/// `a.client.0001` belongs to `a.client.`, and `a.client.b.client.0001` does not.
fn is_attempt_of(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.len() >= 4 && rest.bytes().all(|b| b.is_ascii_digit()))
}

/// How many bytes at the beginning end with a whole character.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_none() && error.valid_up_to() + 4 > bytes.len() => {
            error.valid_up_to()
        }
        Err(_) => {
            // Something else is wrong earlier: only the very end can be cut off.
            (1..=3.min(bytes.len()))
                .map(|back| bytes.len() - back)
                .find(|at| bytes[*at] >= 0xC0)
                .filter(|at| std::str::from_utf8(&bytes[*at..]).is_err_and(|e| e.error_len().is_none()))
                .unwrap_or(bytes.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JOB: JobId = JobId([1; 16]);

    fn site() -> SiteName {
        SiteName::new("a").expect("a name")
    }

    fn logs() -> (tempfile::TempDir, Logs) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let logs = Logs::new(dir.path());
        (dir, logs)
    }

    fn all(logs: &Logs) -> String {
        let mut text = Vec::new();
        let mut after = 0;
        loop {
            let piece = logs.read(JOB, &site(), Role::Client, after).expect("reads");
            if piece.next == after {
                return String::from_utf8(text).expect("text");
            }
            text.extend_from_slice(&piece.bytes);
            after = piece.next;
        }
    }

    #[test]
    fn attempts_are_one_text_and_roles_are_not() {
        let (_dir, logs) = logs();
        let put = |role, attempt, offset, text: &str| {
            logs.append(JOB, &site(), role, attempt, offset, text.as_bytes()).expect("appends")
        };
        assert!(put(Role::Client, 1, 0, "one\n"));
        assert!(put(Role::Client, 2, 0, "two\n"));
        assert!(!put(Role::Client, 1, 0, "one\n"), "it is there");
        assert!(put(Role::Server, 1, 0, "else\n"));
        assert_eq!(all(&logs), "one\ntwo\n");
        assert_eq!(logs.read(JOB, &site(), Role::Client, 5).expect("reads").bytes, b"wo\n");
        logs.remove(JOB);
        assert_eq!(all(&logs), "");
    }

    #[test]
    fn a_gap_is_said_and_a_flood_is_cut() {
        let (_dir, logs) = logs();
        logs.append(JOB, &site(), Role::Client, 1, 0, b"begin\n").expect("appends");
        logs.append(JOB, &site(), Role::Client, 1, 1000, b"end\n").expect("appends");
        let text = all(&logs);
        assert!(
            text.starts_with("begin\n") && text.ends_with("[994 bytes are missing here]\nend\n"),
            "{text:?}"
        );
        assert!(!logs.append(JOB, &site(), Role::Client, 1, 1000, b"end\n").expect("known"));
        let flood = vec![b'x'; 1 << 20];
        for n in 0..40 {
            logs.append(JOB, &site(), Role::Client, 2, n << 20, &flood).expect("appends");
        }
        let text = all(&logs);
        assert!(text.len() as u64 <= CAP + 2000 && text.trim_end().ends_with("the rest was not kept]"));
    }

    #[test]
    fn characters_are_not_torn() {
        let (_dir, logs) = logs();
        let text = "grün".as_bytes();
        logs.append(JOB, &site(), Role::Client, 1, 0, &text[..3]).expect("appends");
        let piece = logs.read(JOB, &site(), Role::Client, 0).expect("reads");
        assert_eq!((piece.bytes.as_slice(), piece.next), (&b"gr"[..], 2));
        logs.append(JOB, &site(), Role::Client, 1, 3, &text[3..]).expect("appends");
        assert_eq!(all(&logs), "grün");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// However chunks overlap and repeat, the log is what was written.
        #[test]
        fn chunks_may_overlap(text in proptest::collection::vec(1_u8..128, 1..300), cuts in proptest::collection::vec((0_usize..300, 0_usize..80), 0..20)) {
            let (_dir, logs) = logs();
            let mut have = 0;
            for (from, len) in cuts {
                let from = from.min(have);
                let to = (from + len).min(text.len());
                logs.append(JOB, &site(), Role::Client, 1, from as u64, &text[from..to]).expect("appends");
                have = have.max(to);
            }
            let kept = all(&logs);
            prop_assert_eq!(kept.as_bytes(), &text[..have]);
        }
    }
}
