//! `tbccl top`: shows what the ranks of jobs do, as rates.
//!
//! | module | purpose |
//! |---|---|
//! | `sample` | the metrics of all ranks at one moment |
//! | `rates` | rates between two samples, by rank and by rail |
//! | `table` | rates as text |
//! | `live` | rates in the terminal, until the user ends it |
//! | `screen` | the terminal: lines and keys |

mod live;
mod rates;
mod sample;
mod screen;
mod table;

use super::{CommandError, arguments, print};
use rates::Rates;
use sample::Sample;
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    thread,
    time::Duration,
};

const EXAMPLES: &str = "\
Examples:
  tbccl top                       all jobs of this user that have their rendezvous on this machine
  tbccl top --job 4711            the job whose launcher, rendezvous or rank has this process id
  tbccl top --once --interval 5   rates of the next 5 s, as text
  tbccl top --json | jq -r '.ranks[] | [.rank, .waiting_share] | @tsv'

A row for each rank, and one for each cable between two hosts:

  rank  host  process  ops/s  received    in calls  waiting  resent  errors  now
  0     mac0  71        1312  4.1 GB/s        83 %      2 %       0       0  all_reduce number 17
  1     mac1  44        1312  4.1 GB/s        82 %     61 %       0       0  outside tbccl

A rank that waits much is ahead of another one; the one that waits least holds up the job. Shares of time
in calls need TBCCL_METRICS in the job; all other values are there without it. In the terminal, q or Ctrl-C
ends it, and arrows scroll. Run it where `tbccl run`, `tbccl rendezvous` or rank 0 runs. More:
docs/metrics.md.";

/// Show operations, bytes and waits of running ranks, live
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Process id of the job's launcher, of its rendezvous or of one of its ranks (all jobs)
    #[arg(long, value_name = "PID")]
    job: Option<u32>,

    /// Seconds between two looks at the ranks, 0.1 at least
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,

    /// Print the rates of one interval as text; so without a terminal
    #[arg(long)]
    once: bool,

    /// Print the rates of one interval as JSON
    #[arg(long)]
    json: bool,
}

/// Shortest interval: to ask all ranks takes a part of it.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = arguments::seconds(text)?;
    match interval >= MIN_INTERVAL {
        true => Ok(interval),
        false => Err("must be 0.1 seconds at least".to_owned()),
    }
}

/// Runs `tbccl top`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let first = Sample::take(args.job)?;
    if !args.once && !args.json && io::stdout().is_terminal() {
        return live::show(first, args.job, args.interval);
    }
    thread::sleep(args.interval);
    let rates = Rates::between(&first, &Sample::take(args.job)?);
    print(&match args.json {
        true => format!("{:#}\n", serde_json::json!(rates)),
        false => table::text(&rates),
    });
    Ok(ExitCode::SUCCESS)
}
