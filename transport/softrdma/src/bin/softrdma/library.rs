//! `softrdma lib`: a folder that takes the place of libibverbs.
//!
//! `libibverbs.so.1` has the names and the versions of Debian's library and calls `libsoftrdma.so` beside it. It was
//! linked by build.rs and travels in this program.

use super::{Failed, print};
use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  softrdma lib ~/verbs
  LD_LIBRARY_PATH=~/verbs ibv_devinfo -v

The folder holds libibverbs.so.1, libsoftrdma.so, and librdma.dylib for programs that ask for that name.
It can be copied to other machines. Programs that are linked with the drivers of real adapters, as
perftest is, need those of rdma-core 39 to 56; LD_PRELOAD of libsoftrdma.so works with any.";

/// Make a folder for LD_LIBRARY_PATH, with a libibverbs.so.1 in it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder; made if it isn't there
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    #[command(flatten)]
    named: Named,
}

/// The device's library.
#[derive(Debug, clap::Args)]
pub(crate) struct Named {
    /// libsoftrdma.so, when it isn't beside this program
    #[arg(long, value_name = "LIB", env = "SOFTRDMA_LIB")]
    lib: Option<PathBuf>,
}

impl Named {
    /// The library: the one that was named, or the one beside this program.
    pub(crate) fn find(&self) -> Result<PathBuf, Failed> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("libsoftrdma.so"));
        let path = self.lib.clone().or_else(beside).unwrap_or_default();
        path.canonicalize().map_err(|_| {
            Failed::new(format_args!(
                "no library at {}; build it with `cargo build -p tbccl-softrdma`, or name it with --lib or SOFTRDMA_LIB",
                path.display()
            ))
        })
    }
}

/// The name of a program's verbs library, the device's, and the name that Macs have for it.
const VERBS: &str = "libibverbs.so.1";
const DEVICE: &str = "libsoftrdma.so";
const MAC: &str = "librdma.dylib";

static LINKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libibverbs.so.1"));

/// How the device's library gets into the folder.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// The folder stands by itself.
    Copied,
    /// For as long as the library is where it is.
    Linked,
}

/// Carries out `softrdma lib`.
pub(crate) fn run(args: &Args) -> Result<(), Failed> {
    let library = args.named.find()?;
    fill(&args.dir, &library, How::Copied)?;
    let dir = args.dir.canonicalize().map_err(Failed::new)?;
    print(&format!("{}\n", dir.display()));
    Ok(())
}

/// Makes the folder, or renews it. Programs that use what was in it keep what they have.
pub(crate) fn fill(dir: &Path, library: &Path, how: How) -> Result<(), Failed> {
    let cannot =
        |error: io::Error| Failed::new(format_args!("can't put libraries into {}: {error}", dir.display()));
    fs::create_dir_all(dir).map_err(cannot)?;
    let is_library_there = dir.join(DEVICE).canonicalize().is_ok_and(|there| there == library);
    if !is_library_there {
        place(dir, DEVICE, |path| match how {
            How::Copied => fs::copy(library, path).map(|_| ()),
            How::Linked => symlink(library, path),
        })
        .map_err(cannot)?;
    }
    place(dir, VERBS, |path| {
        fs::write(path, LINKED)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    })
    .and_then(|()| place(dir, MAC, |path| symlink(VERBS, path)))
    .map_err(cannot)
}

/// Makes a file under another name first, so that nobody sees half of it.
fn place(dir: &Path, name: &str, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let new = dir.join(format!(".{name}.{}", std::process::id()));
    let made = make(&new).and_then(|()| fs::rename(&new, dir.join(name)));
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made
}
