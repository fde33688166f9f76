//! The MPI library for MLX's programs, if it is installed beside this command.
//!
//! Ranks get its path in `MLX_MPI_LIBNAME`, so that `mx.distributed.init()` of an unmodified program returns
//! a tbccl group. An inherited value is replaced: another MPI library does not know this launcher, and would
//! treat each rank as a job of size 1.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// The variable that MLX reads.
pub(crate) const VARIABLE: &str = "MLX_MPI_LIBNAME";

/// File name of the library without its extension.
const STEM: &str = "libtbccl_mpi.";

/// Folders relative to this program: cargo's build folder, and the install folder.
const FOLDERS: [&str; 2] = ["", "../lib"];

/// Returns the variable, if the library is installed and `set` does not contain the variable.
pub(super) fn variable(set: &[(OsString, OsString)]) -> Option<(OsString, OsString)> {
    if set.iter().any(|(key, _)| key == VARIABLE) {
        return None;
    }
    let library = beside(&std::env::current_exe().ok()?)?;
    Some((VARIABLE.into(), library.into()))
}

/// Whether a path names tbccl's library.
pub(crate) fn is_ours(name: &OsStr) -> bool {
    let file = Path::new(name).file_name().and_then(OsStr::to_str);
    file.is_some_and(|file| file.starts_with(STEM))
}

/// Returns the library installed with a program, through any links to the program.
fn beside(program: &Path) -> Option<PathBuf> {
    let program = program.canonicalize().ok()?;
    let name = format!("{STEM}{}", if cfg!(target_os = "macos") { "dylib" } else { "so" });
    let candidates = FOLDERS.iter().filter_map(|folder| Some(program.parent()?.join(folder).join(&name)));
    candidates.filter_map(|place| place.canonicalize().ok()).find(|place| place.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn it_is_found_beside_the_program_that_a_link_leads_to() {
        let home = tempfile::tempdir().expect("a folder");
        let at = |name: &str| home.path().join(name);
        ["bin", "lib", "links"].iter().for_each(|name| fs::create_dir(at(name)).expect("a folder"));
        fs::write(at("bin/tbccl"), "").expect("a program");
        symlink(at("bin/tbccl"), at("links/mpirun")).expect("a link");
        assert_eq!(beside(&at("links/mpirun")), None);
        let name = if cfg!(target_os = "macos") { "libtbccl_mpi.dylib" } else { "libtbccl_mpi.so" };
        for folder in ["lib", "bin"] {
            fs::write(at(folder).join(name), "").expect("a library");
            let found = at(folder).join(name).canonicalize().expect("it is there");
            assert_eq!(beside(&at("links/mpirun")), Some(found.clone()));
            assert!(is_ours(found.as_os_str()));
        }
        assert!(!is_ours("/usr/lib/libmpi.so.40".as_ref()) && !is_ours("".as_ref()));
    }

    #[test]
    fn what_somebody_has_chosen_stays() {
        let chosen = [(OsString::from(VARIABLE), OsString::from("/else/libmpi.so"))];
        assert_eq!(variable(&chosen), None);
    }
}
