//! `tbccl agent`: runs on each host of a job. `tbccl run` starts it, over ssh on other hosts.

use super::CommandError;
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

/// Start ranks for a launcher connected to stdin and stdout
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {}

/// Runs `tbccl agent`.
pub(crate) fn run() -> Result<ExitCode, CommandError> {
    if io::stdin().is_terminal() {
        return Err(CommandError::new("`tbccl agent` is started by `tbccl run` on each host, not by hand"));
    }
    crate::launch::agent::serve()
        .map_err(|why| CommandError::new(format_args!("the agent can't start: {why}")))
        .map(|()| ExitCode::SUCCESS)
}
