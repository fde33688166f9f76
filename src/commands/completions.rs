//! `tbccl completions`: prints completion scripts of shells.

use super::{CommandError, print};
use clap::Command;
use clap_complete::Shell;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  tbccl completions bash > ~/.local/share/bash-completion/completions/tbccl
  tbccl completions zsh > ~/.zfunc/_tbccl             with ~/.zfunc in fpath
  tbccl completions fish > ~/.config/fish/completions/tbccl.fish
  tbccl completions powershell >> $PROFILE

`make install` installs those of bash, zsh and fish.";

/// Print the completion script of a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Runs `tbccl completions`.
pub(crate) fn run(args: &Args, mut command: Command) -> Result<ExitCode, CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tbccl", &mut script);
    print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}
