//! The tuning file: a check that it may be overwritten, and atomic writing.

use super::super::CommandError;
use collectives::select::Tuned;
use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

/// Checks before the measurement that the file can be written: it is a tuning file, or can be created.
/// `force` allows any file.
pub(super) fn check(path: &Path, force: bool) -> Result<(), CommandError> {
    let error_for =
        |why: &dyn std::fmt::Display| CommandError::new(format_args!("-o {}: {why}", path.display()));
    match fs::read_to_string(path) {
        Ok(text) if force || text.trim().is_empty() || Tuned::from_toml(&text).is_ok() => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if force && error.kind() == ErrorKind::InvalidData => {}
        Err(error) if error.kind() != ErrorKind::InvalidData => return Err(error_for(&error)),
        _ => {
            return Err(error_for(
                &"that is not a tuning file of this version; choose another name, or say --force to \
                overwrite it",
            ));
        }
    }
    let probe = temporary_path(path);
    let created = fs::File::create_new(&probe).and_then(|_| fs::remove_file(&probe));
    created.map_err(|error| match error.kind() {
        ErrorKind::NotFound => error_for(&"there is no such folder; make it first"),
        _ => error_for(&error),
    })
}

/// Writes the file atomically: a reader sees the old content or the new.
pub(super) fn write(path: &Path, tuned: &Tuned) -> Result<(), CommandError> {
    let temporary = temporary_path(path);
    let result = (|| -> io::Result<()> {
        let mut file = fs::File::create_new(&temporary)?;
        file.write_all(tuned.to_toml().as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    result.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        CommandError::new(format_args!("{} can't be written: {error}", path.display()))
    })
}

/// Reads a file to evaluate.
pub(super) fn read(path: &Path) -> Result<Tuned, CommandError> {
    let text = fs::read_to_string(path).map_err(|error| {
        CommandError::new(format_args!("--check: {} can't be read: {error}", path.display()))
    })?;
    Tuned::from_toml(&text).map_err(|error| CommandError::new(format_args!("{}: {error}", path.display())))
}

/// Returns a temporary path in the same folder, unique to this process.
fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectives::select::Fingerprint;

    #[test]
    fn only_our_own_files_are_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tuning.toml");
        let ours = Tuned::new(Fingerprint { transport: "shm".into(), ranks: 2, ..Fingerprint::default() });
        check(&path, false).expect("nothing is there");
        write(&path, &ours).expect("written");
        check(&path, false).expect("ours");
        assert_eq!(read(&path).expect("readable"), ours);
        fs::write(&path, "[server]\nport = 80\n").expect("writable");
        assert!(check(&path, false).is_err());
        check(&path, true).expect("forced");
        fs::write(&path, [0xff, 0xfe]).expect("writable");
        assert!(check(&path, false).is_err() && check(&path, true).is_ok());
        assert!(check(folder.path(), true).is_err(), "a folder is no file");
        assert!(check(&folder.path().join("none/tuning.toml"), false).is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1, "nothing else is left");
    }
}
