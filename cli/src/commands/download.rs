//! `download`: what a job left, each file verified against its hash, going on where it was cut.

use crate::args::DownloadArgs;
use crate::job_folder::read_file;
use crate::output::units::{bytes, count};
use crate::output::{Ending, Failure, Out};
use crate::provenance;
use crate::server::Server;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use polder_api::ProblemCode;
use polder_api::user::Job;
use polder_transport::blob::{self, Transfer};
use polder_words::{BlobRef, Hash, JobId, JobPhase};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// What was fetched.
#[derive(Debug, Serialize)]
pub(crate) struct Downloaded {
    job: JobId,
    dir: PathBuf,
    /// By name.
    pub(crate) files: BTreeMap<String, Fetched>,
    /// Who signed how they came about; nobody when the job left no such file.
    signed_by: Option<String>,
}

/// One file.
#[derive(Debug, Serialize)]
pub(crate) struct Fetched {
    pub(crate) path: PathBuf,
    bytes: u64,
    blake3: Hash,
    /// Whether it was there already, whole.
    kept: bool,
}

pub(crate) async fn download(args: &DownloadArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let job = server.job(args.job.as_str()).await?;
    let dir = args.out.clone().unwrap_or_else(|| default_dir(&job));
    let fetched = tokio::select! {
        fetched = fetch(&mut server, &job, &dir, out) => fetched?,
        _ = tokio::signal::ctrl_c() => {
            out.note("stopped; the same command goes on from here");
            return Err(Ending::Said(super::follow::INTERRUPTED));
        }
    };
    out.result(&fetched, text)
}

/// `breast-cancer-3f2a0c11d2e3`, whatever the job is called.
pub(crate) fn default_dir(job: &Job) -> PathBuf {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    let name: String = job.name.chars().map(safe).take(60).collect();
    PathBuf::from(format!("{name}-{}", job.id.short()))
}

fn text(done: &Downloaded) -> String {
    let mut table = crate::output::table::Table::new(&["FILE", "SIZE", "BLAKE3", ""]).right(1);
    for file in done.files.values() {
        table.row([
            file.path.display().to_string(),
            bytes(file.bytes),
            file.blake3.to_string()[..16].to_owned(),
            if file.kept { "was there".to_owned() } else { String::new() },
        ]);
    }
    let signed = match &done.signed_by {
        Some(server) => format!("verified, and their provenance signed by server {server}"),
        None => "verified".to_owned(),
    };
    format!("{} in {}, {signed}\n\n{}", count(done.files.len(), "file"), done.dir.display(), table.print())
}

/// Fetches every file of a job into a folder.
pub(crate) async fn fetch(
    server: &mut Server,
    job: &Job,
    dir: &Path,
    out: &Out,
) -> Result<Downloaded, Ending> {
    let results = server.results(&job.id).await?;
    if results.files.is_empty() {
        let failure = Failure::new(ProblemCode::NotFound, format!("job {} left no files", job.id.short()));
        let short = job.id.short();
        return Err(match job.phase {
            phase if !phase.is_final() => {
                failure.hint(format!("it is {phase}; `polder watch {short}` waits for it"))
            }
            JobPhase::Completed => failure,
            phase => failure.hint(format!("it is {phase}; `polder show {short}` says why")),
        }
        .into());
    }
    fs::create_dir_all(dir).map_err(|error| Failure::io(dir, "make the folder", &error))?;
    let mut files = BTreeMap::new();
    for (name, blob) in &results.files {
        let path = dir.join(inside(name)?);
        let kept = is_there(&path, *blob).await?;
        if !kept {
            one(server, &job.id, name, *blob, &path, out).await?;
        }
        files.insert(name.clone(), Fetched { path, bytes: blob.size, blake3: blob.root, kept });
    }
    let signed_by = match files.get(provenance::FILE) {
        Some(file) => {
            let bytes = read_file(&file.path)?;
            let trust = server.kit().trust();
            Some(provenance::verify(&bytes, trust, &job.id, &results.files, Timestamp::now())?)
        }
        None => None,
    };
    Ok(Downloaded { job: job.id, dir: dir.to_owned(), files, signed_by })
}

/// A name that stays in the folder.
fn inside(name: &str) -> Result<&Path, Failure> {
    let path = Path::new(name);
    let plain = !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    if plain {
        Ok(path)
    } else {
        Err(Failure::new(ProblemCode::Internal, "the server names a file that would leave the folder")
            .found(name.to_owned(), "a relative path without `..`"))
    }
}

async fn is_there(path: &Path, blob: BlobRef) -> Result<bool, Failure> {
    if fs::metadata(path).map_or(true, |data| !data.is_file() || data.len() != blob.size) {
        return Ok(false);
    }
    let owned = path.to_owned();
    let hashed = tokio::task::spawn_blocking(move || blob::hash_file(&owned)).await;
    let tree = hashed
        .map_err(|error| Failure::new(ProblemCode::Internal, error.to_string()))?
        .map_err(|error| Failure::new(ProblemCode::Invalid, error.to_string()))?;
    Ok(tree.blob() == blob)
}

async fn one(
    server: &mut Server,
    job: &JobId,
    name: &str,
    blob: BlobRef,
    path: &Path,
    out: &Out,
) -> Result<(), Failure> {
    let bar = bar(name, blob.size, out);
    let moved = bar.clone();
    let how = Transfer { progress: Some(Arc::new(move |at| moved.set_position(at))), ..Transfer::default() };
    let done = server.download(job, blob, path, &how).await;
    bar.finish_and_clear();
    done
}

/// A bar of bytes, for a person who looks.
pub(crate) fn bar(name: &str, size: u64, out: &Out) -> ProgressBar {
    if !out.is_live() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr());
    bar.set_style(
        ProgressStyle::with_template(
            "{prefix} {bar:30} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}",
        )
        .expect("the template is well formed")
        .progress_chars("━╾─"),
    );
    bar.set_prefix(name.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_the_folder() {
        assert!(inside("model.safetensors").is_ok() && inside("rounds/5.json").is_ok());
        for bad in ["", "..", "../x", "/etc/passwd", "a/../../b", "."] {
            assert!(inside(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_list_of_files() {
        let file =
            |path: &str, kept| Fetched { path: path.into(), bytes: 1234, blake3: Hash([0xab; 32]), kept };
        let done = Downloaded {
            job: "3f2a0c11d2e3f405162738495a6b7c8d".parse().expect("an id"),
            dir: "out".into(),
            files: [
                ("metrics.json".to_owned(), file("out/metrics.json", true)),
                ("model.safetensors".to_owned(), file("out/model.safetensors", false)),
            ]
            .into(),
            signed_by: Some("fl.example.org".to_owned()),
        };
        insta::assert_snapshot!(text(&done));
        insta::assert_json_snapshot!(done);
    }
}
