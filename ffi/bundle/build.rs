//! Linking of the library: as that of `libtbccl`, whose name it has in a wheel.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
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
