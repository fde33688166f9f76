//! `tbccl plan`: shows, verifies and prices schedules, and suggests cables.
//!
//! | module | purpose |
//! |---|---|
//! | `explain` | `tbccl plan explain` |
//! | `machine` | clusters and costs by name or file |
//! | `rules` | device rules to verify against |
//! | `show` | `tbccl plan show` |
//! | `simulate` | `tbccl plan simulate` |
//! | `variant` | hosts, replicas and stripes of a plan |
//! | `verify` | `tbccl plan verify` |
//! | `wire` | `tbccl plan wire` |

mod explain;
mod machine;
mod rules;
mod show;
mod simulate;
mod variant;
mod verify;
mod wire;

use super::CommandError;
use std::process::ExitCode;

/// Show plans, verify them, simulate them, and explain which is chosen
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Show(show::Args),
    Verify(verify::Args),
    Simulate(simulate::Args),
    Explain(explain::Args),
    Wire(wire::Args),
}

/// Runs `tbccl plan`.
pub(crate) fn run(args: Args) -> Result<ExitCode, CommandError> {
    match args.command {
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Wire(args) => wire::run(&args),
    }
}
