//! `submit` and `clone`: check, pack, upload, sign, send.
//!
//! An app's archive is the same bytes for the same files, so that what was uploaded before is not
//! uploaded again, and who has the folder can tell what was submitted.

use super::follow::follow;
use crate::args::{CloneArgs, SubmitArgs};
use crate::job_folder::JobFolder;
use crate::order;
use crate::output::{Ending, Failure, Out};
use crate::server::Server;
use polder_api::user::Submit;
use polder_api::{Order, OrderSites, ProblemCode};
use polder_store::bundle::{self, BundleError, Limits};
use polder_transport::blob::{Transfer, Tree, TreeHasher};
use polder_words::{AppName, BlobRef, JobId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// A packed app, in a temporary file.
#[derive(Debug)]
pub(crate) struct Packed {
    /// Its hash, piece by piece.
    pub(crate) tree: Tree,
    /// Its bytes.
    pub(crate) file: NamedTempFile,
}

/// Writes and hashes.
struct Hashing {
    file: BufWriter<NamedTempFile>,
    hasher: TreeHasher,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Packs an app's folder.
pub(crate) fn pack(folder: &Path) -> Result<Packed, Failure> {
    let refused = |error: &BundleError| {
        Failure::new(ProblemCode::Invalid, format!("cannot be packed: {error}"))
            .file(folder.display().to_string())
    };
    let temporary = |error: &io::Error| Failure::io(&std::env::temp_dir(), "write a temporary file", error);
    let file = NamedTempFile::new().map_err(|error| temporary(&error))?;
    let writer = Hashing { file: BufWriter::new(file), hasher: TreeHasher::new() };
    let written = bundle::pack(folder, writer, &Limits::default()).map_err(|error| refused(&error))?;
    let file = written.file.into_inner().map_err(|error| temporary(error.error()))?;
    Ok(Packed { tree: written.hasher.finish(), file })
}

#[derive(Serialize)]
struct Sent<'a> {
    job: JobId,
    name: &'a str,
    study: &'a str,
}

pub(crate) async fn submit(args: &SubmitArgs, out: &mut Out) -> Result<(), Ending> {
    // What is wrong with the job is said before anybody is asked for anything.
    let mut folder = JobFolder::open(&args.job)?;
    if !args.sites.is_empty() {
        folder.narrow(&args.sites)?;
    }
    let mut server = Server::connect(&args.connect).await?;
    let job = send(&mut server, &folder).await?;
    told(&server, job, folder.name(), args.wait, out)?;
    if args.wait {
        follow(&mut server, job, out).await?;
    }
    Ok(())
}

fn told(server: &Server, job: JobId, name: &str, wait: bool, out: &mut Out) -> Result<(), Ending> {
    let study = server.session().study.as_str();
    let short = job.short();
    out.result(&Sent { job, name, study }, |sent| {
        format!("submitted {} as job {short} to study {study}", sent.name)
    })?;
    if !wait {
        out.note(&format!("`polder watch {short}` follows it"));
    }
    Ok(())
}

/// Packs, uploads, signs and sends a checked job.
pub(crate) async fn send(server: &mut Server, folder: &JobFolder) -> Result<JobId, Failure> {
    let mut apps = BTreeMap::new();
    for app in folder.apps.keys() {
        let packed = pack(&folder.app_dir(app))?;
        apps.insert(app.clone(), packed.tree.blob());
        server.upload(&packed, &Transfer::default()).await?;
    }
    order_job(server, order::sites_of(folder), folder.meta_text(), apps, None).await
}

async fn order_job(
    server: &mut Server,
    sites: OrderSites,
    meta: String,
    apps: BTreeMap<AppName, BlobRef>,
    cloned_from: Option<JobId>,
) -> Result<JobId, Failure> {
    let order = order::order(server.session(), sites, meta, apps, cloned_from)?;
    let (signed, expected) = order::sign(server.kit(), &order)?;
    let answer = server.submit(&Submit { order: signed }).await?;
    if answer.job != expected {
        return Err(Failure::new(
            ProblemCode::Internal,
            "the server gave the order another id than its hash",
        )
        .found(answer.job.to_string(), expected.to_string()));
    }
    Ok(answer.job)
}

/// Submits a job's order again, signed anew by who asks.
pub(crate) async fn clone(args: &CloneArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let old = server.job(args.job.as_str()).await?;
    let signed = server.order(&old.id).await?;
    let order: Order = serde_json::from_str(&signed.order).map_err(|error| {
        Failure::new(
            ProblemCode::Internal,
            format!("the order of job {} cannot be read: {error}", old.id.short()),
        )
    })?;
    let job = order_job(&mut server, order.sites, order.meta, order.apps, Some(old.id)).await?;
    told(&server, job, &old.name, args.wait, out)?;
    if args.wait {
        follow(&mut server, job, out).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_are_the_same_archive() {
        let make = || {
            let dir = tempfile::tempdir().expect("a temporary folder");
            std::fs::create_dir(dir.path().join("lib")).expect("made");
            std::fs::write(dir.path().join("job.yaml"), "rounds: 1\n").expect("written");
            std::fs::write(dir.path().join("lib/x.py"), "x = 1\n").expect("written");
            pack(dir.path()).expect("it is good").tree.blob()
        };
        assert_eq!(make(), make());
    }

    #[test]
    fn what_cannot_be_packed_is_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).expect("made");
        let failure = pack(dir.path()).expect_err("links are refused");
        assert!(failure.sentence().contains("\"link\" is a symbolic link"), "{}", failure.sentence());
    }
}
