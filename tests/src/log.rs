//! The output of a running program, kept whole and waited upon line by line.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines a program wrote so far, growing.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<(Instant, String)>,
    ended: bool,
}

impl Lines {
    /// Reads `from` to its end in a thread of its own.
    pub fn follow(&self, from: impl Read + Send + 'static) {
        let lines = self.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(from);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                lines.change(|state| state.lines.push((Instant::now(), text)));
                line.clear();
            }
            lines.change(|state| state.ended = true);
        });
    }

    fn change(&self, how: impl FnOnce(&mut State)) {
        how(&mut self.shared.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.1.notify_all();
    }

    /// Waits for a line from the `after`th on; answers with its number, when it came, and what it says.
    ///
    /// # Errors
    /// When the program closed its output or the time is over: everything it wrote.
    pub fn wait(
        &self,
        after: usize,
        limit: Duration,
        mut wanted: impl FnMut(&str) -> bool,
    ) -> Result<(usize, Instant, String), String> {
        let end = Instant::now() + limit;
        let mut seen = after;
        let mut state = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            while let Some((at, line)) = state.lines.get(seen) {
                if wanted(line) {
                    return Ok((seen, *at, line.clone()));
                }
                seen += 1;
            }
            let left = end.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                let why = if state.ended { "it ended" } else { "the time is over" };
                let all: Vec<&str> = state.lines.iter().map(|(_, line)| line.as_str()).collect();
                return Err(format!("{why}; it wrote:\n{}", all.join("\n")));
            }
            state = self.shared.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Everything so far.
    #[must_use]
    pub fn text(&self) -> String {
        let state = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.lines.iter().map(|(_, line)| format!("{line}\n")).collect()
    }

    /// How many lines there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).lines.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_waited_for_and_the_end_is_noticed() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let lines = Lines::default();
        lines.follow(reader);
        std::io::Write::write_all(&mut writer, b"one\ntwo\n").expect("written");
        let (n, _, line) = lines.wait(0, Duration::from_secs(10), |l| l.starts_with('t')).expect("it comes");
        assert_eq!((n, line.as_str()), (1, "two"));
        drop(writer);
        let error = lines.wait(n + 1, Duration::from_secs(10), |_| true).expect_err("no more");
        assert_eq!(error, "it ended; it wrote:\none\ntwo");
    }
}
