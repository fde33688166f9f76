//! `tbccl agent`: the launcher's end on a host. Started by `tbccl run`, over ssh; nobody types it.

use super::Failed;
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

/// Start ranks for a launcher that speaks over stdin and stdout
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {}

/// Carries out `tbccl agent`.
pub(crate) fn run() -> Result<ExitCode, Failed> {
    if io::stdin().is_terminal() {
        return Err(Failed::new(
            "`tbccl agent` is started by `tbccl run` on each host, and of no use by itself",
        ));
    }
    crate::launch::agent::serve()
        .map_err(|why| Failed::new(format_args!("the agent can't start: {why}")))
        .map(|()| ExitCode::SUCCESS)
}
