//! The role of a measuring command: launcher of its ranks, or one of them.

use super::{Failed, WRONG};
use crate::launch::{LaunchSpec, launch};
use bootstrap::{Server, ServerSpec};
use std::{ffi::OsString, process::ExitCode};
use tbccl::{Communicator, Config};

/// The source of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// We start them.
    Launcher,
    /// Somebody has started them, and this process is one.
    Rank {
        /// How many there are.
        ranks: u32,
    },
}

impl Place {
    /// Returns the role of this process; `wanted` is the value of --ranks.
    pub(crate) fn here(wanted: Option<u32>) -> Result<Place, Failed> {
        let Some(size) = std::env::var_os("TBCCL_SIZE") else { return Ok(Place::Launcher) };
        let ranks = size.to_str().and_then(|size| size.parse().ok()).ok_or_else(|| {
            Failed::new(format_args!("TBCCL_SIZE={} is not a number of ranks", size.display()))
        })?;
        match wanted {
            Some(wanted) if wanted != ranks => Err(Failed::new(format_args!(
                "--ranks {wanted}: this is a rank of a job of {ranks} ranks; leave --ranks out"
            ))),
            _ => Ok(Place::Rank { ranks }),
        }
    }

    /// How many ranks there are to be. `command` is ours, as in an example.
    pub(crate) fn ranks(self, wanted: Option<u32>, command: &str) -> Result<u32, Failed> {
        match (self, wanted) {
            (Place::Rank { ranks }, _) | (Place::Launcher, Some(ranks)) => Ok(ranks),
            (Place::Launcher, None) => Err(Failed::new(format_args!(
                "how many ranks? say --ranks N, or start this in a job, as in: tbccl run -n 4 -- tbccl {command}"
            ))),
        }
    }
}

/// Starts this command once per rank, with `--worker` added, so that every rank reads the same arguments.
pub(crate) fn start_ranks(name: &'static str, ranks: u32, config: &Config) -> Result<ExitCode, Failed> {
    let program = std::env::current_exe()
        .map_err(|why| Failed::new(format_args!("the path of this program can't be found: {why}")))?;
    let mut typed = std::env::args_os().skip(1);
    let command = typed.next().into_iter().chain([OsString::from("--worker")]);
    let spec = LaunchSpec {
        args: command.chain(typed).collect(),
        name,
        explained: &[WRONG, Failed::STATUS],
        ..LaunchSpec::new(ranks, program)
    };
    if config.transport.name() == "shm" {
        Communicator::preflight(ranks, config).map_err(Failed::new)?;
    }
    let server = Server::start(&ServerSpec::local(ranks)).map_err(Failed::new)?;
    let outcome = launch(&spec, &server).map_err(Failed::new)?;
    Ok(ExitCode::from(outcome.exit_code()))
}
