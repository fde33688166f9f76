//! `tbccl plan`: schedules, to be looked at, to be proved right, and to be priced.

mod show;
mod simulate;
mod verify;

use super::Failed;
use std::process::ExitCode;

/// Show plans, verify them, and simulate them
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
}

/// Carries out `tbccl plan`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failed> {
    match args.command {
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(&args),
        Command::Simulate(args) => simulate::run(&args),
    }
}
