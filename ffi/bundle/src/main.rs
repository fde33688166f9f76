//! The command `tbccl` of a wheel: opens the `libtbccl` beside it, and runs the command there.
//!
//! Rust's start-up code runs before, so that signals and standard streams are as in any Rust program.
//!
//! # Safety
//! Opening `libtbccl` runs its initializers, which start nothing. It is never closed, since its function does
//! not return.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Exit status for a missing prerequisite.
const STATUS: u8 = 2;

/// Places of the library relative to the folder of this program: in a wheel, and in cargo's folder.
const PLACES: [&str; 2] = if cfg!(target_vendor = "apple") {
    [concat!("../lib/libtbccl.", env!("CARGO_PKG_VERSION_MAJOR"), ".dylib"), "libtbccl_bundle.dylib"]
} else {
    [concat!("../lib/libtbccl.so.", env!("CARGO_PKG_VERSION_MAJOR")), "libtbccl_bundle.so"]
};

fn main() -> ExitCode {
    let Err(why) = run();
    eprintln!("tbccl: error: {why}");
    ExitCode::from(STATUS)
}

/// Runs the command, which ends the process.
///
/// # Errors
/// A sentence that names the file: the library is missing, can't be opened, or has no command in it.
fn run() -> Result<std::convert::Infallible, String> {
    let program = env::current_exe().and_then(|path| path.canonicalize());
    let program = program.map_err(|why| format!("the path of this program can't be found: {why}"))?;
    let path = beside(&program).ok_or_else(|| {
        format!("{} is not beside {}: install the package again", PLACES[0], program.display())
    })?;
    let failed = |why| format!("{}: {why}; install the package again", path.display());
    // SAFETY: see the module.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
    // SAFETY: the function of this name has this type in every release.
    let main = unsafe { library.get::<extern "C" fn() -> !>(b"tbccl_program\0") }.map_err(failed)?;
    main()
}

/// Returns the library that belongs to a program.
fn beside(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    PLACES.iter().map(|place| folder.join(place)).find(|path| path.is_file())
}
