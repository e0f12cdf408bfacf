//! Files on this side of a container: its folders and its handover.

use crate::plan::{ATTEMPT, DockerPlan, RUN, SOCKETS, Settings, User};
use bollard::auth::DockerCredentials;
use bollard::models::ContainerInspectResponse;
use polder_launch::Handover;
use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat};
use serde_json::Value;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const HANDOVER: &str = "handover.json";

/// Where a mount of the plan is here. The plan names paths of the engine's host.
fn here(settings: &Settings, plan: &DockerPlan, target: &str) -> io::Result<PathBuf> {
    let mounts = plan.create.get("HostConfig").and_then(|host| host.get("Mounts")).and_then(Value::as_array);
    let source = mounts
        .into_iter()
        .flatten()
        .find(|mount| mount["Target"] == target)
        .and_then(|mount| mount["Source"].as_str())
        .ok_or_else(|| io::Error::other(format!("the plan has no mount at {target}")))?;
    Ok(on_this_side(settings, Path::new(source)))
}

fn on_this_side(settings: &Settings, path: &Path) -> PathBuf {
    match &settings.workspace {
        Some((here, host)) => {
            path.strip_prefix(host).map_or_else(|_| path.to_owned(), |rest| here.join(rest))
        }
        None => path.to_owned(),
    }
}

/// Makes what a container mounts, gives the worker what it writes, and writes its handover as it sees it.
pub(crate) fn lay_out(settings: &Settings, plan: &DockerPlan, hand: &Handover) -> io::Result<()> {
    let user = settings.user;
    for name in ["app", "in"] {
        fs::create_dir_all(here(settings, plan, &format!("{RUN}/{name}"))?)?;
    }
    for name in ["out", "state", "tmp"] {
        let folder = here(settings, plan, &format!("{RUN}/{name}"))?;
        fs::create_dir_all(&folder)?;
        give(&folder, user)?;
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
    }
    let attempt = here(settings, plan, ATTEMPT)?;
    fs::create_dir_all(&attempt)?;
    fs::set_permissions(&attempt, Permissions::from_mode(0o711))?;
    let path = attempt.join(HANDOVER);
    // Written beside it and renamed: a container that was adopted may be about to read it.
    let fresh = attempt.join("handover.new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(&inside(hand)?)?;
    give(&fresh, user)?;
    fs::rename(&fresh, &path)
}

/// The handover with the paths a container has.
fn inside(hand: &Handover) -> io::Result<Vec<u8>> {
    let mut letter: polder_api::worker::Handover = serde_json::from_slice(hand.expose())?;
    RUN.clone_into(&mut letter.run_dir);
    for dial in &mut letter.dial {
        if let polder_api::worker::Dial::Unix { path } = dial {
            let name = Path::new(path.as_str()).file_name().unwrap_or_default().display().to_string();
            *path = format!("{SOCKETS}/{name}");
        }
    }
    serde_json::to_vec(&letter).map_err(io::Error::other)
}

fn give(path: &Path, user: User) -> io::Result<()> {
    // Inside a rootless engine, root is this account; to others only root can give.
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)));
    chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)
}

/// Removes the handover of a container: its secret is good for nothing any more, and need not lie about.
pub(crate) fn forget(settings: &Settings, found: &ContainerInspectResponse) {
    let mounts = found.host_config.iter().filter_map(|host| host.mounts.as_ref()).flatten();
    for mount in mounts.filter(|mount| mount.target.as_deref() == Some(ATTEMPT)) {
        if let Some(source) = &mount.source {
            // It goes with the run directory otherwise.
            let _ = fs::remove_file(on_this_side(settings, Path::new(source)).join(HANDOVER));
        }
    }
}

/// Credentials of an image's registry, as `docker login` left them in the parent's `~/.docker/config.json`. Helpers that
/// are programs are not run.
pub(crate) fn credentials(image: &str) -> Option<DockerCredentials> {
    let folder = std::env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".docker")))?;
    let text = fs::read_to_string(folder.join("config.json")).ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    let first = image.split('/').next()?;
    let is_host = image.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    let registry = if is_host { first } else { "https://index.docker.io/v1/" };
    let auth = config["auths"][registry]["auth"].as_str()?;
    Some(DockerCredentials {
        auth: Some(auth.to_owned()),
        serveraddress: Some(registry.to_owned()),
        ..DockerCredentials::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_worker_gets_the_paths_of_its_container() {
        let letter = json!({
            "protocol": 1, "launch": "6f1e2c3a0b1d4c5e8f90a1b2c3d4e5f6.a.client.1",
            "dial": [{"unix": {"path": "/srv/very/long/state/sock/worker.sock"}}],
            "pin": "00".repeat(32), "token": "t", "run_dir": "/srv/state/runs/x-client",
        });
        let inside = inside(&Handover::new(letter.to_string().into_bytes())).expect("it can be read");
        let inside: Value = serde_json::from_slice(&inside).expect("JSON");
        assert_eq!(inside["dial"][0]["unix"]["path"], "/polder/sock/worker.sock");
        assert_eq!((&inside["run_dir"], &inside["token"]), (&json!("/polder/run"), &json!("t")));
    }
}
