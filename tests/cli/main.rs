//! The command `tbccl`, as a user calls it: output, errors and exit status of its subcommands.

mod bench;
mod choices;
#[cfg(target_os = "linux")]
mod devices;
#[cfg(target_os = "linux")]
mod fabric;
mod over_tcp;
mod ping;
mod plan;
mod tune;
#[cfg(target_os = "linux")]
mod verbs_errors;
mod vocabulary;

/// The program under test.
#[allow(dead_code, reason = "on systems without the software device")]
const TBCCL: &str = env!("CARGO_BIN_EXE_tbccl");
