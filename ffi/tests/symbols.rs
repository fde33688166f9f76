//! Tests of the exported symbols: exactly the functions of the header, and those for the libraries of MLX.
//!
//! `symbols.txt` pins them: a symbol is never removed. After adding one: `TBCCL_WRITE_SYMBOLS=1 cargo test -p
//! tbccl-ffi --test symbols`.

#[allow(dead_code)] // This test uses only a part of the harness.
mod harness;

use harness::{command, package_dir, run, shared_library};
use std::{collections::BTreeSet, fs};
use tbccl::Collective;

/// Functions for the libraries of MLX of the same release. They are no part of the interface, and may change.
const PRIVATE: [&str; 3] = ["tbccl_jaccl_functions", "tbccl_mpi_functions", "tbccl_native_functions"];

/// Returns the symbols that the shared library exports for programs.
fn exported() -> BTreeSet<String> {
    let library = shared_library();
    let options: &[&str] = if cfg!(target_os = "macos") { &["-gU"] } else { &["-D", "--defined-only"] };
    let output = run(command("nm", options).arg(library)).stdout;
    let names = output.lines().filter_map(|line| line.split_whitespace().nth(2));
    let plain =
        |name: &str| name.strip_prefix('_').filter(|_| cfg!(target_os = "macos")).unwrap_or(name).to_owned();
    let mut names: BTreeSet<String> = names.map(plain).collect();
    for name in PRIVATE {
        assert!(names.remove(name), "a library for MLX needs {name}");
    }
    names
}

/// Returns the names of the functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(package_dir().join("tbccl.h")).expect("a header");
    let calls = header.match_indices("(").filter_map(|(at, _)| {
        let before = &header[..at];
        let start = before.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |at| at + 1);
        let line = &header[header[..start].rfind('\n').map_or(0, |at| at + 1)..start];
        let is_declaration = !line.trim_start().starts_with(['*', '/', '#']) && !line.trim().is_empty();
        (is_declaration && before[start..].starts_with("tbccl")).then(|| before[start..].to_owned())
    });
    calls.collect()
}

#[test]
fn only_the_functions_of_the_header_are_exported() {
    let (exported, declared) = (exported(), declared());
    let odd: Vec<_> = exported.iter().filter(|name| !name.starts_with("tbccl")).collect();
    assert!(odd.is_empty(), "exported without the prefix tbccl: {odd:?}");
    assert_eq!(exported, declared, "exported functions, and functions declared in the header");
    let path = package_dir().join("tests/symbols.txt");
    let text: String = exported.iter().map(|name| format!("{name}\n")).collect();
    if std::env::var_os("TBCCL_WRITE_SYMBOLS").is_some() {
        fs::write(&path, &text).expect("a list");
    }
    let pinned = fs::read_to_string(&path).expect("a list");
    assert_eq!(text, pinned, "the exported functions differ from symbols.txt");
}

#[test]
fn every_collective_has_its_functions() {
    let declared = declared();
    for shape in Collective::ALL.map(Collective::shape) {
        let Some(name) = shape.names.c else { continue };
        let variants = [Some(""), shape.vector.map(|_| "V"), shape.quantizes.then_some("Quantized")];
        for variant in variants.into_iter().flatten() {
            let function = format!("tbccl{name}{variant}");
            assert!(declared.contains(&function), "{function}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_loader_knows_the_library_by_its_name_and_version() {
    let output = run(command("objdump", &["-p"]).arg(shared_library())).stdout;
    assert!(output.lines().any(|line| line.trim() == "SONAME               libtbccl.so.0"), "{output}");
}
