//! The `libtbccl` beside the calling library.
//!
//! It is searched for in the folder of the file with the calling code, links resolved, and in the folder
//! above: `make install` has `lib/libtbccl.so.0` and `lib/libtbccl_mpi.so`, and a wheel has the same files.
//! Nothing else is searched, since a library found elsewhere may be of another release.
//!
//! # Safety
//! The loader is asked for the file of a function of this crate, which is linked into the calling library.
//! Opening `libtbccl` runs its initializers, which start nothing. It is never closed, so its functions stay.

use crate::release::{Entry, Release, Released};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::{
    ffi::{CStr, OsStr, c_void},
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Names of `libtbccl`: in an installation, and in cargo's folder.
const NAMES: [&str; 2] = if cfg!(target_vendor = "apple") {
    [concat!("libtbccl.", env!("CARGO_PKG_VERSION_MAJOR"), ".dylib"), "libtbccl_c.dylib"]
} else {
    [concat!("libtbccl.so.", env!("CARGO_PKG_VERSION_MAJOR")), "libtbccl_c.so"]
};

/// Opens the `libtbccl` of the calling library, and returns a table of it.
///
/// # Errors
/// A sentence that names the files: no `libtbccl` is there, it can't be opened, or it is of another release.
pub fn table<T: Released>(given: &'static T::Given) -> Result<&'static T, String> {
    let own = own_file()?;
    let path = beside(&own).ok_or_else(|| {
        let folder = own.parent().unwrap_or(Path::new("/"));
        format!(
            "{} is not in {} nor in the folder above: {} needs it there; install both from one package",
            NAMES[0],
            folder.display(),
            own.display()
        )
    })?;
    let failed = |why: String| format!("{}: {why}; {} needs it", path.display(), own.display());
    // SAFETY: see the module: initializers of `libtbccl` start nothing.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| failed(error.to_string()))?;
    // SAFETY: the function of this name has this type, by the contract of `Released`.
    let entry = unsafe { library.get::<Entry<T>>(T::ENTRY.to_bytes_with_nul()) };
    let entry = *entry.map_err(|error| failed(error.to_string()))?;
    // Never closed: threads and exit handlers hold addresses of the library's code.
    std::mem::forget(library);
    // SAFETY: the function takes the address of a `Given`, which lives as long as the process.
    let table = unsafe { entry(std::ptr::from_ref(given)) };
    if table.is_null() {
        return Err(failed("another copy of the same library uses it in this process".into()));
    }
    // SAFETY: every release of a table begins with a `Release`, by the contract of `Released`.
    let release = unsafe { *table.cast::<Release>() };
    if release != Release::of::<T>() {
        let (theirs, ours) = (release.version(), Release::of::<T>().version());
        return Err(failed(format!("it is of tbccl {theirs}, not {ours}: install both from one package")));
    }
    // SAFETY: a table of the same release has the same type, and is never freed.
    Ok(unsafe { &*table })
}

/// Returns the file of the library that this code is linked into, links resolved.
fn own_file() -> Result<PathBuf, String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the function writes to `info`, and only compares the address.
    let found = unsafe { libc::dladdr(own_file as fn() -> _ as *const c_void, info.as_mut_ptr()) };
    // SAFETY: zeros are a valid value.
    let name = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || name.is_null() {
        return Err("the loader does not know the file of this library".into());
    }
    // SAFETY: the loader keeps the text, which ends with a zero, while the library is loaded.
    let name = unsafe { CStr::from_ptr(name) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the `libtbccl` in the folder of a file or in the one above.
fn beside(own: &Path) -> Option<PathBuf> {
    let folders = own.ancestors().skip(1).take(2);
    folders.flat_map(|folder| NAMES.map(|name| folder.join(name))).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_folder_of_the_file_comes_before_the_one_above() {
        let home = tempfile::tempdir().expect("a folder");
        let lib = home.path().join("lib");
        let inner = lib.join("tbccl");
        fs::create_dir_all(&inner).expect("our folder");
        let own = inner.join("libjaccl.so");
        fs::write(home.path().join(NAMES[0]), "").expect("our folder");
        assert_eq!(beside(&own), None, "two folders above is too far");
        for expected in [lib.join(NAMES[0]), inner.join(NAMES[1]), inner.join(NAMES[0])] {
            fs::write(&expected, "").expect("our folder");
            assert_eq!(beside(&own), Some(expected));
        }
    }

    #[test]
    fn the_file_of_this_code_is_this_program() {
        assert_eq!(own_file(), Ok(std::env::current_exe().and_then(|path| path.canonicalize()).expect("it")));
    }
}
