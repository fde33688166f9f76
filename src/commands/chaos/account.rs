//! Reports of a process about its round: a file of JSON lines per process, which survives the process.
//!
//! Times are microseconds of the monotonic clock, which all processes of a machine share.

use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// A report of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub(super) enum Report {
    /// The process has started.
    Started { pid: u32 },
    /// The process begins a step.
    Step { step: usize, at: u64 },
    /// The process has injected a fault of the plan.
    Injected { fault: usize, at: u64 },
    /// A step has failed.
    Failed(Failed),
    /// A result is wrong.
    Wrong { step: Option<usize>, text: String },
    /// The process has passed all of its steps.
    Finished { at: u64 },
    /// The next communicator has been made and used, or has failed.
    Next { took: u64, error: Option<String> },
    /// All communicators are closed; the texts describe anything that is left of them in the process.
    Closed { residue: Vec<String> },
}

/// A failed step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Failed {
    /// The step; `None` for joining the world.
    pub(super) step: Option<usize>,
    pub(super) at: u64,
    /// Duration of the call.
    pub(super) took: u64,
    /// Name of the error's variant.
    pub(super) kind: String,
    pub(super) text: String,
}

/// Returns the time of the monotonic clock in microseconds.
pub(super) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Returns the file with the reports of a process.
pub(super) fn path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("process.{number}"))
}

/// Writes the reports of this process.
#[derive(Debug)]
pub(super) struct Reporter(Mutex<File>);

impl Reporter {
    /// Creates the file of a process.
    pub(super) fn create(folder: &Path, number: u32) -> io::Result<Reporter> {
        Ok(Reporter(Mutex::new(File::create(path(folder, number))?)))
    }

    /// Adds a report, by one write.
    pub(super) fn say(&self, report: &Report) {
        let line = serde_json::to_string(report).unwrap_or_default() + "\n";
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    }
}

/// The reports of a process so far.
#[derive(Debug, Default)]
pub(super) struct Account {
    file: Option<File>,
    /// Bytes read.
    read: u64,
    /// The beginning of a line that is not complete.
    rest: Vec<u8>,
    pub(super) pid: Option<u32>,
    /// The latest step that has begun, and its time.
    pub(super) step: Option<(usize, u64)>,
    pub(super) injected: Vec<(usize, u64)>,
    pub(super) failures: Vec<Failed>,
    pub(super) wrong: Vec<String>,
    pub(super) finished: Option<u64>,
    pub(super) next: Option<Result<u64, String>>,
    pub(super) residue: Option<Vec<String>>,
}

impl Account {
    /// Returns the bytes that have been read.
    pub(super) fn size(&self) -> u64 {
        self.read
    }

    /// Reads the reports that have been written since the last call.
    pub(super) fn update(&mut self, folder: &Path, number: u32) {
        if self.file.is_none() {
            self.file = File::open(path(folder, number)).ok();
        }
        let Some(file) = &mut self.file else { return };
        // An error means that there is nothing more to read.
        self.read += file.read_to_end(&mut self.rest).unwrap_or_default() as u64;
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            if let Ok(report) = serde_json::from_slice(&line) {
                self.add(report);
            }
        }
    }

    pub(super) fn add(&mut self, report: Report) {
        match report {
            Report::Started { pid } => self.pid = Some(pid),
            Report::Step { step, at } => self.step = Some((step, at)),
            Report::Injected { fault, at } => self.injected.push((fault, at)),
            Report::Failed(failed) => self.failures.push(failed),
            Report::Wrong { step, text } => self.wrong.push(match step {
                Some(step) => format!("step {step}: {text}"),
                None => text,
            }),
            Report::Finished { at } => self.finished = Some(at),
            Report::Next { took, error } => self.next = Some(error.map_or(Ok(took), Err)),
            Report::Closed { residue } => self.residue = Some(residue),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_follows_the_file_of_a_living_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut account = Account::default();
        account.update(folder.path(), 3);
        assert_eq!(account.pid, None, "there is no file yet");
        let reporter = Reporter::create(folder.path(), 3).expect("a file");
        reporter.say(&Report::Started { pid: 7 });
        reporter.say(&Report::Step { step: 4, at: 5 });
        account.update(folder.path(), 3);
        assert_eq!((account.pid, account.step), (Some(7), Some((4, 5))));
        let failed = Failed { step: None, at: 9, took: 2, kind: "Timeout".into(), text: "rank 1\n".into() };
        reporter.say(&Report::Failed(failed.clone()));
        reporter.say(&Report::Next { took: 1, error: None });
        account.update(folder.path(), 3);
        assert_eq!((account.failures, account.next), (vec![failed], Some(Ok(1))));
    }
}
