//! Ranks as direct children of this process.
//!
//! They inherit the launcher's stdout and stderr, so a terminal remains a terminal.

use super::{
    Ended, LaunchError, LaunchSpec, Rendezvous,
    environment::{self, RankIdentity},
    machine, program,
    rank_set::{Member, RankSet},
    ranks::{RankProcess, Ranks},
    signals::Signals,
    sink::OutputError,
    spawn,
};
use rustix::process::Signal;
use std::{
    io::{self, IsTerminal},
    os::{fd::BorrowedFd, unix::process::CommandExt},
    process::{Command, Stdio},
    time::Duration,
};

/// The child processes. Dropping it kills those still running.
#[derive(Debug)]
pub(super) struct LocalRanks {
    ranks: Ranks,
    grace: Duration,
    _orphans: Orphans,
}

impl LocalRanks {
    /// Starts all ranks, or none.
    pub(super) fn start(spec: &LaunchSpec, rendezvous: &dyn Rendezvous) -> Result<LocalRanks, LaunchError> {
        let program = program::find(&spec.program, &spec.env, spec.cwd.as_deref())?;
        if let Some(cwd) = spec.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
            return Err(LaunchError::NoFolder(cwd.clone()));
        }
        if let Some(why) = machine::binding_warning(spec.bind, spec.ranks) {
            spec.say(&format!("warning: {why}"));
        }
        let (bootstrap, secret) = (rendezvous.address(), rendezvous.secret());
        let orphans = Orphans::adopt();
        let mut ranks = Ranks::default();
        for identity in RankIdentity::all(&vec![0; spec.ranks as usize]) {
            let own = spec.rank_env.get(identity.rank as usize).into_iter().flatten();
            let mut command = Command::new(&program);
            command
                .arg0(&spec.program)
                .args(&spec.args)
                .envs(environment::rank_variables(identity, &bootstrap, secret.as_deref()))
                .envs(spec.env.iter().chain(own).map(|(key, value)| (key, value)))
                .stdin(stdin_of(identity.rank));
            if let Some(cwd) = &spec.cwd {
                command.current_dir(cwd);
            }
            let start = || spawn::in_own_group(command);
            let child = machine::with_binding(spec.bind, identity.local_rank, identity.local_size, start);
            let spawn_error = |source| LaunchError::Spawn { rank: identity.rank, ranks: spec.ranks, source };
            ranks.add(identity.rank, &child.map_err(spawn_error)?);
        }
        Ok(LocalRanks { ranks, grace: spec.grace, _orphans: orphans })
    }
}

/// Returns the stdin of a rank: rank 0 inherits a pipe or file. Terminal input goes to no rank: the ranks are
/// not in its foreground process group and would be stopped when they read.
fn stdin_of(rank: u32) -> Stdio {
    if rank == 0 && !io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() }
}

fn member(process: &RankProcess) -> Member {
    Member { rank: process.rank, pid: process.pid(), host: None }
}

impl RankSet for LocalRanks {
    fn newly_ended(&mut self) -> Vec<(Member, Ended)> {
        self.ranks.newly_ended().into_iter().map(|(process, how)| (member(process), how)).collect()
    }

    fn running(&self) -> Vec<Member> {
        self.ranks.running().map(member).collect()
    }

    fn signal(&mut self, signal: Signal) {
        self.ranks.signal(signal);
    }

    fn early_signals(&mut self) -> Vec<i32> {
        Vec::new()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn output_error(&mut self) -> Option<OutputError> {
        None
    }

    fn finish(&mut self, _signals: &mut Signals) -> Result<(), LaunchError> {
        std::mem::take(&mut self.ranks).sweep(self.grace);
        Ok(())
    }
}

/// Makes this process the subreaper of orphans of the ranks, so that it can wait for them.
#[derive(Debug)]
pub(super) struct Orphans;

impl Orphans {
    pub(super) fn adopt() -> Orphans {
        // If this fails, process 1 reaps orphans, as it always does on other systems.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Orphans
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(None);
    }
}
