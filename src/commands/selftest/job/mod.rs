//! Jobs: work that all ranks do together, reported by their messages.
//!
//! | module | content |
//! |---|---|
//! | `collectives` | collectives on all types, and tagged messages |
//! | `failures` | an abort, and a killed rank |
//! | `unplug` | a cable that is pulled and plugged in again |

mod collectives;
mod failures;
mod unplug;

use super::{
    Args,
    check::Check,
    finding::Trouble,
    message::{Cable, Message},
    pair,
};
use crate::commands::CommandError;
use std::process::ExitCode;
use tbccl::{Communicator, Config};
use transport::verbs::Library;

/// Name of the job of a probe of a connection: this and its name.
pub(super) const PAIR: &str = "pair:";
/// Jobs that are no probes.
pub(super) const COLLECTIVES: &str = "collectives";
pub(super) const MESSAGES: &str = "messages";
pub(super) const ABORT: &str = "abort";
pub(super) const KILL: &str = "kill";
pub(super) const UNPLUG: &str = "unplug";
pub(super) const HOSTS: &str = "hosts";

/// Runs a job as one of its ranks.
pub(super) fn run(args: &Args, name: &str) -> Result<ExitCode, CommandError> {
    let config = Config::from_env().map_err(CommandError::new)?;
    super::message::step("joining the other ranks");
    let comm = Communicator::from_env_with(&config).map_err(CommandError::new)?;
    super::message::step("");
    run_on(comm, args, &config, name);
    Ok(ExitCode::SUCCESS)
}

fn run_on(mut comm: Communicator, args: &Args, config: &Config, name: &str) {
    if let Some(probe) = name.strip_prefix(PAIR) {
        let library = Library::load(config.verbs.library.as_deref()).map_err(Trouble::from);
        let cable = args.cable();
        pair::run(&mut comm, library, probe, cable.as_ref(), (&args.devices, args.quick));
        return;
    }
    let rank = comm.rank();
    let result = match name {
        COLLECTIVES => collectives::collectives(&mut comm, args.quick),
        MESSAGES => collectives::messages(comm, args.quick),
        ABORT => failures::abort(comm),
        KILL => failures::kill(&mut comm),
        UNPLUG => unplug::run(&mut comm, config),
        HOSTS => {
            Message::Check(super::machine::host(&format!("rank-{rank}"), config)).print();
            comm.barrier()
        }
        _ => Ok(()),
    };
    if let Err(error) = result {
        let remedy = "the message says what to do; the details in the file say more";
        Message::Check(Check::fail(name, error.to_string(), remedy)).print();
    }
}

impl Args {
    /// Returns the cable of a probe.
    fn cable(&self) -> Option<Cable> {
        let (ours, theirs) = self.cable.as_deref()?.split_once(',')?;
        Some(Cable { ours: ours.to_owned(), theirs: theirs.to_owned() })
    }
}
