//! Accounts of workers, and files they can reach.

use polder_api::shim::Account;
use rustix::fs::{Gid, Uid, chownat};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Reads an account: `uid`, `uid:gid`, or a name that the system knows.
///
/// # Errors
/// In words, when there is no such account, or it is the superuser's.
pub fn resolve(text: &str) -> Result<Account, String> {
    let account = numeric(text).or_else(|| named(text)).ok_or_else(|| {
        format!("there is no account {text:?} on this host; allowed: a name, `uid` or `uid:gid`")
    })?;
    if account.uid == 0 {
        return Err(format!("account {text:?} is the superuser; workers need one of their own"));
    }
    Ok(account)
}

fn numeric(text: &str) -> Option<Account> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    Some(Account { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
}

fn named(text: &str) -> Option<Account> {
    let line = |passwd: &str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(text))?;
        let mut fields = line.split(':').skip(2);
        Some(Account { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    };
    if let Some(account) = fs::read_to_string("/etc/passwd").ok().as_deref().and_then(line) {
        return Some(account);
    }
    // Accounts of a directory service are not in the file.
    let output = Command::new("getent").args(["passwd", "--", text]).output().ok()?;
    line(&String::from_utf8_lossy(&output.stdout))
}

/// Gives a file or folder to an account.
///
/// # Errors
/// As the system says.
pub fn give(path: &Path, account: Account) -> io::Result<()> {
    chown(path, Some(account.uid), account.gid)
}

fn chown(path: &Path, uid: Option<u32>, gid: u32) -> io::Result<()> {
    let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    let (uid, gid) = (uid.map(Uid::from_raw), Some(Gid::from_raw(gid)));
    chownat(rustix::fs::CWD, path, uid, gid, nofollow).map_err(io::Error::from)
}

/// Lets an account read a folder and all in it, through its group where it is not open to everybody; follows no link.
///
/// # Errors
/// As the system says.
pub fn let_read(path: &Path, account: Account) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = meta.mode() & 0o7777;
    // What the owner may run, and a folder, needs the other bit, too.
    let run = if meta.is_dir() || mode & 0o100 != 0 { 1 } else { 0 };
    let (everybody, group) = (0o4 | run, (0o4 | run) << 3);
    if mode & everybody != everybody {
        if meta.gid() != account.gid {
            chown(path, None, account.gid)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode | group))?;
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            let_read(&entry?.path(), account)?;
        }
    }
    Ok(())
}

/// Closes what lies in a folder to every other account, so that the folder itself can be let through; `open` stays as
/// it is. Where a folder is closed, what is inside of it is closed with it.
///
/// # Errors
/// As the system says.
pub fn close(folder: &Path, open: &[&Path]) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        let mode = meta.mode() & 0o7777;
        if mode & 0o077 != 0 && !meta.is_symlink() && !open.iter().any(|open| open.starts_with(&path)) {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7700))?;
        }
    }
    let mode = fs::metadata(folder)?.mode() & 0o7777;
    if mode & 0o066 != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode & 0o7711))?;
    }
    Ok(())
}

/// Lets an account pass through the folders above a path, where they are this process's own; nothing in them becomes
/// readable by that.
///
/// # Errors
/// In words, when a folder above is somebody else's and closed.
pub fn let_through(path: &Path, account: Account) -> Result<(), String> {
    let me = rustix::process::geteuid().as_raw();
    for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        let meta = fs::metadata(above).map_err(|error| format!("{}: {error}", above.display()))?;
        let (mode, uid, gid) = (meta.mode(), meta.uid(), meta.gid());
        let open = if uid == account.uid {
            mode & 0o100
        } else if gid == account.gid {
            mode & 0o010
        } else {
            mode & 0o001
        };
        if open != 0 {
            continue;
        }
        if uid != me || gid == account.gid {
            let who = account.uid;
            return Err(format!(
                "user {who} cannot pass through {}: mode {:o}",
                above.display(),
                mode & 0o777
            ));
        }
        fs::set_permissions(above, fs::Permissions::from_mode(mode & 0o7777 | 0o001))
            .map_err(|error| format!("{}: {error}", above.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts() {
        assert_eq!(resolve("1234"), Ok(Account { uid: 1234, gid: 1234 }));
        assert_eq!(resolve("1234:99"), Ok(Account { uid: 1234, gid: 99 }));
        assert!(resolve("0").expect_err("root").contains("superuser"));
        assert!(resolve("root").expect_err("root").contains("superuser"));
        assert!(resolve("no-such-account").expect_err("nobody").contains("no account"));
    }
}
