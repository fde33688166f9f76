//! `tbccl agent`: runs on each host of a job. `tbccl run` starts it, over ssh on other hosts.

use super::CommandError;
use std::{
    io::{self, IsTerminal},
    os::fd::RawFd,
    process::ExitCode,
};

/// Start ranks for a launcher connected to stdin and stdout
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Descriptor of a socket to the launcher, in place of stdin and stdout
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(RawFd).range(3..))]
    connection: Option<RawFd>,
}

/// Runs `tbccl agent`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    if args.connection.is_none() && io::stdin().is_terminal() {
        return Err(CommandError::new("`tbccl agent` is started by `tbccl run` on each host, not by hand"));
    }
    crate::launch::agent::serve(args.connection)
        .map_err(|why| CommandError::new(format_args!("the agent can't start: {why}")))
        .map(|()| ExitCode::SUCCESS)
}
