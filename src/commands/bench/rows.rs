//! Rows of earlier measurements: lines of JSON of `tbccl bench --json`, and of benchmarks of other libraries.
//!
//! A line is a result (it has `op`), a limit of the machine (`limit`), a machine (`machine`), or totals of a
//! rank (`stats`), which are ignored. Blank lines are skipped; any other line is an error that names the file
//! and the line. Unknown fields are ignored, so that rows of other versions can be read.

use super::{super::CommandError, operation::Operation};
use crate::commands::page::Machine;
use collectives::DType;
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A result at one size.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Row {
    /// The library.
    #[serde(default = "tbccl")]
    pub(super) peer: String,
    pub(super) op: String,
    pub(super) ranks: u32,
    pub(super) bytes: u64,
    pub(super) us_median: f64,
    pub(super) us_min: Option<f64>,
    pub(super) us_q1: Option<f64>,
    pub(super) us_q3: Option<f64>,
    pub(super) us_p99: Option<f64>,
    pub(super) us_stddev: Option<f64>,
    pub(super) busbw_gbs: Option<f64>,
    /// Wrong elements; `None` if nothing was checked.
    pub(super) wrong: Option<u64>,
    #[serde(default)]
    pub(super) inplace: u8,
    #[serde(default)]
    pub(super) registered: u8,
    #[serde(default)]
    pub(super) written: u8,
    pub(super) transport: Option<String>,
    pub(super) dtype: Option<String>,
    pub(super) redop: Option<String>,
    pub(super) algo: Option<String>,
    pub(super) codec: Option<String>,
    /// Calls per group.
    pub(super) calls: Option<u32>,
    /// Ranks whose times count.
    pub(super) average: Option<String>,
    /// Half a round trip of 8 bytes between ranks 0 and 1.
    pub(super) hop_us: Option<f64>,
    /// Signalling rate of the cables between two ranks, in GB/s.
    pub(super) rate_gbs: Option<f64>,
    /// The run that the row is of.
    pub(super) source: Option<String>,
}

fn tbccl() -> String {
    "tbccl".to_owned()
}

/// A time that the machine needs at least, measured without a library.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Limit {
    pub(super) limit: String,
    pub(super) cores: u32,
    pub(super) bytes: u64,
    pub(super) us: f64,
}

/// A file of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct RowFile {
    pub(super) path: PathBuf,
    pub(super) rows: Vec<Row>,
    /// The lines of the rows, each without its newline.
    pub(super) lines: Vec<String>,
    pub(super) limits: Vec<Limit>,
    pub(super) machines: Vec<Machine>,
}

impl Row {
    /// Returns the operation's name, whatever its spelling is.
    pub(super) fn operation(&self) -> &str {
        self.op.parse().map_or(self.op.as_str(), |operation: Operation| operation.name())
    }

    /// Returns the element type; benchmarks of other libraries have this one only.
    pub(super) fn dtype(&self) -> &str {
        let name = self.dtype.as_deref().unwrap_or(DType::F32.name());
        name.parse().map_or(name, |dtype: DType| dtype.name())
    }

    /// Returns the reduction; benchmarks of other libraries have this one only.
    pub(super) fn redop(&self) -> &str {
        let reduces = self.op.parse::<Operation>().is_ok_and(Operation::reduces);
        self.redop.as_deref().unwrap_or(if reduces { "sum" } else { "none" })
    }

    /// Returns the bus bandwidth in GB/s, where the operation has one.
    pub(super) fn busbw(&self) -> Option<f64> {
        self.busbw_gbs.filter(|busbw| *busbw > 0.0 && self.bytes > 0)
    }

    /// Checks the values that everything else relies on.
    fn check(self) -> Result<Row, String> {
        let us = self.us_median;
        if us.is_finite() && us > 0.0 {
            Ok(self)
        } else {
            Err(format!("`us_median` is {us}, and a time is more than 0"))
        }
    }
}

impl RowFile {
    /// Reads a file, of which at least one line must be a result.
    pub(super) fn read(path: &Path) -> Result<RowFile, CommandError> {
        let text = fs::read_to_string(path).map_err(|why| {
            CommandError::new(format_args!(
                "{}: {why}; name a file that `tbccl bench --json FILE` has written",
                path.display()
            ))
        })?;
        let file = RowFile::parse(path, &text)?;
        if file.rows.is_empty() {
            return Err(CommandError::new(format_args!(
                "{}: has no results; name a file that `tbccl bench --json FILE` has written",
                path.display()
            )));
        }
        Ok(file)
    }

    /// Parses the text of a file.
    pub(super) fn parse(path: &Path, text: &str) -> Result<RowFile, CommandError> {
        let mut file = RowFile { path: path.to_owned(), ..RowFile::default() };
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            file.add(line.trim()).map_err(|why| {
                CommandError::new(format_args!(
                    "{}:{}: {why}; lines of `tbccl bench --json` are expected",
                    path.display(),
                    number + 1
                ))
            })?;
        }
        Ok(file)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(line).map_err(|why| format!("no line of JSON: {why}"))?;
        let text = |error: serde_json::Error| error.to_string();
        if value.get("op").is_some() {
            let row: Row = serde_json::from_value(value).map_err(text)?;
            self.rows.push(row.check()?);
            self.lines.push(line.to_owned());
        } else if value.get("limit").is_some() {
            self.limits.push(serde_json::from_value(value).map_err(text)?);
        } else if let Some(machine) = value.get("machine") {
            self.machines.push(serde_json::from_value(machine.clone()).map_err(text)?);
        } else if value.get("stats").is_none() {
            return Err("no result, as it has no `op`".to_owned());
        }
        Ok(())
    }

    /// Returns the libraries that have rows, in the order of their names.
    pub(super) fn peers(&self) -> BTreeSet<&str> {
        self.rows.iter().map(|row| row.peer.as_str()).collect()
    }

    /// Returns the file's name without its extension.
    pub(super) fn name(&self) -> String {
        self.path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a row of an `all_reduce` of two ranks.
    pub(in super::super) fn row(bytes: u64, us_median: f64) -> Row {
        let line = serde_json::json!({"op": "allreduce", "ranks": 2, "bytes": bytes, "us_median": us_median});
        serde_json::from_value(line).expect("a row")
    }

    fn parse(text: &str) -> Result<RowFile, String> {
        RowFile::parse(Path::new("rows.jsonl"), text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn rows_of_other_benchmarks_are_read_with_limits_and_totals() {
        let peer = r#"{"peer":"gloo","op":"reduce_scatter_block","ranks":4,"bytes":64,"us_median":10.23,
            "us_min":9.8,"us_p99":30,"algbw_gbs":0.1,"busbw_gbs":0.15,"wrong":0,"inplace":0,"samples":8,
            "batch":10,"foreign":0.012,"line_us":0.07,"round":1,"transport":"tcp","tcp_cc":"bbr"}"#;
        let text = format!(
            "{}\n\n{}\n{{\"stats\":{{}}}}\n",
            peer.replace('\n', ""),
            r#"{"limit":"copy","cores":2,"bytes":64,"us":0.1,"gbs":1}"#
        );
        let file = parse(&text).expect("rows");
        assert_eq!((file.rows.len(), file.limits.len(), file.lines.len()), (1, 1, 1));
        let row = &file.rows[0];
        assert_eq!((row.operation(), row.dtype(), row.redop()), ("reduce_scatter", "f32", "sum"));
        assert_eq!(file.peers().into_iter().collect::<Vec<_>>(), ["gloo"]);
    }

    #[test]
    fn a_broken_line_is_named() {
        let good = r#"{"op":"barrier","ranks":2,"bytes":0,"us_median":1.5}"#;
        for (bad, why) in [
            ("{\"op\":", "no line of JSON"),
            ("[1]", "no `op`"),
            (r#"{"op":"barrier","ranks":2,"bytes":0}"#, "us_median"),
            (r#"{"op":"barrier","ranks":-2,"bytes":0,"us_median":1}"#, "invalid value"),
            (r#"{"op":"barrier","ranks":2,"bytes":0,"us_median":0}"#, "more than 0"),
        ] {
            let message = parse(&format!("{good}\n{bad}\n")).expect_err("a broken line");
            assert!(message.starts_with("rows.jsonl:2: ") && message.contains(why), "{message}");
        }
    }
}
