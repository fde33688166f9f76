//! Functions for the libraries of MLX, which contain no code of tbccl. They are not part of `tbccl.h`.
//!
//! # Safety
//! The caller passes what `mlx-table` says.

use mlx_table::{jaccl, mpi, native};
use std::panic::catch_unwind;

/// Returns the functions behind the names of a `libtbccl_mpi`; NULL if another copy of it in this process has
/// them already, or without objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbccl_mpi_functions(objects: *const mpi::Objects) -> *const mpi::Functions {
    // SAFETY: null, or objects that live as long as the process.
    let found = unsafe { objects.as_ref() };
    let table =
        found.and_then(|objects| catch_unwind(|| mlx_core::mpi::functions_for(objects)).ok().flatten());
    table.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Returns the functions that the C++ side of a `libjaccl` calls.
#[unsafe(no_mangle)]
pub extern "C" fn tbccl_jaccl_functions(_: *const ()) -> *const jaccl::Functions {
    &mlx_core::jaccl::FUNCTIONS
}

/// Returns the functions that groups compiled against MLX call.
#[unsafe(no_mangle)]
pub extern "C" fn tbccl_native_functions(_: *const ()) -> *const native::Functions {
    &mlx_core::native::FUNCTIONS
}
