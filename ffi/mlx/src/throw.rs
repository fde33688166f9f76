//! Failures as C++ exceptions: MLX ignores the return values of collectives.
//!
//! MLX 0.32.1 and later turn exceptions on stream threads into Python exceptions; all versions do so on the
//! main thread. In older versions an exception on a stream thread ends the process, and the C++ library
//! prints its message. Without a C++ library in the process nothing can catch an exception, so the message is
//! printed and the process is aborted. Returning is no choice, since the caller would take the contents of
//! its buffer for the result.
//!
//! # Safety
//! The C++ library exports a function that throws `std::runtime_error` with a message. The function is part
//! of the binary interface of libstdc++ and libc++. It never returns, and it copies the message. Its
//! exception unwinds Rust frames as that of any C++ function would: functions that may throw are `extern
//! "C-unwind"`.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    sync::OnceLock,
};
use tbccl::events::{failure, target};

type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;

/// Libraries that may be loaded already, and their name of the throwing function.
const SYMBOLS: &[(&CStr, &CStr)] = if cfg!(target_os = "macos") {
    &[(c"/usr/lib/libc++.1.dylib", c"_ZNSt3__121__throw_runtime_errorEPKc")]
} else {
    &[
        (c"libstdc++.so.6", c"_ZSt21__throw_runtime_errorPKc"),
        (c"libc++.so.1", c"_ZNSt3__121__throw_runtime_errorEPKc"),
    ]
};

/// Returns the throwing function, if this process has a C++ library.
fn throw_function() -> Option<Throw> {
    static FUNCTION: OnceLock<Option<Throw>> = OnceLock::new();
    *FUNCTION.get_or_init(|| SYMBOLS.iter().find_map(|(library, name)| find(library, name)))
}

fn find(library: &CStr, name: &CStr) -> Option<Throw> {
    // SAFETY: both texts end with a zero. The library is loaded already, so no initializer runs now, and the
    // handle, which is never closed, keeps it loaded.
    let found = unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { std::ptr::null_mut() } else { libc::dlsym(library, name.as_ptr()) }
    };
    // SAFETY: a C++ library's symbol of this name is a function of this type.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Throw>(found) })
}

/// Throws `std::runtime_error` with a message.
pub(crate) fn throw(message: &str) -> ! {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let Some(throw) = throw_function() else { abort(message) };
    // SAFETY: see the module. The text lives until the exception has copied it, and is dropped as the
    // exception unwinds this frame.
    unsafe { throw(text.as_ptr()) }
}

/// Prints a message and aborts the process.
fn abort(message: &str) -> ! {
    failure!(target::MLX, None, "{message}");
    std::process::abort()
}
