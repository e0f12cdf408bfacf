//! Documents of an attempt's folder.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Reads a document; `None` when it is not there.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(text) => {
            let named =
                |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
            serde_json::from_slice(&text).map(Some).map_err(named)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a document whole or not at all; on disk, name and all, when this returns if `sync`.
pub(super) fn write(path: &Path, document: &impl Serialize, sync: bool) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    write_new(&part, document, sync)?;
    fs::rename(&part, path)?;
    if sync { sync_folder(path) } else { Ok(()) }
}

/// Writes a document under a name that nobody has yet; `false` when somebody has.
pub(super) fn claim(path: &Path, document: &impl Serialize) -> io::Result<bool> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let part = path.with_file_name(name);
    write_new(&part, document, true)?;
    let linked = fs::hard_link(&part, path);
    fs::remove_file(&part)?;
    match linked {
        Ok(()) => sync_folder(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn write_new(part: &Path, document: &impl Serialize, sync: bool) -> io::Result<()> {
    let _ = fs::remove_file(part);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(part)?;
    file.write_all(&serde_json::to_vec(document)?)?;
    if sync { file.sync_all() } else { Ok(()) }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let span = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The id of this boot.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// When a process started, in clock ticks after boot.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything, brackets and spaces too.
    text[text.rfind(')')? + 1..].split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_claimed_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("claim.json");
        assert!(claim(&path, &1).expect("written"));
        assert!(!claim(&path, &2).expect("written"));
        assert_eq!(read::<u32>(&path).expect("readable"), Some(1));
        write(&path, &3, true).expect("written");
        assert_eq!(read::<u32>(&path).expect("readable"), Some(3));
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "nothing else is left");
    }
}
