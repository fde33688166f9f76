//! `tbccl trace`: merges, checks and summarizes the traces of a job's ranks.
//!
//! | module | purpose |
//! |---|---|
//! | `format` | files of ranks and merged files, as JSON |
//! | `load` | from paths to the files of one communicator |
//! | `clocks` | offset and drift of a host's clock, from samples |
//! | `matching` | sends and their receives |
//! | `merge` | `tbccl trace merge` |
//! | `check` | `tbccl trace check` |
//! | `summary` | `tbccl trace summary` |

mod check;
mod clocks;
mod format;
mod load;
mod matching;
mod merge;
mod summary;

use super::CommandError;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  tbccl run -n 4 --trace traces -- ./program      a file per rank in the folder traces
  tbccl trace merge traces -o job.json            one file; open it at https://ui.perfetto.dev
  tbccl trace check job.json                      sends have receives, slices nest, clocks agree
  tbccl trace summary job.json                    time per collective and size, waits per peer

More: docs/trace.md.";

/// Merge, check and summarize the traces of a job (TBCCL_TRACE, tbccl run --trace)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Merge(merge::Args),
    Check(check::Args),
    Summary(summary::Args),
}

/// Runs `tbccl trace`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    match &args.command {
        Command::Merge(args) => merge::run(args),
        Command::Check(args) => check::run(args),
        Command::Summary(args) => summary::run(args),
    }
}
