//! `tbccl plan verify`: proves many schedules, or one from a file, correct.

use super::{machine, rules::DeviceArgs, variant::Variant};
use crate::commands::{CommandError, WRONG, arguments, print};
use collectives::{
    Collective, Hosts, MAX_SEGMENTS, PlanError, Schedule,
    plan::{ALGORITHMS, Algorithm, algorithm},
    sweep::{Case, CaseError, cases},
    verify::{Credits, Report, verify},
};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use std::{
    fmt::Write,
    fs,
    ops::RangeInclusive,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

const EXAMPLES: &str = "\
Examples:
  tbccl plan verify --all --ranks 1..64                     every algorithm, every root
  tbccl plan verify all_reduce --ranks 2..32                the algorithms of one collective
  tbccl plan verify broadcast --algo chain --ranks 8 --root 3 --segments 1,4
  tbccl plan verify all_reduce --algo hierarchical --ranks 8 --hosts 3,5 --replicas 2
  tbccl plan verify mine.toml                               a schedule from a file
  tbccl plan verify mine.toml --profile thunderbolt --bytes 1G

A range includes both ends. Every plan is verified in place and out of place, with zero credits: as if no
send completed before its receive has taken the data. A plan that is correct under that rule is correct
with any number of credits. With --profile or --fabric, a schedule from a file is also checked against
device rules: the devices must accept every message. Exit status 1 if a plan is wrong; the fault names the
step.";

/// Plans that a thread takes at a time.
const BATCH: usize = 16;

/// Prove that plans are correct, or name the fault
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Collective, e.g. all_reduce, or a schedule in a file
    #[arg(value_name = "OP|FILE.toml", required_unless_present = "all", conflicts_with = "all")]
    target: Option<String>,

    /// Verify every algorithm of every collective
    #[arg(long)]
    all: bool,

    /// Algorithm [default: all of the collective's]
    #[arg(long = "algo", value_name = "NAME", conflicts_with = "all")]
    algorithm: Option<String>,

    /// Numbers of ranks, e.g. 4 or 1..64
    #[arg(
        short = 'n',
        long,
        value_name = "N|A..B",
        value_parser = arguments::rank_range,
        allow_hyphen_values = true,
    )]
    ranks: Option<RangeInclusive<u32>>,

    /// Root, for collectives that have one: a rank or `all`
    #[arg(short = 'r', long, value_name = "R", default_value = "all", value_parser = root)]
    root: Root,

    /// Numbers of segments per chunk
    #[arg(long, value_name = "K,...", default_value = "1", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SEGMENTS)))]
    segments: Vec<u32>,

    #[command(flatten)]
    variant: Variant,

    #[command(flatten)]
    devices: DeviceArgs,
}

/// The roots to verify.
#[derive(Clone, Copy, Debug)]
enum Root {
    All,
    Only(u32),
}

fn root(text: &str) -> Result<Root, String> {
    match text {
        "all" => Ok(Root::All),
        _ => text.parse().map(Root::Only).map_err(|_| "a rank or `all` was expected".to_owned()),
    }
}

/// Runs `tbccl plan verify`.
pub(super) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    match &args.target {
        Some(file) if file.ends_with(".toml") => verify_file(file, args),
        _ => verify_cases(args),
    }
}

fn verify_file(path: &str, args: &Args) -> Result<ExitCode, CommandError> {
    if args.ranks.is_some() || args.algorithm.is_some() {
        return Err(CommandError::new(
            "the file determines the algorithm and the ranks; leave --algo and --ranks out",
        ));
    }
    if args.variant.is_given() {
        return Err(CommandError::new(
            "the file determines the plan; leave --hosts, --replicas and --weights out",
        ));
    }
    let rules = args.devices.rules()?;
    let text = machine::read(Path::new(path))?;
    let schedule =
        Schedule::from_toml(&text).map_err(|error| CommandError::new(format_args!("`{path}`, {error}")))?;
    let verdict = verify(&schedule, Credits(0)).and_then(|report| match rules {
        Some(rules) => args.devices.check(&schedule, rules).map(|()| (report, args.devices.describe(rules))),
        None => Ok((report, String::new())),
    });
    Ok(match verdict {
        Ok((report, devices)) => {
            print(&format!("{path}: right: {report}{devices}\n"));
            ExitCode::SUCCESS
        }
        Err(fault) => {
            print(&format!("{path}: WRONG: {fault}\n"));
            ExitCode::from(WRONG)
        }
    })
}

/// A line of the summary.
struct Row {
    algorithm: &'static Algorithm,
    plans: u64,
    /// Range of the plans' numbers of ranks.
    ranks: RangeInclusive<u32>,
    /// Steps of the largest plan.
    steps: u64,
    stages: u32,
    /// A fault, if there is one.
    fault: Option<CaseError>,
    faults: u64,
}

fn verify_cases(args: &Args) -> Result<ExitCode, CommandError> {
    let start = Instant::now();
    if args.devices.are_given() {
        return Err(CommandError::new(
            "device rules apply to a schedule in a file; `tbccl plan show --toml` prints one",
        ));
    }
    let collective = args.target.as_deref().map(collective).transpose()?;
    let ranks = args.ranks.clone().ok_or_else(|| {
        CommandError::new("the number of ranks is missing; use e.g. --ranks 4 or --ranks 1..64")
    })?;
    let requested_algorithms = requested_algorithms(collective, args, &ranks)?;
    if let Root::Only(rank) = args.root
        && rank >= *ranks.end()
    {
        return Err(CommandError::new(format_args!(
            "there is no rank {rank}; the last one is {}",
            ranks.end() - 1
        )));
    }
    let cases: Vec<Case> = ranks
        .flat_map(|n| cases(n, &args.segments))
        .filter(|case| requested_algorithms.iter().any(|algorithm| is_same(algorithm, case.algorithm)))
        .filter(|case| has_requested_root(args.root, case))
        .collect();
    let mut pending = apply_variant(&args.variant, cases).map_err(CommandError::new)?;
    if pending.is_empty() {
        return Err(CommandError::new("nothing to verify: no algorithm supports this number of ranks"));
    }
    // Large plans come first, and threads take few at a time, so that all threads finish together.
    pending.reverse();
    let bar = ProgressBar::new(pending.len() as u64).with_style(style());
    let verify = |case: Case| (case, case.verify(Credits(0)));
    let results: Vec<(Case, Result<Report, CaseError>)> =
        pending.into_par_iter().with_max_len(BATCH).map(verify).inspect(|_| bar.inc(1)).collect();
    bar.finish_and_clear();
    let rows: Vec<Row> =
        requested_algorithms.into_iter().filter_map(|algorithm| row(algorithm, &results)).collect();
    print(&table(&rows, start.elapsed()));
    Ok(if rows.iter().all(|row| row.faults == 0) { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

fn collective(target: &str) -> Result<Collective, CommandError> {
    target.parse().map_err(|error| {
        let hint = if fs::exists(target).unwrap_or(false) { "; a file's name must end in .toml" } else { "" };
        CommandError::new(format_args!("{error}{hint}"))
    })
}

/// Returns the requested algorithms, in the order of the table of algorithms.
fn requested_algorithms(
    collective: Option<Collective>,
    args: &Args,
    ranks: &RangeInclusive<u32>,
) -> Result<Vec<&'static Algorithm>, CommandError> {
    let Some(collective) = collective else { return Ok(ALGORITHMS.iter().collect()) };
    if let Some(name) = &args.algorithm {
        let found = algorithm(collective, name).map_err(CommandError::new)?;
        found.check_ranks(*ranks.end()).map_err(CommandError::new)?;
        return Ok(vec![found]);
    }
    Ok(ALGORITHMS.iter().filter(|algorithm| algorithm.collective == collective).collect())
}

/// Compares collective and name; names are unique within a collective.
fn is_same(a: &Algorithm, b: &Algorithm) -> bool {
    (a.collective, a.name) == (b.collective, b.name)
}

/// Returns the cases with the requested hosts, replicas and stripes. Packed messages are not split over
/// lanes, so striping removes such cases.
fn apply_variant(variant: &Variant, cases: Vec<Case>) -> Result<Vec<Case>, PlanError> {
    let once = cases.into_iter().filter(|case| variant.hosts.is_none() || case.spec.hosts() == Hosts::One);
    let varied = once.map(|case| Ok(Case { spec: variant.apply(case.spec)?, ..case }));
    let is_possible = |case: &Case| case.spec.codec().is_none() || case.spec.weights().lanes() == 1;
    varied.filter(|case| case.as_ref().map_or(true, is_possible)).collect()
}

fn has_requested_root(root: Root, case: &Case) -> bool {
    match root {
        Root::Only(rank) if case.algorithm.collective.has_root() => case.spec.root().0 == rank,
        _ => true,
    }
}

/// Summarizes the results of one algorithm, if it has any.
fn row(algorithm: &'static Algorithm, results: &[(Case, Result<Report, CaseError>)]) -> Option<Row> {
    let own = || results.iter().filter(|(case, _)| is_same(case.algorithm, algorithm));
    let numbers = || own().map(|(case, _)| case.spec.ranks());
    let right = || own().filter_map(|(_, result)| result.as_ref().ok());
    let faults = || own().filter_map(|(_, result)| result.as_ref().err());
    Some(Row {
        algorithm,
        plans: own().count() as u64,
        ranks: numbers().min()?..=numbers().max()?,
        steps: right().map(|report| report.steps).max().unwrap_or(0),
        stages: right().map(|report| report.stages).max().unwrap_or(0),
        fault: faults().next_back().cloned(),
        faults: faults().count() as u64,
    })
}

fn table(rows: &[Row], elapsed: Duration) -> String {
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = writeln!(
        text,
        "{:<15} {:<20} {:>9} {:>7} {:>9} {:>7}  verdict",
        "collective", "algorithm", "ranks", "plans", "steps", "stages"
    );
    for row in rows {
        let Row { algorithm, plans, ranks, steps, stages, faults, .. } = row;
        let ranks = format!("{}..{}", ranks.start(), ranks.end());
        let verdict = if *faults == 0 { "right".to_owned() } else { format!("{faults} WRONG") };
        let _ = writeln!(
            text,
            "{:<15} {:<20} {ranks:>9} {plans:>7} {steps:>9} {stages:>7}  {verdict}",
            algorithm.collective, algorithm.name
        );
    }
    for fault in rows.iter().filter_map(|row| row.fault.as_ref()) {
        let _ = writeln!(text, "WRONG: {fault}");
    }
    let plans: u64 = rows.iter().map(|row| row.plans).sum();
    let faults: u64 = rows.iter().map(|row| row.faults).sum();
    let _ = writeln!(text, "{plans} plans, {faults} wrong, {:.1} s", elapsed.as_secs_f64());
    text
}

/// Returns the style of the progress bar; indicatif draws it on a terminal only.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {pos}/{len} plans, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
