//! `tbccl plan simulate`: how long plans would take on a cluster, and why.

mod case;
mod figures;

use super::machine::{costs, read};
use crate::commands::{Failed, arguments, print};
use case::{Case, Way};
use collectives::{Codec, Collective, simulate};
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};
use topology::{Cluster, Rank};

const EXAMPLES: &str = "\
Examples:
  tbccl plan simulate all_reduce --cluster configs/clusters/mac-mesh4.toml
  tbccl plan simulate all_reduce --cluster mac-ring5.toml --size 4K
  tbccl plan simulate all_reduce --cluster mac-mesh4.toml --algo rsag_mesh --segments 64 --svg plan.svg
  tbccl plan simulate broadcast --cluster fat-tree.toml --algo binomial --trace plan.json
  tbccl plan simulate --figures docs/img       the pictures and tables of docs/simulation.md

A cluster file says how hosts are connected (configs/clusters/template.toml); a fabric file is one, too.
The size is that of the larger side, input or output, per rank; busbw is the bandwidth that wires see, as
in `tbccl bench`; the bound is the least time that any plan could take. Without --algo all algorithms are
simulated, with those of peers where there are any; with it, the critical path and the links are shown.
Traces are for chrome://tracing and Perfetto.";

/// Simulate plans on a cluster of any size
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The collective, e.g. all_reduce
    #[arg(value_name = "OP", required_unless_present = "figures")]
    collective: Option<Collective>,

    /// The file of the cluster, or of a fabric
    #[arg(long, value_name = "FILE", required_unless_present = "figures")]
    cluster: Option<PathBuf>,

    /// The algorithm [default: all that can run there]
    #[arg(long = "algo", value_name = "NAME")]
    algorithm: Option<String>,

    /// How many ranks [default: all of the cluster]
    #[arg(short = 'n', long, value_name = "N", value_parser = arguments::ranks, allow_negative_numbers = true)]
    ranks: Option<u32>,

    /// Bytes of the larger side of the operation; K, M, G and T are understood
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = tbccl::parse_bytes, allow_negative_numbers = true)]
    size: u64,

    /// The root, for collectives that have one
    #[arg(short = 'r', long, value_name = "R", default_value = "0")]
    root: u32,

    /// Cut every chunk into this many pieces [default: as a call would]
    #[arg(long, value_name = "K")]
    segments: Option<u32>,

    /// Pack messages of an all_reduce: int8, int8/64, int8/256 or bf16
    #[arg(long, value_name = "CODEC")]
    codec: Option<Codec>,

    /// Costs of messages and work: ideal, rdma or jaccl, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "rdma")]
    costs: String,

    /// Draw the timeline
    #[arg(long, value_name = "FILE", requires = "algorithm")]
    svg: Option<PathBuf>,

    /// Write the timeline as a trace
    #[arg(long, value_name = "FILE", requires = "algorithm")]
    trace: Option<PathBuf>,

    /// Make the pictures and tables of docs/simulation.md: pictures into a folder, tables on stdout
    #[arg(long, value_name = "DIR", conflicts_with_all = ["collective", "cluster", "algorithm", "svg", "trace"])]
    figures: Option<PathBuf>,
}

/// Carries out `tbccl plan simulate`.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failed> {
    if let Some(folder) = &args.figures {
        figures::draw(folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(collective), Some(path)) = (args.collective, &args.cluster) else {
        return Err(Failed::new("say which collective, and on which --cluster"));
    };
    let cluster = Cluster::from_toml(&read(path)?)
        .map_err(|error| Failed::new(format_args!("`{}`: {error}", path.display())))?;
    let case = Case {
        collective,
        ranks: args.ranks.unwrap_or(cluster.ranks()),
        root: Rank(args.root),
        bytes: args.size,
        segments: args.segments,
        codec: args.codec,
        cluster,
        costs: costs(&args.costs)?,
    };
    match &args.algorithm {
        Some(name) => one(args, &case, name)?,
        None => all(&case)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str) -> Result<(), Failed> {
    fs::write(path, text).map_err(|error| {
        Failed::new(format_args!("can't write `{}`: {error}; name another file", path.display()))
    })
}

/// One algorithm, with all that there is to say.
fn one(args: &Args, case: &Case, name: &str) -> Result<(), Failed> {
    let way = Way::named(case.collective, name)?;
    let run = case.run(way).map_err(Failed::new)?;
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

/// All algorithms, the fastest first.
fn all(case: &Case) -> Result<(), Failed> {
    let (mut runs, mut refused) = (Vec::new(), Vec::new());
    for way in Way::all(case.collective) {
        match case.run(way) {
            Ok(run) => runs.push(run),
            Err(error) => refused.push((way.name(), error)),
        }
    }
    if runs.is_empty() {
        let why = refused.pop().map_or_else(|| "there is no algorithm for it".to_owned(), |(_, error)| error);
        return Err(Failed::new(why));
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
        run.way.name(),
        run.segments,
        run.outcome.makespan * 1e6,
        case.bus_bandwidth(run) * 1e-9,
        run.outcome.events
    )
}
