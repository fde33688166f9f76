//! Telling a failure to MLX, which looks at no return value of a collective: a C++ exception that says what has failed.
//!
//! MLX since 0.32.1 makes a Python exception of what is thrown on its stream threads, and of what is thrown on the main thread
//! in any version. Before that an exception on a stream thread ends the process, and the C++ library prints its words. Where
//! the process has no C++ library there is nobody to catch anything: the words are printed and the process is ended. Going on
//! is no choice, since the caller would take what happens to be in its memory for the result.
//!
//! # Safety
//! The C++ library is asked for a function that throws `std::runtime_error` with a text, which is in the binary interface
//! of libstdc++ and libc++. It never returns, copies the text, and its exception passes our frames as that of any C++
//! function would: functions that may throw are `extern "C-unwind"`.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    sync::OnceLock,
};

type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;

/// Where the function is, by platform: a library that is loaded already, and its name for the function.
const PLACES: &[(&CStr, &CStr)] = if cfg!(target_os = "macos") {
    &[(c"/usr/lib/libc++.1.dylib", c"_ZNSt3__121__throw_runtime_errorEPKc")]
} else {
    &[
        (c"libstdc++.so.6", c"_ZSt21__throw_runtime_errorPKc"),
        (c"libc++.so.1", c"_ZNSt3__121__throw_runtime_errorEPKc"),
    ]
};

/// The function, if this process has a C++ library.
fn thrower() -> Option<Throw> {
    static FOUND: OnceLock<Option<Throw>> = OnceLock::new();
    *FOUND.get_or_init(|| PLACES.iter().find_map(|(library, name)| find(library, name)))
}

fn find(library: &CStr, name: &CStr) -> Option<Throw> {
    // SAFETY: both are texts that end with a zero. The library is there already, so nothing of it is run now, and the
    // handle, which is never given back, keeps it there.
    let found = unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { std::ptr::null_mut() } else { libc::dlsym(library, name.as_ptr()) }
    };
    // SAFETY: what has this name in a C++ library is such a function.
    (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Throw>(found) })
}

/// Throws `std::runtime_error` with these words.
pub(crate) fn throw(words: &str) -> ! {
    let text = CString::new(words.replace('\0', " ")).unwrap_or_default();
    let Some(throw) = thrower() else { end(words) };
    // SAFETY: as the module says. The text is ours until the exception has copied it, and dropped as it passes.
    unsafe { throw(text.as_ptr()) }
}

/// Ends the process with these words.
fn end(words: &str) -> ! {
    eprintln!("tbccl: error: {words}");
    std::process::abort()
}
