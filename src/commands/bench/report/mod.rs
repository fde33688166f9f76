//! Rank 0's report: a table, JSON lines, and a progress bar.

mod json;
mod table;

use super::{
    super::{CommandError, progress::Progress},
    job::{Job, Output},
    measured::Measured,
    operation::Form,
    stats::{self, RankStats},
};
use collectives::{DType, ReduceOp};
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};
use table::Table;
use tbccl::Communicator;

pub(super) use table::Facts;

/// The results at one size.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) dtype: DType,
    pub(super) redop: Option<ReduceOp>,
    /// Elements per block.
    pub(super) count: u64,
    /// The measured forms; JSON reports the first one.
    pub(super) measured: Vec<Measured>,
}

/// Reason why a report ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The reader of stdout has closed it.
    OutputClosed,
    /// The output cannot be written.
    Failed(CommandError),
}

/// The report of a job.
#[derive(Debug)]
pub(super) struct Reporter {
    facts: Facts,
    table: Option<Table>,
    json: Option<Sink>,
    /// Rows of an HTML page, with a line for each form.
    rows: Option<Sink>,
    progress: Progress,
}

impl Reporter {
    pub(super) fn new(comm: &Communicator, job: &Job, hop_us: Option<f64>) -> Reporter {
        let lines = job.types.iter().map(|e| job.counts(e.dtype).len() * e.redops.len()).sum();
        let json = match &job.output {
            Output::Table => None,
            Output::Json => Some(Sink::Stdout),
            Output::TableAndJson(path) => Some(Sink::file("--json", path.clone())),
        };
        Reporter {
            facts: Facts::new(comm, job, hop_us),
            table: (job.output != Output::Json).then(Table::default),
            json,
            rows: job.report_rows.clone().map(|path| Sink::file("--report", path)),
            progress: Progress::new(lines, "sizes"),
        }
    }

    /// Writes the lines above the table, which `follows` another one.
    pub(super) fn begin(&mut self, follows: bool) -> Result<(), Stop> {
        if self.table.is_none() {
            return Ok(());
        }
        let separator = if follows { "#\n" } else { "" };
        let text = format!("{separator}{}", table::header(&self.facts));
        self.progress.suspended(|| Sink::Stdout.write(&text))
    }

    /// Writes the results of one size.
    pub(super) fn line(&mut self, line: &Line) -> Result<(), Stop> {
        let Reporter { facts, table, json, rows, progress } = self;
        progress.advance();
        progress.suspended(|| {
            if let Some(table) = table {
                Sink::Stdout.write(&table.line(facts, line))?;
            }
            if let Some(sink) = rows {
                sink.write(&json::lines_of_forms(facts, line))?;
            }
            match json {
                Some(sink) => sink.write(&json::line(facts, line)),
                None => Ok(()),
            }
        })
    }

    /// Writes the lines below the table.
    pub(super) fn end(&mut self) -> Result<(), Stop> {
        self.progress.finish();
        match &self.table {
            Some(table) => Sink::Stdout.write(&table.footer(&self.facts)),
            None => Ok(()),
        }
    }

    /// Writes the totals of all ranks: below the table, and as JSON lines if results are JSON.
    pub(super) fn stats(&mut self, rows: &[RankStats]) -> Result<(), Stop> {
        if self.table.is_some() {
            Sink::Stdout.write(&stats::table(rows))?;
        }
        match &mut self.json {
            Some(sink) => sink.write(&stats::json(rows)),
            None => Ok(()),
        }
    }
}

/// Destination of text.
#[derive(Debug)]
enum Sink {
    Stdout,
    /// The launcher creates the file empty; it is opened for the first line.
    File {
        /// The option that names it.
        option: &'static str,
        path: PathBuf,
        file: Option<File>,
    },
}

impl Sink {
    fn file(option: &'static str, path: PathBuf) -> Sink {
        Sink::File { option, path, file: None }
    }

    fn write(&mut self, text: &str) -> Result<(), Stop> {
        match self {
            Sink::Stdout => {
                let mut stdout = io::stdout().lock();
                let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
                written.map_err(|why| match why.kind() {
                    io::ErrorKind::BrokenPipe => Stop::OutputClosed,
                    _ => Stop::Failed(CommandError::new(format_args!("stdout can't be written to: {why}"))),
                })
            }
            Sink::File { option, path, file } => {
                let open = || OpenOptions::new().append(true).open(&*path);
                let written = match file {
                    Some(file) => file.write_all(text.as_bytes()),
                    None => open().and_then(|opened| file.insert(opened).write_all(text.as_bytes())),
                };
                written.map_err(|why| Stop::Failed(unwritable(option, path, &why)))
            }
        }
    }
}

/// Creates an empty file for results.
pub(super) fn create(path: &Path) -> Result<(), CommandError> {
    File::create(path).map(drop).map_err(|why| unwritable("--json", path, &why))
}

fn unwritable(option: &str, path: &Path, why: &io::Error) -> CommandError {
    CommandError::new(format_args!(
        "{option} {}: can't be written: {why}; name a file in a folder that can, or - for stdout",
        path.display()
    ))
}

/// Returns the algorithm and bus bandwidth of a measured size, in GB/s.
fn bandwidths(facts: &Facts, bytes: u64, measured: &Measured) -> (f64, f64) {
    let algorithm = bytes as f64 / measured.times.median * 1e-3;
    (algorithm, algorithm * facts.busbw_factor)
}

/// Returns the bytes of the larger side, which a line reports.
fn bytes(facts: &Facts, line: &Line) -> u64 {
    line.count * line.dtype.size() as u64 * u64::from(facts.blocks)
}

/// Returns the measurement of a form.
fn in_form(line: &Line, form: Form) -> Option<&Measured> {
    line.measured.iter().find(|m| m.form == form)
}
