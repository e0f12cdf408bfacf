//! What keeps a worker away from its parent's files.

use super::stage::Failure;
use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use polder_api::shim::Fence;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What of Landlock is asked for; an older kernel gives what it has.
const LEVEL: ABI = ABI::V6;

/// A Landlock domain: what is named may be read or written, nothing else; signals stay inside.
pub(super) fn landlock(fence: &Fence) -> Result<(), Failure> {
    let failed = |error: landlock::RulesetError| Failure::of("Landlock", error);
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(LEVEL))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(LEVEL)))
        .and_then(Ruleset::create)
        .map_err(failed)?;
    let hide: Vec<_> = fence.hide.iter().filter_map(|path| path.canonicalize().ok()).collect();
    for (paths, access) in
        [(&fence.read, AccessFs::from_read(LEVEL)), (&fence.write, AccessFs::from_all(LEVEL))]
    {
        for path in paths {
            // What is not there is left out.
            if let Ok(path) = path.canonicalize() {
                ruleset = open(ruleset, &path, &hide, access).map_err(failed)?;
            }
        }
    }
    let status = ruleset.restrict_self().map_err(failed)?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err(Failure::of("Landlock", "this kernel does not have it"));
    }
    Ok(())
}

/// Opens a path, around what is hidden inside of it.
fn open(
    mut ruleset: RulesetCreated,
    path: &Path,
    hide: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    if hide.iter().any(|hidden| hidden == path) {
        return Ok(ruleset);
    }
    if hide.iter().any(|hidden| hidden.starts_with(path)) {
        for entry in fs::read_dir(path).into_iter().flatten().filter_map(Result::ok) {
            // A link opens nothing: where it leads to is opened under its own name, or not.
            if !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                ruleset = open(ruleset, &entry.path(), hide, access)?;
            }
        }
        return Ok(ruleset);
    }
    let Ok(fd) = PathFd::new(path) else { return Ok(ruleset) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(LEVEL) };
    ruleset.add_rule(PathBeneath::new(fd, access))
}

/// A user and mount namespace in which the hidden folders are empty, but for what of them is named.
pub(super) fn user_namespace(fence: &Fence) -> Result<(), Failure> {
    let at = |what: &str| {
        let what = format!("user namespace: {what}");
        move |error: io::Error| Failure::of(&what, error)
    };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare().map_err(at("unshare"))?;
    fs::write("/proc/self/setgroups", "deny").map_err(at("setgroups"))?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(at("uid_map"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(at("gid_map"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(|error| at("mounts")(error.into()))?;

    let hide: Vec<_> = fence.hide.iter().filter_map(|path| path.canonicalize().ok()).collect();
    let mut kept: Vec<(PathBuf, OwnedFd, bool)> = Vec::new();
    for (paths, writable) in [(&fence.read, false), (&fence.write, true)] {
        for path in paths.iter().filter_map(|path| path.canonicalize().ok()) {
            if hide.iter().any(|hidden| path.starts_with(hidden)) {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                let tree =
                    rustix::mount::open_tree(rustix::fs::CWD, &path, flags | OpenTreeFlags::AT_RECURSIVE)
                        .map_err(|error| at(&path.display().to_string())(error.into()))?;
                kept.push((path, tree, writable));
            }
        }
    }
    for path in &hide {
        let covered = |error: rustix::io::Errno| at(&path.display().to_string())(error.into());
        if path.is_dir() {
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            rustix::mount::mount("polder", path, "tmpfs", flags, Some(c"mode=0755")).map_err(covered)?;
        } else {
            rustix::mount::mount_bind("/dev/null", path).map_err(covered)?;
        }
    }
    // Outer folders first, so that nothing is covered again.
    kept.sort_by(|a, b| a.0.cmp(&b.0));
    for (path, tree, writable) in kept {
        let placed = at(&path.display().to_string());
        let is_dir = rustix::fs::fstat(&tree).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
        });
        let made = if is_dir {
            fs::create_dir_all(&path)
        } else {
            path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| match path.exists() {
                true => Ok(()),
                false => fs::write(&path, ""),
            })
        };
        made.and_then(|()| {
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(&tree, "", rustix::fs::CWD, &path, flags)?;
            if !writable {
                let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
                rustix::mount::mount_remount(&path, flags, "")?;
            }
            Ok(())
        })
        .map_err(placed)?;
    }
    Ok(())
}

/// The safe name of this call is deprecated because unsharing the table of descriptors is not safe, which is not done
/// here, in a process of one thread.
#[allow(deprecated)]
fn unshare() -> io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(io::Error::from)
}

/// Gives up every capability, and the way to any by running another program.
pub(super) fn no_privileges() -> Result<(), Failure> {
    rustix::thread::set_no_new_privs(true).map_err(|error| Failure::of("no_new_privs", error))?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let _ = rustix::thread::clear_ambient_capability_set();
    rustix::thread::set_capabilities(None, none).map_err(|error| Failure::of("capabilities", error))
}
