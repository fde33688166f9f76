//! `tbccl bench --compare-transports`: RDMA beside TCP over one modelled cable, on one machine (Linux).
//!
//! RDMA is the software device with its link model. TCP goes over a pair of interfaces in network namespaces,
//! once by blocking sockets, as programs use them, and once by the library, which polls. Each size is a
//! ping-pong; a value is half of the round trip, the median of a round's samples, and of the rounds.
//!
//! The command starts itself in a network namespace of its own, where it starts all others. Namespaces end
//! with their processes, so nothing is left whatever ends the command.
//!
//! | module | purpose |
//! |---|---|
//! | `cable` | the namespaces, and the cable between them |
//! | `ranks` | measurements by ranks of the library |
//! | `sockets` | measurements by blocking sockets |
//! | `table` | the tables |

mod cable;
mod ranks;
mod sockets;
mod table;

use crate::commands::{CommandError, arguments, print, progress::Progress, run::this_program};
use cable::Cable;
use std::{net::Ipv4Addr, ops::RangeInclusive, process::ExitCode, time::Duration};

/// Sizes in bytes, as powers of two.
const SIZES: RangeInclusive<u32> = 10..=16;
/// Size at which ways of polling are compared, as a power of two.
const POLLED_SIZE: u32 = 12;

/// Options of the comparison.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Comparison of transports")]
pub(super) struct TransportArgs {
    /// Compare RDMA with TCP, for messages of 1 KiB to 64 KiB over a modelled cable
    #[arg(
        long,
        conflicts_with_all = ["op", "ranks", "transport", "compare", "from", "report", "json", "worker"],
    )]
    pub(super) compare_transports: bool,

    /// Latency of the cable in microseconds, one way
    #[arg(long, value_name = "US", default_value = "5", value_parser = positive_number)]
    cable_latency: f64,

    /// Rate of the cable in Gb/s
    #[arg(long, value_name = "GBPS", default_value = "75", value_parser = positive_number)]
    cable_rate: f64,

    /// Rounds, of which the medians are printed
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,

    /// Seconds of a measurement per size and round
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = arguments::positive_seconds)]
    round_time: Duration,

    /// Set where the command starts itself in a namespace
    #[arg(long, hide = true)]
    in_namespace: bool,

    /// Echoes messages at this address; the command starts itself so at the other end of the cable
    #[arg(long, hide = true, value_name = "ADDRESS")]
    echo: Option<Ipv4Addr>,
}

/// Half round trips in microseconds, of one round: a value for each size.
type Round = Vec<f64>;

/// All measurements.
#[derive(Clone, Debug, Default)]
struct Measured {
    sockets: Vec<Round>,
    tcp: Vec<Round>,
    rdma: Vec<Round>,
    /// For each way of polling, the rounds: time, and processor time of the busier rank.
    polling: Vec<Vec<(f64, f64)>>,
}

/// Runs the comparison.
pub(super) fn run(args: &TransportArgs) -> Result<ExitCode, CommandError> {
    if let Some(address) = args.echo {
        sockets::echo(address).map_err(|e| CommandError::new(format_args!("the echo of messages: {e}")))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !cfg!(target_os = "linux") {
        return Err(CommandError::new("--compare-transports needs network namespaces, which are Linux's"));
    }
    let program = this_program()?;
    if !args.in_namespace {
        return cable::enter(&program);
    }
    let cable = Cable::new(args.cable_latency, args.cable_rate)?;
    let mut measured = Measured { polling: vec![Vec::new(); ranks::POLLING.len()], ..Measured::default() };
    let progress = Progress::new(args.rounds as usize * (3 + ranks::POLLING.len()), "measurements");
    for _ in 0..args.rounds {
        measured.sockets.push(sockets::measure(&program, &cable, args.round_time)?);
        progress.advance();
        measured.tcp.push(ranks::tcp(&program, &cable, args.round_time)?);
        progress.advance();
        measured.rdma.push(ranks::rdma(&program, &cable, args.round_time)?);
        progress.advance();
        for (rounds, way) in measured.polling.iter_mut().zip(&ranks::POLLING) {
            rounds.push(ranks::polling(&program, &cable, args.round_time, way)?);
            progress.advance();
        }
    }
    progress.finish();
    print(&table::text(&cable, args.rounds, &measured));
    Ok(ExitCode::SUCCESS)
}

/// Parses a number of more than 0.
fn positive_number(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("a number of more than 0 was expected, e.g. 5".to_owned()),
    }
}
