//! Jobs of `tbccl run` whose ranks are this test program.

use support::{Process, rank_arguments, tbccl};

/// Transports: shared memory, shared memory used like a network, and TCP.
pub(crate) const TRANSPORTS: [&str; 3] = ["shm", "rehearsal", "tcp"];

/// Starts `ranks` ranks in a role with environment variables.
pub(crate) fn start(ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    start_under(&[], ranks, role, env)
}

/// Starts ranks as [`start`] does, each run by the command `wrapper`.
pub(crate) fn start_under(wrapper: &[&str], ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    let mut command = tbccl();
    command.args(["run", "-n", &ranks.to_string(), "--"]).args(wrapper).args(rank_arguments());
    command.env("ROLE", role).envs(env.iter().copied());
    Process::start(command)
}
