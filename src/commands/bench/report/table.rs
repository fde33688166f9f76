//! The result table, in the format of nccl-tests.
//!
//! Each form of the operation has the same columns. By default they are nccl-tests'; with `--spread` they
//! show how times vary, and columns that are the same on every line are left out.

use super::{
    super::{
        job::{Columns, Job},
        measured::Measured,
        operation::Form,
        times::Average,
    },
    Line, bandwidths, bytes, in_form,
};
use collectives::Codec;
use std::fmt::Write;
use tbccl::{Communicator, Rank, kernels};

/// Values that are the same on every line.
#[derive(Clone, Debug)]
pub(in super::super) struct Facts {
    pub(super) spelling: String,
    pub(super) ranks: u32,
    pub(super) transport: &'static str,
    host: String,
    pub(super) registered: bool,
    /// Whether the input is stored to before each run.
    pub(super) written: bool,
    /// Whether only the in-place form was requested.
    pub(super) in_place: bool,
    pub(super) busbw_factor: f64,
    /// Blocks of the larger of input and output.
    pub(super) blocks: u32,
    /// Half a round trip of 8 bytes between ranks 0 and 1, where they share memory.
    hop_us: Option<f64>,
    /// Signalling rate of the slowest connection of rank 0, all cables together, in GB/s.
    pub(super) rate_gbs: Option<f64>,
    /// Message packing.
    pub(super) codec: Option<Codec>,
    pub(super) average: Average,
    /// Calls per group.
    pub(super) calls: u32,
    pub(super) columns: Columns,
    /// Whether results are checked.
    is_checked: bool,
    /// Text of the root column.
    root: String,
    left_out: Vec<String>,
}

impl Facts {
    pub(in super::super) fn new(comm: &Communicator, job: &Job, hop_us: Option<f64>) -> Facts {
        let operation = job.op.operation;
        Facts {
            spelling: job.op.spelling.clone(),
            ranks: job.ranks,
            transport: comm.transport(),
            host: comm.members().first().map(|m| m.host.clone()).unwrap_or_default(),
            registered: job.registered,
            written: job.written,
            in_place: job.in_place,
            busbw_factor: operation.busbw_factor(job.ranks),
            blocks: operation.blocks(job.ranks),
            hop_us,
            rate_gbs: rate_of_cables(comm),
            codec: job.codec,
            average: job.average,
            calls: job.calls,
            columns: job.columns,
            is_checked: job.checks > 0,
            root: match job.root {
                _ if !operation.has_root() => "-1".to_owned(),
                Some(root) => root.to_string(),
                None => "all".to_owned(),
            },
            left_out: job.left_out.clone(),
        }
    }
}

/// Returns the rate of the slowest connection between rank 0 and another rank, if all rates are known.
fn rate_of_cables(comm: &Communicator) -> Option<f64> {
    let connection = |peer: u32| {
        let rails = comm.rails(Rank(peer));
        let rates: Option<Vec<f64>> =
            rails.iter().filter(|rail| rail.is_up).map(|rail| rail.gigabits).collect();
        rates.filter(|rates| !rates.is_empty()).map(|rates| rates.iter().sum::<f64>() / 8.0)
    };
    let rates: Option<Vec<f64>> = (1..comm.size()).map(connection).collect();
    rates.and_then(|rates| rates.into_iter().reduce(f64::min))
}

/// A column of one form.
#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    unit: &'static str,
    width: usize,
    value: fn(&Cell<'_>) -> String,
}

/// The values of a form's columns.
struct Cell<'a> {
    measured: &'a Measured,
    algbw: f64,
    busbw: f64,
}

const TIME: Column =
    Column { name: "time", unit: "(us)", width: 9, value: |cell| number(cell.measured.times.median) };
const DEVIATION: Column =
    Column { name: "stddev", unit: "(us)", width: 7, value: |cell| number(cell.measured.times.deviation) };
const P99: Column =
    Column { name: "p99", unit: "(us)", width: 8, value: |cell| number(cell.measured.times.p99) };
const ALGBW: Column = Column { name: "algbw", unit: "(GB/s)", width: 7, value: |cell| number(cell.algbw) };
const BUSBW: Column = Column { name: "busbw", unit: "(GB/s)", width: 7, value: |cell| number(cell.busbw) };
const CPU: Column = Column {
    name: "cpu",
    unit: "(us)",
    width: 8,
    value: |cell| number(cell.measured.cpu_us.iter().copied().fold(0.0, f64::max)),
};
const WRONG: Column = Column {
    name: "#wrong",
    unit: "",
    width: 7,
    value: |cell| cell.measured.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string()),
};

/// Returns the columns of a form.
fn columns_of(facts: &Facts) -> Vec<Column> {
    let mut columns =
        if facts.columns.spread { vec![TIME, DEVIATION, P99, BUSBW] } else { vec![TIME, ALGBW, BUSBW] };
    columns.extend(facts.columns.cpu.then_some(CPU));
    columns.push(Column { width: if facts.columns.spread { 6 } else { WRONG.width }, ..WRONG });
    columns
}

/// Joins cells, each as wide as its column.
fn joined<'a>(columns: &[Column], text: impl Fn(&Column) -> String + 'a) -> String {
    let cells: Vec<String> =
        columns.iter().map(|column| format!("{:>width$}", text(column), width = column.width)).collect();
    cells.join(" ")
}

/// Returns the columns before those of the forms.
fn head(facts: &Facts, [size, count, dtype, redop, root]: [&str; 5]) -> String {
    match facts.columns.spread {
        true => format!("{size:>11} {dtype:>9} {redop:>5}"),
        false => format!("{size:>12} {count:>13} {dtype:>10} {redop:>7} {root:>6}         "),
    }
}

/// Sums for the footer.
#[derive(Debug, Default)]
pub(super) struct Table {
    busbw_sum: f64,
    measured: u32,
    wrong: u64,
    /// Lines measured while the cores were farther apart than before.
    slow: u32,
    /// Largest error, and bytes moved at the last size, if messages are packed.
    packed: Option<(f64, u64)>,
}

/// Returns the lines above the table.
pub(super) fn header(facts: &Facts) -> String {
    let Facts { spelling, ranks, transport, host, .. } = facts;
    let memory = if facts.registered { "registered" } else { "malloc'ed" };
    let version = env!("CARGO_PKG_VERSION");
    let isa = kernels::isa_name();
    let packed = facts.codec.map(|codec| format!(", messages packed as {codec}")).unwrap_or_default();
    let mut text: String = facts.left_out.iter().map(|line| format!("# {line}\n")).collect();
    let _ = writeln!(
        text,
        "# tbccl {version}: {spelling} on {ranks} ranks, transport {transport}, host {host}, kernels for \
        {isa}, {memory} memory{packed}"
    );
    if let Some(hop_us) = facts.hop_us {
        let _ = writeln!(text, "# 8 bytes take {hop_us:.2} us from rank 0 to rank 1");
    }
    if facts.written {
        let _ = writeln!(text, "# the input is stored to before each run, within the times");
    }
    if facts.average != Average::Max {
        let _ = writeln!(text, "# times are {}", facts.average);
    }
    if facts.calls > 1 {
        let _ = writeln!(text, "# calls are made in groups of {}; times are those of one call", facts.calls);
    }
    let columns = columns_of(facts);
    let names = joined(&columns, |column| column.name.to_owned());
    let units = joined(&columns, |column| column.unit.to_owned());
    let first = head(facts, ["size", "count", "type", "redop", "root"]);
    let second = head(facts, ["(B)", "(elements)", "", "", ""]);
    let (indent, width) = (first.chars().count(), names.chars().count());
    let _ = writeln!(text, "# {:indent$} {:^width$}   {:^width$}", "", "out-of-place", "in-place");
    let _ = writeln!(text, "# {first} {names}   {names}\n# {second} {units}   {units}");
    text
}

impl Table {
    /// Returns a line of the table.
    pub(super) fn line(&mut self, facts: &Facts, line: &Line) -> String {
        for measured in &line.measured {
            self.busbw_sum += bandwidths(facts, bytes(facts, line), measured).1;
            self.measured += 1;
            self.wrong += measured.wrong.unwrap_or(0);
            let most = self.packed.map_or(0.0, |(most, _)| most);
            self.packed = measured.error.map(|error| (error.max(most), measured.moved_bytes));
        }
        let redop = line.redop.map_or("none", |op| op.name());
        let (size, count) = (bytes(facts, line).to_string(), line.count.to_string());
        let mut text = String::from("  ");
        text += &head(facts, [&size, &count, line.dtype.long_name(), redop, &facts.root]);
        for (form, separator) in [(Form::OutOfPlace, " "), (Form::InPlace, "   ")] {
            text += separator;
            text += &cell(facts, line, in_form(line, form));
        }
        if line.measured.iter().any(|measured| measured.is_slow) {
            self.slow += 1;
            text += " *";
        }
        text.push('\n');
        text
    }

    /// Returns the lines below the table.
    pub(super) fn footer(&self, facts: &Facts) -> String {
        let Table { busbw_sum, measured, wrong, slow, packed } = self;
        let verdict = match (facts.is_checked, *wrong) {
            (false, _) => "not checked".to_owned(),
            (true, 0) => "0 OK".to_owned(),
            (true, wrong) => format!("{wrong} FAILED"),
        };
        let mean = if *measured == 0 { 0.0 } else { busbw_sum / f64::from(*measured) };
        let mut text =
            format!("# Out of bounds values : {verdict}\n# Avg bus bandwidth    : {}\n", number(mean));
        if let Some((error, moved)) = packed {
            let _ = writeln!(text, "# Largest error        : {error:.2e} of the largest result");
            let _ =
                writeln!(text, "# Bytes moved          : {moved} to all ranks together, at the last size");
        }
        if *slow > 0 {
            let _ = writeln!(
                text,
                "# * {slow} lines were measured while 8 bytes took much longer from rank 0 to rank 1 than at \
                other times;\n#   measure again before comparing them"
            );
        }
        text
    }
}

/// Returns the columns of one form.
fn cell(facts: &Facts, line: &Line, measured: Option<&Measured>) -> String {
    let columns = columns_of(facts);
    let Some(measured) = measured else { return joined(&columns, |_| "N/A".to_owned()) };
    let (algbw, busbw) = bandwidths(facts, bytes(facts, line), measured);
    let cell = Cell { measured, algbw, busbw };
    joined(&columns, |column| (column.value)(&cell))
}

/// Formats a number with as many decimals as are significant.
fn number(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
