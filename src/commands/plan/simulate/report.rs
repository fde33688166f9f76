//! `tbccl plan simulate --report DIR`: the simulated times of algorithms over sizes, with the lower bound.

use super::case::{Case, Implementation, Run};
use crate::commands::page::{Axis, Chart, Column, Machine, Page, Point, Section, Series, Table};

/// Sizes, each a fourth of the next; the largest is that of the call.
const SIZES: u32 = 8;

/// A simulated call.
struct Result {
    name: &'static str,
    bytes: u64,
    run: Run,
    bus_bandwidth: f64,
    /// Lower bound of the time of any plan, in seconds.
    bound: f64,
}

/// Returns the page of these algorithms, and its rows as lines of JSON. Sizes that an algorithm can't do are
/// left out.
pub(super) fn report(case: &Case, implementations: &[Implementation]) -> (Page, String) {
    let largest = case.bytes;
    let sizes: Vec<u64> =
        (0..SIZES).rev().map(|power| largest >> (2 * power)).filter(|size| *size > 0).collect();
    let cases: Vec<Case> = sizes.into_iter().map(|bytes| Case { bytes, ..case.clone() }).collect();
    let mut results = Vec::new();
    for implementation in implementations {
        results.extend(cases.iter().filter_map(|case| {
            let run = case.run(*implementation).ok()?;
            let (bus_bandwidth, bound) = (case.bus_bandwidth(&run), case.bounds().seconds());
            Some(Result { name: implementation.name(), bytes: case.bytes, run, bus_bandwidth, bound })
        }));
    }
    let mut settings = Machine::of_this_process().settings();
    settings.push(("cluster".to_owned(), case.cluster.name().to_owned()));
    let title = format!("{} on {} ranks, simulated", case.collective, case.ranks);
    let section = Section {
        title: title.clone(),
        charts: charts(&results),
        table: table(&results),
        ..Section::default()
    };
    let rows = results.iter().map(|result| row(case, result)).collect();
    (Page { title: format!("tbccl plan simulate: {title}"), settings, sections: vec![section] }, rows)
}

fn microseconds(result: &Result) -> f64 {
    result.run.outcome.makespan * 1e6
}

fn charts(results: &[Result]) -> Vec<Chart> {
    let lines = |value: fn(&Result) -> f64, unit: &str, bound: fn(&Result) -> Option<f64>| {
        let mut series: Vec<Series> = Vec::new();
        for result in results {
            let (x, y) = (result.bytes as f64, value(result));
            let text = format!("{}: {} B, {y:.3} {unit}", result.name, result.bytes);
            if series.last().is_none_or(|line| line.name != result.name) {
                let (name, points) = (result.name.to_owned(), Vec::new());
                series.push(Series { name, is_limit: false, points });
            }
            series
                .last_mut()
                .into_iter()
                .for_each(|line| line.points.push(Point { x, y, text: text.clone() }));
        }
        let point =
            |result: &Result| Some(Point { x: result.bytes as f64, y: bound(result)?, text: String::new() });
        let mut points: Vec<Point> = results.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points.dedup_by_key(|point| point.x);
        series.push(Series { name: "bound of any plan".to_owned(), is_limit: true, points });
        series
    };
    let chart =
        |title: &str, y, series| Chart { title: title.to_owned(), x: Axis::sizes("bytes"), y, series };
    vec![
        chart(
            "Time",
            Axis::logarithmic("us"),
            lines(microseconds, "us", |result| Some(result.bound * 1e6).filter(|us| *us > 0.0)),
        ),
        chart(
            "Bus bandwidth",
            Axis::linear("GB/s"),
            lines(
                |result| result.bus_bandwidth * 1e-9,
                "GB/s",
                |result| {
                    let seconds = Some(result.bound).filter(|seconds| *seconds > 0.0)?;
                    Some(result.bus_bandwidth * 1e-9 * result.run.outcome.makespan / seconds)
                },
            ),
        ),
    ]
}

fn table(results: &[Result]) -> Table {
    let names = [
        ("algorithm", false),
        ("bytes", true),
        ("segments", true),
        ("time (us)", true),
        ("busbw (GB/s)", true),
        ("of bound (%)", true),
    ];
    let row = |result: &Result| {
        vec![
            result.name.into(),
            result.bytes.into(),
            result.run.segments.into(),
            format!("{:.2}", microseconds(result)).into(),
            format!("{:.3}", result.bus_bandwidth * 1e-9).into(),
            format!("{:.1}", 100.0 * result.bound / result.run.outcome.makespan).into(),
        ]
    };
    Table {
        columns: names.map(|(name, is_number)| Column { name, is_number }).to_vec(),
        rows: results.iter().map(row).collect(),
    }
}

/// Returns a line as `tbccl bench --json` writes it, so that both can be shown in one report.
fn row(case: &Case, result: &Result) -> String {
    let line = serde_json::json!({
        "peer": "tbccl",
        "op": case.collective.name(),
        "ranks": case.ranks,
        "bytes": result.bytes,
        "us_median": microseconds(result),
        "busbw_gbs": result.bus_bandwidth * 1e-9,
        "transport": "simulated",
        "algo": result.name,
        "segments": result.run.segments,
    });
    format!("{line}\n")
}
