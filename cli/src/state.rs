//! What the CLI remembers between two commands: sessions and the last login.
//!
//! ```text
//! $XDG_STATE_HOME/polder (or ~/.local/state/polder)   0700
//!     login.json              kit and study of the last login
//!     sessions/<digits>.json  one session each, 0600; the digits are a hash of kit and study
//! ```
//! One file a session, written under another name and renamed: commands that run at the same time
//! cannot damage each other's.

use crate::output::Failure;
use polder_api::ProblemCode;
use polder_api::user::Session;
use polder_words::StudyName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct State {
    dir: PathBuf,
}

/// Kit and study of the last login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Login {
    /// The kit's folder, absolute.
    pub(crate) kit: PathBuf,
    /// The study.
    pub(crate) study: StudyName,
}

impl State {
    /// The folder the environment names.
    pub(crate) fn find() -> Result<Self, Failure> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = match (variable("XDG_STATE_HOME"), variable("HOME")) {
            (Some(dir), _) if dir.is_absolute() => dir,
            (_, Some(home)) => home.join(".local/state"),
            _ => {
                return Err(Failure::new(ProblemCode::Invalid, "neither XDG_STATE_HOME nor HOME is set")
                    .hint("set XDG_STATE_HOME to a folder of yours, for sessions"));
            }
        };
        Ok(Self { dir: base.join("polder") })
    }

    /// A folder for tests.
    #[cfg(test)]
    pub(crate) fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The folder itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The last login.
    pub(crate) fn login(&self) -> Result<Option<Login>, Failure> {
        read(&self.dir.join("login.json"))
    }

    /// Remembers a login.
    pub(crate) fn set_login(&self, login: &Login) -> Result<(), Failure> {
        write(&self.dir.join("login.json"), login)
    }

    /// Forgets the last login.
    pub(crate) fn clear_login(&self) -> Result<(), Failure> {
        remove(&self.dir.join("login.json"))
    }

    /// The stored session of a login, expired or not.
    pub(crate) fn session(&self, login: &Login) -> Result<Option<Session>, Failure> {
        read(&self.session_file(login))
    }

    /// Stores a session.
    pub(crate) fn set_session(&self, login: &Login, session: &Session) -> Result<(), Failure> {
        write(&self.session_file(login), session)
    }

    /// Forgets a session.
    pub(crate) fn clear_session(&self, login: &Login) -> Result<(), Failure> {
        remove(&self.session_file(login))
    }

    fn session_file(&self, login: &Login) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(login.kit.as_os_str().as_encoded_bytes())
            .update(&[0])
            .update(login.study.as_str().as_bytes());
        let digits = &hasher.finalize().to_hex()[..24];
        self.dir.join("sessions").join(format!("{digits}.json"))
    }
}

/// Reads a document of this folder; absent is `None`, unreadable is too: it is only remembered.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io(path, "read", &error)),
    }
}

/// Writes a document that only its owner may read, whole or not at all.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Failure> {
    let parent = path.parent().expect("every file here has a folder");
    let temporary =
        parent.join(format!(".{}.{}", path.file_name().unwrap_or_default().display(), std::process::id()));
    let write = || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let _ = fs::remove_file(&temporary);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(value)?)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Failure::io(path, "write", &error)
    })
}

fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::io(path, "remove", &error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn session(study: &str) -> Session {
        serde_json::from_value(serde_json::json!({"token": "t", "federation": "f", "study": study,
            "user": "lead@org_a.com", "role": "lead", "expires": 5}))
        .expect("a session as the server sends it")
    }

    #[test]
    fn sessions_are_kept_apart_and_to_their_owner() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let state = State::at(&dir.path().join("polder"));
        let login = |study: &str| Login { kit: "/kit".into(), study: study.parse().expect("a name") };
        assert_eq!(state.session(&login("a")).expect("readable"), None);
        state.set_session(&login("a"), &session("a")).expect("stored");
        state.set_session(&login("b"), &session("b")).expect("stored");
        assert_eq!(state.session(&login("a")).expect("readable"), Some(session("a")));
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&state.session_file(&login("a"))), 0o600);
        assert_eq!(mode(state.dir()), 0o700);
        state.clear_session(&login("a")).expect("removed");
        state.clear_session(&login("a")).expect("already gone");
        assert_eq!(state.session(&login("a")).expect("readable"), None);
        assert_eq!(state.session(&login("b")).expect("readable"), Some(session("b")));
    }
}
