//! Limits of the machine as lines of the charts.

use super::{super::rows::Limit, Tagged};
use crate::commands::page::{Point, Series};
use std::collections::{BTreeMap, BTreeSet};

/// A limit as a line of each chart.
pub(super) struct LimitLines {
    pub(super) latency: Series,
    pub(super) bandwidth: Series,
}

/// Returns the limits that are known of these rows: the time of 8 bytes between two ranks, the rate of their
/// cables, and the time that two cores take to copy the bytes.
pub(super) fn limits_of(rows: &[&Tagged<'_>], limits: &[&Limit]) -> Vec<LimitLines> {
    let sizes: BTreeSet<u64> = rows.iter().map(|row| row.row.bytes).filter(|bytes| *bytes > 0).collect();
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return Vec::new() };
    let level = |y: Option<f64>| {
        let point = |x: u64, y| Point { x: x as f64, y, text: String::new() };
        y.map_or_else(Vec::new, |y| vec![point(*first, y), point(*last, y)])
    };
    let line = |name: &str, latency, bandwidth| {
        let series = |points| Series { name: name.to_owned(), is_limit: true, points };
        LimitLines { latency: series(latency), bandwidth: series(bandwidth) }
    };
    let mut lines = Vec::new();
    let hop = rows.iter().filter_map(|row| row.row.hop_us).reduce(f64::min).filter(|us| *us > 0.0);
    if hop.is_some() {
        lines.push(line("8 bytes from rank to rank", level(hop), Vec::new()));
    }
    let rate = rows.iter().filter_map(|row| row.row.rate_gbs).reduce(f64::max);
    if rate.is_some() {
        lines.push(line("rate of the cables", Vec::new(), level(rate)));
    }
    let in_memory =
        |row: &&&Tagged<'_>| row.row.transport.as_deref().is_some_and(|name| name.starts_with("shm"));
    let copies = limits.iter().filter(|limit| limit.limit == "copy" && limit.cores == 2 && limit.us > 0.0);
    let copies: BTreeMap<u64, f64> = copies
        .filter(|limit| (*first..=*last).contains(&limit.bytes))
        .map(|limit| (limit.bytes, limit.us))
        .collect();
    if rows.iter().any(|row| in_memory(&row)) && !copies.is_empty() {
        let points = |y: fn(u64, f64) -> f64| {
            let point = |(bytes, us): (&u64, &f64)| Point {
                x: *bytes as f64,
                y: y(*bytes, *us),
                text: String::new(),
            };
            copies.iter().map(point).collect::<Vec<_>>()
        };
        lines.push(line(
            "copy by two cores",
            points(|_, us| us),
            points(|bytes, us| bytes as f64 / us * 1e-3),
        ));
    }
    lines
}
