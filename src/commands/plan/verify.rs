//! `tbccl plan verify`: many schedules, or one from a file, proved right.

use super::{machine, rules::Devices, variant::Variant};
use crate::commands::{Failed, WRONG, arguments, print};
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

Both ends of a range belong to it. Every plan is verified in place and out of place, with zero credits:
as if no send completed before its receive has taken the data. A plan that is right under that rule is
right with any number of credits. A schedule from a file is also checked against the rules of devices,
if --profile or --fabric is given: every message must be one that they take. Exit status 1 when a plan is
wrong; the fault names the step.";

/// The plans that a thread takes on at a time.
const AT_A_TIME: usize = 16;

/// Prove that plans are right, or name the fault
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A collective, e.g. all_reduce, or a schedule in a file
    #[arg(value_name = "OP|FILE.toml", required_unless_present = "all", conflicts_with = "all")]
    what: Option<String>,

    /// Every algorithm of every collective
    #[arg(long)]
    all: bool,

    /// The algorithm [default: all of the collective's]
    #[arg(long = "algo", value_name = "NAME", conflicts_with = "all")]
    algorithm: Option<String>,

    /// Numbers of ranks, e.g. 4 or 1..64
    #[arg(short = 'n', long, value_name = "N|A..B", value_parser = arguments::rank_range, allow_hyphen_values = true)]
    ranks: Option<RangeInclusive<u32>>,

    /// The root, for collectives that have one: a rank or `all`
    #[arg(short = 'r', long, value_name = "R", default_value = "all", value_parser = root)]
    root: Root,

    /// Numbers of pieces that chunks are cut into
    #[arg(long, value_name = "K,...", default_value = "1", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SEGMENTS)))]
    segments: Vec<u32>,

    #[command(flatten)]
    variant: Variant,

    #[command(flatten)]
    devices: Devices,
}

/// Which roots.
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

/// Carries out `tbccl plan verify`.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failed> {
    match &args.what {
        Some(file) if file.ends_with(".toml") => verify_file(file, args),
        _ => verify_cases(args),
    }
}

fn verify_file(path: &str, args: &Args) -> Result<ExitCode, Failed> {
    if args.ranks.is_some() || args.algorithm.is_some() {
        return Err(Failed::new("the file says the algorithm and the ranks; leave --algo and --ranks out"));
    }
    if args.variant.is_given() {
        return Err(Failed::new(
            "the file has the plan as it is; leave --hosts, --replicas and --weights out",
        ));
    }
    let rules = args.devices.rules()?;
    let text = machine::read(Path::new(path))?;
    let schedule =
        Schedule::from_toml(&text).map_err(|error| Failed::new(format_args!("`{path}`, {error}")))?;
    let verdict = verify(&schedule, Credits(0)).and_then(|report| match rules {
        Some(rules) => args.devices.check(&schedule, rules).map(|()| (report, args.devices.said(rules))),
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

/// One line of the summary.
struct Row {
    algorithm: &'static Algorithm,
    plans: u64,
    /// The numbers of ranks of its plans.
    ranks: RangeInclusive<u32>,
    /// Steps of the largest plan.
    steps: u64,
    stages: u32,
    /// The first fault that was met.
    fault: Option<CaseError>,
    faults: u64,
}

fn verify_cases(args: &Args) -> Result<ExitCode, Failed> {
    let start = Instant::now();
    if args.devices.are_given() {
        return Err(Failed::new(
            "devices' rules are for a schedule in a file; `tbccl plan show --toml` makes one",
        ));
    }
    let collective = args.what.as_deref().map(collective).transpose()?;
    let ranks = args
        .ranks
        .clone()
        .ok_or_else(|| Failed::new("say for how many ranks, e.g. --ranks 4 or --ranks 1..64"))?;
    let wanted = wanted(collective, args, &ranks)?;
    if let Root::Only(rank) = args.root
        && rank >= *ranks.end()
    {
        return Err(Failed::new(format_args!(
            "there is no rank {rank}; the last one is {}",
            ranks.end() - 1
        )));
    }
    let cases: Vec<Case> = ranks
        .flat_map(|n| cases(n, &args.segments))
        .filter(|case| wanted.iter().any(|algorithm| is_same(algorithm, case.algorithm)))
        .filter(|case| is_root_wanted(args.root, case))
        .collect();
    let mut todo = as_asked(&args.variant, cases).map_err(Failed::new)?;
    if todo.is_empty() {
        return Err(Failed::new("nothing to verify: no algorithm plans for so many ranks"));
    }
    // The large ones first and a few at a time, so that no thread is left with many at the end.
    todo.reverse();
    let bar = ProgressBar::new(todo.len() as u64).with_style(style());
    let verify = |case: Case| (case, case.verify(Credits(0)));
    let results: Vec<(Case, Result<Report, CaseError>)> =
        todo.into_par_iter().with_max_len(AT_A_TIME).map(verify).inspect(|_| bar.inc(1)).collect();
    bar.finish_and_clear();
    let rows: Vec<Row> = wanted.into_iter().filter_map(|algorithm| row(algorithm, &results)).collect();
    print(&table(&rows, start.elapsed()));
    Ok(if rows.iter().all(|row| row.faults == 0) { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

fn collective(what: &str) -> Result<Collective, Failed> {
    what.parse().map_err(|error| {
        let hint = if fs::exists(what).unwrap_or(false) { "; a file's name must end in .toml" } else { "" };
        Failed::new(format_args!("{error}{hint}"))
    })
}

/// The algorithms that were asked for, in the order of the table of algorithms.
fn wanted(
    collective: Option<Collective>,
    args: &Args,
    ranks: &RangeInclusive<u32>,
) -> Result<Vec<&'static Algorithm>, Failed> {
    let Some(collective) = collective else { return Ok(ALGORITHMS.iter().collect()) };
    if let Some(name) = &args.algorithm {
        let found = algorithm(collective, name).map_err(Failed::new)?;
        found.check_ranks(*ranks.end()).map_err(Failed::new)?;
        return Ok(vec![found]);
    }
    Ok(ALGORITHMS.iter().filter(|algorithm| algorithm.collective == collective).collect())
}

/// A name is unique among those of its collective.
fn is_same(a: &Algorithm, b: &Algorithm) -> bool {
    (a.collective, a.name) == (b.collective, b.name)
}

/// Returns the cases with the requested hosts, instead of all that are worth a try, and replicated and
/// striped. Packed messages are not split over lanes, so striping leaves no such case.
fn as_asked(variant: &Variant, cases: Vec<Case>) -> Result<Vec<Case>, PlanError> {
    let once = cases.into_iter().filter(|case| variant.hosts.is_none() || case.spec.hosts() == Hosts::One);
    let asked = once.map(|case| Ok(Case { spec: variant.apply(case.spec)?, ..case }));
    let is_possible = |case: &Case| case.spec.codec().is_none() || case.spec.weights().lanes() == 1;
    asked.filter(|case| case.as_ref().map_or(true, is_possible)).collect()
}

fn is_root_wanted(root: Root, case: &Case) -> bool {
    match root {
        Root::Only(rank) if case.algorithm.collective.has_root() => case.spec.root().0 == rank,
        _ => true,
    }
}

/// Sums up the results of one algorithm, if it has any.
fn row(algorithm: &'static Algorithm, results: &[(Case, Result<Report, CaseError>)]) -> Option<Row> {
    let mine = || results.iter().filter(|(case, _)| is_same(case.algorithm, algorithm));
    let numbers = || mine().map(|(case, _)| case.spec.ranks());
    let right = || mine().filter_map(|(_, result)| result.as_ref().ok());
    let faults = || mine().filter_map(|(_, result)| result.as_ref().err());
    Some(Row {
        algorithm,
        plans: mine().count() as u64,
        ranks: numbers().min()?..=numbers().max()?,
        steps: right().map(|report| report.steps).max().unwrap_or(0),
        stages: right().map(|report| report.stages).max().unwrap_or(0),
        fault: faults().next_back().cloned(),
        faults: faults().count() as u64,
    })
}

fn table(rows: &[Row], took: Duration) -> String {
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
    let _ = writeln!(text, "{plans} plans, {faults} wrong, {:.1} s", took.as_secs_f64());
    text
}

/// The bar; indicatif shows it on a terminal only.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {pos}/{len} plans, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
