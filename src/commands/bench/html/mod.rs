//! `tbccl bench --report DIR`: rows as a page of charts and tables.
//!
//! A section holds the rows of one operation with the same number of ranks, element type, reduction and form.
//! A line of its charts holds the rows that differ in their size only. Lines are named by what tells them
//! apart: run, library, transport, memory, packing, grouping, and the algorithm where several were measured.
//! Repeats of a size make one point, their median; the table has every row.
//!
//! | module | purpose |
//! |---|---|
//! | `limits` | limits of the machine as lines |
//! | `table` | the table of a section |

mod limits;
mod table;

use super::{
    super::{
        CommandError,
        page::{Axis, Chart, Folder, Machine, Page, Point, Section, Series},
    },
    rows::{Limit, Row, RowFile},
};
use limits::limits_of;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};
use table::table;

/// Name of the rows of this command among those of earlier ones.
const THIS_RUN: &str = "this run";

/// A report to be written.
#[derive(Debug)]
pub(super) struct Report {
    path: PathBuf,
    folder: Folder,
    earlier: Vec<RowFile>,
    /// The file that collects the rows of this run. Other commands can't use it while this is open.
    running: Option<File>,
}

impl Report {
    /// Checks the folder and reads the files of earlier runs, before anything is measured.
    pub(super) fn prepare(path: &Path, earlier: &[PathBuf]) -> Result<Report, CommandError> {
        let earlier = earlier.iter().map(|file| RowFile::read(file)).collect::<Result<_, _>>()?;
        Ok(Report { path: path.to_owned(), folder: Folder::prepare(path)?, earlier, running: None })
    }

    /// Creates the file that collects the rows of this run.
    pub(super) fn begin(&mut self) -> Result<(), CommandError> {
        let path = Folder::running_rows(&self.path);
        let unwritable =
            |why| CommandError::new(format_args!("--report: {} can't be written: {why}", path.display()));
        let Some(mut file) = Folder::claim_running_rows(&self.path).map_err(unwritable)? else {
            return Err(CommandError::new(format_args!(
                "--report: another command that is running collects its rows in {}; name another folder, or \
                 wait for it",
                path.display()
            )));
        };
        file.write_all(Machine::of_this_process().line().as_bytes()).map_err(unwritable)?;
        self.running = Some(file);
        Ok(())
    }

    /// Writes the page of this run and the earlier ones. Returns a line that says where.
    pub(super) fn end(mut self) -> Result<String, CommandError> {
        let path = Folder::running_rows(&self.path);
        let text = fs::read_to_string(&path).map_err(|why| {
            CommandError::new(format_args!("--report: {} can't be read: {why}", path.display()))
        })?;
        self.earlier.insert(0, RowFile::parse(&PathBuf::from(THIS_RUN), &text)?);
        let told = self.write()?;
        // The rows are in the report now; a file that stays does no harm.
        let _ = fs::remove_file(&path);
        Ok(told)
    }

    /// Writes the page of earlier runs.
    pub(super) fn write(&self) -> Result<String, CommandError> {
        self.folder.write(&page(&self.earlier), &lines(&self.earlier))
    }
}

/// Returns the run of a row.
fn run_of(file: &RowFile, row: &Row) -> String {
    row.source.clone().unwrap_or_else(|| file.name())
}

/// Returns the rows of all files as lines of JSON that say which run they are of.
fn lines(files: &[RowFile]) -> String {
    let mut text = String::new();
    for file in files {
        text.extend(file.machines.iter().map(Machine::line));
        for (row, line) in file.rows.iter().zip(&file.lines) {
            let named = serde_json::from_str(line).map(|mut value: serde_json::Value| {
                value["source"] = run_of(file, row).into();
                value.to_string()
            });
            text += &named.unwrap_or_else(|_| line.clone());
            text.push('\n');
        }
        let limit = |limit: &Limit| {
            let Limit { limit, cores, bytes, us } = limit;
            format!("{}\n", serde_json::json!({"limit": limit, "cores": cores, "bytes": bytes, "us": us}))
        };
        text.extend(file.limits.iter().map(limit));
    }
    text
}

/// Returns the page of these files.
fn page(files: &[RowFile]) -> Page {
    let mut settings = Vec::new();
    for machine in files.iter().flat_map(|file| &file.machines) {
        settings.extend(
            machine.settings().into_iter().filter(|setting| !settings.contains(setting)).collect::<Vec<_>>(),
        );
    }
    let rows: Vec<Tagged<'_>> = files
        .iter()
        .flat_map(|file| file.rows.iter().map(|row| Tagged { run: run_of(file, row), row }))
        .collect();
    settings.push((
        "rows".to_owned(),
        format!("{}, of {}", rows.len(), joined(rows.iter().map(|row| row.run.as_str()))),
    ));
    let mut groups: BTreeMap<Group, Vec<&Tagged<'_>>> = BTreeMap::new();
    rows.iter().for_each(|row| groups.entry(Group::of(row.row)).or_default().push(row));
    let limits: Vec<&Limit> = files.iter().flat_map(|file| &file.limits).collect();
    let ops: BTreeSet<&str> = rows.iter().map(|row| row.row.operation()).collect();
    let title = if ops.len() == 1 { joined(ops.into_iter()) } else { format!("{} operations", ops.len()) };
    Page {
        title: format!("tbccl bench: {title}"),
        settings,
        sections: groups.iter().map(|(group, rows)| section(group, rows, &limits)).collect(),
    }
}

/// Joins names, each once.
fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// A row with the run that it is of.
struct Tagged<'r> {
    run: String,
    row: &'r Row,
}

/// Values that the rows of a section share.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    op: String,
    ranks: u32,
    dtype: String,
    redop: String,
    in_place: bool,
}

impl Group {
    fn of(row: &Row) -> Group {
        Group {
            op: row.operation().to_owned(),
            ranks: row.ranks,
            dtype: row.dtype().to_owned(),
            redop: row.redop().to_owned(),
            in_place: row.inplace != 0,
        }
    }

    fn title(&self) -> String {
        let Group { op, ranks, dtype, redop, in_place } = self;
        let redop = if redop == "none" { String::new() } else { format!(", {redop}") };
        let form = if *in_place { ", in place" } else { "" };
        format!("{op} on {ranks} ranks, {dtype}{redop}{form}")
    }
}

/// Values that may tell lines of a section apart, in the order in which they name them.
type Traits = [String; 7];

/// Returns the traits of a row, without its algorithm.
fn traits(tagged: &Tagged<'_>) -> Traits {
    let row = tagged.row;
    [
        tagged.run.clone(),
        row.peer.clone(),
        row.transport.clone().unwrap_or_default(),
        if row.registered == 0 { String::new() } else { "registered".to_owned() },
        if row.written == 0 { String::new() } else { "written".to_owned() },
        row.codec.clone().unwrap_or_default(),
        row.calls.filter(|calls| *calls > 1).map_or_else(String::new, |calls| format!("groups of {calls}")),
    ]
}

/// Returns the rows of each line, with its name.
fn lines_of<'r>(rows: &[&'r Tagged<'r>]) -> BTreeMap<(Traits, Option<String>), Vec<&'r Row>> {
    let mut algorithms: BTreeMap<(Traits, u64), BTreeSet<&str>> = BTreeMap::new();
    for tagged in rows {
        let of_size = algorithms.entry((traits(tagged), tagged.row.bytes)).or_default();
        of_size.extend(tagged.row.algo.as_deref());
    }
    let several: BTreeSet<&Traits> =
        algorithms.iter().filter(|(_, names)| names.len() > 1).map(|((traits, _), _)| traits).collect();
    let mut lines: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    for tagged in rows {
        let traits = traits(tagged);
        let algorithm = tagged.row.algo.clone().filter(|_| several.contains(&traits));
        lines.entry((traits, algorithm)).or_default().push(tagged.row);
    }
    lines
}

/// Returns the name of a line: the traits in which lines differ, or the library and the transport.
fn name_of(traits: &Traits, algorithm: Option<&str>, all: &BTreeSet<Traits>) -> String {
    let differs = |index: usize| all.iter().any(|other| other[index] != traits[index]);
    let is_named = |index: usize| differs(index) || index == 1 || index == 2;
    let named = traits.iter().enumerate().filter(|(index, text)| is_named(*index) && !text.is_empty());
    named.map(|(_, text)| text.as_str()).chain(algorithm).collect::<Vec<_>>().join(", ")
}

fn section(group: &Group, rows: &[&Tagged<'_>], limits: &[&Limit]) -> Section {
    let lines = lines_of(rows);
    let all: BTreeSet<Traits> = lines.keys().map(|(traits, _)| traits.clone()).collect();
    let (mut latency, mut bandwidth) = (Vec::new(), Vec::new());
    for ((traits, algorithm), rows) in &lines {
        let name = name_of(traits, algorithm.as_deref(), &all);
        let series = |value: fn(&Row) -> Option<f64>, unit| Series {
            points: points(&name, rows, value, unit),
            is_limit: false,
            name: name.clone(),
        };
        latency.push(series(|row| Some(row.us_median), "us"));
        bandwidth.push(series(Row::busbw, "GB/s"));
    }
    // Both charts have the same limits, so that one legend names them.
    for limit in limits_of(rows, limits) {
        latency.push(limit.latency);
        bandwidth.push(limit.bandwidth);
    }
    let chart =
        |title: &str, y, series| Chart { title: title.to_owned(), x: Axis::sizes("bytes"), y, series };
    let has_sizes = rows.iter().any(|row| row.row.bytes > 0);
    let charts = vec![
        chart("Time, median of one call", Axis::logarithmic("us"), latency),
        chart("Bus bandwidth", Axis::linear("GB/s"), bandwidth),
    ];
    Section {
        title: group.title(),
        charts: if has_sizes { charts } else { Vec::new() },
        table: table(rows),
        ..Section::default()
    }
}

/// Returns the median of each size.
fn points(name: &str, rows: &[&Row], value: fn(&Row) -> Option<f64>, unit: &str) -> Vec<Point> {
    let mut sizes: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for row in rows {
        sizes.entry(row.bytes).or_default().extend(value(row));
    }
    let point = |(bytes, mut values): (u64, Vec<f64>)| {
        values.sort_unstable_by(f64::total_cmp);
        let y = *values.get(values.len().checked_sub(1)? / 2)?;
        Some(Point { x: bytes as f64, y, text: format!("{name}: {bytes} B, {} {unit}", number(y)) })
    };
    sizes.into_iter().filter_map(point).collect()
}

/// Formats a value with four significant digits.
fn number(value: f64) -> String {
    let digits = 3 - value.abs().max(1e-9).log10().floor() as i32;
    format!("{value:.digits$}", digits = digits.clamp(0, 6) as usize)
}

#[cfg(test)]
mod tests {
    use super::{super::rows::tests::row, *};

    fn file(name: &str, rows: Vec<Row>) -> RowFile {
        let lines = rows.iter().map(|row| format!("{{\"op\":\"{}\"}}", row.op)).collect();
        RowFile { path: PathBuf::from(format!("{name}.jsonl")), rows, lines, ..RowFile::default() }
    }

    fn with(algo: &str, row: Row) -> Row {
        Row { algo: Some(algo.to_owned()), transport: Some("shm".to_owned()), ..row }
    }

    fn names(page: &Page) -> Vec<Vec<&str>> {
        page.sections
            .iter()
            .map(|s| s.charts[0].series.iter().map(|line| line.name.as_str()).collect())
            .collect()
    }

    #[test]
    fn every_row_is_in_a_table_and_repeats_are_one_point() {
        let rows = vec![row(4, 3.0), row(4, 1.0), row(4, 2.0), row(64, 5.0), Row { ranks: 4, ..row(4, 9.0) }];
        let page = page(&[file("a", rows)]);
        assert_eq!(page.sections.iter().map(|section| section.table.rows.len()).collect::<Vec<_>>(), [4, 1]);
        let times: Vec<f64> =
            page.sections[0].charts[0].series[0].points.iter().map(|point| point.y).collect();
        assert_eq!(times, [2.0, 5.0]);
        assert_eq!(names(&page), [["tbccl"], ["tbccl"]]);
    }

    #[test]
    fn lines_are_named_by_what_tells_them_apart() {
        let gloo = Row { peer: "gloo".to_owned(), transport: Some("tcp".to_owned()), ..row(4, 8.0) };
        let page_of = page(&[file("a", vec![with("ring", row(4, 1.0)), gloo.clone()])]);
        assert_eq!(names(&page_of), [["gloo, tcp", "tbccl, shm"]]);
        let both = page(&[file("a", vec![with("ring", row(4, 1.0)), with("mesh", row(4, 2.0))])]);
        assert_eq!(names(&both), [["tbccl, shm, mesh", "tbccl, shm, ring"]]);
        let automatic = page(&[file("a", vec![with("mesh", row(4, 1.0)), with("ring", row(64, 2.0))])]);
        assert_eq!(names(&automatic), [["tbccl, shm"]]);
        let runs = page(&[file("old", vec![gloo.clone()]), file("new", vec![gloo])]);
        assert_eq!(names(&runs), [["new, gloo, tcp", "old, gloo, tcp"]]);
    }

    #[test]
    fn known_limits_are_lines_of_their_own() {
        let limit = Limit { limit: "copy".to_owned(), cores: 2, bytes: 64, us: 0.5 };
        let hop = Row { hop_us: Some(0.2), ..with("ring", row(4, 1.0)) };
        let rows = vec![hop, with("ring", row(64, 2.0))];
        let page = page(&[RowFile { limits: vec![limit], ..file("a", rows) }]);
        assert_eq!(names(&page), [["tbccl, shm", "8 bytes from rank to rank", "copy by two cores"]]);
        let bandwidth = &page.sections[0].charts[1].series;
        assert_eq!(bandwidth.iter().map(|line| line.is_limit).collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn kept_rows_know_their_run_and_can_be_read_again() {
        let mut files = [file("old", vec![row(4, 1.0)])];
        files[0].lines =
            vec![r#"{"op":"all_reduce","ranks":2,"bytes":4,"us_median":1,"unknown":[1]}"#.to_owned()];
        files[0].limits = vec![Limit { limit: "copy".to_owned(), cores: 2, bytes: 64, us: 0.5 }];
        files[0].machines = vec![Machine::of_this_process()];
        let again = RowFile::parse(Path::new("rows.jsonl"), &lines(&files)).expect("rows");
        assert_eq!(again.rows[0].source.as_deref(), Some("old"));
        assert!(again.lines[0].contains("unknown"));
        assert_eq!((again.limits.len(), again.machines.len()), (1, 1));
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([0.17234, 12.345, 12345.6].map(number), ["0.1723", "12.35", "12346"]);
    }
}
