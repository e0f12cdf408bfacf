//! Making an archive from a folder: the same folder gives the same bytes.

use super::{BundleError, Limits, clean};
use flate2::{Compression, GzBuilder};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tar::{EntryType, Header};

enum Found {
    Folder,
    File { size: u64, executable: bool },
}

/// Packs what lies beneath `folder` into `out` and gives `out` back. Times and owners are left out, names
/// are sorted, so two people with the same files get the same hash.
///
/// # Errors
/// When the folder breaks a rule that [`super::unpack`] would refuse (a link, a socket, too much of anything), when a
/// file changes its size while it is read, or when reading or writing fails.
pub fn pack<W: Write>(folder: &Path, out: W, limits: &Limits) -> Result<W, BundleError> {
    let mut members = Vec::new();
    collect(folder, folder, limits, &mut members)?;
    members.sort_by(|a, b| a.0.cmp(&b.0));
    let write = |source| BundleError::Io { path: PathBuf::from("archive"), source };
    // 255: "unknown", so that the machine it is made on does not show.
    let gzip = GzBuilder::new().mtime(0).operating_system(255).write(out, Compression::default());
    let mut tar = tar::Builder::new(gzip);
    let mut bytes = 0_u64;
    for (name, found) in members {
        let path = folder.join(&name);
        let mut header = Header::new_gnu();
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        match found {
            Found::Folder => {
                header.set_entry_type(EntryType::Directory);
                header.set_mode(0o755);
                header.set_size(0);
                tar.append_data(&mut header, format!("{name}/"), std::io::empty()).map_err(write)?;
            }
            Found::File { size, executable } => {
                bytes += size + 512;
                if bytes > limits.bytes {
                    return Err(BundleError::TooLarge { allowed: limits.bytes });
                }
                header.set_entry_type(EntryType::Regular);
                header.set_mode(if executable { 0o755 } else { 0o644 });
                header.set_size(size);
                let file = fs::OpenOptions::new()
                    .read(true)
                    .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0))
                    .open(&path)
                    .map_err(BundleError::io(&path))?;
                let mut body = Exact { inner: file, left: size };
                tar.append_data(&mut header, &name, &mut body)
                    .map_err(|source| BundleError::Io { path, source })?;
            }
        }
    }
    tar.into_inner().and_then(flate2::write::GzEncoder::finish).map_err(write)
}

fn collect(
    root: &Path,
    folder: &Path,
    limits: &Limits,
    out: &mut Vec<(String, Found)>,
) -> Result<(), BundleError> {
    for entry in fs::read_dir(folder).map_err(BundleError::io(folder))? {
        let path = entry.map_err(BundleError::io(folder))?.path();
        let relative = path.strip_prefix(root).unwrap_or(&path);
        let name = clean(relative.as_os_str().as_bytes(), limits)?;
        if out.len() as u64 >= limits.entries {
            return Err(BundleError::TooMany { allowed: limits.entries });
        }
        let meta = path.symlink_metadata().map_err(BundleError::io(&path))?;
        if meta.is_dir() {
            out.push((name, Found::Folder));
            collect(root, &path, limits, out)?;
        } else if meta.is_file() {
            out.push((name, Found::File { size: meta.len(), executable: meta.mode() & 0o100 != 0 }));
        } else {
            let kind = if meta.is_symlink() { "a symbolic link" } else { "a device, pipe or socket" };
            return Err(BundleError::Kind { path: name, kind });
        }
    }
    Ok(())
}

/// Exactly as many bytes as the header promises.
struct Exact<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exact<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let n = self.inner.read(&mut buf[..most])?;
        if n == 0 && most > 0 {
            return Err(std::io::Error::other("the file became shorter while it was read"));
        }
        self.left -= n as u64;
        Ok(n)
    }
}
