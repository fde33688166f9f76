//! Jobs of the launcher under test.

use support::{Process, tbccl};

/// Starts `tbccl run` with these arguments.
pub(crate) fn run(args: &[&str]) -> Process {
    let mut command = tbccl();
    command.arg("run").args(args);
    Process::start(command)
}

/// Starts `ranks` shells that run `script`.
pub(crate) fn shells(ranks: u32, options: &[&str], script: &str) -> Process {
    let ranks = ranks.to_string();
    run(&[&["-n", &ranks], options, &["--", "/bin/sh", "-c", script]].concat())
}
