//! The result table, in the format of nccl-tests.

use super::{
    super::{job::Job, measured::Measured, operation::Form},
    Line, bandwidths, bytes, in_form,
};
use collectives::Codec;
use std::fmt::Write;
use tbccl::{Communicator, kernels};

/// Values that are the same on every line.
#[derive(Clone, Debug)]
pub(in super::super) struct Facts {
    pub(super) spelling: String,
    pub(super) ranks: u32,
    pub(super) transport: &'static str,
    host: String,
    registered: bool,
    /// Whether only the in-place form was requested.
    pub(super) in_place: bool,
    pub(super) busbw_factor: f64,
    /// Blocks of the larger of input and output.
    pub(super) blocks: u32,
    /// Half a round trip of 8 bytes between ranks 0 and 1, where they share memory.
    hop_us: Option<f64>,
    /// Message packing.
    pub(super) codec: Option<Codec>,
    /// Text of the root column.
    root: String,
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
            in_place: job.in_place,
            busbw_factor: operation.busbw_factor(job.ranks),
            blocks: operation.blocks(job.ranks),
            hop_us,
            codec: job.codec,
            root: match job.root {
                _ if !operation.has_root() => "-1".to_owned(),
                Some(root) => root.to_string(),
                None => "all".to_owned(),
            },
        }
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
    let mut text = format!(
        "# tbccl {version}: {spelling} on {ranks} ranks, transport {transport}, host {host}, kernels for \
        {isa}, {memory} memory{packed}\n"
    );
    if let Some(hop_us) = facts.hop_us {
        let _ = writeln!(text, "# 8 bytes take {hop_us:.2} us from rank 0 to rank 1");
    }
    let names = format!("{:>9} {:>7} {:>7} {:>7}", "time", "algbw", "busbw", "#wrong");
    let units = format!("{:>9} {:>7} {:>7}", "(us)", "(GB/s)", "(GB/s)");
    let _ = writeln!(text, "# {:>64}{:^33}  {:>22}", "", "out-of-place", "in-place");
    for [size, count, dtype, redop, root, cells] in
        [["size", "count", "type", "redop", "root", &names], ["(B)", "(elements)", "", "", "", &units]]
    {
        let head = format!("# {size:>12} {count:>13} {dtype:>10} {redop:>7} {root:>6}");
        let _ = writeln!(text, "{head}          {cells:<33}   {cells}");
    }
    text
}

impl Table {
    /// Returns a line of the table.
    pub(super) fn line(&mut self, facts: &Facts, line: &Line) -> String {
        for measured in &line.measured {
            self.busbw_sum += bandwidths(facts, bytes(facts, line), measured).1;
            self.measured += 1;
            self.wrong += measured.wrong;
            let most = self.packed.map_or(0.0, |(most, _)| most);
            self.packed = measured.error.map(|error| (error.max(most), measured.moved_bytes));
        }
        let redop = line.redop.map_or("none", |op| op.name());
        let mut text = format!(
            "  {:>12} {:>13} {:>10} {redop:>7} {:>6}          ",
            bytes(facts, line),
            line.count,
            line.dtype.long_name(),
            facts.root
        );
        text += &cell(facts, line, in_form(line, Form::OutOfPlace));
        text += "   ";
        text += &cell(facts, line, in_form(line, Form::InPlace));
        if line.measured.iter().any(|measured| measured.is_slow) {
            self.slow += 1;
            text += " *";
        }
        text.push('\n');
        text
    }

    /// Returns the lines below the table.
    pub(super) fn footer(&self) -> String {
        let Table { busbw_sum, measured, wrong, slow, packed } = self;
        let verdict = if *wrong == 0 { "OK" } else { "FAILED" };
        let mean = if *measured == 0 { 0.0 } else { busbw_sum / f64::from(*measured) };
        let mut text = format!(
            "# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {}\n",
            number(mean)
        );
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

/// Returns time, bandwidths and wrong elements of one form.
fn cell(facts: &Facts, line: &Line, measured: Option<&Measured>) -> String {
    let Some(measured) = measured else {
        return format!("{:>9} {:>7} {:>7} {:>7}", "N/A", "N/A", "N/A", "N/A");
    };
    let (algbw, busbw) = bandwidths(facts, bytes(facts, line), measured);
    format!(
        "{:>9} {:>7} {:>7} {:>7}",
        number(measured.times.median),
        number(algbw),
        number(busbw),
        measured.wrong
    )
}

/// Formats a number with as many decimals as are significant.
fn number(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
