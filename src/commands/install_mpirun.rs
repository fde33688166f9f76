//! `tbccl install-mpirun`: links this program as `mpirun` and `mpiexec`, for programs that start Open MPI's
//! launcher.

use super::{CommandError, mpirun, print};
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  tbccl install-mpirun ~/.tbccl/bin
  PATH=~/.tbccl/bin:$PATH mlx.launch --backend mpi -n 4 -- python train.py

Creates links `mpirun` and `mpiexec` to this program. Under these names it accepts Open MPI's options and
runs `tbccl run`; unknown options are errors. Existing links are replaced if they are tbccl's. Nothing
else is changed; to undo it, remove the links.";

/// Link this program as mpirun and mpiexec into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder for the links, created if needed; put it first in PATH where another program starts the ranks
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs `tbccl install-mpirun`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let program = std::env::current_exe().and_then(|program| program.canonicalize());
    let program = program
        .map_err(|e| CommandError::new(format_args!("the path of this program can't be found: {e}")))?;
    let folder = &args.folder;
    fs::create_dir_all(folder).map_err(|e| CommandError::new(format_args!("{}: {e}", folder.display())))?;
    for name in mpirun::INSTALLED {
        link(&program, &folder.join(name))?;
    }
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.clone());
    print(&format!("{0}/mpirun and {0}/mpiexec are {1}\n", absolute.display(), program.display()));
    Ok(ExitCode::SUCCESS)
}

/// Creates a link; replaces only a link to tbccl.
fn link(program: &Path, place: &Path) -> Result<(), CommandError> {
    let failed = |e: io::Error| CommandError::new(format_args!("{}: {e}", place.display()));
    match fs::read_link(place) {
        Ok(there) if there.file_name() == program.file_name() => fs::remove_file(place).map_err(failed)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        _ => {
            return Err(CommandError::new(format_args!(
                "{} exists and is not tbccl's: remove it, or choose another folder",
                place.display()
            )));
        }
    }
    symlink(program, place).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_replace_links_of_ours_and_nothing_else() {
        let home = tempfile::tempdir().expect("a folder");
        let (ours, place) = (home.path().join("tbccl"), home.path().join("mpirun"));
        fs::write(&ours, "").expect("a program");
        for _ in 0..2 {
            link(&ours, &place).expect("nobody else's");
            assert_eq!(fs::read_link(&place).expect("a link"), ours);
        }
        for make in [(|place: &Path| fs::write(place, "").expect("a file")) as fn(&Path), |place| {
            symlink("/opt/prterun", place).expect("a link");
        }] {
            fs::remove_file(&place).expect("it was there");
            make(&place);
            let error = format!("{:?}", link(&ours, &place).expect_err("not ours"));
            assert!(error.contains("is not tbccl's"), "{error}");
        }
    }
}
