//! `tbccl plan wire`: suggests cables between hosts with a given number of ports.

use super::machine::{self, CABLE};
use crate::commands::{CommandError, arguments, print};
use collectives::{
    Collective,
    select::survey::{CablingReport, Entry, recommended, survey},
};
use std::{fmt::Write, process::ExitCode};
use topology::{Cabling, Impossible, Speed, cablings};

/// Bytes of the small operation.
const SMALL_BYTES: u64 = 4096;

/// Maximum number of hosts.
const MAX_HOSTS: u32 = 32;

const EXAMPLES: &str = "\
Examples:
  tbccl plan wire --hosts 4 --ports 3
  tbccl plan wire --hosts 5 --ports 3
  tbccl plan wire --hosts 2 --ports 3 --gbps 40 --latency-us 8

Considers a full mesh, a ring, a line, a hypercube and tori, as far as the ports suffice; spare ports
double the cables, or more. Every collective is simulated on each cabling with its fastest algorithm
(`tbccl plan explain`). The first table is the bus bandwidth of operations of --bytes, the second the time
of 4 KiB. A `-` means that no algorithm supports the cabling. \"round\" is the same shape with the hosts
numbered along a path through all of them, which rings need. The suggested cabling supports the most
collectives, and among such has the fastest all_reduce. Hosts and ports are counted from 0; the ports of
a host are interchangeable.";

/// Suggest how to cable hosts
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of hosts
    #[arg(long, value_name = "N", value_parser = arguments::ranks, allow_negative_numbers = true)]
    hosts: u32,

    /// Number of ports per host
    #[arg(
        long,
        value_name = "P",
        value_parser = clap::value_parser!(u32).range(1..=64),
        allow_negative_numbers = true,
    )]
    ports: u32,

    /// Bandwidth of a cable in each direction, in gigabits per second
    #[arg(
        long,
        value_name = "G",
        default_value_t = CABLE.1,
        value_parser = positive,
        allow_negative_numbers = true,
    )]
    gbps: f64,

    /// Latency of a cable in microseconds
    #[arg(
        long,
        value_name = "US",
        default_value_t = CABLE.0,
        value_parser = positive,
        allow_negative_numbers = true,
    )]
    latency_us: f64,

    /// Bytes of the larger of input and output of large operations
    #[arg(
        short = 'b',
        long,
        value_name = "SIZE",
        default_value = "64M",
        value_parser = tbccl::parse_bytes,
        allow_negative_numbers = true,
    )]
    bytes: u64,

    /// Costs of messages and work: ideal, rdma, rdma-held or jaccl, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "rdma-held")]
    costs: String,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "a number above 0 was expected, e.g. 75".to_owned())
}

/// Runs `tbccl plan wire`.
pub(super) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    if !(2..=MAX_HOSTS).contains(&args.hosts) {
        return Err(CommandError::new(format_args!(
            "cables can be suggested for 2 to {MAX_HOSTS} hosts, not for {}; change --hosts",
            args.hosts
        )));
    }
    let (possible, impossible) = cablings(args.hosts, args.ports);
    if possible.is_empty() {
        return Err(CommandError::new(format_args!(
            "{} hosts with one port each can't be connected; more ports per host are needed",
            args.hosts
        )));
    }
    let (speed, costs) = (Speed::new(args.latency_us, args.gbps), machine::costs(&args.costs)?);
    let reports: Vec<CablingReport> =
        possible.into_iter().map(|cabling| survey(cabling, speed, &costs, args.bytes, SMALL_BYTES)).collect();
    let Some(best) = recommended(&reports) else {
        return Err(CommandError::new("there is no cabling to suggest"));
    };
    let large = |entry: &Entry| entry.large.as_ref().ok().map(|(_, busbw)| busbw * 1e-9);
    let small = |entry: &Entry| entry.small.as_ref().ok().map(|(_, seconds)| seconds * 1e6);
    let mut text = format!(
        "busbw in GB/s, {} bytes, cables of {} Gb/s and {} us:\n",
        args.bytes, args.gbps, args.latency_us
    );
    text.push_str(&table(&reports, large));
    let _ = write!(text, "\ntime in us, {SMALL_BYTES} bytes:\n");
    text.push_str(&table(&reports, small));
    text.push_str(&advice(best, &impossible));
    print(&text);
    Ok(ExitCode::SUCCESS)
}

/// Returns a table with a row per collective and a column per cabling.
fn table(reports: &[CablingReport], figure: impl Fn(&Entry) -> Option<f64>) -> String {
    let names: Vec<String> = reports.iter().map(|report| name(&report.cabling)).collect();
    let mut text = format!("{:<15}", "");
    names.iter().for_each(|name| {
        let _ = write!(text, "  {name:>9}");
    });
    text.push('\n');
    for collective in Collective::ALL {
        let figures: Vec<Option<f64>> =
            reports.iter().map(|report| report.of(collective).and_then(&figure)).collect();
        // A barrier moves no data.
        if figures.iter().flatten().all(|figure| *figure == 0.0) && collective == Collective::Barrier {
            continue;
        }
        let _ = write!(text, "{:<15}", collective.name());
        for (name, figure) in names.iter().zip(figures) {
            let shown = figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"));
            let _ = write!(text, "  {shown:>width$}", width = name.len().max(9));
        }
        text.push('\n');
    }
    text
}

fn name(cabling: &Cabling) -> String {
    if cabling.each == 1 { cabling.name.clone() } else { format!("{} x{}", cabling.name, cabling.each) }
}

/// Returns the suggestion, and the impossible shapes.
fn advice(best: &CablingReport, impossible: &[Impossible]) -> String {
    let cabling = &best.cabling;
    let mut text = format!("\nadvised: {}, {} cables", name(cabling), cabling.cables());
    if let Some(Entry { large: Ok((large, _)), small: Ok((small, _)), .. }) = best.of(Collective::AllReduce) {
        let _ = write!(text, "; all_reduce by {}, small by {}", large.algorithm, small.algorithm);
    }
    text.push('\n');
    for [(a, x), (b, y)] in cabling.plugs() {
        let _ = writeln!(text, "  host {a} port {x} -- host {b} port {y}");
    }
    if !impossible.is_empty() {
        text.push_str("\nnot possible:\n");
    }
    for Impossible { name, why } in impossible {
        let _ = writeln!(text, "  {name}: {why}");
    }
    text
}
