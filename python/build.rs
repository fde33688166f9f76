//! Linker options of the extension module, whose Python symbols the loading interpreter resolves.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-undefined,dynamic_lookup");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/_native.abi3.so");
    }
}
