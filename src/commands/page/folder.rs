//! The folder of a report: `index.html`, and the values as `rows.jsonl`.
//!
//! Files are replaced atomically, so that a reader sees the old page or the new. The folder is checked before
//! anything is measured.

use super::Page;
use crate::commands::CommandError;
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// A folder for a report that can be written to.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Folder(PathBuf);

impl Folder {
    const PAGE: &str = "index.html";
    const ROWS: &str = "rows.jsonl";

    /// Makes the folder if it is missing, and checks that files can be made in it.
    pub(in crate::commands) fn prepare(path: &Path) -> Result<Folder, CommandError> {
        let folder = Folder(path.to_owned());
        let checked = fs::create_dir_all(path).and_then(|()| folder.temporary().map(drop));
        checked.map_err(|why| folder.unwritable(path, &why))?;
        for name in [Folder::PAGE, Folder::ROWS] {
            let file = path.join(name);
            if file.is_dir() {
                let why = io::Error::from(io::ErrorKind::IsADirectory);
                return Err(folder.unwritable(&file, &why));
            }
        }
        Ok(folder)
    }

    /// Returns the file that collects rows while they are measured.
    pub(in crate::commands) fn running_rows(path: &Path) -> PathBuf {
        path.join("rows.jsonl.part")
    }

    /// Opens that file, emptied, for this process alone until the file is closed; `None` while another
    /// process has it.
    pub(in crate::commands) fn claim_running_rows(path: &Path) -> io::Result<Option<File>> {
        let path = Folder::running_rows(path);
        loop {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(why)) if why.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(why)) => return Err(why),
            }
            // The process that had the file may have removed it before it was locked here.
            let is_there = fs::metadata(&path).is_ok_and(|there| {
                file.metadata().is_ok_and(|here| (here.dev(), here.ino()) == (there.dev(), there.ino()))
            });
            if is_there {
                file.set_len(0)?;
                return Ok(Some(file));
            }
        }
    }

    /// Writes the page and the rows, and tells where.
    pub(in crate::commands) fn write(&self, page: &Page, rows: &str) -> Result<String, CommandError> {
        self.replace(Folder::ROWS, rows)?;
        self.replace(Folder::PAGE, &page.to_html())?;
        Ok(format!("# Report               : {}\n", self.0.join(Folder::PAGE).display()))
    }

    fn replace(&self, name: &str, text: &str) -> Result<(), CommandError> {
        let path = self.0.join(name);
        let write = || -> io::Result<()> {
            let mut file = self.temporary()?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&path).map(drop).map_err(|failed| failed.error)
        };
        write().map_err(|why| self.unwritable(&path, &why))
    }

    /// Makes a file that goes away unless it is given a name.
    fn temporary(&self) -> io::Result<tempfile::NamedTempFile> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".report-").permissions(fs::Permissions::from_mode(0o666)).tempfile_in(&self.0)
    }

    fn unwritable(&self, path: &Path, why: &io::Error) -> CommandError {
        CommandError::new(format_args!(
            "--report {}: {} can't be written: {why}; name a folder that can",
            self.0.display(),
            path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Once, two commands with one folder wrote their rows to one file, and each made a report of both.
    #[test]
    fn rows_are_collected_for_one_process_at_a_time() {
        let parent = tempfile::tempdir().expect("a folder");
        let claim = || Folder::claim_running_rows(parent.path()).expect("writable");
        let first = claim().expect("nobody has it");
        fs::write(Folder::running_rows(parent.path()), "rows").expect("written");
        assert!(claim().is_none());
        assert_eq!(fs::read(Folder::running_rows(parent.path())).expect("kept"), b"rows");
        drop(first);
        assert_eq!(claim().expect("free again").metadata().expect("open").len(), 0);
    }

    #[test]
    fn a_report_replaces_the_one_before_and_leaves_no_other_file() {
        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("new/report");
        for title in ["old", "new"] {
            let folder = Folder::prepare(&path).expect("writable");
            let page = Page { title: title.to_owned(), ..Page::default() };
            let told = folder.write(&page, &format!("{title}\n")).expect("written");
            assert!(told.contains("index.html"), "{told}");
        }
        let read = |name| fs::read_to_string(path.join(name)).expect("written");
        assert!(read("index.html").contains("<h1>new</h1>") && read("rows.jsonl") == "new\n");
        assert_eq!(fs::read_dir(&path).expect("a folder").count(), 2);
    }

    #[test]
    fn a_place_that_can_hold_no_page_is_refused() {
        let parent = tempfile::tempdir().expect("a folder");
        let file = parent.path().join("file");
        fs::write(&file, "").expect("written");
        fs::create_dir_all(parent.path().join("taken/index.html")).expect("a folder");
        for path in [&file, &file.join("below"), &parent.path().join("taken")] {
            let error = Folder::prepare(path).expect_err("no folder");
            assert!(error.message().contains("name a folder that can"), "{}", error.message());
        }
    }
}
