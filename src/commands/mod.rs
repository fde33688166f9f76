//! The command line: one module per subcommand, each turning arguments into calls of the library.
//!
//! Exit status: 0; 1 for a wrong result; 2 for bad usage or an environment in which the command can't work;
//! `run` passes on the status of the first rank that fails. Errors are one line on stderr, with the remedy.

mod agent;
mod arguments;
mod bench;
mod devices;
mod error;
mod fabric;
mod install_mpirun;
mod mpirun;
mod pin;
mod ping;
mod place;
mod plan;
mod progress;
mod rendezvous;
mod run;
mod tune;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use error::Failed;
use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

/// Exit status for a wrong result.
const WRONG: u8 = 1;

/// Writes to stdout. A reader that went away has seen enough.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

#[derive(Debug, Parser)]
#[command(
    name = "tbccl",
    version,
    about = "Collective communication for Macs and PCs wired together with Thunderbolt",
    arg_required_else_help = true,
    max_term_width = 100,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Bench(bench::Args),
    Plan(plan::Args),
    Devices(devices::Args),
    Ping(ping::Args),
    Tune(tune::Args),
    Fabric(fabric::Args),
    Agent(agent::Args),
    Rendezvous(rendezvous::Args),
    InstallMpirun(install_mpirun::Args),
}

impl Command {
    /// As they are typed.
    const NAMES: [&str; 9] =
        ["run", "bench", "plan", "devices", "ping", "tune", "fabric", "rendezvous", "install-mpirun"];
}

/// Carries out a command line; the first argument is the program's own name.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let args = if mpirun::is_meant(args.first()) {
        match mpirun::translate(&args) {
            Ok(args) => args,
            Err(failed) => return failed.report(),
        }
    } else {
        arguments::as_mpirun_users_type(args, &Cli::command())
    };
    let names: &[&'static str] = match args.get(1) {
        Some(command) if command == "fabric" => &fabric::NAMES,
        _ => &Command::NAMES,
    };
    let parsed = Cli::command().try_get_matches_from(args).and_then(|m| Cli::from_arg_matches(&m));
    let result = match parsed {
        Ok(cli) => match cli.command {
            Command::Run(args) => run::run(args),
            Command::Bench(args) => bench::run(args),
            Command::Plan(args) => plan::run(args),
            Command::Devices(args) => devices::run(&args),
            Command::Ping(args) => ping::run(&args),
            Command::Tune(args) => tune::run(&args),
            Command::Fabric(args) => fabric::run(args),
            Command::Agent(_) => agent::run(),
            Command::Rendezvous(args) => rendezvous::run(&args),
            Command::InstallMpirun(args) => install_mpirun::run(&args),
        },
        Err(usage) => error::usage(&usage, names),
    };
    result.unwrap_or_else(Failed::report)
}
