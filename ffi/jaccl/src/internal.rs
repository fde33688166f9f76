//! Names by which the C++ side calls the functions of `libtbccl`.
//!
//! rustc exports every function that has an unmangled name. These names stay inside: each is a hidden symbol
//! with a single instruction, a jump to a function of this module, which calls the one of the table.
//!
//! The C++ side calls `tbccl_jaccl_load` before all others. If that fails it throws, so it never calls
//! another one without a table.
//!
//! # Safety
//! Nothing here is called from Rust, and `cpp/core.h` declares the signatures of `mlx_table::jaccl`.

use mlx_table::jaccl::Functions;
use std::{
    arch::global_asm,
    ffi::{CString, c_char},
    ptr::null,
    sync::OnceLock,
};

/// Table of functions, or the reason why there is none.
static LOADED: OnceLock<Result<&'static Functions, CString>> = OnceLock::new();

/// Opens `libtbccl`. Returns null, or the reason why there is none, which lives as long as the process.
extern "C" fn tbccl_jaccl_load() -> *const c_char {
    let load = || {
        mlx_table::table::<Functions>(&()).map_err(|why| {
            let text = format!("[tbccl] jaccl::init: {why}").replace('\0', " ");
            CString::new(text).unwrap_or_default()
        })
    };
    LOADED.get_or_init(load).as_ref().map_or_else(|why| why.as_ptr(), |_| null())
}

/// Returns the table. The C++ side has called [`tbccl_jaccl_load`], with success.
#[inline]
fn functions() -> &'static Functions {
    match LOADED.get() {
        Some(Ok(functions)) => functions,
        _ => std::process::abort(),
    }
}

/// Defines hidden symbols that jump to functions of this module of the same names.
macro_rules! hidden {
    ($($name:ident;)*) => {
        $(
            #[cfg(not(target_vendor = "apple"))]
            global_asm!(
                ".text",
                concat!(".globl ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(stringify!($name), ":"),
                jump!(),
                target = sym $name,
            );
            #[cfg(target_vendor = "apple")]
            global_asm!(
                ".text",
                ".p2align 2",
                concat!(".private_extern _", stringify!($name)),
                concat!("_", stringify!($name), ":"),
                jump!(),
                target = sym $name,
            );
        )*
    };
}

/// Defines functions that call those of the table, and their hidden symbols.
macro_rules! forwarded {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        $(
            $(#[$doc])*
            unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the C++ side keeps to the rules of `mlx_table::jaccl`.
                unsafe { (functions().$name)($($argument),*) }
            }
        )*

        hidden! { tbccl_jaccl_load; $($name;)* }
    };
}

mlx_table::jaccl_functions!(forwarded);
