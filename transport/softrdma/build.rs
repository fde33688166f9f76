//! Links `libibverbs.so.1` with the system's C compiler, which Rust needs for linking anyway.
//!
//! The program `softrdma` contains the result and writes it on request. `libibverbs/libibverbs.c` explains
//! why rustc does not link it.
//!
//! The device's own library is linked so that it stays loaded (`nodelete`): it may run a thread, and it has
//! code that runs after fork and at exit.

use std::{
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The list of exported symbols, and the C source that exports them.
const SYMBOLS: &str = "libibverbs/symbols";
const SOURCE: &str = "libibverbs/libibverbs.c";

fn main() {
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    for file in [SYMBOLS, SOURCE] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder"));
    let symbols = fs::read_to_string(SYMBOLS).expect("the list of symbols");
    let (header, map) = translate(&symbols);
    fs::write(out.join("symbols.h"), header).expect("OUT_DIR is writable");
    fs::write(out.join("symbols.map"), map).expect("OUT_DIR is writable");
    fs::write(out.join("empty.c"), "").expect("OUT_DIR is writable");
    // A stub of the library that is not built yet, so that libibverbs.so.1 can declare its dependency on it.
    link(&out, "libsoftrdma.so", &["empty.c".as_ref(), "-nostdlib".as_ref()]);
    let source = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo names it")).join(SOURCE);
    link(
        &out,
        "libibverbs.so.1",
        &[
            source.as_ref(),
            "-Wl,--version-script=symbols.map".as_ref(),
            // Searches the folder of this library before all others.
            "-Wl,--disable-new-dtags,-rpath,$ORIGIN".as_ref(),
            "-Wl,--no-as-needed".as_ref(),
            "libsoftrdma.so".as_ref(),
            "-ldl".as_ref(),
        ],
    );
}

/// Translates the list of symbols into C macro calls and a linker version script.
fn translate(symbols: &str) -> (String, String) {
    let (mut header, mut map) = (String::new(), String::new());
    let mut version: Option<&str> = None;
    let mut before = String::new();
    for line in symbols.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            if let Some(version) = version.replace(name) {
                _ = writeln!(map, "}}{before};");
                before = format!(" {version}");
            }
            _ = writeln!(map, "{name} {{\n  global:");
            continue;
        }
        let (kind, name) = line.split_once(char::is_whitespace).expect("a kind and a name");
        let name = name.trim_start();
        _ = writeln!(header, "{kind}({name})");
        _ = writeln!(map, "    {name};");
    }
    _ = writeln!(map, "  local: *;\n}}{before};");
    (header, map)
}

/// Links a shared library in a folder.
fn link(folder: &Path, name: &str, arguments: &[&std::ffi::OsStr]) {
    let named = |variable| env::var(variable).ok().filter(|value: &String| !value.trim().is_empty());
    let compiler = named("CC").or_else(|| named("RUSTC_LINKER")).unwrap_or_else(|| "cc".to_owned());
    // CC may contain arguments.
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().expect("it is not empty"));
    command.current_dir(folder).args(words);
    command.args(["-shared", "-fPIC", "-O2", "-Wall", "-I.", "-o", name]);
    command.arg(format!("-Wl,-soname,{name}")).args(arguments);
    let status = command.status();
    let status = status.unwrap_or_else(|error| panic!("a C compiler is needed: {compiler}: {error}"));
    assert!(status.success(), "{command:?} has failed; CC names another C compiler");
}
