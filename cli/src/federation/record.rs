//! Folders of federations on this machine: those that run, one that was kept, and what a program that was
//! killed left behind.
//!
//! A folder is noted before anything runs in it. A note whose program is gone and that was not kept is of one
//! that was killed: the next program ends what runs there and removes it.

use super::processes::{self, Ident};
use crate::output::Failure;
use crate::state::{self, State};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// What is noted.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    dir: PathBuf,
    /// The program that made it.
    owner: Option<Ident>,
    /// The parents, once it was kept.
    #[serde(default)]
    kept: Option<Vec<Ident>>,
}

/// A folder of this program; ended, and removed with its note, when dropped, unless kept.
#[derive(Debug)]
pub(crate) struct Record {
    note: Note,
    file: PathBuf,
}

fn notes_dir(state: &State) -> PathBuf {
    state.dir().join("federations")
}

fn notes(state: &State) -> Vec<(PathBuf, Note)> {
    let Ok(entries) = fs::read_dir(notes_dir(state)) else { return Vec::new() };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| Some((path.clone(), state::read(&path).ok().flatten()?)))
        .collect()
}

impl Record {
    /// Makes the folder and notes it.
    pub(crate) fn new(state: &State, prefix: &str) -> Result<Self, Failure> {
        // Short: the path of a socket in it has about a hundred characters at most.
        let usual = std::env::temp_dir();
        let place = if usual.as_os_str().len() > 24 { PathBuf::from("/tmp") } else { usual };
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(&place)
            .map_err(|error| Failure::io(&place, "make a folder", &error))?
            .keep();
        let dir = fs::canonicalize(&dir).map_err(|error| Failure::io(&dir, "find", &error))?;
        let file = notes_dir(state).join(format!("{}.json", dir.file_name().unwrap_or_default().display()));
        let record = Self { note: Note { dir, owner: Ident::own(), kept: None }, file };
        state::write(&record.file, &record.note)?;
        Ok(record)
    }

    /// The folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.note.dir
    }

    /// Notes that it stays.
    pub(crate) fn keep(&mut self, parents: Vec<Ident>) -> Result<(), Failure> {
        self.note.kept = Some(parents);
        state::write(&self.file, &self.note)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.note.kept.is_none() {
            clear(&self.file, &self.note);
        }
    }
}

/// Ends what runs in a folder, and removes folder and note.
fn clear(file: &Path, note: &Note) {
    processes::stop_foreign(note.kept.as_deref().unwrap_or_default());
    processes::sweep(&note.dir);
    let _ = fs::remove_dir_all(&note.dir);
    let _ = fs::remove_file(file);
}

/// Clears what programs left that were killed.
pub(crate) fn sweep_stale(state: &State) {
    for (file, note) in notes(state) {
        if note.kept.is_none() && !note.owner.is_some_and(|owner| owner.is_alive()) {
            clear(&file, &note);
        }
    }
}

/// The folder of a federation that is kept and runs.
pub(crate) fn running(state: &State) -> Option<PathBuf> {
    notes(state)
        .into_iter()
        .find(|(_, note)| note.kept.as_ref().is_some_and(|parents| parents.iter().any(Ident::is_alive)))
        .map(|(_, note)| note.dir)
}

/// Stops and removes every federation that was kept; gives their folders.
pub(crate) fn stop_kept(state: &State) -> Vec<PathBuf> {
    let kept = notes(state).into_iter().filter(|(_, note)| note.kept.is_some());
    kept.map(|(file, note)| {
        clear(&file, &note);
        note.dir
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_program_left_is_cleared_and_what_was_kept_is_not() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let state = State::at(home.path());
        let mut kept = Record::new(&state, "polder-test-").expect("noted");
        let killed = Record::new(&state, "polder-test-").expect("noted");
        let parent = Ident::own().expect("this test runs");
        kept.note.kept = Some(vec![parent]);
        state::write(&kept.file, &kept.note).expect("noted");
        let dead = Note { dir: killed.note.dir.clone(), owner: None, kept: None };
        state::write(&killed.file, &dead).expect("noted");
        sweep_stale(&state);
        assert!(!killed.dir().exists() && kept.dir().exists());
        assert_eq!(running(&state).as_deref(), Some(kept.dir()));
        // Not stopped here: the parent named is this test itself.
        kept.note.kept = None;
    }
}
