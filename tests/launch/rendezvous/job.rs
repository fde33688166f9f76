//! Ranks that are started without a launcher.

use std::process::Command;
use support::{Process, rank_arguments_of, rank_command_of, tbccl};

/// The test that plays a rank's role.
const PLAY: &str = "rendezvous::roles::play";

/// Returns a command that runs this program as a rank in a role.
pub(crate) fn command(role: &str, env: &[(&str, &str)]) -> Command {
    let mut command = rank_command_of(&rank_arguments_of(PLAY));
    command.env("ROLE", role).env("TBCCL_TIMEOUT", "30").envs(env.iter().copied());
    command
}

/// Starts this program as a rank in a role.
pub(crate) fn rank(role: &str, env: &[(&str, &str)]) -> Process {
    Process::start(command(role, env))
}

/// Starts `tbccl` with these arguments.
pub(crate) fn start(args: &[&str]) -> Process {
    let mut command = tbccl();
    command.args(args);
    Process::start(command)
}

/// Returns a secret for one test.
pub(crate) fn secret() -> String {
    bootstrap::Secret::generate().expect("random numbers").to_hex().to_string()
}

/// Returns a port that no process listens on now.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}
