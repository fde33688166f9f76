//! `tbccl ping --report DIR`: the cables as a picture, with latency and rate, and the table of all lines.

use super::row::Row;
use crate::commands::page::{Cable, Cabling, Cell, Column, Machine, Page, Section, Table};

/// Returns the page of these lines. `hosts` are those of the ranks.
pub(super) fn page(transport: &str, bytes: u64, hosts: &[String], rows: &[Row]) -> Page {
    let mut settings = Machine::of_this_process().settings();
    settings.push(("transport".to_owned(), transport.to_owned()));
    settings.push(("messages".to_owned(), format!("8 B for latency, {bytes} B for the rate")));
    let name = |(rank, host): (usize, &String)| format!("{rank}: {host}");
    settings.push(("ranks".to_owned(), hosts.iter().enumerate().map(name).collect::<Vec<_>>().join(", ")));
    let section = Section {
        title: "Cables".to_owned(),
        cabling: Some(Cabling { hosts: hosts.iter().enumerate().map(name).collect(), cables: cables(rows) }),
        notes: vec![
            "Latency is half of a round trip, the larger one of both directions; rates are those at which \
             messages arrive, in either direction."
                .to_owned(),
        ],
        table: table(rows),
        ..Section::default()
    };
    Page { title: format!("tbccl ping: {} ranks", hosts.len()), settings, sections: vec![section] }
}

/// Returns the cables, each with the measurements of both directions.
fn cables(rows: &[Row]) -> Vec<Cable> {
    // Without named rails a connection has one line, of no rail.
    let is_cable = |row: &&Row| row.from < row.to && row.rails < 2;
    let forth = rows.iter().filter(is_cable);
    let cable = |row: &Row| {
        let back = back(row, rows);
        let both = [Some(row), back];
        let rows = || both.into_iter().flatten();
        let label = match rows().all(|row| row.rail.up) {
            false => "down".to_owned(),
            true => {
                let latency = rows().map(|row| row.latency.us_median).fold(0.0, f64::max);
                let rates: Vec<String> = rows().map(|row| format!("{:.1}", row.gigabits)).collect();
                format!("{latency:.1} us, {} Gb/s", rates.join(" / "))
            }
        };
        let rate = row.rail.rate.map(|rate| format!(", rated {rate} Gb/s")).unwrap_or_default();
        Cable {
            ends: [row.from as usize, row.to as usize],
            ports: [String::new(), String::new()],
            text: format!("{} to {}, {}: {label}{rate}", row.from, row.to, row.name()),
            label,
            is_bad: rows().any(|row| !row.rail.up || row.is_slow()),
        }
    };
    forth.map(cable).collect()
}

/// Returns the line of a cable's other direction: that of the same devices, or else of the same number.
fn back<'r>(row: &Row, rows: &'r [Row]) -> Option<&'r Row> {
    let is_back = |back: &&Row| back.rails == row.rails && (back.from, back.to) == (row.to, row.from);
    let is_swapped = |back: &&Row| back.rail.ours == row.rail.theirs && back.rail.theirs == row.rail.ours;
    let is_numbered = |back: &&Row| back.rail.number == row.rail.number;
    let swapped = rows.iter().filter(is_back).find(is_swapped);
    swapped.or_else(|| rows.iter().filter(is_back).find(is_numbered))
}

const COLUMNS: [(&str, bool); 10] = [
    ("from", true),
    ("to", true),
    ("rail", false),
    ("min (us)", true),
    ("median (us)", true),
    ("p99 (us)", true),
    ("arrives (Gb/s)", true),
    ("rate (Gb/s)", true),
    ("share (%)", true),
    ("state", false),
];

fn table(rows: &[Row]) -> Table {
    let row = |row: &Row| -> Vec<Cell> {
        let figure =
            |value: f64| Cell::from(if row.rail.up { format!("{value:.2}") } else { "-".to_owned() });
        let or_dash = |value: Option<String>| Cell::from(value.unwrap_or_else(|| "-".to_owned()));
        let state = match (row.rail.up, row.is_slow()) {
            (false, _) => "down",
            (true, true) => "slow",
            (true, false) => "up",
        };
        vec![
            row.from.into(),
            row.to.into(),
            row.name().into(),
            figure(row.latency.us_min),
            figure(row.latency.us_median),
            figure(row.latency.us_p99),
            figure(row.gigabits),
            or_dash(row.rail.rate.map(|rate| rate.to_string())),
            or_dash(row.share().filter(|_| row.rail.up).map(|share| format!("{:.0}", share * 100.0))),
            Cell { text: state.to_owned(), is_bad: state != "up" },
        ]
    };
    Table {
        columns: COLUMNS.map(|(name, is_number)| Column { name, is_number }).to_vec(),
        rows: rows.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::row::Rail, *};

    fn row((from, to): (u32, u32), (ours, theirs): (&str, &str), gigabits: f64, up: bool) -> Row {
        let (ours, theirs) = (Some(ours.to_owned()), Some(theirs.to_owned()));
        let rail = Rail { number: Some(0), ours, theirs, rate: Some(40.0), thunderbolt: true, up };
        Row { from, to, rails: 1, rail, gigabits, ..Row::default() }
    }

    #[test]
    fn a_cable_has_both_directions_and_all_rails_together_are_no_cable() {
        let together = Row { from: 0, to: 1, rails: 2, gigabits: 70.0, ..Row::default() };
        let rows = [
            row((0, 1), ("a0", "b0"), 38.0, true),
            row((0, 1), ("a1", "b1"), 37.0, true),
            together,
            row((1, 0), ("b1", "a1"), 36.0, false),
            row((1, 0), ("b0", "a0"), 35.0, true),
        ];
        let cables = cables(&rows);
        assert_eq!(cables.len(), 2);
        assert_eq!((cables[0].label.as_str(), cables[0].is_bad), ("0.0 us, 38.0 / 35.0 Gb/s", false));
        assert_eq!((cables[1].label.as_str(), cables[1].is_bad), ("down", true));
        let page = page("verbs", 4096, &["mac0".to_owned(), "mac1".to_owned()], &rows);
        assert_eq!(page.sections[0].table.rows.len(), 5);
    }
}
