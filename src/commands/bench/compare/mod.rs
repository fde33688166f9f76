//! `tbccl bench --compare A B`: compares two files of rows, cell by cell, with the noise of each.
//!
//! | module | purpose |
//! |---|---|
//! | `estimate` | the time of a cell with its noise |
//! | `join` | the join of two sets of rows by cell |
//!
//! A ratio is beyond the noise if the ranges of both times have nothing in common. Nothing is measured here.

mod estimate;
mod join;

use super::{
    super::{CommandError, WRONG, print},
    operation::Operation,
    rows::{Row, RowFile},
};
use join::{Compared, Joined, Key, join};
use std::{collections::BTreeMap, fmt::Write, path::PathBuf, process::ExitCode};

/// Name that stands for the fastest library of each cell.
const BEST: &str = "best";

/// Runs the comparison of two files. `op` limits it to one operation, and `peer` chooses the library of a
/// file that has several. The exit status is 1 if a cell of B is slower than A beyond the noise and by more
/// than the fraction `fail_above`, or wrong.
pub(super) fn run(
    files: &[PathBuf],
    op: Option<Operation>,
    peer: Option<&str>,
    fail_above: Option<f64>,
) -> Result<ExitCode, CommandError> {
    let [a, b] = files else { return Err(CommandError::new("--compare: two files are compared")) };
    let (mut a, mut b) = (RowFile::read(a)?, RowFile::read(b)?);
    if let Some(op) = op {
        [&mut a, &mut b].into_iter().for_each(|file| file.rows.retain(|row| row.operation() == op.name()));
    }
    let by_peer = a.peers() == b.peers();
    if !by_peer {
        choose_peer(&mut a, peer)?;
        choose_peer(&mut b, peer)?;
    }
    let joined = join(&a.rows, &b.rows, by_peer && a.peers().len() > 1);
    let wrong: u64 = b.rows.iter().filter_map(|row| row.wrong).sum();
    print(&text(&a, &b, &joined, fail_above, wrong));
    if joined.both.is_empty() {
        return Err(CommandError::new(format_args!(
            "{} and {} have no cell in common: an operation at one size, on as many ranks, measured alike",
            a.path.display(),
            b.path.display()
        )));
    }
    let fails = joined.both.iter().any(|cell| Verdict::of(cell, fail_above) == Verdict::Fails);
    Ok(if fails || wrong > 0 { ExitCode::from(WRONG) } else { ExitCode::SUCCESS })
}

/// Leaves the rows of one library in a file that has several.
fn choose_peer(file: &mut RowFile, peer: Option<&str>) -> Result<(), CommandError> {
    let peers: Vec<String> = file.peers().into_iter().map(str::to_owned).collect();
    if peers.len() < 2 {
        return Ok(());
    }
    match peer {
        Some(BEST) => file.rows = fastest(&file.rows),
        Some(peer) if peers.iter().any(|name| name == peer) => file.rows.retain(|row| row.peer == peer),
        _ => {
            return Err(CommandError::new(format_args!(
                "{} has rows of {}: choose one with --peer NAME, or the fastest of each cell with \
                --peer {BEST}",
                file.path.display(),
                peers.join(", ")
            )));
        }
    }
    Ok(())
}

/// Returns the rows of the fastest library of each cell, by the fastest of its repeats.
fn fastest(rows: &[Row]) -> Vec<Row> {
    let cell =
        |row: &Row| (row.operation().to_owned(), row.ranks, row.bytes, row.inplace, row.transport.clone());
    let mut best: BTreeMap<_, &Row> = BTreeMap::new();
    for row in rows {
        let fastest = best.entry(cell(row)).or_insert(row);
        if row.us_median < fastest.us_median {
            *fastest = row;
        }
    }
    rows.iter()
        .filter(|row| best.get(&cell(row)).is_some_and(|best| best.peer == row.peer))
        .cloned()
        .collect()
}

/// The result for a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The difference is within the noise.
    Same,
    Faster,
    Slower,
    /// Slower by more than is allowed.
    Fails,
}

impl Verdict {
    fn of(cell: &Compared, fail_above: Option<f64>) -> Verdict {
        let ratio = ratio(cell);
        match fail_above {
            _ if !cell.a.differs_from(cell.b) => Verdict::Same,
            Some(limit) if ratio > 1.0 + limit => Verdict::Fails,
            _ if ratio > 1.0 => Verdict::Slower,
            _ => Verdict::Faster,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Verdict::Same => "",
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Fails => "slower: fails",
        }
    }
}

fn ratio(cell: &Compared) -> f64 {
    cell.b.us / cell.a.us
}

/// Returns the table and the summary.
fn text(a: &RowFile, b: &RowFile, joined: &Joined, fail_above: Option<f64>, wrong: u64) -> String {
    let mut text = String::new();
    for (name, file) in [("A", a), ("B", b)] {
        let peers = file.peers().into_iter().collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "# {name}: {}, {} rows of {peers}", file.path.display(), file.rows.len());
    }
    let _ = writeln!(
        text,
        "# noise: half the range of the repeats of a cell, or of the middle half of its samples"
    );
    text += &table(&joined.both, fail_above);
    for (name, keys) in [("A", &joined.only_a), ("B", &joined.only_b)] {
        keys.iter().for_each(|key: &Key| text += &format!("# only in {name}: {key}\n"));
    }
    if !joined.both.is_empty() {
        text += &summary(&joined.both, fail_above);
    }
    if wrong > 0 {
        let _ = writeln!(text, "# B has {wrong} wrong elements");
    }
    text
}

fn table(cells: &[Compared], fail_above: Option<f64>) -> String {
    let width = cells.iter().map(|cell| cell.key.label().chars().count()).max().unwrap_or(0).max(2);
    let mut text = format!(
        "# {:<width$} {:>5} {:<9} {:<10} {:>11} {:>9} {:>6} {:>9} {:>6} {:>6}\n\
         # {:<width$} {:>5} {:<9} {:<10} {:>11} {:>9} {:>6} {:>9} {:>6} {:>6}\n",
        "op",
        "ranks",
        "transport",
        "type",
        "size",
        "A",
        "noise",
        "B",
        "noise",
        "B/A",
        "",
        "",
        "",
        "",
        "(B)",
        "(us)",
        "(%)",
        "(us)",
        "(%)",
        ""
    );
    for cell in cells {
        let Compared { key, a, b, remark } = cell;
        let line = format!(
            "  {:<width$} {:>5} {:<9} {:<10} {:>11} {:>9} {:>6.1} {:>9} {:>6.1} {:>6.3}  {} {}",
            key.label(),
            key.ranks,
            key.transport.as_deref().unwrap_or("-"),
            key.dtype,
            key.bytes,
            time(a.us),
            a.noise() * 100.0,
            time(b.us),
            b.noise() * 100.0,
            ratio(cell),
            Verdict::of(cell, fail_above).name(),
            remark.as_deref().map(|remark| format!("[{remark}]")).unwrap_or_default(),
        );
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn summary(cells: &[Compared], fail_above: Option<f64>) -> String {
    let count = |wanted: &[Verdict]| {
        cells.iter().filter(|cell| wanted.contains(&Verdict::of(cell, fail_above))).count()
    };
    let mean = (cells.iter().map(|cell| ratio(cell).ln()).sum::<f64>() / cells.len().max(1) as f64).exp();
    let mut text = format!(
        "# {} cells: {} faster, {} slower, {} within the noise; geometric mean of B/A {mean:.3}\n",
        cells.len(),
        count(&[Verdict::Faster]),
        count(&[Verdict::Slower, Verdict::Fails]),
        count(&[Verdict::Same]),
    );
    if let Some(limit) = fail_above {
        let _ = writeln!(
            text,
            "# slower by more than {} %, beyond the noise: {}",
            limit * 100.0,
            count(&[Verdict::Fails])
        );
    }
    text
}

/// Formats microseconds with four significant digits.
fn time(us: f64) -> String {
    match us {
        us if us >= 1000.0 => format!("{us:.0}"),
        us if us >= 100.0 => format!("{us:.1}"),
        us if us >= 10.0 => format!("{us:.2}"),
        us => format!("{us:.3}"),
    }
}

/// Parses a percentage such as `5%` or `2.5`; returns the fraction.
pub(super) fn percentage(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
    let fraction = number.map(|percent| percent / 100.0);
    fraction
        .filter(|fraction| fraction.is_finite() && *fraction >= 0.0)
        .ok_or_else(|| "a percentage was expected, e.g. 5%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{super::rows::tests::row, *};

    fn compared(a: f64, b: f64, noise: f64) -> Compared {
        let rows = |us: f64| [row(4, us * (1.0 - noise)), row(4, us), row(4, us * (1.0 + noise))];
        join(&rows(a), &rows(b), false).both.remove(0)
    }

    #[test]
    fn only_a_slower_cell_beyond_noise_and_limit_fails() {
        assert_eq!(Verdict::of(&compared(10.0, 12.0, 0.02), Some(0.05)), Verdict::Fails);
        assert_eq!(Verdict::of(&compared(10.0, 12.0, 0.02), Some(0.25)), Verdict::Slower);
        assert_eq!(Verdict::of(&compared(10.0, 12.0, 0.02), None), Verdict::Slower);
        assert_eq!(Verdict::of(&compared(10.0, 12.0, 0.2), Some(0.05)), Verdict::Same);
        assert_eq!(Verdict::of(&compared(12.0, 10.0, 0.02), Some(0.05)), Verdict::Faster);
    }

    #[test]
    fn the_summary_counts_every_cell_once() {
        let cells = [compared(10.0, 12.0, 0.01), compared(12.0, 10.0, 0.01), compared(1.0, 1.01, 0.1)];
        let text = summary(&cells, Some(0.05));
        assert!(text.contains("3 cells: 1 faster, 1 slower, 1 within the noise"), "{text}");
        assert!(text.contains("slower by more than 5 %, beyond the noise: 1"), "{text}");
        assert!(table(&cells, Some(0.05)).contains("slower: fails"));
    }

    #[test]
    fn percentages_are_fractions() {
        assert_eq!(percentage("5%"), Ok(0.05));
        assert_eq!(percentage("2.5"), Ok(0.025));
        assert!(percentage("-1%").is_err() && percentage("some").is_err() && percentage("inf").is_err());
    }

    #[test]
    fn the_fastest_library_of_each_cell_is_chosen() {
        let of = |peer: &str, bytes, us| Row { peer: peer.to_owned(), ..row(bytes, us) };
        let rows =
            [of("gloo", 4, 2.0), of("mpi", 4, 1.0), of("mpi", 4, 3.0), of("gloo", 8, 1.0), of("mpi", 8, 2.0)];
        let kept: Vec<_> = fastest(&rows).into_iter().map(|row| (row.peer, row.us_median)).collect();
        assert_eq!(kept, [("mpi".to_owned(), 1.0), ("mpi".to_owned(), 3.0), ("gloo".to_owned(), 1.0)]);
    }
}
