//! Jobs of `tbccl run` whose ranks are this program.

use support::{Process, rank_arguments, tbccl};

/// Transports with shared memory, with shared memory used as if there were none, and without.
pub(crate) const TRANSPORTS: [&str; 3] = ["shm", "rehearsal", "tcp"];

/// Starts `ranks` ranks in a role, with these variables.
pub(crate) fn start(ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    start_under(&[], ranks, role, env)
}

/// Starts ranks as `start`, each run by a command that precedes it.
pub(crate) fn start_under(wrapper: &[&str], ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    let mut command = tbccl();
    command.args(["run", "-n", &ranks.to_string(), "--"]).args(wrapper).args(rank_arguments());
    command.env("ROLE", role).envs(env.iter().copied());
    Process::start(command)
}
