//! The command `tbccl`: output, errors and exit status of its subcommands.
//!
//! | module | subject |
//! |---|---|
//! | `bench` | `tbccl bench` |
//! | `calibrate` | `tbccl calibrate`, and the effect of its file on jobs |
//! | `chaos` | `tbccl chaos` |
//! | `choices` | choice of algorithms in jobs |
//! | `config` | `tbccl config` |
//! | `devices` | `tbccl devices` |
//! | `doctor` | `tbccl doctor` |
//! | `fabric` | `tbccl fabric` |
//! | `large_messages` | messages of more than 4 GiB |
//! | `log` | `TBCCL_LOG` |
//! | `over_tcp` | collectives over TCP |
//! | `ping` | `tbccl ping` |
//! | `plan` | `tbccl plan` |
//! | `selftest` | `tbccl selftest` |
//! | `shell` | `tbccl completions`, `tbccl man` |
//! | `tools` | scripts under `tools/` |
//! | `topology` | `tbccl topology` |
//! | `trace` | `tbccl run --trace`, `tbccl trace` |
//! | `transports` | `tbccl bench --compare-transports` |
//! | `tune` | `tbccl tune` |
//! | `verbs_errors` | error messages of the verbs transport |
//! | `vocabulary` | names and tables in documents |
//! | `why` | `tbccl why`, without a job |

mod bench;
mod bench_report;
mod calibrate;
#[cfg(target_os = "linux")]
mod chaos;
mod choices;
mod config;
#[cfg(target_os = "linux")]
mod devices;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod fabric;
#[cfg(target_os = "linux")]
mod large_messages;
mod log;
mod over_tcp;
mod ping;
mod plan;
#[cfg(target_os = "linux")]
mod selftest;
mod shell;
mod tools;
mod topology;
mod trace;
#[cfg(target_os = "linux")]
mod transports;
mod tune;
#[cfg(target_os = "linux")]
mod verbs_errors;
mod vocabulary;
mod why;

/// The program under test.
#[allow(dead_code, reason = "on systems without the software device")]
const TBCCL: &str = env!("CARGO_BIN_EXE_tbccl");
