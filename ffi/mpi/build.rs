//! How the library is linked: its name for the loader, and that it is never unloaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libtbccl_mpi.dylib"),
        Ok("linux") => {
            // MLX before 0.29.4 asks no variable for the name: it opens this one, and gets what is loaded by that name
            // already. Nobody else's library has it: theirs have numbers behind.
            println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmpi.so");
            // Threads and what is to be done at the end of the process have addresses in it.
            println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
        }
        _ => {}
    }
}
