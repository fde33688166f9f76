//! The report: lines on stdout as checks are made, and one file.
//!
//! The file grows with each check and is written through to the disk, so that it says what was tested last
//! even if the machine goes down. If it can't be written, the whole report is printed at the end instead.
//!
//! | module | content |
//! |---|---|
//! | `privacy` | removes names, addresses and secrets |

mod privacy;

use super::{
    check::{Check, Verdict},
    start::Starter,
};
use crate::commands::{CommandError, print, progress::Progress};
pub(super) use privacy::Privacy;
use serde::Serialize;
use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

/// Line between the text and the JSON of a file.
const JSON_BEGINS: &str = "---- the same as JSON ----";

/// The report of a running test.
#[derive(Debug)]
pub(super) struct Report {
    head: Head,
    checks: Vec<Check>,
    file: Option<File>,
    path: PathBuf,
    /// Reason why the file can't be written.
    problem: Option<io::Error>,
    privacy: Privacy,
    progress: Progress,
    began: Instant,
}

/// The head of a report.
#[derive(Clone, Debug, Serialize)]
struct Head {
    tbccl: &'static str,
    date: String,
    system: String,
    hardware: String,
    ranks: String,
    options: String,
}

#[derive(Serialize)]
struct Whole<'r> {
    #[serde(flatten)]
    head: &'r Head,
    summary: Summary,
    checks: &'r [Check],
}

/// Numbers of checks by verdict.
#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    pass: usize,
    fail: usize,
    unknown: usize,
    interrupted: bool,
    seconds: f64,
}

/// Returns the default name of the file.
pub(super) fn default_path() -> PathBuf {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host
        .split('.')
        .next()
        .unwrap_or("host")
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == '-')
        .collect();
    let date = now().replace(':', "").replace('T', "-");
    PathBuf::from(format!("tbccl-selftest-{host}-{}.txt", date.trim_end_matches('Z')))
}

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

impl Report {
    /// Creates the file and begins the report. `parts` is the number of steps of the progress bar.
    pub(super) fn open(
        path: &Path,
        starter: &Starter,
        privacy: Privacy,
        parts: usize,
    ) -> Result<Report, CommandError> {
        let file = File::create(path).map_err(|error| {
            CommandError::new(format_args!("{}: {error}; name another file with --out", path.display()))
        })?;
        let options = std::env::args().skip(2).collect::<Vec<_>>().join(" ");
        let head = Head {
            tbccl: env!("CARGO_PKG_VERSION"),
            date: now(),
            system: super::machine::system(),
            hardware: super::machine::hardware(),
            ranks: starter.describe(),
            options: privacy.clean(&options),
        };
        let progress = Progress::new(parts, "parts");
        let (path, began) = (path.to_owned(), Instant::now());
        let mut report = Report {
            head,
            checks: Vec::new(),
            file: Some(file),
            path,
            problem: None,
            privacy,
            progress,
            began,
        };
        let text = report.head_text();
        report.write(&text);
        Ok(report)
    }

    fn head_text(&self) -> String {
        let Head { tbccl, date, system, hardware, ranks, options } = &self.head;
        format!(
            "tbccl selftest\nversion:  {tbccl}\ndate:     {date}\nsystem:   {system}\nhardware: {hardware}\n\
             ranks:    {ranks}\noptions:  {options}\n\n"
        )
    }

    /// Adds a check: prints its line, and appends it to the file with its details.
    pub(super) fn add(&mut self, check: Check) {
        let check = self.privacy.clean_check(check);
        let line = check.line();
        self.progress.suspended(|| print(&format!("{line}\n")));
        let text = text_of(&check);
        self.write(&text);
        self.checks.push(check);
    }

    /// Prints a line for the user that is no part of the report.
    pub(super) fn say(&self, text: &str) {
        self.progress.suspended(|| print(&format!("{text}\n")));
    }

    /// Counts a finished part.
    pub(super) fn advance(&self) {
        self.progress.advance();
    }

    /// Returns the number of checks with a verdict.
    fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.verdict == verdict).count()
    }

    /// Completes the file and prints the summary. Returns whether there is no failure, and whether the file
    /// could be written.
    pub(super) fn finish(mut self, interrupted: bool) -> (bool, bool) {
        self.progress.finish();
        let summary = Summary {
            pass: self.count(Verdict::Pass),
            fail: self.count(Verdict::Fail),
            unknown: self.count(Verdict::Unknown),
            interrupted,
            seconds: self.began.elapsed().as_secs_f64(),
        };
        let Summary { pass, fail, unknown, seconds, .. } = summary;
        let end = if interrupted { ", interrupted" } else { "" };
        let line = format!("summary: {pass} pass, {fail} fail, {unknown} unknown in {seconds:.0} s{end}");
        let whole = Whole { head: &self.head, summary, checks: &self.checks };
        let json = serde_json::to_string_pretty(&whole).unwrap_or_default();
        let rest = format!("\n{line}\n\n{JSON_BEGINS}\n{json}\n");
        self.write(&rest);
        print(&format!("{line}\n"));
        let is_written = self.problem.is_none();
        match &self.problem {
            None => print(&format!(
                "the report is in {}: read it, and send it to the project if something fails\n",
                self.path.display()
            )),
            Some(problem) => {
                let checks: String = self.checks.iter().map(text_of).collect();
                print(&format!("{}{checks}{rest}", self.head_text()));
                crate::commands::error::warn(format_args!(
                    "{}: {problem}; the whole report was printed on stdout instead: keep it, or make room \
                     and run the test again",
                    self.path.display()
                ));
            }
        }
        (fail == 0, is_written)
    }

    /// Appends to the file, through to the disk. After an error nothing more is written.
    fn write(&mut self, text: &str) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(text.as_bytes()).and_then(|()| file.flush()) {
            self.problem = Some(error);
            self.file = None;
            return;
        }
        // Pipes and special files can't be synchronized.
        let _ = file.sync_data();
    }
}

/// Returns the text of a check in the file.
fn text_of(check: &Check) -> String {
    let mut text = format!("{}\n", check.line());
    if !check.relies.is_empty() {
        text += &format!("         tbccl relies on: {}\n", check.relies);
    }
    for detail in &check.details {
        text += &format!("         | {detail}\n");
    }
    text
}
