//! Linking of the shared library: its name for the loader, and that it is never unloaded. Also the build
//! script of `tbccl-bundle`, a wheel's library of the same name.
//!
//! The compiler exports the functions of the interface and nothing else; a test lists them.

fn main() {
    // Nothing else is read; a file that is named here would be looked for in each of the packages.
    println!("cargo:rerun-if-env-changed=CARGO_PKG_VERSION_MAJOR");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libtbccl.{major}.dylib");
        }
        Ok("linux") => {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtbccl.so.{major}");
            // Threads and exit handlers hold addresses of the library's code.
            println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
        }
        _ => {}
    }
}
