//! Texts of a machine, as they were read from its files and commands.
//!
//! A recording can be written to one file and read back, so that the texts of any machine serve as test data:
//!
//! ```text
//! # comment
//! system: linux
//! == values
//! sys/bus/thunderbolt/devices/0-0/unique_id: 8a6e...
//! sys/class/net/thunderbolt0/device -> ../../../0-1.0
//! == file proc/meminfo
//! MemTotal:       131072000 kB
//! == output rdma_ctl status
//! enabled
//! ```
//!
//! Values are files of one line, and symbolic links. A file or an output ends where the next section begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};
use thiserror::Error;

/// Texts of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The system's name, in lower case: `linux` or `macos`.
    pub system: String,
    /// Contents of files, by path without the leading slash.
    pub files: BTreeMap<String, String>,
    /// Targets of symbolic links, by path without the leading slash.
    pub links: BTreeMap<String, String>,
    /// Output of commands, by command line. Facts without a command have a name of one word: `addresses`.
    pub outputs: BTreeMap<String, String>,
}

/// Why a text is not a recording.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// A line stands where a section, a value or a link was expected.
    #[error("line {line}: {text:?} is no section (`== values`), no value (`path: text`) and no link")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// Its text.
        text: String,
    },
    /// The system is not named.
    #[error("no line names the system; begin with `system: linux` or `system: macos`")]
    NoSystem,
}

enum Section {
    Head,
    Values,
    File(String),
    Output(String),
}

impl Recording {
    /// Creates an empty recording of a system.
    #[must_use]
    pub fn new(system: &str) -> Recording {
        Recording { system: system.to_owned(), ..Recording::default() }
    }

    /// Returns the content of a file without white space at its ends.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(|text| text.trim())
    }

    /// Returns the output of a command.
    #[must_use]
    pub fn output(&self, command: &str) -> Option<&str> {
        self.outputs.get(command).map(String::as_str)
    }

    /// Returns the last part of a link's target.
    #[must_use]
    pub fn link_name(&self, path: &str) -> Option<&str> {
        self.links.get(path).and_then(|target| target.rsplit('/').next())
    }

    /// Returns the names of the entries of a folder, of which files or links were recorded.
    #[must_use]
    pub fn entries(&self, folder: &str) -> Vec<&str> {
        let prefix = format!("{folder}/");
        let names = self.files.keys().chain(self.links.keys()).filter_map(|path| {
            let rest = path.strip_prefix(&prefix)?;
            rest.split('/').next()
        });
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether something was recorded of a path.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.links.contains_key(path) || !self.entries(path).is_empty()
    }

    /// Returns the recording as one text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("system: {}\n== values\n", self.system);
        let is_value = |content: &str| content.trim_end_matches('\n').lines().count() <= 1;
        for (path, content) in self.files.iter().filter(|(_, content)| is_value(content)) {
            let _ = writeln!(text, "{path}: {}", content.trim());
        }
        for (path, target) in &self.links {
            let _ = writeln!(text, "{path} -> {target}");
        }
        let mut section = |head: String, content: &str| {
            let _ = writeln!(text, "== {head}\n{}", content.trim_end_matches('\n'));
        };
        for (path, content) in self.files.iter().filter(|(_, content)| !is_value(content)) {
            section(format!("file {path}"), content);
        }
        for (command, content) in &self.outputs {
            section(format!("output {command}"), content);
        }
        text
    }

    /// Reads the text of a recording.
    ///
    /// # Errors
    /// [`RecordingError::Line`] for a line of no known form, [`RecordingError::NoSystem`] without a system.
    pub fn from_text(text: &str) -> Result<Recording, RecordingError> {
        let mut recording = Recording::default();
        let mut section = Section::Head;
        for (at, line) in text.lines().enumerate() {
            if let Some(head) = line.strip_prefix("== ") {
                section = section_of(head).ok_or_else(|| unknown(at, line))?;
                if let Section::Output(command) = &section {
                    recording.outputs.entry(command.clone()).or_default();
                }
                continue;
            }
            match &section {
                Section::Head if line.is_empty() || line.starts_with('#') => {}
                Section::Head => {
                    let system = line.strip_prefix("system: ").ok_or_else(|| unknown(at, line))?;
                    recording.system = system.trim().to_owned();
                }
                Section::Values if line.is_empty() || line.starts_with('#') => {}
                Section::Values => recording.add_value(line).ok_or_else(|| unknown(at, line))?,
                Section::File(path) => push_line(recording.files.entry(path.clone()).or_default(), line),
                Section::Output(command) => {
                    push_line(recording.outputs.entry(command.clone()).or_default(), line);
                }
            }
        }
        if recording.system.is_empty() { Err(RecordingError::NoSystem) } else { Ok(recording) }
    }

    fn add_value(&mut self, line: &str) -> Option<()> {
        if let Some((path, target)) = line.split_once(" -> ") {
            self.links.insert(path.to_owned(), target.to_owned());
            return Some(());
        }
        // Addresses of PCI devices in paths have colons, too, but no space behind them.
        let (path, content) = line.split_once(": ").or_else(|| Some((line.strip_suffix(':')?, "")))?;
        self.files.insert(path.to_owned(), content.to_owned());
        Some(())
    }
}

fn section_of(head: &str) -> Option<Section> {
    match head.split_once(' ') {
        None if head == "values" => Some(Section::Values),
        Some(("file", path)) => Some(Section::File(path.to_owned())),
        Some(("output", command)) => Some(Section::Output(command.to_owned())),
        _ => None,
    }
}

fn push_line(content: &mut String, line: &str) {
    content.push_str(line);
    content.push('\n');
}

fn unknown(at: usize, line: &str) -> RecordingError {
    RecordingError::Line { line: at + 1, text: line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_read_back_as_it_was_written() {
        let mut recording = Recording::new("linux");
        recording.files.insert("sys/a/b:0/c".into(), "one".into());
        recording.files.insert("sys/a/empty".into(), String::new());
        recording.files.insert("proc/meminfo".into(), "MemTotal: 1 kB\nMemFree: 1 kB\n".into());
        recording.links.insert("sys/a/device".into(), "../../0-1.0".into());
        recording.outputs.insert("rdma_ctl status".into(), "enabled\n".into());
        assert_eq!(Recording::from_text(&recording.to_text()), Ok(recording.clone()));
        assert_eq!(recording.entries("sys/a"), ["b:0", "device", "empty"]);
        assert!(recording.has("sys/a/b:0") && !recording.has("sys/b"));
        assert_eq!(recording.link_name("sys/a/device"), Some("0-1.0"));
    }

    #[test]
    fn errors_name_the_line() {
        let error = Recording::from_text("system: linux\n== values\nnonsense\n").expect_err("no value");
        assert!(error.to_string().starts_with("line 3: \"nonsense\""), "{error}");
        assert_eq!(Recording::from_text("# nothing\n"), Err(RecordingError::NoSystem));
    }
}
