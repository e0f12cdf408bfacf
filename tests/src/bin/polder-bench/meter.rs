//! Processor time of a whole federation, dead processes included, as the kernel's accounting has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A control group of the cpuacct (v1) or cpu (v2) controller.
#[derive(Debug)]
pub(crate) struct Meter {
    folder: PathBuf,
}

impl Meter {
    /// A new group; absent where the kernel does not let us.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let name = format!("polder-bench-{}-{name}", std::process::id());
        for root in ["/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"] {
            let folder = Path::new(root).join(&name);
            if fs::create_dir(&folder).is_ok() {
                let meter = Self { folder };
                if meter.read().is_some() {
                    return Some(meter);
                }
            }
        }
        None
    }

    /// Where processes are put.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn read(&self) -> Option<Duration> {
        if let Ok(text) = fs::read_to_string(self.folder.join("cpuacct.usage")) {
            return text.trim().parse().ok().map(Duration::from_nanos);
        }
        let text = fs::read_to_string(self.folder.join("cpu.stat")).ok()?;
        let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        micros.parse().ok().map(Duration::from_micros)
    }

    /// Used so far, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.read().unwrap_or_default().as_secs_f64()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // Works once the last process has been reaped; an empty group costs nothing.
        let _ = fs::remove_dir(&self.folder);
    }
}
