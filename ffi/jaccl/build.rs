//! Compiles the C++ part, and links it with the C++ library of the process: one of our own would have
//! exceptions and pointers that programs can't take over.

use std::{env, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=cpp");
    if is_cross_compiled_for_macos() && !has_compiler_for_target() {
        println!(
            "cargo:warning=no C++ compiler for macOS is set: the library can be checked, and not be linked"
        );
        return;
    }
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("cpp");
    // Some compilers leave a file behind where they are started.
    env::set_current_dir(env::var("OUT_DIR").expect("set by cargo")).expect("cargo's folder");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").include(&sources);
    build.files(["config.cpp", "group.cpp"].map(|name| sources.join(name)));
    // Functions of the library itself: programs find those of the other namespace, through `exports`.
    build.define("TBCCL_JACCL_NAMESPACE", "inner").flag("-fvisibility=hidden").warnings(true);
    if is_cross_compiled_for_macos() {
        // The headers are for the system's library, of the least system, and not for one of the compiler's.
        let name = "_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS";
        build.flag(format!("-U{name}")).flag(format!("-D{name}=1"));
    }
    build.extra_warnings(true).cpp_link_stdlib(None).compile("jaccl_interface");
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libjaccl.dylib");
            link_libcxx();
        }
        Ok("linux") => {
            println!("cargo:rustc-link-lib=stdc++");
            println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libjaccl.so");
            // Threads and exit handlers hold addresses of the library's code.
            println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
        }
        _ => println!("cargo:rustc-link-lib=c++"),
    }
}

/// Whether this machine compiles for macOS and is no Mac.
fn is_cross_compiled_for_macos() -> bool {
    env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos")
        && !env::var("HOST").is_ok_and(|host| host.contains("apple"))
}

/// Whether the environment names a C++ compiler for the target, as programs that link for it do.
fn has_compiler_for_target() -> bool {
    let target = env::var("TARGET").expect("set by cargo");
    let names = [format!("CXX_{target}"), format!("CXX_{}", target.replace('-', "_")), "TARGET_CXX".into()];
    // A check without a compiler comes before a build with one, in the same folder.
    names.iter().for_each(|name| println!("cargo:rerun-if-env-changed={name}"));
    names.iter().any(|name| env::var_os(name).is_some())
}

/// Links libc++ of the system. A cross compiler would link one of its own instead, so it gets a description
/// of the system's.
fn link_libcxx() {
    if !is_cross_compiled_for_macos() {
        println!("cargo:rustc-link-lib=c++");
        return;
    }
    let stub = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("cpp/libc++.1.tbd");
    println!("cargo:rustc-cdylib-link-arg={}", stub.display());
}
