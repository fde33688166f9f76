//! `tbccl plan`: shows, verifies and prices schedules, and suggests cables.

mod explain;
mod machine;
mod rules;
mod show;
mod simulate;
mod variant;
mod verify;
mod wire;

use super::Failed;
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

/// Carries out `tbccl plan`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failed> {
    match args.command {
        Command::Show(args) => show::run(args),
        Command::Verify(args) => verify::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Wire(args) => wire::run(&args),
    }
}
