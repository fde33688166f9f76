//! The symbols of `libibverbs.so.1`: names and versions match those that programs were linked with, and
//! unsupported functions fail.

#[path = "../common/mod.rs"]
mod common;
mod elf;

use common::{library, library_folder};
use elf::{Elf, Versioned};
use std::{
    collections::BTreeSet,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const VERBS: &str = "libibverbs.so.1";

const TOOLS: &[&str] = &[
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ib_write_lat",
    "ib_write_bw",
    "ib_send_lat",
    "ib_send_bw",
    "ib_read_lat",
    "ib_read_bw",
    "ib_atomic_lat",
    "ib_atomic_bw",
];

/// Finds a program in PATH, as a shell does.
fn program(name: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").expect("a PATH");
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("no {name}; on Debian, install ibverbs-utils and perftest"))
}

/// Returns the libraries that the loader opens for a program, with the names it asks for. Asserts that no
/// symbol is missing.
fn loaded(program: &Path, folder: Option<&Path>) -> Vec<(String, PathBuf)> {
    let mut command = Command::new(program);
    command.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
    if let Some(folder) = folder {
        command.env("LD_LIBRARY_PATH", folder);
    }
    let asked = [("LD_TRACE_LOADED_OBJECTS", "1"), ("LD_WARN", "yes"), ("LD_BIND_NOW", "yes")];
    let Output { stdout, stderr, .. } = command.envs(asked).output().expect("it starts");
    let message = String::from_utf8_lossy(&stdout);
    for bad in ["undefined symbol", "not found", "no version information"] {
        assert!(!message.contains(bad), "{}: {message}", program.display());
    }
    assert_eq!(String::from_utf8_lossy(&stderr), "", "{}", program.display());
    let library = |line: &str| {
        let (name, path) = line.trim().split_once(" => ")?;
        Some((name.to_owned(), path.split(' ').next()?.into()))
    };
    message.lines().filter_map(library).collect()
}

#[test]
fn every_symbol_that_the_tools_import_is_there_with_its_version() {
    let folder = library_folder();
    let ours = folder.path().join(VERBS);
    let defined = Elf::read(&ours).defined;
    let mut all: BTreeSet<Versioned> = BTreeSet::new();
    for tool in TOOLS {
        let path = program(tool);
        let libraries = loaded(&path, Some(folder.path()));
        let verbs = libraries.iter().find(|(name, _)| name == VERBS).map(|(_, path)| path);
        assert_eq!(verbs, Some(&ours), "{tool}");
        for file in libraries.iter().map(|(_, path)| path).chain([&path]) {
            for (_, symbol) in Elf::read(file).wanted.into_iter().filter(|(from, _)| from == VERBS) {
                assert!(defined.contains(&symbol), "{} wants {symbol:?}", file.display());
                all.insert(symbol);
            }
        }
    }
    // rdma-core 44 and perftest 4.5 import 111. Fewer than half would mean that the reader is wrong.
    assert!(all.len() > 60, "{all:?}");
}

#[test]
fn public_names_have_the_versions_of_the_installed_libibverbs() {
    let folder = library_folder();
    let installed = loaded(&program("ibv_devices"), None);
    let (_, theirs) = installed.iter().find(|(name, _)| name == VERBS).expect("Debian's library");
    let theirs = Elf::read(theirs).defined;
    let ours = Elf::read(&folder.path().join(VERBS)).defined;
    let is_public = |symbol: &&Versioned| !symbol.1.starts_with("IBVERBS_PRIVATE_");
    let extra: Vec<_> = ours.difference(&theirs).filter(is_public).collect();
    assert!(extra.is_empty(), "not in the installed libibverbs: {extra:?}");
}

/// Returns the list of symbols: the behavior of each function, and its name.
fn listed() -> Vec<(&'static str, &'static str)> {
    let lines = include_str!("../../libibverbs/symbols").lines();
    let lines = lines.filter(|line| !line.starts_with(['#', '[']));
    lines.filter_map(|line| line.split_once(' ').map(|(kind, name)| (kind, name.trim()))).collect()
}

#[test]
fn what_the_device_exports_is_forwarded_to() {
    let names = |symbols: BTreeSet<Versioned>| symbols.into_iter().map(|(name, _)| name);
    let exported: BTreeSet<String> =
        names(Elf::read(&library()).defined).filter(|name| name.contains("ibv_")).collect();
    let forwarded = listed().into_iter().filter(|(kind, _)| *kind == "forwarded");
    let forwarded: BTreeSet<String> = forwarded.map(|(_, name)| name.to_owned()).collect();
    assert_eq!(exported, forwarded);
}

/// Compiles a C file of this test.
fn compile(source: &str, arguments: &[&str], target: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/symbols").join(source);
    let compiled = Command::new("cc").arg(source).args(arguments).arg("-o").arg(target).arg("-ldl").output();
    let compiled = compiled.expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

#[test]
fn what_is_not_there_fails_and_says_so() {
    let folder = library_folder();
    let probe = folder.path().join("probe");
    compile("probe.c", &[], &probe);
    let run = |words: &[&str]| {
        let output = Command::new(&probe).arg(folder.path().join("librdma.dylib")).args(words).output();
        output.expect("it starts")
    };
    let (fatal, harmless): (Vec<_>, Vec<_>) =
        listed().into_iter().filter(|(kind, _)| *kind != "forwarded").partition(|(kind, _)| *kind == "fatal");
    assert!(fatal.len() > 5 && harmless.len() > 50);
    let words: Vec<&str> = harmless.into_iter().flat_map(|(kind, name)| [kind, name]).collect();
    let harmless = run(&words);
    assert!(harmless.status.success(), "{}", String::from_utf8_lossy(&harmless.stderr));
    for (kind, name) in fatal {
        let Output { status, stderr, .. } = run(&[kind, name]);
        assert_eq!(status.signal(), Some(6), "{name}");
        let message = format!("softrdma: {name} was called, which software devices don't have\n");
        assert_eq!(String::from_utf8_lossy(&stderr), message);
    }
}

#[test]
fn a_library_of_another_version_is_not_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("libsoftrdma.so");
    compile("probe.c", &["-shared", "-fPIC"], &other);
    let place = folder.path().join("lib");
    let mut made = Command::new(env!("CARGO_BIN_EXE_softrdma"));
    made.arg("lib").arg(&place).arg("--lib").arg(&other);
    assert!(made.output().expect("it starts").status.success());
    let run = || {
        let mut devices = Command::new(program("ibv_devices"));
        devices.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", &place).output().expect("it starts")
    };
    let Output { status, stderr, .. } = run();
    let message = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.code() == Some(127) && message.contains("different versions: ibv_"), "{message}");
    std::fs::remove_file(place.join("libsoftrdma.so")).expect("it is there");
    let Output { status, stderr, .. } = run();
    let message = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.code() == Some(127) && message.contains("libsoftrdma.so: cannot open"), "{message}");
}
