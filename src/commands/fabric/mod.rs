//! `tbccl fabric`: runs programs on software RDMA devices.
//!
//! The program `softrdma` beside this one handles fabric files and running fabrics, since this package must
//! not depend on the software device. This module starts programs, and creates and removes folders.
//!
//! | module | purpose |
//! |---|---|
//! | `folder` | the shared folder of a fabric's processes |
//! | `run` | `tbccl fabric run` |
//! | `tool` | calls of the program `softrdma` |

mod folder;
mod run;
mod tool;

use super::CommandError;
use clap::Subcommand;
use folder::Folder;
use std::{ffi::OsString, process::ExitCode};
pub(super) use tool::{Inject, Tool, Variables};

/// Run programs on software RDMA devices, and inject faults into them
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    /// Check fabric files and report errors
    #[command(disable_help_flag = true)]
    Check(ForwardedArgs),
    /// List the nodes of a fabric file, their devices, and the ports that they connect to
    #[command(disable_help_flag = true)]
    Nodes(ForwardedArgs),
    /// Inject a fault into a running fabric, or repair it
    #[command(disable_help_flag = true)]
    Fault(ForwardedArgs),
    /// Show messages and bytes per cable of a running fabric
    #[command(disable_help_flag = true)]
    Stat(ForwardedArgs),
}

/// Names of the subcommands.
pub(crate) const NAMES: [&str; 5] = ["run", "check", "nodes", "fault", "stat"];

/// Arguments that are forwarded to `softrdma`.
#[derive(Debug, clap::Args)]
struct ForwardedArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    args: Vec<OsString>,
}

/// Runs `tbccl fabric`.
pub(crate) fn run(args: Args) -> Result<ExitCode, CommandError> {
    match args.command {
        Command::Run(args) => run::run(*args),
        Command::Check(ForwardedArgs { args }) => Tool::find()?.forward("check", None, &args),
        Command::Nodes(ForwardedArgs { args }) => Tool::find()?.forward("nodes", None, &args),
        Command::Fault(ForwardedArgs { args }) => with_running_fabric("fault", &args),
        Command::Stat(ForwardedArgs { args }) => with_running_fabric("stat", &args),
    }
}

/// Calls the tool for the running fabric, unless the arguments or variables name another one.
fn with_running_fabric(command: &str, args: &[OsString]) -> Result<ExitCode, CommandError> {
    let names_fabric = |arg: &OsString| {
        arg.to_str().is_some_and(|arg| {
            ["--dir", "--fabric", "--help", "-h"].iter().any(|option| arg.split('=').next() == Some(option))
        })
    };
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if args.iter().any(names_fabric) || is_set("SOFTRDMA_DIR") || is_set("SOFTRDMA_FABRIC") {
        return Tool::find()?.forward(command, None, args);
    }
    match Folder::running().as_slice() {
        [] => Err(CommandError::new(
            "no fabric is running on this machine; name its folder with --dir, or its file with --fabric",
        )),
        [one] => Tool::find()?.forward(command, Some(one), args),
        several => {
            let names: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            Err(CommandError::new(format_args!(
                "several fabrics are running; name one with --dir: {}",
                names.join(", ")
            )))
        }
    }
}
