//! The file of changes that `tbccl config --undo` makes.
//!
//! It is written before a host is asked to make changes, so that a host that makes them and never answers is
//! in it as well. A host's changes are in the order in which they are made: the latest first.

use super::change::Change;
use crate::commands::CommandError;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    hosts: BTreeMap<String, Vec<String>>,
}

/// The file, and the changes of each host.
#[derive(Debug)]
pub(super) struct UndoFile {
    path: PathBuf,
    hosts: BTreeMap<String, Vec<Change>>,
}

impl UndoFile {
    /// Opens the user's file, which need not exist.
    pub(super) fn open() -> Result<UndoFile, CommandError> {
        let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
        let folder = folder.ok_or_else(|| {
            CommandError::new("HOME is not set: there is no place to note how the changes are taken back")
        })?;
        UndoFile::open_at(folder.join("tbccl/config-undo.json"))
    }

    fn open_at(path: PathBuf) -> Result<UndoFile, CommandError> {
        let failed = |why: &dyn std::fmt::Display| {
            CommandError::new(format_args!("the file {}: {why}; mend it or move it away", path.display()))
        };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(UndoFile { path, hosts: BTreeMap::new() });
            }
            Err(error) => return Err(failed(&error)),
        };
        let content: Content = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
        if content.version != VERSION {
            return Err(failed(&format_args!("it has version {}, not {VERSION}", content.version)));
        }
        let read = |words: &Vec<String>| words.iter().map(|word| word.parse()).collect::<Result<Vec<_>, _>>();
        let hosts = content.hosts.iter().map(|(host, words)| Ok((host.clone(), read(words)?)));
        let hosts = hosts.collect::<Result<_, String>>().map_err(|error| failed(&error))?;
        Ok(UndoFile { path, hosts })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Hosts that have changes to take back, with these.
    pub(super) fn hosts(&self) -> impl Iterator<Item = (&str, &[Change])> {
        self.hosts.iter().map(|(host, changes)| (host.as_str(), changes.as_slice()))
    }

    /// Notes changes of a host, to be made before all that are noted, and writes the file.
    pub(super) fn add(&mut self, host: &str, changes: Vec<Change>) -> Result<(), CommandError> {
        let noted = self.hosts.entry(host.to_owned()).or_default();
        noted.retain(|change| !changes.contains(change));
        noted.splice(0..0, changes);
        self.write()
    }

    /// Removes changes of a host, and writes the file.
    pub(super) fn remove(&mut self, host: &str, changes: &[Change]) -> Result<(), CommandError> {
        if let Some(noted) = self.hosts.get_mut(host) {
            noted.retain(|change| !changes.contains(change));
        }
        self.hosts.retain(|_, changes| !changes.is_empty());
        self.write()
    }

    /// Writes the file anew, or removes it if no host has changes.
    fn write(&self) -> Result<(), CommandError> {
        let words = |changes: &Vec<Change>| changes.iter().map(Change::to_string).collect();
        let hosts = self.hosts.iter().filter(|(_, changes)| !changes.is_empty());
        let hosts: BTreeMap<_, _> = hosts.map(|(host, changes)| (host.clone(), words(changes))).collect();
        let written = if hosts.is_empty() {
            fs::remove_file(&self.path)
                .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        } else {
            replace(&self.path, &Content { version: VERSION, hosts })
        };
        written.map_err(|error| CommandError::new(format_args!("the file {}: {error}", self.path.display())))
    }
}

/// Writes a file in one step, so that no reader and no full disk leaves half of it.
fn replace(path: &Path, content: &Content) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let file = NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&file, content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(interface: &str) -> Change {
        Change::Up { interface: interface.into() }
    }

    #[test]
    fn changes_are_kept_latest_first_until_they_are_made() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("new/undo.json");
        let mut file = UndoFile::open_at(path.clone()).expect("none yet");
        file.add("a", vec![up("e1"), up("e0")]).expect("written");
        file.add("a", vec![up("e2")]).expect("written");
        file.add("b", vec![up("e9")]).expect("written");
        let mut file = UndoFile::open_at(path.clone()).expect("read back");
        let noted: Vec<_> = file.hosts().map(|(host, changes)| (host.to_owned(), changes.to_vec())).collect();
        assert_eq!(noted[0], ("a".to_owned(), vec![up("e2"), up("e1"), up("e0")]));
        file.remove("a", &[up("e2"), up("e1"), up("e0")]).expect("written");
        file.remove("b", &[up("e9")]).expect("written");
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_file_is_named_and_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("undo.json");
        for text in
            ["{", "{\"version\": 2, \"hosts\": {}}", "{\"version\": 1, \"hosts\": {\"a\": [\"up:-x\"]}}"]
        {
            fs::write(&path, text).expect("written");
            let error = UndoFile::open_at(path.clone()).expect_err("damaged");
            assert!(error.message().contains("undo.json: "), "{}", error.message());
            assert_eq!(fs::read_to_string(&path).expect("still there"), text);
        }
    }
}
