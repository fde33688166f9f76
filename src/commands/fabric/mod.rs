//! `tbccl fabric`: programs on software RDMA devices.
//!
//! The program `softrdma` beside this one handles fabric files and running fabrics, since this package must
//! not depend on how the device works. This module starts programs, and creates and removes folders.

mod folder;
mod run;
mod tool;

use super::Failed;
use clap::Subcommand;
use folder::Folder;
use std::{ffi::OsString, process::ExitCode};
use tool::Tool;

/// Run programs on software RDMA devices, and break those devices
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    /// Say whether fabric files are right, and where they are not
    #[command(disable_help_flag = true)]
    Check(Passed),
    /// List the nodes of a fabric file, their devices, and what those are wired to
    #[command(disable_help_flag = true)]
    Nodes(Passed),
    /// Break something in a running fabric, or mend it
    #[command(disable_help_flag = true)]
    Fault(Passed),
    /// Show messages and bytes per cable of a running fabric
    #[command(disable_help_flag = true)]
    Stat(Passed),
}

/// The subcommands, as they are typed.
pub(crate) const NAMES: [&str; 5] = ["run", "check", "nodes", "fault", "stat"];

/// Arguments that `softrdma` reads.
#[derive(Debug, clap::Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    args: Vec<OsString>,
}

/// Carries out `tbccl fabric`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failed> {
    match args.command {
        Command::Run(args) => run::run(args),
        Command::Check(Passed { args }) => Tool::find()?.pass("check", None, &args),
        Command::Nodes(Passed { args }) => Tool::find()?.pass("nodes", None, &args),
        Command::Fault(Passed { args }) => on_running("fault", &args),
        Command::Stat(Passed { args }) => on_running("stat", &args),
    }
}

/// Calls the tool for the fabric that runs, unless another one is named.
fn on_running(command: &str, args: &[OsString]) -> Result<ExitCode, Failed> {
    let names_one = |arg: &OsString| {
        arg.to_str().is_some_and(|arg| {
            ["--dir", "--fabric", "--help", "-h"].iter().any(|option| arg.split('=').next() == Some(option))
        })
    };
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if args.iter().any(names_one) || is_set("SOFTRDMA_DIR") || is_set("SOFTRDMA_FABRIC") {
        return Tool::find()?.pass(command, None, args);
    }
    match Folder::of_running().as_slice() {
        [] => Err(Failed::new(
            "no fabric is running here; name its folder with --dir, or its file with --fabric",
        )),
        [one] => Tool::find()?.pass(command, Some(one), args),
        several => {
            let names: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            Err(Failed::new(format_args!(
                "several fabrics are running; name one with --dir: {}",
                names.join(", ")
            )))
        }
    }
}
