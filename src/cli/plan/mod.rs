//! `tbccl plan`: schedules, to be looked at and to be proved right.

mod show;
mod verify;

use super::Failed;
use std::process::ExitCode;

/// Show plans, and verify them
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Show(show::Args),
    Verify(verify::Args),
}

/// Carries out `tbccl plan`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failed> {
    match args.command {
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(&args),
    }
}
