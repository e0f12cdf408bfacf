//! Processes by more than their number: a pid comes again, a pid with boot and start time does not.

use std::fs;
use std::io;

/// The id of this boot.
///
/// # Errors
/// Without `/proc`.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// What `/proc/<pid>/stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `Z`, ...
    pub state: char,
    /// Its session.
    pub session: u32,
    /// Its start, in clock ticks after boot.
    pub start: u64,
}

/// What a process is; `None` when there is none, or only what is left for its parent to collect.
#[must_use]
pub fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(&text).filter(|stat| !matches!(stat.state, 'Z' | 'X'))
}

fn parse(text: &str) -> Option<Stat> {
    // The name in brackets may hold anything, brackets and spaces too.
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let session = fields.nth(2)?.parse().ok()?;
    let start = fields.nth(15)?.parse().ok()?;
    Some(Stat { state, session, start })
}

/// Whether this very process lives.
#[must_use]
pub fn is_alive(pid: u32, start: u64) -> bool {
    stat(pid).is_some_and(|stat| stat.start == start)
}

/// Processes of a session whose leader is gone. While any of them lives its number is not given to another process.
#[must_use]
pub fn session_of(leader: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|stat| stat.session == leader)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_brackets() {
        let text =
            "42 (a) b) S 1 42 17 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1000 1 18446744073709551615";
        assert_eq!(parse(text), Some(Stat { state: 'S', session: 17, start: 777 }));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_lives() {
        let me = stat(std::process::id()).expect("this process lives");
        assert!(is_alive(std::process::id(), me.start));
        assert!(!is_alive(std::process::id(), me.start + 1));
        assert!(!boot_id().expect("there is /proc").is_empty());
    }
}
