//! `tbccl ping`: measures every cable between every two ranks in both directions, and compares it with its
//! rate.
//!
//! Ranks are started as for `tbccl bench`. All ranks follow the same list of pairs, directions and rails.
//! Ranks outside the measured pair wait for its result, so that one measurement runs at a time. Rank 0
//! reports.
//!
//! | module | purpose |
//! |---|---|
//! | `measure` | the measurement |
//! | `page` | the result as a page |
//! | `report` | rank 0's output |
//! | `row` | one line of the result |

pub(super) mod measure;
mod page;
mod report;
mod row;

use super::{
    CommandError, WRONG, arguments,
    page::Folder,
    pin,
    role::{self, Role},
};
use std::{path::PathBuf, process::ExitCode, str::FromStr, time::Duration};
use tbccl::{Config, Transport};

const EXAMPLES: &str = "\
Examples:
  tbccl ping --ranks 4                                      between processes of this machine
  tbccl run -n 2 --transport verbs -- tbccl ping            between the ranks of a job, by RDMA
  tbccl fabric run --fabric configs/fabrics/apple-tb5-mesh3.toml -- tbccl ping --transport verbs
  tbccl ping --ranks 2 --json | jq .gigabits
  tbccl run -n 4 --hostfile hosts.json -- tbccl ping --report out    a picture of the cables

A line is a rail: one cable between two ranks, in one direction. Two ranks with several rails have a
further line for all of them together. Latency is half of a round trip of 8 bytes that `from` begins.
Bandwidth is the rate at which messages of --size bytes in registered memory arrive at `to`, in Gb/s
(10^9 bits).

The rate is the signalling rate of the slower of the two ports, as shown by `tbccl devices`. Headers and
acknowledgements use a part of it. A line is marked `slow` if less than 60 % of the rate arrives. The rate
does not include the machine behind the port: a slow line on a good cable may be due to memory or processor.
The expected latency is the one published for such cables: over Thunderbolt 5, 5 to 10 us (Apple, WWDC26,
session 233: single-digit microseconds; 7.4 us for 64-byte writes in reports from Linux). For other wires
no latency is published here.

Exit status: 0, even with slow rails; 1 if a rail is down; 2 if a pair of ranks can't be measured, for
bad usage, or for an unsuitable environment.";

/// Measure latency and bandwidth of every cable between every two ranks, in both directions
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Ranks to start on this machine; within a job, the job's ranks are used
    #[arg(long, value_name = "N", value_parser = arguments::ranks, allow_negative_numbers = true)]
    ranks: Option<u32>,

    #[arg(
        long,
        value_name = "NAME",
        value_parser = Transport::from_str,
        help = arguments::transport_help("; auto is shm [default: TBCCL_TRANSPORT, or auto]")
    )]
    transport: Option<Transport>,

    /// Bytes per message of the bandwidth measurement; K, M and G are understood
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "16M",
        value_parser = size,
        allow_negative_numbers = true,
    )]
    size: u64,

    /// Seconds per latency and per bandwidth measurement
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = arguments::seconds)]
    time: Duration,

    /// Let the system move ranks between cores, instead of binding each to its share
    #[arg(long)]
    no_pin: bool,

    /// Print one line of JSON per rail and direction, instead of the table
    #[arg(long)]
    json: bool,

    /// Write a picture of the cables with their latencies and rates: DIR/index.html on the host of rank 0,
    /// and the lines as DIR/rows.jsonl
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    /// Set by the launcher for the ranks that it starts
    #[arg(long, hide = true)]
    worker: bool,
}

/// Runs `tbccl ping`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let mut config = Config::from_env().map_err(CommandError::new)?;
    config.transport = args.transport.unwrap_or(config.transport);
    let role = Role::detect(args.ranks)?;
    let ranks = role.ranks(args.ranks, "ping")?;
    if ranks < 2 {
        return Err(CommandError::new("a ping is between two ranks; use --ranks 2 or more"));
    }
    if role == Role::Launcher {
        args.report.as_deref().map_or(Ok(()), |folder| Folder::prepare(folder).map(drop))?;
        return role::start_ranks("tbccl ping", ranks, &config);
    }
    let mut comm = pin::join(&config, !args.no_pin)?;
    // Ranks outside the measured pair wait for its result.
    comm.set_timeout(config.timeout + args.time * 8);
    let all_up = measure::run_rank(&mut comm, args)?;
    Ok(if all_up { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// Parses a message size; the maximum is half of the smallest slab.
fn size(text: &str) -> Result<u64, String> {
    match tbccl::parse_bytes(text)? {
        bytes @ 1..=0x1000_0000 => Ok(bytes),
        _ => Err("must be from 1 to 256M".to_owned()),
    }
}
