//! The report as JSON, one line per size.

use super::{
    super::{measured::Measured, operation::Form},
    Facts, Line, bandwidths, bytes,
};
use collectives::Codec;
use serde::Serialize;

/// The fields of a line. The names are those of other libraries' benchmarks.
#[derive(Serialize)]
struct Row<'a> {
    peer: &'static str,
    op: &'a str,
    ranks: u32,
    bytes: u64,
    us_median: f64,
    us_min: f64,
    us_p99: f64,
    /// First and third quartile, and the standard deviation.
    us_q1: f64,
    us_q3: f64,
    us_stddev: f64,
    /// Ranks whose times count: `rank0`, `avg`, `min` or `max`.
    average: &'static str,
    algbw_gbs: f64,
    busbw_gbs: f64,
    /// Wrong elements over all ranks, if results were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong: Option<u64>,
    /// Whether the in-place form was requested. MPI's form of a broadcast counts as the usual form, though it
    /// is in place.
    inplace: u8,
    samples: u64,
    batch: u64,
    /// Calls per group, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u32>,
    /// Processor time of each rank per call, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_us: Option<Vec<f64>>,
    registered: u8,
    /// 1 if the input is stored to before each run.
    written: u8,
    algo: &'static str,
    segments: u32,
    transport: &'static str,
    copied_bytes: u64,
    moved_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<&'static str>,
    /// Largest error, relative to the largest magnitude of the exact result.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<f64>,
    /// Half a round trip of 8 bytes between ranks 0 and 1, before or after the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    hop_us: Option<f64>,
    /// Signalling rate of the slowest connection of rank 0, all cables together, in GB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_gbs: Option<f64>,
    dtype: &'static str,
    redop: &'static str,
    count: u64,
}

/// Returns the line, with a newline, of the form that was measured first.
pub(super) fn line(facts: &Facts, line: &Line) -> String {
    line.measured.first().map_or_else(String::new, |measured| row(facts, line, measured, facts.in_place))
}

/// Returns the lines of all forms that differ in `inplace`.
pub(super) fn lines_of_forms(facts: &Facts, line: &Line) -> String {
    let others = line.measured.iter().skip(1).filter(|measured| measured.form == Form::InPlace);
    let others: String = others.map(|measured| row(facts, line, measured, true)).collect();
    self::line(facts, line) + &others
}

fn row(facts: &Facts, line: &Line, measured: &Measured, in_place: bool) -> String {
    let bytes = bytes(facts, line);
    let (algbw, busbw) = bandwidths(facts, bytes, measured);
    let row = Row {
        peer: "tbccl",
        op: &facts.spelling,
        ranks: facts.ranks,
        bytes,
        us_median: rounded(measured.times.median),
        us_min: rounded(measured.times.min),
        us_p99: rounded(measured.times.p99),
        us_q1: rounded(measured.times.quartiles[0]),
        us_q3: rounded(measured.times.quartiles[1]),
        us_stddev: rounded(measured.times.deviation),
        average: facts.average.name(),
        algbw_gbs: rounded(algbw),
        busbw_gbs: rounded(busbw),
        wrong: measured.wrong,
        inplace: u8::from(in_place),
        samples: measured.times.samples,
        batch: measured.times.batch,
        calls: (facts.calls > 1).then_some(facts.calls),
        cpu_us: facts.columns.cpu.then(|| measured.cpu_us.iter().copied().map(rounded).collect()),
        registered: u8::from(facts.registered),
        written: u8::from(facts.written),
        algo: measured.algorithm,
        segments: measured.segments,
        transport: facts.transport,
        copied_bytes: measured.copied_bytes,
        moved_bytes: measured.moved_bytes,
        codec: facts.codec.map(Codec::name),
        error: measured.error.map(rounded),
        hop_us: measured.hop_us.map(rounded),
        rate_gbs: facts.rate_gbs.map(rounded),
        dtype: line.dtype.name(),
        redop: line.redop.map_or("none", |op| op.name()),
        count: line.count,
    };
    serde_json::to_string(&row).map(|text| text + "\n").unwrap_or_default()
}

/// Rounds to five significant digits, more than are reproducible.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(4 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_digits_are_kept() {
        assert_eq!(rounded(123_456.7), 123_460.0);
        assert_eq!(rounded(0.001_234_567), 0.001_234_6);
        assert_eq!(rounded(f64::INFINITY), 0.0);
    }
}
