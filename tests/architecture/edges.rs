//! Allowed dependencies between packages, and the files that may contain unsafe code.
//!
//! ARCHITECTURE.md states the same in words. A change of the architecture changes both in one commit.

use crate::sources::{code_of, root, rust_files, words};
use cargo_metadata::{Dependency, DependencyKind};
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

/// Packages of the workspace that each package may depend on.
const EDGES: [(&str, &[&str]); 20] = [
    ("tbccl-events", &[]),
    ("tbccl-inventory", &[]),
    ("tbccl-topology", &[]),
    ("tbccl-collectives", &["tbccl-topology"]),
    ("tbccl-kernels", &["tbccl-collectives"]),
    ("tbccl-verbs-sys", &[]),
    ("tbccl-transport", &["tbccl-events", "tbccl-verbs-sys"]),
    ("tbccl-softrdma", &["tbccl-verbs-sys"]),
    ("tbccl-bootstrap", &["tbccl-events", "tbccl-topology", "tbccl-transport"]),
    (
        "tbccl",
        &[
            "tbccl-bootstrap",
            "tbccl-collectives",
            "tbccl-events",
            "tbccl-kernels",
            "tbccl-transport",
            "tbccl-topology",
        ],
    ),
    (
        "tbccl-cli",
        &[
            "tbccl",
            "tbccl-bootstrap",
            "tbccl-collectives",
            "tbccl-inventory",
            "tbccl-kernels",
            "tbccl-transport",
            "tbccl-topology",
        ],
    ),
    ("tbccl-ffi", &["tbccl", "tbccl-mlx-core", "tbccl-mlx-table"]),
    ("tbccl-bundle", &["tbccl-cli", "tbccl-ffi"]),
    ("tbccl-mlx-core", &["tbccl", "tbccl-mlx-table"]),
    ("tbccl-mlx-table", &[]),
    ("tbccl-jaccl", &["tbccl-mlx-table"]),
    ("tbccl-mpi-shim", &["tbccl-mlx-table"]),
    ("tbccl-python", &["tbccl"]),
    ("benches", &["tbccl-ffi", "tbccl", "tbccl-transport"]),
    ("tbccl-test-support", &[]),
];

/// Packages that the library must not depend on, since only the command needs them.
const NOT_IN_THE_LIBRARY: [&str; 8] =
    ["clap", "clap_complete", "clap_mangen", "crossterm", "humantime", "indicatif", "object", "shlex"];

/// Packages that only compute.
const PURE: [&str; 3] = ["collectives", "inventory", "topology"];

/// Modules of the standard library with effects beyond computation.
const IMPURE: [&str; 7] = ["env", "fs", "io", "net", "process", "thread", "time"];

/// Files that may contain `unsafe`; a folder, which ends with `/`, includes all of its files.
const UNSAFE: &[&str] = &[
    "benches/benches/c_calls.rs",
    "benches/benches/calls.rs",
    "benches/benches/messages.rs",
    "benches/benches/plain_verbs/mod.rs",
    "benches/benches/reduce.rs",
    "ffi/bundle/src/",
    "ffi/jaccl/src/",
    "ffi/mlx/src/",
    "ffi/mlx/table/src/",
    "ffi/mpi/src/",
    "ffi/src/",
    "ffi/tests/instructions.rs",
    "kernels/src/",
    "python/src/comm.rs",
    "python/src/memory.rs",
    "python/src/protocols/",
    "runtime/src/communicator/buffer.rs",
    "runtime/src/communicator/elements.rs",
    "runtime/src/communicator/raw.rs",
    "runtime/src/communicator/registered.rs",
    "runtime/src/communicator/scaling.rs",
    "runtime/src/executor/packing.rs",
    "runtime/src/executor/sink.rs",
    "src/commands/chaos/worker/fork.rs",
    "src/commands/selftest/device/cycles.rs",
    "src/commands/selftest/device/queues.rs",
    "src/commands/selftest/device/registration.rs",
    "src/commands/selftest/pair/end.rs",
    "src/launch/spawn.rs",
    "src/processors/hwloc.rs",
    "runtime/src/p2p/buffered.rs",
    "runtime/src/p2p/harness.rs",
    "runtime/src/p2p/message_copy.rs",
    "src/reference/parcel.rs",
    "runtime/src/p2p/mod.rs",
    "runtime/src/trace/counter.rs",
    "runtime/src/shared/mod.rs",
    "runtime/src/shared/queue/tests.rs",
    "runtime/src/shared/biased_lock/guarded.rs",
    "tests/hot_path.rs",
    "tests/failure/forks.rs",
    "tests/support/src/process.rs",
    "tests/calls/raw/mod.rs",
    "tests/calls/shared/issued.rs",
    "tests/calls/traces.rs",
    "transport/softrdma/src/abi/",
    "transport/softrdma/src/nic/",
    "transport/softrdma/src/remap.rs",
    "transport/softrdma/src/shm/",
    "transport/softrdma/tests/conformance/",
    "transport/softrdma/tests/ends/",
    "transport/softrdma/tests/forks.rs",
    "transport/softrdma/tests/timer.rs",
    "transport/src/driver/",
    "transport/src/forks.rs",
    "transport/src/host.rs",
    "transport/src/memory/",
    "transport/src/ring/",
    "transport/src/span.rs",
    "transport/src/streaming.rs",
    "transport/src/sync/model.rs",
    "transport/src/verbs/",
    "transport/tests/conformance/corruption.rs",
    "transport/tests/conformance/verbs.rs",
    "transport/tests/forks.rs",
    "transport/tests/verbs/",
    "transport/verbs-sys/src/structures/",
];

/// Returns the modules of the standard library that the code names, in paths and in `use std::{...}`.
fn std_modules(code: &str) -> Vec<String> {
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("std::") {
        let rest = &code[at + "std::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            modules.extend(words(rest).next().map(str::to_owned));
            continue;
        };
        let mut depth = 0;
        let mut item = String::new();
        for character in group.chars() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    modules.extend(words(&std::mem::take(&mut item)).next().map(str::to_owned));
                }
                _ => {}
            }
            if character != ',' || depth > 0 {
                item.push(character);
            }
        }
        modules.extend(words(&item).next().map(str::to_owned));
    }
    modules
}

#[test]
fn packages_depend_only_on_what_they_may() {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo tells about the workspace");
    let allowed = BTreeMap::from(EDGES);
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let may = allowed.get(name).unwrap_or_else(|| panic!("{name} is new: say what it may depend on"));
        let is_support =
            |d: &Dependency| d.kind == DependencyKind::Development && d.name == "tbccl-test-support";
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some() && !is_support(d)) {
            assert!(may.contains(&dependency.name.as_str()), "{name} must not depend on {}", dependency.name);
        }
    }
}

#[test]
fn the_library_carries_no_launcher() {
    let crates = crates_with_features(&["-p", "tbccl", "--edges=no-dev"]);
    for name in NOT_IN_THE_LIBRARY {
        let is_there = crates.iter().any(|line| line.split(' ').next() == Some(name));
        assert!(!is_there, "the library must not depend on {name}: that belongs to the command");
    }
}

#[test]
fn the_middle_is_pure() {
    for package in PURE {
        let files = rust_files(&root().join(package).join("src"));
        let (_, lib) = files.iter().find(|(path, _)| path.ends_with("src/lib.rs")).expect("a library");
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{package} must forbid unsafe code");
        for (path, source) in &files {
            for module in std_modules(&code_of(source)) {
                assert!(!IMPURE.contains(&module.as_str()), "{path} is pure and must not use std::{module}");
            }
        }
    }
}

#[test]
fn unsafe_code_stands_only_where_it_may() {
    let is_listed = |path: &str| {
        UNSAFE.iter().any(|place| path == *place || (place.ends_with('/') && path.starts_with(place)))
    };
    let is_explained = |source: &str| source.lines().any(|line| line == "//! # Safety");
    let mut files = rust_files(root());
    files.retain(|(_, source)| words(&code_of(source)).any(|word| word == "unsafe"));
    let paths = |wrong: &dyn Fn(&str, &str) -> bool| -> Vec<&str> {
        files.iter().filter(|(path, source)| wrong(path, source)).map(|(path, _)| path.as_str()).collect()
    };
    let unlisted = paths(&|path, _| !is_listed(path));
    assert!(unlisted.is_empty(), "unsafe code: find a way without, or extend the list here: {unlisted:#?}");
    let unexplained = paths(&|_, source| !is_explained(source));
    assert!(unexplained.is_empty(), "no section `//! # Safety` says why these are sound: {unexplained:#?}");
}

/// Returns the crates in the dependency trees of some packages, with their features; `selection` are options
/// of `cargo tree`.
fn crates_with_features(selection: &[&str]) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(root())
        .args(["tree", "--locked", "--prefix", "none", "-f", "{p} [{f}]"])
        .args(selection);
    let output = cargo.output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plain = |line: &str| line.replace(" (*)", "").replace(" (proc-macro)", "");
    String::from_utf8_lossy(&output.stdout).lines().map(plain).filter(|line| !line.is_empty()).collect()
}

#[test]
fn no_crate_is_built_once_for_tests_and_once_more_for_programs() {
    let in_tests = crates_with_features(&["--workspace"]);
    let in_programs =
        crates_with_features(&["--workspace", "--edges=no-dev", "--features=tbccl/test-driver"]);
    let twice: Vec<_> = in_programs.difference(&in_tests).collect();
    assert!(
        twice.is_empty(),
        "these have fewer features without tests, so that they and all above them are built again: name the \
        features \
         in Cargo.toml, as is done there for others: {twice:#?}"
    );
}

#[test]
fn programs_for_users_have_no_driver_for_tests() {
    let crates = crates_with_features(&["--workspace", "--edges=no-dev"]);
    let with_it: Vec<_> = crates.iter().filter(|line| line.contains("test-driver")).collect();
    assert!(with_it.is_empty(), "only tests may enable the feature test-driver: {with_it:#?}");
}

#[test]
fn every_place_for_unsafe_code_is_there() {
    for place in UNSAFE {
        assert!(root().join(place).exists(), "{place} is gone: take it off the list");
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for (path, source) in rust_files(root()) {
        assert!(source.starts_with("//! "), "{path} must begin with its module documentation");
    }
}

#[test]
fn modules_of_the_standard_library_are_found_in_paths_and_in_groups() {
    let code = "use std::{fmt, io::{self, Read}, str::FromStr}; std::env::args(); use std::fs;";
    assert_eq!(std_modules(code), ["fmt", "io", "str", "env", "fs"]);
}
