//! The command `softrdma`: checks fabric files, and inspects and breaks running fabrics.
//!
//! Exit status 0, or 2 on any error. Errors are one line on stderr that begins with the name under which the
//! command was called, since `tbccl fabric` calls it too.
//!
//! Modules: `files` (check, nodes), `env`, `library` (lib), `fault` with `freeze`, `stat`, and
//! `running_fabric`, which the last two open.

mod env;
mod fault;
mod files;
mod freeze;
mod library;
mod running_fabric;
mod stat;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

#[derive(Debug, Parser)]
#[command(
    name = "softrdma",
    version,
    about = "Fabrics of software RDMA devices",
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
    Check(files::CheckArgs),
    Nodes(files::NodesArgs),
    Env(env::Args),
    Lib(library::Args),
    Fault(fault::Args),
    Stat(stat::Args),
}

/// An error message of one line, with the remedy.
#[derive(Debug)]
struct CliError(String);

impl CliError {
    fn new(message: impl Display) -> CliError {
        CliError(message.to_string())
    }
}

/// Writes to stdout. Ignores errors, since the reader may have closed the pipe.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

fn main() -> ExitCode {
    let command =
        if program_name() == "tbccl" { Cli::command().bin_name("tbccl fabric") } else { Cli::command() };
    let parsed = command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let result = match parsed {
        Ok(cli) => match cli.command {
            Command::Check(args) => files::check(&args),
            Command::Nodes(args) => files::nodes(&args),
            Command::Env(args) => env::run(&args),
            Command::Lib(args) => library::run(&args),
            Command::Fault(args) => fault::run(&args),
            Command::Stat(args) => stat::run(&args),
        },
        Err(usage) => return report_usage(&usage),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(CliError(message)) => report(&message),
    }
}

/// Prints help and version as they are, and usage errors as one line.
fn report_usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if !error.use_stderr() || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        let _ = error.print();
        return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    let message = text.split("\n\nUsage:").next().unwrap_or(&text);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let parts = message.lines().map(str::trim).filter(|part| !part.is_empty());
    let line = parts.map(|part| part.strip_prefix("error: ").unwrap_or(part)).collect::<Vec<_>>().join(", ");
    report(&line.replace(":, ", ": "))
}

fn report(message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "{}: error: {message}", program_name().display());
    ExitCode::from(2)
}

/// Returns the name under which this program was called.
fn program_name() -> OsString {
    let called = std::env::args_os().next().unwrap_or_default();
    Path::new(&called).file_name().unwrap_or("softrdma".as_ref()).to_owned()
}
