//! What a worker started and left: the shim is its reaper, so everything ends up as the shim's child.

use super::groups::Groups;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

/// Children of this process, ended ones too.
fn children() -> BTreeSet<u32> {
    if let Ok(text) = fs::read_to_string("/proc/thread-self/children") {
        return text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    }
    // A kernel without that list: by the parent's number in every process's own.
    let me = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = text.rfind(')').and_then(|at| text[at + 1..].split_ascii_whitespace().nth(1));
        parent == Some(me.as_str())
    })
    .collect()
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// Collects children that ended, but not the worker: its end is read where it is waited for.
pub(super) fn reap(worker: Option<u32>) {
    for child in children() {
        if Some(child) != worker
            && let Some(child) = pid(child)
        {
            let _ = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

/// Kills everything that is left, until nothing is; answers how many there were, or `None` when some will not go.
pub(super) fn kill(groups: &Groups) -> Option<u64> {
    let mut seen = BTreeSet::new();
    // Ten seconds: a process in an uninterruptible read goes when the read ends, perhaps never.
    for round in 0..10_000 {
        reap(None);
        let left: BTreeSet<u32> = children().into_iter().chain(groups.members()).collect();
        if left.is_empty() {
            return Some(seen.len() as u64);
        }
        groups.kill();
        for process in &left {
            // A child cannot lose its number before it is collected, so this hits nobody else; a member of a group
            // that is no child is pinned first and killed by what was pinned.
            let pinned = pid(*process).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            if let Some(pinned) = pinned
                && (children().contains(process) || groups.members().contains(process))
            {
                let _ = pidfd_send_signal(pinned, Signal::KILL);
            }
        }
        seen.extend(left);
        if round > 3 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    None
}
