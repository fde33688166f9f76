//! Rates as rows of cells, and as text.

use super::rates::{RailRates, RankRates, Rates};
use std::fmt::Write;

/// Columns of ranks and of rails, and whether each is aligned to the right.
pub(super) const RANK_HEAD: [(&str, bool); 10] = [
    ("rank", false),
    ("host", false),
    ("process", false),
    ("ops/s", true),
    ("received", true),
    ("in calls", true),
    ("waiting", true),
    ("resent", true),
    ("errors", true),
    ("now", false),
];
pub(super) const RAIL_HEAD: [(&str, bool); 7] = [
    ("rank", false),
    ("rail", false),
    ("to", false),
    ("state", false),
    ("sent", true),
    ("received", true),
    ("signaling", true),
];

/// Returns the cells of a rank.
pub(super) fn rank_row(rank: &RankRates) -> [String; 10] {
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    let share = |share: Option<f64>| or_dash(share.map(|share| format!("{:.0} %", 100.0 * share)));
    [
        rank.rank.to_string(),
        rank.host.clone(),
        rank.pid.to_string(),
        or_dash(rank.operations_per_second.map(number)),
        or_dash(rank.received_bytes_per_second.map(byte_rate)),
        share(rank.call_share),
        share(rank.waiting_share),
        or_dash(rank.resent.map(|count| count.to_string())),
        or_dash(rank.errors.map(|count| count.to_string())),
        rank.now.clone(),
    ]
}

/// Returns the cells of a rail.
pub(super) fn rail_row(rail: &RailRates) -> [String; 7] {
    let or_dash = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), byte_rate);
    [
        rail.rank.to_string(),
        rail.device.clone(),
        format!("{} of rank {}", rail.peer_device, rail.peer),
        if rail.is_up { "up" } else { "down" }.to_owned(),
        or_dash(rail.sent_bytes_per_second),
        or_dash(rail.received_bytes_per_second),
        or_dash(rail.signaling_bytes_per_second),
    ]
}

/// Returns a number with about three digits.
fn number(number: f64) -> String {
    if number < 10.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

/// Returns bytes per second with a prefix.
pub(super) fn byte_rate(rate: f64) -> String {
    let (mut rate, mut prefix) = (rate, "");
    for larger in ["k", "M", "G", "T"] {
        if rate < 999.5 {
            break;
        }
        (rate, prefix) = (rate / 1000.0, larger);
    }
    if rate < 10.0 && !prefix.is_empty() {
        format!("{rate:.1} {prefix}B/s")
    } else {
        format!("{rate:.0} {prefix}B/s")
    }
}

/// Returns all rates as text: for each job a table of ranks, and one of rails where it has any.
pub(super) fn text(rates: &Rates) -> String {
    let mut jobs: Vec<&str> = rates.ranks.iter().map(|rank| rank.job_id.as_str()).collect();
    jobs.dedup();
    let mut parts = Vec::new();
    for job in jobs {
        let ranks: Vec<_> =
            rates.ranks.iter().filter(|rank| rank.job_id == job).map(rank_row).map(Vec::from).collect();
        let rails: Vec<_> =
            rates.rails.iter().filter(|rail| rail.job_id == job).map(rail_row).map(Vec::from).collect();
        let mut part = format!("job {job}, {} ranks, over {:.1} s\n", ranks.len(), rates.seconds);
        part.push_str(&aligned(&RANK_HEAD, &ranks));
        if !rails.is_empty() {
            part.push('\n');
            part.push_str(&aligned(&RAIL_HEAD, &rails));
        }
        parts.push(part);
    }
    parts.join("\n")
}

/// Returns the widths of columns, in characters.
fn widths(head: &[(&str, bool)], rows: &[Vec<String>]) -> Vec<usize> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].0.len()]).max().unwrap_or_default()
    };
    (0..head.len()).map(width).collect()
}

/// Returns a table as text: the head and a line for each row.
pub(super) fn aligned(head: &[(&str, bool)], rows: &[Vec<String>]) -> String {
    let widths = widths(head, rows);
    let names = head.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut text = String::new();
    for row in [&names].into_iter().chain(rows) {
        for ((cell, width), (_, is_right)) in row.iter().zip(&widths).zip(head) {
            // Writing to a string does not fail.
            let _ = match is_right {
                true => write!(text, "{cell:>width$}  "),
                false => write!(text, "{cell:<width$}  "),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_two_or_three_digits() {
        for (rate, text) in [
            (0.0, "0 B/s"),
            (9.4, "9 B/s"),
            (999.4, "999 B/s"),
            (999.6, "1.0 kB/s"),
            (12_345.0, "12 kB/s"),
            (4.12e9, "4.1 GB/s"),
            (9e15, "9000 TB/s"),
        ] {
            assert_eq!(byte_rate(rate), text);
        }
        assert_eq!([number(0.0), number(9.94), number(1234.4)], ["0.0", "9.9", "1234"]);
    }

    #[test]
    fn each_job_has_a_table_and_unknown_values_are_dashes() {
        let rank = |job: &str, rank| RankRates {
            job_id: job.into(),
            rank,
            host: "mac0".into(),
            pid: 71,
            operations_per_second: None,
            received_bytes_per_second: Some(2e9),
            call_share: None,
            waiting_share: Some(0.125),
            resent: Some(0),
            errors: Some(1),
            now: "outside tbccl".into(),
        };
        let rates = Rates { seconds: 1.0, ranks: vec![rank("a", 0), rank("b", 10)], rails: Vec::new() };
        let expected = "\
job a, 1 ranks, over 1.0 s
rank  host  process  ops/s  received  in calls  waiting  resent  errors  now
0     mac0  71           -  2.0 GB/s         -     12 %       0       1  outside tbccl

job b, 1 ranks, over 1.0 s
rank  host  process  ops/s  received  in calls  waiting  resent  errors  now
10    mac0  71           -  2.0 GB/s         -     12 %       0       1  outside tbccl
";
        assert_eq!(text(&rates), expected);
    }
}
