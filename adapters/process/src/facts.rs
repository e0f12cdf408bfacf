//! What this host can do: found out once, when a parent starts.

use crate::settings::{FORWARDED, Settings};
use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use polder_api::shim::{Account, Cgroups};
use polder_words::Isolation;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Found facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Whether the parent is root: then its workers could read what of the system is root's alone.
    pub root: bool,
    /// What keeps a worker from the parent's files.
    pub isolation: Isolation,
    /// The workers' account.
    pub account: Option<Account>,
    /// Where control groups can be made.
    pub cgroups: Cgroups,
    /// What is not enforced, in words.
    pub not_enforced: Vec<String>,
    /// Why the settings cannot be met, in words; nothing is launched then.
    pub unmet: Option<String>,
    /// CPUs of the host.
    pub cpus: u32,
    /// Bytes of memory of the host.
    pub memory: u64,
    /// `x86_64`.
    pub architecture: String,
    /// Folders of programs outside the system's, from `PATH`.
    pub programs: Vec<PathBuf>,
    /// Variables of the parent that workers get.
    pub forward: Vec<String>,
}

impl Facts {
    /// Looks around.
    #[must_use]
    pub fn find(settings: &Settings) -> Self {
        let root = rustix::process::geteuid().is_root();
        let mut not_enforced = Vec::new();
        let mut unmet = None;
        let mut account = None;
        if let Some(user) = &settings.user {
            match crate::account::resolve(user) {
                Ok(found) if root => account = Some(found),
                Ok(found) if found.uid == rustix::process::geteuid().as_raw() => {
                    unmet = Some(format!("user: {user:?} is the parent's own account"));
                }
                Ok(_) => unmet = Some(format!("user: {user:?}: this parent may not switch accounts")),
                Err(wrong) => unmet = Some(format!("user: {wrong}")),
            }
        }
        let isolation = settings.isolation.unwrap_or_else(|| match account {
            Some(_) => Isolation::OwnUid,
            None if has_landlock(ABI::V1) => Isolation::Landlock,
            None if has_user_namespaces() => Isolation::UserNamespace,
            None => Isolation::None,
        });
        if isolation == Isolation::Landlock && !has_scopes() {
            not_enforced.push(
                "signals to other processes of the parent's account (this kernel's Landlock cannot)"
                    .to_owned(),
            );
        }
        let cgroups = find_cgroups(settings.cgroup.as_deref());
        let v2 = |controller: &str| {
            let Some(folder) = &cgroups.unified else { return false };
            let file = fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
            file.split_ascii_whitespace().any(|word| word == controller)
        };
        if cgroups.memory.is_none() && !v2("memory") {
            not_enforced.push("memory (no control group for it may be made here)".to_owned());
        }
        if cgroups.cpu.is_none() && !v2("cpu") {
            not_enforced.push("CPU time (no control group for it may be made here)".to_owned());
        }
        if cgroups.pids.is_none() && !v2("pids") {
            not_enforced.push("number of processes (no control group for it may be made here)".to_owned());
        }
        let forward =
            FORWARDED.iter().map(|name| (*name).to_owned()).chain(settings.forward_env.iter().cloned());
        Self {
            root,
            isolation,
            account,
            cgroups,
            not_enforced,
            unmet,
            cpus: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            memory: total_memory(),
            architecture: env::consts::ARCH.to_owned(),
            programs: program_folders(&settings.hide),
            forward: forward.collect(),
        }
    }
}

/// Whether this kernel has Landlock of this level.
fn has_landlock(abi: ABI) -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(abi)).and_then(Ruleset::create).is_ok()
}

/// Whether its Landlock keeps signals inside.
fn has_scopes() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.scope(Scope::Signal).and_then(Ruleset::create).is_ok()
}

fn has_user_namespaces() -> bool {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    Path::new("/proc/self/ns/user").exists()
        && number("/proc/sys/user/max_user_namespaces") != Some(0)
        && number("/proc/sys/kernel/unprivileged_userns_clone") != Some(0)
        && number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") != Some(1)
}

fn total_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(0, |kib| kib << 10)
}

/// Folders a control group can be made in: the parent's own groups of version 1; of version 2 the delegated one, or
/// the parent's own as long as no controller is asked of it.
fn find_cgroups(delegated: Option<&Path>) -> Cgroups {
    let mine = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found = Cgroups::default();
    for (kind, options, root, point) in cgroup_mounts(&mounts) {
        let has = |controller: &str| options.split(',').any(|word| word == controller);
        for line in mine.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
            let folder = Path::new(&point).join(below.trim_start_matches('/'));
            let named = |controller: &str| controllers.split(',').any(|word| word == controller);
            if kind == "cgroup2" && controllers.is_empty() && may_make(&folder) {
                found.unified = Some(folder);
            } else if kind == "cgroup" {
                for (controller, slot) in
                    [("memory", &mut found.memory), ("cpu", &mut found.cpu), ("pids", &mut found.pids)]
                {
                    if has(controller) && named(controller) && may_make(&folder) {
                        *slot = Some(folder.clone());
                    }
                }
            }
        }
    }
    if let Some(delegated) = delegated.filter(|folder| may_make(folder)) {
        for controller in ["+memory", "+cpu", "+pids"] {
            // What is not delegated is found missing afterwards, and said.
            let _ = fs::write(delegated.join("cgroup.subtree_control"), controller);
        }
        found.unified = Some(delegated.to_owned());
    }
    found
}

/// Mounts of control groups: file system, its options, root inside of it, mount point.
fn cgroup_mounts(mountinfo: &str) -> impl Iterator<Item = (&str, &str, &str, String)> {
    mountinfo.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (front.next()?, front.next()?);
        let mut back = back.split(' ');
        let kind = back.next()?;
        let options = back.nth(1)?;
        kind.starts_with("cgroup").then(|| (kind, options, root, point.replace("\\040", " ")))
    })
}

fn may_make(folder: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// System folders: readable for every worker.
pub const SYSTEM: [&str; 14] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/proc",
    "/sys",
    "/nix",
    "/gnu",
    // Where `/etc/resolv.conf` leads to.
    "/run/systemd/resolve",
];

/// What of the system no worker has to read, although the folder above is open.
pub const PRIVATE: [&str; 6] =
    ["/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/ssl/private", "/etc/sudoers.d"];

/// Roots of programs that `PATH` names outside of the system: `~/.venv/bin` opens `~/.venv`. Never a home folder as a
/// whole, and never what is to be hidden.
fn program_folders(hide: &[PathBuf]) -> Vec<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let mut found = Vec::new();
    for folder in env::split_paths(&path).filter(|folder| folder.is_absolute()) {
        let Ok(folder) = folder.canonicalize() else { continue };
        let root = match folder.parent() {
            Some(above) if folder.ends_with("bin") && Some(above) != home.as_deref() => above.to_owned(),
            _ => folder,
        };
        let system = SYSTEM.iter().any(|system| root.starts_with(system));
        let hidden = hide.iter().any(|hidden| hidden.starts_with(&root) || root.starts_with(hidden));
        if !system && !hidden && root.components().count() > 2 && !found.contains(&root) {
            found.push(root);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_mounts() {
        let text = "26 20 0:23 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                    30 20 0:9 /a /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw,nsdelegate\n\
                    31 20 8:1 / / rw - ext4 /dev/sda1 rw";
        let mounts: Vec<_> = cgroup_mounts(text).collect();
        assert_eq!(mounts[0], ("cgroup", "rw,memory", "/", "/sys/fs/cgroup/memory".to_owned()));
        assert_eq!(mounts[1], ("cgroup2", "rw,nsdelegate", "/a", "/sys/fs/cgroup/uni fied".to_owned()));
        assert_eq!(mounts.len(), 2);
    }

    #[test]
    fn an_account_that_cannot_be_met_is_said() {
        let mut settings = Settings::new("/nowhere".into());
        settings.user = Some("no-such-account".into());
        assert!(Facts::find(&settings).unmet.expect("unmet").contains("no-such-account"));
    }
}
