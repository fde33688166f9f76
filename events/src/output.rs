//! The log: lines on stderr, or in a file per rank.
//!
//! A line is written by one system call, so that lines of several processes do not mix.

use crate::{Filter, Record, own_file::open_own};
use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

/// The form of a log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: a JSON object per line.
    Json,
}

impl FromStr for Format {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Format, Self::Err> {
        match text {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err("must be text or json"),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Text => "text",
            Format::Json => "json",
        })
    }
}

/// Options of a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Events that are logged.
    pub filter: Filter,
    /// Path of a file, with `%r`, `%h` and `%p` in the place of rank, host and process; stderr if `None`.
    pub file: Option<PathBuf>,
    /// Form of the lines.
    pub format: Format,
}

/// A log, with the files that it has opened.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) options: LogOptions,
    host: String,
    /// Open files by path; `None` for a file that can't be opened, whose lines go to stderr.
    files: Mutex<BTreeMap<PathBuf, Option<Arc<File>>>>,
}

impl Output {
    pub(crate) fn new(options: LogOptions) -> Output {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Output { options, host, files: Mutex::default() }
    }

    /// Writes the line of a record. A failure to write can't be reported, and changes nothing.
    pub(crate) fn write(&self, record: &Record) {
        let line = match self.options.format {
            Format::Text => record.line(&self.host),
            Format::Json => record.json(&self.host),
        };
        let _ = match self.file_of(record.rank) {
            Some(file) => (&*file).write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }

    /// Returns the file for the events of a rank, if the log has files and this one can be opened.
    fn file_of(&self, rank: Option<u32>) -> Option<Arc<File>> {
        let path = file_name(self.options.file.as_ref()?, rank, &self.host);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = files.entry(path).or_insert_with_key(|path| match open_own(path) {
            Ok(file) => Some(Arc::new(file)),
            Err(error) => {
                let text = format!(
                    "tbccl: warning: can't write the log to {}: {error}; the log goes to stderr\n",
                    path.display()
                );
                let _ = io::stderr().write_all(text.as_bytes());
                None
            }
        });
        opened.clone()
    }
}

/// Returns the path of a file: `%r` becomes the rank, or `launcher` in a process that is no rank, `%h` the
/// host, `%p` the process, `%%` a percent sign.
fn file_name(template: &Path, rank: Option<u32>, host: &str) -> PathBuf {
    let template = template.to_string_lossy();
    let mut path = String::new();
    let mut rest = template.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            path.push(character);
            continue;
        }
        match rest.next() {
            Some('r') => path.push_str(&rank.map_or("launcher".to_owned(), |rank| rank.to_string())),
            Some('h') => path.push_str(host),
            Some('p') => path.push_str(&std::process::id().to_string()),
            Some('%') => path.push('%'),
            other => {
                path.push('%');
                path.extend(other);
            }
        }
    }
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_have_rank_host_and_process() {
        let pid = std::process::id();
        let name = |template: &str, rank| file_name(Path::new(template), rank, "mac1");
        assert_eq!(name("/l/%h-%r.%p", Some(3)), PathBuf::from(format!("/l/mac1-3.{pid}")));
        assert_eq!(name("%r", None), PathBuf::from("launcher"));
        assert_eq!(name("100%% %x %", Some(0)), PathBuf::from("100% %x %"));
    }
}
