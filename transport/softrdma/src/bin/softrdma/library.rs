//! `softrdma lib`: writes a folder that replaces libibverbs.
//!
//! `libibverbs.so.1` has the symbols and versions of Debian's library and calls `libsoftrdma.so` beside it.
//! build.rs links it, and this program contains it.

use super::{CliError, print};
use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  softrdma lib ~/verbs
  LD_LIBRARY_PATH=~/verbs ibv_devinfo -v

The folder contains libibverbs.so.1, libsoftrdma.so, and librdma.dylib for programs that open that
name. It can be copied to other machines. Programs that link the drivers of real adapters, like
perftest, need rdma-core 39 to 56; LD_PRELOAD of libsoftrdma.so works with any version.";

/// Write a folder for LD_LIBRARY_PATH that contains a libibverbs.so.1
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    #[command(flatten)]
    library: LibraryArg,
}

/// The argument that names the device's library.
#[derive(Debug, clap::Args)]
pub(crate) struct LibraryArg {
    /// Path of libsoftrdma.so, if it is not beside this program
    #[arg(long, value_name = "LIB", env = "SOFTRDMA_LIB")]
    lib: Option<PathBuf>,
}

impl LibraryArg {
    /// Returns the named library, or the one beside this program.
    pub(crate) fn find(&self) -> Result<PathBuf, CliError> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("libsoftrdma.so"));
        let path = self.lib.clone().or_else(beside).unwrap_or_default();
        path.canonicalize().map_err(|_| {
            CliError::new(format_args!(
                "no library at {}; build it with `cargo build -p tbccl-softrdma`, \
                 or name it with --lib or SOFTRDMA_LIB",
                path.display()
            ))
        })
    }
}

/// File names: the library that programs open, the device, and the name that macOS programs open.
const LIBIBVERBS_NAME: &str = "libibverbs.so.1";
const DEVICE_NAME: &str = "libsoftrdma.so";
const MACOS_NAME: &str = "librdma.dylib";

static LIBIBVERBS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libibverbs.so.1"));

/// How the device's library gets into the folder.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    /// A copy: the folder is self-contained.
    Copy,
    /// A link: the folder works while the library stays where it is.
    Symlink,
}

/// Runs `softrdma lib`.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let library = args.library.find()?;
    write_folder(&args.dir, &library, Placement::Copy)?;
    let dir = args.dir.canonicalize().map_err(CliError::new)?;
    print(&format!("{}\n", dir.display()));
    Ok(())
}

/// Creates or renews the folder. Programs that use its old files keep them.
pub(crate) fn write_folder(dir: &Path, library: &Path, placement: Placement) -> Result<(), CliError> {
    let cannot =
        |error: io::Error| CliError::new(format_args!("can't put libraries into {}: {error}", dir.display()));
    fs::create_dir_all(dir).map_err(cannot)?;
    let is_library_there = dir.join(DEVICE_NAME).canonicalize().is_ok_and(|there| there == library);
    if !is_library_there {
        write_atomically(dir, DEVICE_NAME, |path| match placement {
            Placement::Copy => fs::copy(library, path).map(|_| ()),
            Placement::Symlink => symlink(library, path),
        })
        .map_err(cannot)?;
    }
    write_atomically(dir, LIBIBVERBS_NAME, |path| {
        fs::write(path, LIBIBVERBS)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    })
    .and_then(|()| write_atomically(dir, MACOS_NAME, |path| symlink(LIBIBVERBS_NAME, path)))
    .map_err(cannot)
}

/// Creates a file under a temporary name and renames it, so no process sees a partial file.
fn write_atomically(dir: &Path, name: &str, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let new = dir.join(format!(".{name}.{}", std::process::id()));
    let made = make(&new).and_then(|()| fs::rename(&new, dir.join(name)));
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made
}
