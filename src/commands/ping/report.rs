//! Rank 0's report: each line as soon as it is measured, then remarks.

use super::{super::progress::Progress, row::Row};
use crate::commands::print;

/// Explanation of the mark `slow`.
const SLOW: &str = "slow: less than 60 % of the rate arrives. A cable or a port runs slower than its rate, \
                    or a machine is busy: compare with other rails and the other direction, and try another \
                    cable";

/// The report of a running measurement.
#[derive(Debug)]
pub(super) struct Report {
    transport: &'static str,
    bytes: u64,
    json: bool,
    /// Width of the rail column in characters.
    width: usize,
    progress: Progress,
    remarks: Vec<String>,
    any_slow: bool,
}

impl Report {
    /// Creates the report of the lines with these rail names, and prints the table's head.
    pub(super) fn new(
        transport: &'static str,
        ranks: u32,
        (bytes, json): (u64, bool),
        names: &[String],
    ) -> Report {
        let width = names.iter().map(String::len).chain(["rail".len()]).max().unwrap_or_default();
        let progress = Progress::new(names.len(), "lines");
        let report = Report { transport, bytes, json, width, progress, remarks: Vec::new(), any_slow: false };
        if !json {
            report.say(&format!(
                "# ping between {ranks} ranks over {transport}: half round trips of 8 B, messages of {bytes} \
                 B as they arrive\n# {:>4} {:>4}  {:<width$} {:>9} {:>9} {:>9} {:>8} {:>9} {:>7} {:>5}\n\
                 # {:>4} {:>4}  {:<width$} {:>9} {:>9} {:>9} {:>8} {:>9} {:>7} {:>5}\n",
                "from",
                "to",
                "rail",
                "min",
                "median",
                "p99",
                "expected",
                "arrives",
                "rate",
                "",
                "",
                "",
                "",
                "(us)",
                "(us)",
                "(us)",
                "(us)",
                "(Gb/s)",
                "(Gb/s)",
                "(%)",
            ));
        }
        report
    }

    /// Prints one measured line.
    pub(super) fn line(&mut self, row: &Row) {
        self.progress.advance();
        let text = if self.json { row.json(self.transport, self.bytes) } else { self.text(row) };
        self.say(&text);
        self.remarks.extend(row.remark());
        self.any_slow |= row.is_slow();
    }

    fn text(&self, row: &Row) -> String {
        let width = self.width;
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        let figure = |value: f64, digits: usize| or_dash(row.rail.up.then(|| format!("{value:.digits$}")));
        let mark = match (row.rail.up, row.is_slow()) {
            (false, _) => "  down",
            (true, true) => "  slow",
            (true, false) => "",
        };
        format!(
            "  {:>4} {:>4}  {:<width$} {:>9} {:>9} {:>9} {:>8} {:>9} {:>7} {:>5}{mark}\n",
            row.from,
            row.to,
            row.name(),
            figure(row.latency.us_min, 2),
            figure(row.latency.us_median, 2),
            figure(row.latency.us_p99, 2),
            or_dash(row.expected().map(|us| format!("{}-{}", us.start(), us.end()))),
            figure(row.gigabits, 2),
            or_dash(row.rail.rate.map(|rate| rate.to_string())),
            or_dash(row.share().filter(|_| row.rail.up).map(|share| format!("{:.0}", share * 100.0))),
        )
    }

    /// Prints the remarks after the last line.
    pub(super) fn end(self) {
        self.progress.finish();
        if self.json {
            return;
        }
        let slow = self.any_slow.then(|| SLOW.to_owned());
        slow.iter().chain(&self.remarks).for_each(|remark| print(&format!("# {remark}\n")));
    }

    fn say(&self, text: &str) {
        self.progress.suspended(|| print(text));
    }
}
