//! The log of an attempt: what the trainer prints and what the worker says about it.
//!
//! ```text
//! trainer --pipe--> Log --kept--> worker.log (this process's output)
//!                    |  `-------> chunks for the parent, with their place in the kept log
//!                    `----------> the last lines, of everything, for the outcome
//! ```
//! A program may print without end; the pipe is always read, so that it never waits, but only so much is
//! kept: the first [`HEAD`] bytes, then [`RATE`] bytes a second. What is left out is counted, and a line
//! says so where it would have stood.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use polder_api::worker::WorkerLog;
use std::collections::VecDeque;
use std::io::Write as _;
use std::time::Instant;

/// Bytes that are kept in any case.
const HEAD: u64 = 4 << 20;
/// Bytes a second that are kept after that.
const RATE: f64 = 64.0 * 1024.0;
/// Unused seconds that may be made up for.
const BURST: f64 = 16.0;
/// Kept bytes that wait for the parent.
const WAITING: usize = 6 << 20;
/// Bytes a chunk for the parent holds.
const CHUNK: usize = 192 << 10;
/// Bytes of the last lines.
const TAIL: usize = 16 << 10;
/// Lines, and bytes of them, in an outcome.
const TAIL_LINES: usize = 20;
const TAIL_TEXT: usize = 4 << 10;

/// The log of this attempt.
pub(crate) struct Log {
    began: Instant,
    /// Kept so far.
    kept: u64,
    /// Left out since the last kept byte.
    left_out: u64,
    /// Left out, not yet told to the parent.
    untold: u64,
    /// Kept, not yet acknowledged; ends at `kept`.
    waiting: VecDeque<u8>,
    tail: VecDeque<u8>,
    at_line_start: bool,
    echo: bool,
}

impl Log {
    /// An empty log; with `echo`, what is kept also goes to this process's own output.
    pub(crate) fn new(echo: bool) -> Self {
        Self {
            began: Instant::now(),
            kept: 0,
            left_out: 0,
            untold: 0,
            waiting: VecDeque::new(),
            tail: VecDeque::new(),
            at_line_start: true,
            echo,
        }
    }

    /// What the trainer printed.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        let last = &bytes[bytes.len().saturating_sub(TAIL)..];
        let drop = (self.tail.len() + last.len()).saturating_sub(TAIL);
        self.tail.drain(..drop);
        self.tail.extend(last);
        let room = self.room();
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        // Beginning again in mid-flood would keep shreds: only when a whole read fits is it kept.
        if self.left_out > 0 && fits < bytes.len() {
            self.left_out += bytes.len() as u64;
            return;
        }
        if self.left_out > 0 {
            let newline = if self.at_line_start { "" } else { "\n" };
            let note = format!("{newline}[polder] {} bytes of output left out\n", self.left_out);
            self.untold += std::mem::take(&mut self.left_out);
            self.keep(note.as_bytes());
        }
        self.keep(&bytes[..fits]);
        self.left_out += (bytes.len() - fits) as u64;
    }

    /// What the worker itself says.
    pub(crate) fn say(&mut self, line: &str) {
        let newline = if self.at_line_start { "" } else { "\n" };
        self.append(format!("{newline}[polder] {line}\n").as_bytes());
    }

    fn room(&self) -> u64 {
        let seconds = self.began.elapsed().as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let allowed = HEAD + (seconds * RATE) as u64;
        // Time in which nothing was printed gives no credit without end.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a constant")]
        let most = if self.kept < HEAD { u64::MAX } else { (BURST * RATE) as u64 };
        allowed.saturating_sub(self.kept).min(most)
    }

    fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.at_line_start = bytes.last() == Some(&b'\n');
        self.kept += bytes.len() as u64;
        self.waiting.extend(bytes);
        let over = self.waiting.len().saturating_sub(WAITING);
        self.waiting.drain(..over);
        self.untold += over as u64;
        if self.echo {
            // A full disk must not end the job; the parent has the log as well.
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(bytes).and_then(|()| out.flush());
        }
    }

    /// The end of the flood, if there was one that did not end in time.
    pub(crate) fn close(&mut self) {
        if self.left_out > 0 {
            let newline = if self.at_line_start { "" } else { "\n" };
            let note = format!("{newline}[polder] {} bytes of output left out\n", self.left_out);
            self.untold += std::mem::take(&mut self.left_out);
            self.keep(note.as_bytes());
        }
    }

    /// The next chunk for the parent.
    pub(crate) fn chunk(&mut self) -> Option<WorkerLog> {
        if self.waiting.is_empty() {
            return None;
        }
        let length = self.waiting.len().min(CHUNK);
        let bytes: Vec<u8> = self.waiting.iter().take(length).copied().collect();
        Some(WorkerLog {
            offset: self.kept - self.waiting.len() as u64,
            data: BASE64.encode(bytes),
            dropped: self.untold,
        })
    }

    /// The parent has it.
    pub(crate) fn acknowledge(&mut self, chunk: &WorkerLog) {
        let end = chunk.offset + BASE64.decode(&chunk.data).map_or(0, |bytes| bytes.len() as u64);
        let from = self.kept - self.waiting.len() as u64;
        let gone = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX).min(self.waiting.len());
        self.waiting.drain(..gone);
        self.untold = self.untold.saturating_sub(chunk.dropped);
    }

    /// Whether there is something for the parent.
    pub(crate) fn has_news(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The last lines, as text.
    pub(crate) fn tail(&self) -> String {
        let bytes: Vec<u8> = self.tail.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let mut text = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        if text.len() > TAIL_TEXT {
            let cut = (text.len() - TAIL_TEXT..).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.drain(..cut);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(log: &mut Log) -> String {
        let mut all = Vec::new();
        while let Some(chunk) = log.chunk() {
            assert!(BASE64.decode(&chunk.data).expect("base64").len() <= CHUNK);
            all.extend(BASE64.decode(&chunk.data).expect("base64"));
            log.acknowledge(&chunk);
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    #[test]
    fn a_flood_is_cut_counted_and_its_last_lines_are_known() {
        let mut log = Log::new(false);
        log.append(b"before\n");
        let block = "noise ".repeat(10_923);
        for _ in 0..16_384 {
            log.append(block.as_bytes());
        }
        log.append(b"\nthe end");
        log.close();
        assert!((log.kept as f64) < HEAD as f64 + 2.0 * BURST * RATE, "{} bytes kept", log.kept);
        assert!(log.waiting.len() <= WAITING);
        assert!(log.tail().ends_with("\nthe end"), "{}", log.tail());
        let text = text(&mut log);
        assert!(text.starts_with("before\nnoise noise") && text.contains("bytes of output left out\n"));
        assert!(!log.has_news());
    }

    #[test]
    fn a_chunk_that_was_not_acknowledged_is_given_again_with_its_place() {
        let mut log = Log::new(false);
        log.append(b"one\n");
        let first = log.chunk().expect("news");
        log.append(b"two\n");
        let again = log.chunk().expect("news");
        assert_eq!((first.offset, again.offset), (0, 0));
        log.acknowledge(&first);
        let second = log.chunk().expect("news");
        assert_eq!((second.offset, BASE64.decode(second.data).expect("base64")), (4, b"two\n".to_vec()));
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm() {
        let mut log = Log::new(false);
        log.append(b"caf\xe9 \xff\xfe\nno newline at the end");
        log.say("exit 3");
        assert_eq!(log.tail(), "caf\u{fffd} \u{fffd}\u{fffd}\nno newline at the end\n[polder] exit 3");
    }
}
