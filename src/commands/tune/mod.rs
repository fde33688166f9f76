//! `tbccl tune`: measures the best algorithms on these links and writes them to a file for later jobs, or
//! evaluates such a file.
//!
//! Ranks are started as for `tbccl bench`. For each collective and size all ranks compare the algorithms that
//! can run the call, so that they agree on the best; rank 0 reports and writes.
//!
//! Options that choose algorithms are ignored here: the reference is the choice of the thresholds. Elements
//! are not checked; `tbccl bench` does that.
//!
//! | module | purpose |
//! |---|---|
//! | `candidates` | algorithms and segments to compare |
//! | `comparison` | comparison of the candidates by all ranks |
//! | `evaluation` | best candidate, or regret of a choice |
//! | `file` | reading and writing the tuning file |
//! | `links` | speed of links and memory alone |
//! | `successive_halving` | search for the fastest candidate |
//! | `tuner` | one rank's loop over all cells |

mod candidates;
mod comparison;
mod evaluation;
mod file;
mod links;
mod successive_halving;
mod tuner;

use super::{
    CommandError, arguments,
    bench::{
        measure::broadcast_from_0,
        memory,
        sizes::{Sizes, Step},
    },
    pin,
    role::{self, Role},
};
use collectives::Collective;
use std::{path::PathBuf, process::ExitCode, str::FromStr, time::Duration};
use tbccl::{Communicator, Config, Rank, SelectionConfig, Transport};

const EXAMPLES: &str = "\
Examples:
  tbccl tune -n 4                                     all collectives, four processes of this machine
  TBCCL_TUNING=tbccl-tuning.toml tbccl bench all_reduce --ranks 4
  tbccl tune -n 2 --ops all_reduce,bcast -e 1M -o small.toml
  tbccl run --hostfile hosts.toml -- tbccl tune -o /shared/four-macs.toml
  tbccl tune -n 4 --check tbccl-tuning.toml           compares the file's choices with the best
  tbccl tune -n 4 --check                             compares the choices made without a file

The file applies to jobs with the same transport, number of ranks, number of hosts and machine; other jobs
print a message and don't use it. An algorithm other than the automatic choice is written if it takes at
least 4 % less time. docs/tuning.md describes the file, and when to measure again. The machines should be
otherwise idle.

Exit status: 0; 2 for bad usage or an unsuitable environment.";

/// Measure which algorithm is best for which call here, and write it to a file for TBCCL_TUNING
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Ranks to start on this machine; within a job, the job's ranks are used
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        value_parser = arguments::ranks,
        allow_negative_numbers = true,
    )]
    ranks: Option<u32>,

    #[arg(
        long,
        value_name = "NAME",
        value_parser = Transport::from_str,
        help = arguments::transport_help("; auto is shm [default: TBCCL_TRANSPORT, or auto]")
    )]
    transport: Option<Transport>,

    /// Collectives to tune, e.g. all_reduce,broadcast [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Collective::from_str)]
    ops: Vec<Collective>,

    /// Smallest size in bytes of the larger of input and output; K, M, G and T are understood
    #[arg(
        short = 'b',
        long = "min",
        value_name = "SIZE",
        default_value = "4",
        value_parser = tbccl::parse_bytes,
        allow_negative_numbers = true,
    )]
    min_bytes: u64,

    /// Largest size in bytes
    #[arg(
        short = 'e',
        long = "max",
        value_name = "SIZE",
        default_value = "64M",
        value_parser = tbccl::parse_bytes,
        allow_negative_numbers = true,
    )]
    max_bytes: u64,

    /// Factor from each size to the next
    #[arg(
        short = 'f',
        long,
        value_name = "FACTOR",
        default_value = "4",
        value_parser = clap::value_parser!(u64).range(2..),
        allow_negative_numbers = true,
    )]
    factor: u64,

    /// Seconds per collective and size; large sizes take at least the time of a few runs of each candidate
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = arguments::seconds)]
    time: Duration,

    /// File to write
    #[arg(short = 'o', long, value_name = "FILE", default_value = "tbccl-tuning.toml")]
    output: PathBuf,

    /// Overwrite the file even if it is not a tuning file
    #[arg(long)]
    force: bool,

    /// Write nothing: print the time of the choices relative to the best, without a file and with this one
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["output", "force"])]
    check: Option<Option<PathBuf>>,

    /// Let the system move ranks between cores, instead of binding each to its share
    #[arg(long)]
    no_pin: bool,

    /// Set by the launcher for the ranks that it starts
    #[arg(long, hide = true)]
    worker: bool,
}

/// Runs `tbccl tune`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let config = config(args)?;
    let role = Role::detect(args.ranks)?;
    let ranks = role.ranks(args.ranks, "tune")?;
    check(args, ranks)?;
    if role == Role::Launcher {
        prepare(args)?;
        return role::start_ranks("tbccl tune", ranks, &config);
    }
    let mut comm = pin::join(&config, !args.no_pin)?;
    // Other ranks wait for the pair whose link is measured.
    comm.set_timeout(config.timeout + args.time * 8);
    if !all_prepared(&mut comm, args)? {
        return Ok(ExitCode::from(CommandError::STATUS));
    }
    tuner::run_rank(&mut comm, args)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the options of the environment without those that choose algorithms.
fn config(args: &Args) -> Result<Config, CommandError> {
    let given = Config::from_env().map_err(CommandError::new)?;
    let transport = args.transport.unwrap_or(given.transport);
    Ok(Config {
        transport,
        selection: SelectionConfig { cores: given.selection.cores, ..SelectionConfig::default() },
        ..given
    })
}

/// Validates the arguments.
fn check(args: &Args, ranks: u32) -> Result<(), CommandError> {
    let (min, max) = (args.min_bytes, args.max_bytes);
    if ranks < 2 {
        return Err(CommandError::new("with one rank there is nothing to tune; use -n 2 or more"));
    }
    if min == 0 {
        return Err(CommandError::new("-b 0: sizes begin with 1 byte"));
    }
    if min > max {
        return Err(CommandError::new(format_args!(
            "-b {min} is larger than -e {max}; the smallest size comes first"
        )));
    }
    if tuner::cells(args, ranks).is_empty() {
        return Err(CommandError::new(format_args!(
            "no size from {min} to {max} holds elements for these collectives on {ranks} ranks; raise -e"
        )));
    }
    memory::check_bytes(2 * u128::from(ranks) * u128::from(max), ranks, max, "on this machine")
}

/// Checks the files to read or write.
fn prepare(args: &Args) -> Result<(), CommandError> {
    match &args.check {
        Some(Some(path)) => file::read(path).map(drop),
        Some(None) => Ok(()),
        None => file::check(&args.output, args.force),
    }
}

/// Checks the files on rank 0, which uses them; returns on all ranks whether that succeeded.
fn all_prepared(comm: &mut Communicator, args: &Args) -> Result<bool, CommandError> {
    let local = if comm.rank() == Rank(0) { prepare(args) } else { Ok(()) };
    let mut shared = [f64::from(u8::from(local.is_err()))];
    broadcast_from_0(comm, &mut shared).map_err(CommandError::new)?;
    local.map(|()| shared[0] == 0.0)
}

impl Args {
    fn sizes(&self) -> Sizes {
        Sizes { min: self.min_bytes, max: self.max_bytes, step: Step::Factor(self.factor) }
    }

    /// Returns the requested collectives, each once, in the order of the table.
    fn collectives(&self) -> Vec<Collective> {
        let wanted = |collective: &Collective| self.ops.is_empty() || self.ops.contains(collective);
        Collective::ALL.into_iter().filter(wanted).collect()
    }
}
