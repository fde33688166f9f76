//! MPI shim for MLX: the names of Open MPI's binary interface that MLX loads, on tbccl.
//!
//! MLX opens the library that `MLX_MPI_LIBNAME` names, and takes 14 functions and 16 objects from it. This
//! library exports exactly those, so that an unmodified MLX runs its groups on tbccl. Nothing else of MPI is
//! here: other MPI programs can't use it.
//!
//! The code is in `libtbccl`, which lies beside this library and is opened at the first call (`mlx-table`).
//! Each function here calls the one of the same name there. Without a `libtbccl`, the name and version of
//! this library say why, which MLX prints as it refuses the library; any other function prints the reason and
//! aborts the process, since MLX ignores return values.
//!
//! # Safety
//! Callers keep to MPI: buffers are valid until the function returns, and as large as count and datatype say.
//! The names are exported without mangling.
#![allow(non_snake_case, non_upper_case_globals)] // Names are those of C.
#![allow(clippy::missing_safety_doc)] // It is the same for all of them, and said above.

use mlx_table::mpi::{Functions, Object, Objects};
use std::{
    ffi::{c_char, c_int},
    io::Write,
    sync::OnceLock,
};

/// Bytes that a caller of `MPI_Get_library_version` has room for.
const MAX_VERSION_BYTES: usize = 256;

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[unsafe(no_mangle)] pub static $name: Object = Object::new();)*

        static OBJECTS: Objects = Objects { $($name: &$name,)* };
    };
}

macro_rules! functions {
    (
        $(#[$version_doc:meta])*
        fn MPI_Get_library_version($version:ident: $text:ty, $length:ident: $number:ty $(,)?) -> $code:ty;
        $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*
    ) => {
        $(#[$version_doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn MPI_Get_library_version($version: $text, $length: $number) -> $code {
            match found() {
                // SAFETY: the caller keeps to MPI, and the function has this signature.
                Ok(functions) => unsafe { (functions.MPI_Get_library_version)($version, $length) },
                // SAFETY: the caller keeps to MPI.
                Err(why) => unsafe { write_version(why, $version, $length) },
            }
        }

        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller keeps to MPI, and the function has this signature.
                unsafe { (functions().$name)($($argument),*) }
            }
        )*
    };
}

mlx_table::mpi_objects!(objects);
mlx_table::mpi_functions!(functions);

/// Returns the functions of `libtbccl`, or the reason why there are none.
#[inline]
fn found() -> Result<&'static Functions, &'static str> {
    static FOUND: OnceLock<Result<&'static Functions, String>> = OnceLock::new();
    FOUND.get_or_init(|| mlx_table::table(&OBJECTS)).as_ref().copied().map_err(String::as_str)
}

/// Returns the functions of `libtbccl`, or ends the process.
#[inline]
fn functions() -> &'static Functions {
    match found() {
        Ok(functions) => functions,
        Err(why) => abort(why),
    }
}

#[cold]
fn abort(why: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "tbccl: error: {why}");
    std::process::abort()
}

/// Writes the reason why there is no `libtbccl` in the place of a version.
///
/// # Safety
/// As MPI says, each address is null, or `version` has room for 256 characters, and `length` for its number.
unsafe fn write_version(why: &str, version: *mut c_char, length: *mut c_int) -> c_int {
    let text = format!("tbccl without libtbccl: {why}");
    let bytes = text.len().min(MAX_VERSION_BYTES - 1);
    if !version.is_null() {
        // SAFETY: there is room, by this function's contract.
        unsafe { version.copy_from_nonoverlapping(text.as_ptr().cast(), bytes) };
        // SAFETY: as above.
        unsafe { version.add(bytes).write(0) };
    }
    if !length.is_null() {
        // SAFETY: there is room, by this function's contract.
        unsafe { length.write(bytes as c_int) };
    }
    0
}
