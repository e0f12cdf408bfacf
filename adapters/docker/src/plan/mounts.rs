//! What a container sees of the host: bind mounts, never `Binds` (those make a source that is missing).

use super::study::Study;
use super::{ATTEMPT, HOME, RUN, SOCKETS, STUDY_FILE, Settings, WORKER};
use polder_launch::{Refusal, Resolved};
use polder_words::FailureClass;
use serde_json::{Value, json};
use std::path::{Component, Path, PathBuf};

pub(super) fn mounts(settings: &Settings, want: &Resolved, study: &Study) -> Result<Value, Refusal> {
    for (path, what) in [(&want.run_dir, "run directory"), (&want.worker, "worker program")] {
        if !path.is_absolute() {
            let text = format!("the {what} {} is not an absolute path", path.display());
            return Err(Refusal::new(FailureClass::Config, text));
        }
    }
    let attempt = want.run_dir.join("attempts").join(want.id.attempt.to_string());
    let own = [
        (want.worker.clone(), WORKER.to_owned(), true),
        // The folder: a socket's inode is another one when the parent was started again.
        (settings.sockets.clone(), SOCKETS.to_owned(), true),
        (attempt, ATTEMPT.to_owned(), true),
        (want.run_dir.join("app"), format!("{RUN}/app"), true),
        (want.run_dir.join("in"), format!("{RUN}/in"), true),
        (want.run_dir.join("out"), format!("{RUN}/out"), false),
        (want.run_dir.join("state"), format!("{RUN}/state"), false),
        (want.run_dir.join("tmp"), format!("{RUN}/tmp"), false),
    ];
    let mut out: Vec<Value> = own
        .iter()
        .map(|(source, target, read_only)| bind(&on_host(settings, source), target, *read_only))
        .collect();
    for (name, dataset) in &study.datasets {
        let at = format!("studies.{}.datasets.{name}.source", want.study);
        guarded(settings, &at, &dataset.source)?;
        let target = format!("/data/{}/{name}", want.study);
        out.push(bind(Path::new(&dataset.source), &target, dataset.mode != "rw"));
    }
    for (name, mount) in &study.secret_mounts {
        let at = format!("studies.{}.secret_mounts.{name}", want.study);
        guarded(settings, &format!("{at}.source"), &mount.source)?;
        if below(Path::new(&mount.mount_path), Path::new(HOME)) {
            return Err(Refusal::new(FailureClass::Config, "is where the launcher's own files are").at(
                STUDY_FILE,
                &format!("{at}.mount_path"),
                &mount.mount_path,
                "a path not below /polder",
            ));
        }
        out.push(bind(Path::new(&mount.source), &mount.mount_path, true));
    }
    Ok(out.into())
}

fn bind(source: &Path, target: &str, read_only: bool) -> Value {
    json!({"Type": "bind", "Source": source.display().to_string(), "Target": target, "ReadOnly": read_only})
}

/// Where the engine finds a path of this parent's.
fn on_host(settings: &Settings, path: &Path) -> PathBuf {
    match &settings.workspace {
        Some((here, host)) => match path.strip_prefix(here) {
            Ok(rest) => host.join(rest),
            Err(_) => path.to_owned(),
        },
        None => path.to_owned(),
    }
}

/// Refuses what would show a worker the engine's socket or the parent's own files.
fn guarded(settings: &Settings, at: &str, source: &str) -> Result<(), Refusal> {
    let source = plain(Path::new(source));
    let refuse = |what: &str| {
        Err(Refusal::new(FailureClass::Policy, format!("would show a worker {what}")).at(
            STUDY_FILE,
            at,
            &source.display().to_string(),
            "a folder of its own for the data",
        ))
    };
    let sockets = [settings.socket.as_str(), "/var/run/docker.sock", "/run/docker.sock"];
    if sockets.iter().any(|socket| below(Path::new(socket.trim_start_matches("unix://")), &source)) {
        return refuse("the engine's socket, which is root on this host");
    }
    let hidden = settings.hide.iter().chain([&settings.sockets]);
    for hidden in hidden.map(|path| plain(&on_host(settings, path))) {
        if below(&hidden, &source) || below(&source, &hidden) {
            return refuse("the parent's own files");
        }
    }
    Ok(())
}

/// A path without `.` and `..`, by its text alone.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(out.pop()),
            part => out.push(part),
        }
    }
    out
}

/// Whether `path` is `folder` or below it. A relative folder contains nothing here; the engine refuses it.
fn below(path: &Path, folder: &Path) -> bool {
    folder.is_absolute() && path.starts_with(folder)
}
