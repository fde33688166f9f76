//! `tbccl man`: writes man pages, one for each command.

use super::CommandError;
use clap::Command;
use std::{fs, path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  tbccl man ~/.local/share/man/man1
  man tbccl-run

`make install` installs them.";

/// Write man pages into a folder: tbccl.1, and one for each subcommand
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder for the pages, created if needed
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs `tbccl man`.
pub(crate) fn run(args: &Args, command: Command) -> Result<ExitCode, CommandError> {
    let folder = &args.folder;
    let failed = |error| CommandError::new(format_args!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
