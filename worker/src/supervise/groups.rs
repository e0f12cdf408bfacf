//! Control groups of one worker, of either version. What cannot be had is said, not passed over.

use polder_api::shim::{Cgroups, Limits};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Period of the CPU quota, microseconds.
const PERIOD: u64 = 100_000;

/// The groups that were made.
#[derive(Debug, Default)]
pub(super) struct Groups {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
    unified: Option<PathBuf>,
    /// Limits that are not enforced, in words.
    pub(super) not_enforced: Vec<String>,
}

impl Groups {
    /// Makes groups and sets limits.
    pub(super) fn create(places: &Cgroups, limits: &Limits) -> Self {
        let make = |place: &Option<PathBuf>| {
            let group = place.as_ref()?.join(&places.name);
            match fs::create_dir(&group) {
                Ok(()) => Some(group),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Some(group),
                Err(error) => {
                    eprintln!("{}: {error}", group.display());
                    None
                }
            }
        };
        let mut groups = Self {
            memory: make(&places.memory),
            // The same folder when the controllers are mounted together.
            cpu: make(&places.cpu),
            pids: make(&places.pids),
            unified: make(&places.unified),
            not_enforced: Vec::new(),
        };
        if let Some(bytes) = limits.memory {
            let set = groups.limit_memory(bytes);
            groups.say("memory", set);
        }
        if let Some(cpus) = limits.cpus {
            let quota = u64::from(cpus) * PERIOD;
            let set = match (&groups.cpu, &groups.unified) {
                (Some(group), _) => set(group, "cpu.cfs_period_us", PERIOD)
                    .and_then(|()| set(group, "cpu.cfs_quota_us", quota)),
                (None, Some(group)) => write(group, "cpu.max", &format!("{quota} {PERIOD}")),
                (None, None) => Err(no_group()),
            };
            groups.say("CPU time", set);
        }
        if let Some(pids) = limits.pids {
            let set = match groups.pids.as_ref().or(groups.unified.as_ref()) {
                Some(group) => set(group, "pids.max", pids),
                None => Err(no_group()),
            };
            groups.say("number of processes", set);
        }
        groups
    }

    fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        match (&self.memory, &self.unified) {
            (Some(group), _) => {
                set(group, "memory.limit_in_bytes", bytes)?;
                // Only there when the kernel counts swap; without swap there is nothing to limit.
                let _ = set(group, "memory.memsw.limit_in_bytes", bytes);
                Ok(())
            }
            (None, Some(group)) => {
                set(group, "memory.max", bytes)?;
                let _ = set(group, "memory.swap.max", 0);
                Ok(())
            }
            (None, None) => Err(no_group()),
        }
    }

    fn say(&mut self, what: &str, set: io::Result<()>) {
        if let Err(error) = set {
            self.not_enforced.push(format!("{what} ({error})"));
        }
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.unified, &self.memory, &self.cpu, &self.pids].into_iter().flatten()
    }

    /// Where they are.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        self.all().cloned().collect()
    }

    /// Puts a process in; what it starts stays in.
    pub(super) fn join(&mut self, pid: u32) {
        let failed: Vec<_> = self
            .all()
            .filter_map(|group| {
                Some(format!("{}: {}", group.display(), set(group, "cgroup.procs", pid.into()).err()?))
            })
            .collect();
        self.not_enforced.extend(failed);
    }

    /// Processes in any of them.
    pub(super) fn members(&self) -> BTreeSet<u32> {
        let text = self.all().map(|group| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default());
        text.flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>()).collect()
    }

    /// Kills all at once, where version 2 can; processes cannot outrun that.
    pub(super) fn kill(&self) {
        if let Some(group) = &self.unified {
            let _ = write(group, "cgroup.kill", "1");
        }
    }

    /// How many processes the kernel killed for memory.
    pub(super) fn oom_kills(&self) -> u64 {
        let count = |group: &Path, file: &str| {
            let text = fs::read_to_string(group.join(file)).ok()?;
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
        };
        let one = self.memory.as_ref().and_then(|group| count(group, "memory.oom_control"));
        one.or_else(|| count(self.unified.as_ref()?, "memory.events")).unwrap_or(0)
    }

    /// Most memory they had, bytes.
    pub(super) fn memory_peak(&self) -> Option<u64> {
        let number =
            |group: &Path, file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok();
        match &self.memory {
            Some(group) => number(group, "memory.max_usage_in_bytes"),
            None => number(self.unified.as_ref()?, "memory.peak"),
        }
    }

    /// Removes them, once they are empty; the kernel may need a moment for that.
    pub(super) fn remove(&self) {
        for group in self.all() {
            for _ in 0..200 {
                match fs::remove_dir(group) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    _ => break,
                }
            }
        }
    }
}

fn no_group() -> io::Error {
    io::Error::other("no control group for it may be made here")
}

fn set(group: &Path, file: &str, value: u64) -> io::Result<()> {
    write(group, file, &value.to_string())
}

fn write(group: &Path, file: &str, value: &str) -> io::Result<()> {
    // A file that is not there must not be made: in a real group that fails, in a folder that is none it would not.
    let path = group.join(file);
    let mut file = fs::OpenOptions::new().write(true).open(&path)?;
    io::Write::write_all(&mut file, value.as_bytes())
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that looks like a delegated group of version 2.
    fn unified(dir: &Path) -> Cgroups {
        let group = dir.join("g");
        fs::create_dir(&group).expect("a folder");
        for file in ["memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.procs", "cgroup.kill"] {
            fs::write(group.join(file), "").expect("a file");
        }
        fs::write(group.join("memory.events"), "low 0\noom 3\noom_kill 2\n").expect("a file");
        fs::write(group.join("memory.peak"), "4096\n").expect("a file");
        Cgroups { name: "g".into(), unified: Some(dir.to_owned()), ..Cgroups::default() }
    }

    #[test]
    fn version_two() {
        let dir = tempfile::tempdir().expect("a folder");
        let limits = Limits { memory: Some(1 << 20), cpus: Some(2), pids: Some(7), files: None };
        let mut groups = Groups::create(&unified(dir.path()), &limits);
        groups.join(42);
        let read = |file: &str| fs::read_to_string(dir.path().join("g").join(file)).expect("readable");
        assert_eq!(
            (
                read("memory.max"),
                read("memory.swap.max"),
                read("cpu.max"),
                read("pids.max"),
                read("cgroup.procs")
            ),
            ("1048576".into(), "0".into(), "200000 100000".into(), "7".into(), "42".into())
        );
        assert_eq!((groups.oom_kills(), groups.memory_peak()), (2, Some(4096)));
        assert_eq!(groups.members(), BTreeSet::from([42]));
        assert_eq!(groups.not_enforced, Vec::<String>::new());
    }

    #[test]
    fn what_cannot_be_enforced_is_said() {
        let limits = Limits { memory: Some(1 << 20), cpus: Some(2), pids: None, files: None };
        let groups = Groups::create(&Cgroups { name: "g".into(), ..Cgroups::default() }, &limits);
        assert_eq!(
            groups.not_enforced,
            [
                "memory (no control group for it may be made here)",
                "CPU time (no control group for it may be made here)"
            ]
        );
    }
}
