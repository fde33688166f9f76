//! Jobs of `tbccl run` whose ranks are this test program.

use support::{Process, host_wrapper, rank_arguments, tbccl};

/// Transports: shared memory, shared memory used like a network, TCP, and shared memory with TCP between
/// hosts of two ranks each.
pub(crate) const TRANSPORTS: [&str; 4] = ["shm", "rehearsal", "tcp", "shm+tcp"];

/// Starts `ranks` ranks in a role with environment variables.
pub(crate) fn start(ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    start_under(&[], ranks, role, env)
}

/// Starts ranks as [`start`] does, each run by the command `wrapper`.
pub(crate) fn start_under(wrapper: &[&str], ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    let mut command = tbccl();
    command.args(["run", "-n", &ranks.to_string(), "--"]);
    command.args(host_wrapper(env)).args(wrapper).args(rank_arguments());
    command.env("ROLE", role).envs(env.iter().copied());
    Process::start(command)
}
