//! Linking of the shim: its name for the loader, and that it is never unloaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libtbccl_mpi.dylib"),
        Ok("linux") => {
            // MLX before 0.29.4 reads no variable for the name. It opens this one, and gets the library that
            // is already loaded under it. No other MPI library has the name: theirs end with a version
            // number.
            println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmpi.so");
            // Threads and exit handlers hold addresses of the library's code.
            println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
        }
        _ => {}
    }
}
