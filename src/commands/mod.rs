//! The command line: one module per subcommand, which turns arguments into calls of the library.
//!
//! | module | purpose |
//! |---|---|
//! | `agent` | `tbccl agent`: starts ranks on a host for the launcher |
//! | `arguments` | parsers of arguments that several subcommands share |
//! | `bench` | `tbccl bench`: measures collectives |
//! | `calibrate` | `tbccl calibrate`: measures the machine for thresholds of shared memory |
//! | `chaos` | `tbccl chaos`: random work under random faults |
//! | `completions` | `tbccl completions`: completion scripts of shells |
//! | `config` | `tbccl config`: finds cables and writes hostfiles |
//! | `devices` | `tbccl devices`: lists RDMA devices |
//! | `doctor` | `tbccl doctor`: finds faults of the set-up |
//! | `error` | errors of commands |
//! | `fabric` | `tbccl fabric`: programs on software RDMA devices |
//! | `install_jaccl` | `tbccl install-jaccl`: replaces JACCL in an installed MLX |
//! | `install_mpirun` | `tbccl install-mpirun`: links this program as mpirun |
//! | `jobs` | the jobs of this user on this host, and their snapshots |
//! | `man` | `tbccl man`: man pages |
//! | `mpirun` | translates Open MPI's options |
//! | `page` | reports as HTML pages |
//! | `pin` | binds measuring ranks to cores |
//! | `ping` | `tbccl ping`: measures cables |
//! | `plan` | `tbccl plan`: shows, verifies and simulates plans |
//! | `progress` | progress bars |
//! | `rendezvous` | `tbccl rendezvous`: a rendezvous server |
//! | `role` | launcher or rank of a measuring command |
//! | `run` | `tbccl run`: starts a job |
//! | `selftest` | `tbccl selftest`: tests real hardware |
//! | `survey` | inventories of hosts |
//! | `top` | `tbccl top`: shows rates of running ranks |
//! | `topology` | `tbccl topology`: shows cores, caches, devices and cables |
//! | `trace` | `tbccl trace`: merges, checks and summarizes traces |
//! | `tune` | `tbccl tune`: measures a tuning table |
//! | `why` | `tbccl why`: shows what the ranks of a job wait for |
//!
//! Exit status: 0; 1 for a wrong result; 2 for bad usage or an environment in which the command can't work.
//! `run` returns the status of the first rank that fails. Errors are one line on stderr, with the remedy.

mod agent;
mod arguments;
mod bench;
mod calibrate;
mod chaos;
mod completions;
mod config;
mod devices;
mod doctor;
mod error;
mod fabric;
mod install_jaccl;
mod install_mpirun;
mod jobs;
mod man;
mod mpirun;
mod page;
mod pin;
mod ping;
mod plan;
mod progress;
mod rendezvous;
mod role;
mod run;
mod selftest;
mod survey;
mod top;
mod topology;
mod trace;
mod tune;
mod why;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use error::CommandError;
use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};
use tbccl::Config;

/// Exit status for a wrong result.
const WRONG: u8 = 1;

/// Writes to stdout; a closed stdout is not an error.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

#[derive(Debug, Parser)]
#[command(
    name = "tbccl",
    version,
    about = "Collective communication for Macs and PCs wired together with Thunderbolt",
    arg_required_else_help = true,
    max_term_width = 100,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Bench(bench::Args),
    Plan(plan::Args),
    Config(config::Args),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Ping(ping::Args),
    Selftest(selftest::Args),
    Tune(tune::Args),
    Calibrate(calibrate::Args),
    Chaos(chaos::Args),
    Fabric(fabric::Args),
    Agent(agent::Args),
    Rendezvous(rendezvous::Args),
    InstallJaccl(install_jaccl::Args),
    InstallMpirun(install_mpirun::Args),
    Why(why::Args),
    Top(top::Args),
    Topology(topology::Args),
    Trace(trace::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Names of the subcommands.
    const NAMES: [&str; 21] = [
        "run",
        "bench",
        "plan",
        "config",
        "devices",
        "doctor",
        "ping",
        "selftest",
        "tune",
        "calibrate",
        "chaos",
        "fabric",
        "rendezvous",
        "install-jaccl",
        "install-mpirun",
        "why",
        "top",
        "topology",
        "trace",
        "completions",
        "man",
    ];
}

/// Opens the log and the audit of this process that `TBCCL_LOG` and `TBCCL_AUDIT` ask for.
fn open_log() -> Result<(), CommandError> {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let vars = std::env::vars_os().filter_map(text);
    let vars = vars.filter(|(name, _)| name.starts_with("TBCCL_LOG") || name == "TBCCL_AUDIT");
    Config::from_vars(vars).and_then(|config| config.open_log()).map_err(CommandError::new)
}

/// Runs a command line; the first argument is the program's own name.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let args = if mpirun::is_mpirun_name(args.first()) {
        match mpirun::translate(&args) {
            Ok(args) => args,
            Err(failed) => return failed.report(),
        }
    } else {
        arguments::normalize_np(args, &Cli::command())
    };
    let names: &[&'static str] = match args.get(1) {
        Some(command) if command == "fabric" => &fabric::NAMES,
        _ => &Command::NAMES,
    };
    let parsed = Cli::command().try_get_matches_from(args).and_then(|m| Cli::from_arg_matches(&m));
    let result = match parsed {
        Ok(cli) => open_log().and_then(|()| match cli.command {
            Command::Run(args) => run::run(args),
            Command::Bench(args) => bench::run(&args),
            Command::Plan(args) => plan::run(args),
            Command::Config(args) => config::run(&args),
            Command::Devices(args) => devices::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Ping(args) => ping::run(&args),
            Command::Selftest(args) => selftest::run(&args),
            Command::Tune(args) => tune::run(&args),
            Command::Calibrate(args) => calibrate::run(&args),
            Command::Chaos(args) => chaos::run(&args),
            Command::Fabric(args) => fabric::run(args),
            Command::Agent(args) => agent::run(&args),
            Command::Rendezvous(args) => rendezvous::run(&args),
            Command::InstallJaccl(args) => install_jaccl::run(&args),
            Command::InstallMpirun(args) => install_mpirun::run(&args),
            Command::Why(args) => why::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Topology(args) => topology::run(&args),
            Command::Trace(args) => trace::run(&args),
            Command::Completions(args) => completions::run(&args, Cli::command()),
            Command::Man(args) => man::run(&args, Cli::command()),
        }),
        Err(usage) => error::usage(&usage, names),
    };
    result.unwrap_or_else(CommandError::report)
}
