//! `tbccl plan simulate`: simulates plans on a cluster and explains their times.
//!
//! | module | purpose |
//! |---|---|
//! | `case` | a call on a cluster and its simulation |
//! | `figures` | figures and tables of docs/simulation.md |
//! | `report` | a page of times over sizes |

mod case;
mod figures;
mod report;

use super::machine::{costs, read};
use crate::commands::{CommandError, arguments, page::Folder, print};
use case::{Case, Implementation};
use collectives::{Codec, Collective, select::price::Model, simulate};
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};
use topology::Rank;

const EXAMPLES: &str = "\
Examples:
  tbccl plan simulate all_reduce --cluster configs/clusters/mac-mesh4.toml
  tbccl plan simulate all_reduce --cluster mac-ring5.toml --size 4K
  tbccl plan simulate all_reduce --cluster mac-mesh4.toml --algo rsag_mesh --segments 64 --svg plan.svg
  tbccl plan simulate broadcast --cluster fat-tree.toml --algo binomial --trace plan.json
  tbccl plan simulate all_reduce --cluster mac-mesh4.toml --report out    charts over sizes up to 64M
  tbccl plan simulate --figures docs/img       the pictures and tables of docs/simulation.md

A cluster file describes how hosts are connected (configs/clusters/template.toml); a fabric file works too.
The size is that of the larger of input and output, per rank; busbw is the bandwidth on the wires, as in
`tbccl bench`; the bound is a lower bound of the time of any plan. Without --algo all algorithms are
simulated, including those of peer libraries; with it, the critical path and the links are shown. Traces
are for chrome://tracing and Perfetto.";

/// Simulate plans on a cluster of any size
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Collective, e.g. all_reduce
    #[arg(value_name = "OP", required_unless_present = "figures")]
    collective: Option<Collective>,

    /// File of the cluster, or of a fabric
    #[arg(long, value_name = "FILE", required_unless_present = "figures")]
    cluster: Option<PathBuf>,

    /// Algorithm [default: all that the cluster supports]
    #[arg(long = "algo", value_name = "NAME")]
    algorithm: Option<String>,

    /// Number of ranks [default: all of the cluster]
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_parser = arguments::ranks,
        allow_negative_numbers = true,
    )]
    ranks: Option<u32>,

    /// Bytes of the larger of input and output; K, M, G and T are understood
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "64M",
        value_parser = tbccl::parse_bytes,
        allow_negative_numbers = true,
    )]
    size: u64,

    /// Root, for collectives that have one
    #[arg(short = 'r', long, value_name = "R", default_value = "0")]
    root: u32,

    /// Number of segments per chunk [default: as in a call]
    #[arg(long, value_name = "K")]
    segments: Option<u32>,

    /// Pack messages of an all_reduce: int8, int8/64, int8/256 or bf16
    #[arg(long, value_name = "CODEC")]
    codec: Option<Codec>,

    /// Costs of messages and work: ideal, rdma, rdma-held or jaccl, or a file [default: the cluster's]
    #[arg(long, value_name = "NAME|FILE")]
    costs: Option<String>,

    /// Draw the timeline as SVG
    #[arg(long, value_name = "FILE", requires = "algorithm")]
    svg: Option<PathBuf>,

    /// Write the timeline as a trace
    #[arg(long, value_name = "FILE", requires = "algorithm")]
    trace: Option<PathBuf>,

    /// Write a page with charts of times over sizes up to --size: DIR/index.html, and the rows as
    /// DIR/rows.jsonl, which `tbccl bench --report --from` shows beside measured ones
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    /// Write the figures of docs/simulation.md: pictures into a folder, tables to stdout
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["collective", "cluster", "algorithm", "svg", "trace", "report"],
    )]
    figures: Option<PathBuf>,
}

/// Runs `tbccl plan simulate`.
pub(super) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    if let Some(folder) = &args.figures {
        figures::draw(folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(collective), Some(path)) = (args.collective, &args.cluster) else {
        return Err(CommandError::new("a collective and a --cluster are needed"));
    };
    let Model { cluster, costs: cluster_costs } = Model::from_toml(&read(path)?)
        .map_err(|error| CommandError::new(format_args!("`{}`: {error}", path.display())))?;
    let case = Case {
        collective,
        ranks: args.ranks.unwrap_or(cluster.ranks()),
        root: Rank(args.root),
        bytes: args.size,
        segments: args.segments,
        codec: args.codec,
        cluster,
        costs: args.costs.as_deref().map_or(Ok(cluster_costs), costs)?,
    };
    let folder = args.report.as_deref().map(Folder::prepare).transpose()?;
    let implementations = match &args.algorithm {
        Some(name) => {
            one(args, &case, name)?;
            vec![Implementation::named(collective, name)?]
        }
        None => {
            all(&case)?;
            Implementation::all(collective).collect()
        }
    };
    if let Some(folder) = folder {
        let (page, rows) = report::report(&case, &implementations);
        print(&folder.write(&page, &rows)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str) -> Result<(), CommandError> {
    fs::write(path, text).map_err(|error| {
        CommandError::new(format_args!("can't write `{}`: {error}; name another file", path.display()))
    })
}

/// Simulates one algorithm and prints all details.
fn one(args: &Args, case: &Case, name: &str) -> Result<(), CommandError> {
    let implementation = Implementation::named(case.collective, name)?;
    let run = case.run(implementation).map_err(CommandError::new)?;
    let mut text = header(case);
    text.push_str(&line(case, &run));
    text.push_str(&simulate::report(&run.schedule, &case.cluster, &run.outcome));
    let title = format!(
        "{} by {name}, {} bytes, {} ranks, {}",
        case.collective,
        case.bytes,
        case.ranks,
        case.cluster.name()
    );
    if let Some(path) = &args.svg {
        write(path, &simulate::svg(&run.schedule, &run.outcome, &title))?;
    }
    if let Some(path) = &args.trace {
        write(path, &simulate::trace(&run.schedule, &run.outcome))?;
    }
    print(&text);
    Ok(())
}

/// Simulates all algorithms and prints them, fastest first.
fn all(case: &Case) -> Result<(), CommandError> {
    let (mut runs, mut refused) = (Vec::new(), Vec::new());
    for implementation in Implementation::all(case.collective) {
        match case.run(implementation) {
            Ok(run) => runs.push(run),
            Err(error) => refused.push((implementation.name(), error)),
        }
    }
    if runs.is_empty() {
        let why = refused.pop().map_or_else(|| "there is no algorithm for it".to_owned(), |(_, error)| error);
        return Err(CommandError::new(why));
    }
    runs.sort_by(|a, b| a.outcome.makespan.total_cmp(&b.outcome.makespan));
    let mut text = header(case);
    runs.iter().for_each(|run| text.push_str(&line(case, run)));
    for (name, error) in refused {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{name}: {error}");
    }
    print(&text);
    Ok(())
}

fn header(case: &Case) -> String {
    let bounds = case.bounds();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# {} of {} bytes on {} ranks of: {}\n# bound: {:.2} us (latency {:.2}, bandwidth {:.2})",
        case.collective,
        case.bytes,
        case.ranks,
        case.cluster.name(),
        bounds.seconds() * 1e6,
        bounds.latency * 1e6,
        bounds.bandwidth * 1e6
    );
    let _ = writeln!(
        text,
        "{:<22} {:>8} {:>9} {:>12} {:>11} {:>10} {:>10}",
        "algorithm", "segments", "steps", "time (us)", "busbw (GB/s)", "of bound", "events"
    );
    text
}

fn line(case: &Case, run: &case::Run) -> String {
    let bound = 100.0 * case.bounds().seconds() / run.outcome.makespan;
    let steps: usize = run.schedule.programs.iter().map(|program| program.steps.len()).sum();
    format!(
        "{:<22} {:>8} {steps:>9} {:>12.2} {:>12.3} {bound:>9.1}% {:>10}\n",
        run.implementation.name(),
        run.segments,
        run.outcome.makespan * 1e6,
        case.bus_bandwidth(run) * 1e-9,
        run.outcome.events
    )
}
