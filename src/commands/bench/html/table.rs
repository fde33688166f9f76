//! The table of a section: every row, by size.

use super::{Tagged, number, traits};
use crate::commands::page::{Cell, Column, Table};

const COLUMNS: [(&str, bool); 15] = [
    ("bytes", true),
    ("median (us)", true),
    ("busbw (GB/s)", true),
    ("run", false),
    ("library", false),
    ("transport", false),
    ("algorithm", false),
    ("memory", false),
    ("min (us)", true),
    ("q1 (us)", true),
    ("q3 (us)", true),
    ("p99 (us)", true),
    ("stddev (us)", true),
    ("#wrong", true),
    ("settings", false),
];

/// Returns the table of all rows, by size.
pub(super) fn table(rows: &[&Tagged<'_>]) -> Table {
    let mut sorted: Vec<&&Tagged<'_>> = rows.iter().collect();
    sorted.sort_by_key(|tagged| (tagged.row.bytes, traits(tagged), tagged.row.algo.clone()));
    let optional = |value: Option<f64>| Cell::from(value.map_or_else(|| "-".to_owned(), number));
    let row = |tagged: &&Tagged<'_>| -> Vec<Cell> {
        let row = tagged.row;
        let or_dash = |text: &Option<String>| Cell::from(text.as_deref().unwrap_or("-"));
        let [_, _, _, memory, written, codec, calls] = traits(tagged);
        let average = row.average.clone().filter(|name| name != "max").unwrap_or_default();
        let settings = [written, codec, calls, average].into_iter().filter(|text| !text.is_empty());
        let wrong = row.wrong.map_or_else(|| "-".to_owned(), |wrong| wrong.to_string());
        vec![
            row.bytes.into(),
            optional(Some(row.us_median)),
            optional(row.busbw()),
            tagged.run.as_str().into(),
            row.peer.as_str().into(),
            or_dash(&row.transport),
            or_dash(&row.algo),
            if memory.is_empty() { "malloc'ed".into() } else { memory.into() },
            optional(row.us_min),
            optional(row.us_q1),
            optional(row.us_q3),
            optional(row.us_p99),
            optional(row.us_stddev),
            Cell { text: wrong, is_bad: row.wrong.is_some_and(|wrong| wrong > 0) },
            settings.collect::<Vec<_>>().join(", ").into(),
        ]
    };
    let columns = COLUMNS.map(|(name, is_number)| Column { name, is_number }).to_vec();
    Table { columns, rows: sorted.into_iter().map(row).collect() }.without_empty_columns()
}
