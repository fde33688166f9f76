//! Ranks as children of this process, with its own stdout and stderr: terminals stay terminals.

use super::{
    Ended, LaunchError, LaunchSpec, Rendezvous,
    environment::{self, RankIdentity},
    machine, program,
    rank_set::{Member, RankSet},
    ranks::{RankProcess, Ranks},
    signals::Signals,
    sink::Unwritten,
    spawn,
};
use rustix::process::Signal;
use std::{
    io::{self, IsTerminal},
    os::{fd::BorrowedFd, unix::process::CommandExt},
    process::{Command, Stdio},
    time::Duration,
};

/// The children. Dropping it kills what still runs.
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
        if let Some(why) = machine::obstacle(spec.bind, spec.ranks) {
            spec.say(&format!("warning: {why}"));
        }
        let (bootstrap, secret) = (rendezvous.address(), rendezvous.secret());
        let orphans = Orphans::adopt();
        let mut ranks = Ranks::default();
        for seat in RankIdentity::all(&vec![0; spec.ranks as usize]) {
            let own = spec.rank_env.get(seat.rank as usize).into_iter().flatten();
            let mut command = Command::new(&program);
            command
                .arg0(&spec.program)
                .args(&spec.args)
                .envs(environment::of_rank(seat, &bootstrap, secret.as_deref()))
                .envs(spec.env.iter().chain(own).map(|(key, value)| (key, value)))
                .stdin(stdin_of(seat.rank));
            if let Some(cwd) = &spec.cwd {
                command.current_dir(cwd);
            }
            let start = || spawn::in_own_group(command);
            let child = machine::bound(spec.bind, seat.local_rank, seat.local_size, start);
            let refused = |source| LaunchError::Spawn { rank: seat.rank, ranks: spec.ranks, source };
            ranks.add(seat.rank, &child.map_err(refused)?);
        }
        Ok(LocalRanks { ranks, grace: spec.grace, _orphans: orphans })
    }
}

/// Rank 0 reads what is piped into the launcher. A terminal's input is for nobody: the ranks are not in its
/// foreground process group, and would be stopped for trying.
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

    fn trouble(&mut self) -> Option<Unwritten> {
        None
    }

    fn finish(&mut self, _signals: &mut Signals) -> Result<(), LaunchError> {
        std::mem::take(&mut self.ranks).sweep(self.grace);
        Ok(())
    }
}

/// While it lives, orphans of the ranks become our children, and so can be waited for.
#[derive(Debug)]
pub(super) struct Orphans;

impl Orphans {
    pub(super) fn adopt() -> Orphans {
        // Without it the ends of orphans are the business of process 1, as everywhere but on Linux.
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
