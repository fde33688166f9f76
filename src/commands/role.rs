//! The role of a measuring command's process: launcher of the ranks, or one of them.

use super::{CommandError, WRONG, run};
use crate::launch::{LaunchSpec, launch};
use bootstrap::{Secret, Server, ServerSpec};
use std::{ffi::OsString, process::ExitCode};
use tbccl::{Communicator, Config};

/// The role of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// This process starts the ranks.
    Launcher,
    /// This process is a rank that was started by other means.
    Rank {
        /// Ranks of the job.
        ranks: u32,
    },
}

impl Role {
    /// Returns the role of this process; `wanted` is the value of --ranks.
    pub(crate) fn detect(wanted: Option<u32>) -> Result<Role, CommandError> {
        let Some(size) = std::env::var_os("TBCCL_SIZE") else { return Ok(Role::Launcher) };
        let ranks = size.to_str().and_then(|size| size.parse().ok()).ok_or_else(|| {
            CommandError::new(format_args!("TBCCL_SIZE={} is not a number of ranks", size.display()))
        })?;
        match wanted {
            Some(wanted) if wanted != ranks => Err(CommandError::new(format_args!(
                "--ranks {wanted}: this is a rank of a job of {ranks} ranks; leave --ranks out"
            ))),
            _ => Ok(Role::Rank { ranks }),
        }
    }

    /// Returns the number of ranks. `command` is this command, for the example in the error.
    pub(crate) fn ranks(self, wanted: Option<u32>, command: &str) -> Result<u32, CommandError> {
        match (self, wanted) {
            (Role::Rank { ranks }, _) | (Role::Launcher, Some(ranks)) => Ok(ranks),
            (Role::Launcher, None) => Err(CommandError::new(format_args!(
                "the number of ranks is missing: use --ranks N, or start this in a job, as in: tbccl \
                 run -n 4 -- tbccl {command}"
            ))),
        }
    }
}

/// Starts this command once per rank with `--worker` added, so that every rank reads the same arguments.
pub(crate) fn start_ranks(name: &'static str, ranks: u32, config: &Config) -> Result<ExitCode, CommandError> {
    let program = run::this_program()?;
    let mut typed = std::env::args_os().skip(1);
    let command = typed.next().into_iter().chain([OsString::from("--worker")]);
    let spec = LaunchSpec {
        args: command.chain(typed).collect(),
        name,
        reported_statuses: &[WRONG, CommandError::STATUS],
        ..LaunchSpec::new(ranks, program.clone(), program)
    };
    if config.transport.name() == "shm" {
        Communicator::preflight(ranks, config).map_err(CommandError::new)?;
    }
    let secret = Secret::generate().map_err(CommandError::new)?;
    let server = Server::start(&ServerSpec::local(ranks, Some(secret)).with_exit_reports())
        .map_err(CommandError::new)?;
    let outcome = launch(&spec, &server).map_err(CommandError::new)?;
    Ok(ExitCode::from(outcome.exit_code()))
}
