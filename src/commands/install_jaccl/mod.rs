//! `tbccl install-jaccl`: puts tbccl's `libjaccl` in the place of MLX's, and back.
//!
//! | module | purpose |
//! |---|---|
//! | `environment` | the folder of MLX's libraries in a Python environment |
//! | `symbols` | functions that a library takes and has |
//! | `swap` | the files: keeping MLX's library, and restoring it |
//!
//! tbccl's `libjaccl` needs `libtbccl` beside it, which is installed and removed with it.
//!
//! Nothing is changed unless the library has every function that this MLX takes. MLX's own library stays
//! beside the new one.

mod environment;
mod swap;
mod symbols;

use super::{CommandError, print};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  tbccl install-jaccl                        MLX of the active environment, or of python3
  tbccl install-jaccl --venv ~/exo/.venv     MLX of another environment
  tbccl install-jaccl --venv ~/exo/.venv --undo

Programs that use MLX's backend `jaccl`, as exo and mlx-lm do, then run on tbccl, unchanged and
with the variables that they know: MLX_RANK, MLX_IBV_DEVICES, MLX_JACCL_COORDINATOR. MLX's own
library is kept beside tbccl's, as libjaccl.dylib.mlx. Run the command again after each update of
MLX or tbccl.

To try it without changing anything, on macOS:
  DYLD_LIBRARY_PATH=FOLDER_OF_TBCCLS_LIBJACCL python program.py";

/// Put tbccl in the place of JACCL in an installed MLX
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Python environment with MLX (default: VIRTUAL_ENV, or that of python3)
    #[arg(long, value_name = "DIR")]
    venv: Option<PathBuf>,

    /// Restore MLX's own library
    #[arg(long)]
    undo: bool,

    /// Library to install instead of the one beside this program
    #[arg(long, value_name = "FILE", conflicts_with = "undo")]
    library: Option<PathBuf>,
}

/// Runs `tbccl install-jaccl`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    for folder in environment::folders_of_mlx(args.venv.as_deref())? {
        let done = if args.undo { swap::undo(&folder)? } else { install(&folder, args.library.as_deref())? };
        print(&format!("{done}\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Installs the library in MLX's folder, and returns a sentence about it.
fn install(folder: &environment::MlxFolder, library: Option<&Path>) -> Result<String, CommandError> {
    let taken = symbols::taken_from_jaccl(&folder.mlx)?;
    if taken.is_empty() {
        return Err(CommandError::new(format_args!(
            "{} takes nothing from JACCL: only MLX's wheel for macOS 26 and later has it; elsewhere use \
             tbccl.mlx.init() (docs/mlx.md)",
            folder.mlx.display()
        )));
    }
    let ours = match library {
        Some(library) => library.to_owned(),
        None => environment::own_library(&folder.jaccl_name()).ok_or_else(|| {
            CommandError::new(format_args!(
                "{} is not beside this program, nor in ../lib or ../lib/tbccl: install tbccl with \
                 `make install` or its wheel, or name the file by --library",
                folder.jaccl_name()
            ))
        })?,
    };
    let had = symbols::exported(&ours)?;
    let missing: Vec<&str> = taken.difference(&had).map(String::as_str).collect();
    if !missing.is_empty() {
        return Err(CommandError::new(format_args!(
            "{} takes functions that {} does not have, so nothing was changed: {}; a newer tbccl may have \
             them",
            folder.mlx.display(),
            ours.display(),
            missing.join(", ")
        )));
    }
    let core = environment::core_of(&ours)?;
    swap::install(folder, &swap::Ours { library: &ours, core: &core })
}
