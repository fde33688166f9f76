//! Tests of the library as programs load it: its exports, and a C++ program that calls every function.

#[allow(dead_code)] // This test uses only a part of the harness.
#[path = "../../tests/harness/mod.rs"]
mod harness;

use harness::{binary_dir, command, package_dir, run, tbccl};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, Stdio},
};

/// Symbols that MLX takes from an MPI library. MLX rejects a library that lacks one of them.
const TAKEN: [&str; 30] = [
    "MPI_Allgather",
    "MPI_Allreduce",
    "MPI_Comm_free",
    "MPI_Comm_rank",
    "MPI_Comm_size",
    "MPI_Comm_split",
    "MPI_Finalize",
    "MPI_Get_library_version",
    "MPI_Init",
    "MPI_Op_create",
    "MPI_Recv",
    "MPI_Send",
    "MPI_Type_commit",
    "MPI_Type_contiguous",
    "ompi_mpi_c_bool",
    "ompi_mpi_c_complex",
    "ompi_mpi_comm_world",
    "ompi_mpi_double",
    "ompi_mpi_float",
    "ompi_mpi_int16_t",
    "ompi_mpi_int32_t",
    "ompi_mpi_int64_t",
    "ompi_mpi_int8_t",
    "ompi_mpi_op_max",
    "ompi_mpi_op_min",
    "ompi_mpi_op_sum",
    "ompi_mpi_uint16_t",
    "ompi_mpi_uint32_t",
    "ompi_mpi_uint64_t",
    "ompi_mpi_uint8_t",
];

/// Symbols that `tbccl.mlx` calls.
const OURS: [&str; 3] = ["tbccl_mpi_is_running", "tbccl_mpi_launcher", "tbccl_mpi_ranks"];

fn library() -> PathBuf {
    binary_dir().join(if cfg!(target_os = "macos") { "libtbccl_mpi.dylib" } else { "libtbccl_mpi.so" })
}

/// Compiles a source of this folder into `folder`, and returns the program's path.
fn compiled(compiler: &[&str], source: &str, folder: &tempfile::TempDir) -> PathBuf {
    let program = folder.path().join("program");
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-o"]).arg(&program);
    run(command.arg(package_dir().join("tests").join(source)).arg("-ldl"));
    program
}

#[test]
fn what_mlx_takes_is_exported_and_nothing_else_but_what_its_module_asks() {
    let options: &[&str] = if cfg!(target_os = "macos") { &["-gU"] } else { &["-D", "--defined-only"] };
    let output = run(command("nm", options).arg(library())).stdout;
    let names = output.lines().filter_map(|line| line.split_whitespace().nth(2));
    let plain =
        |name: &str| name.strip_prefix('_').filter(|_| cfg!(target_os = "macos")).unwrap_or(name).to_owned();
    let exported: BTreeSet<String> = names.map(plain).collect();
    let expected: BTreeSet<String> = TAKEN.iter().chain(&OURS).map(|name| (*name).to_owned()).collect();
    assert_eq!(exported, expected);
}

#[test]
fn every_function_does_what_it_is_to_do_and_throws_where_it_can_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(&["c++", "-std=c++17"], "calls.cpp", &folder);
    for (ranks, transport) in [(1, "shm"), (2, "shm"), (3, "shm"), (5, "shm"), (2, "tcp")] {
        let mut job = tbccl();
        job.args(["run", "-n", &ranks.to_string(), "--"]).arg(&program).arg(library());
        let output = run(job.env("TBCCL_TRANSPORT", transport)).stdout;
        assert_eq!(output.matches("ok ").count(), ranks, "{output}");
    }
    // A program without a launcher is a world of one rank.
    assert_eq!(run(&mut command(&program, &[library()])).stdout, "ok 0\n");
}

#[test]
fn where_nobody_could_catch_a_failure_the_process_ends_with_its_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(&["cc", "-std=c11"], "alone.c", &folder);
    let done = Command::new(program).arg(library()).stdin(Stdio::null()).output().expect("it starts");
    let message = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.signal(), Some(libc::SIGABRT), "{message}");
    assert!(
        message.starts_with("tbccl: error: [tbccl] MPI_Comm_rank: MPI_Init has not been called"),
        "{message}"
    );
    assert!(done.stdout.is_empty());
}

/// Returns a folder with a copy of the library alone.
fn copied_alone() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The folder above the library is searched, too.
    let inner = folder.path().join("lib");
    fs::create_dir(&inner).expect("our folder");
    fs::copy(library(), inner.join(library().file_name().expect("a name"))).expect("our folder");
    folder
}

/// Runs the program with the copied library, and checks what it says of the `libtbccl` that it needs.
fn refuses(folder: &tempfile::TempDir, expected: &[&str]) {
    let program = compiled(&["cc", "-std=c11"], "alone.c", folder);
    let copy = folder.path().join("lib").join(library().file_name().expect("a name"));
    let done = Command::new(&program).arg(&copy).stdin(Stdio::null()).output().expect("it starts");
    let message = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.signal(), Some(libc::SIGABRT), "{message}");
    assert!(message.starts_with("tbccl: error: ") && done.stdout.is_empty(), "{message}");
    let version = run(Command::new(program).arg(&copy).arg("version")).stdout;
    assert!(version.contains("tbccl without libtbccl: ") && !version.contains("Open MPI"), "{version}");
    for part in expected {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_library_without_libtbccl_says_where_it_has_to_be() {
    let name = if cfg!(target_os = "macos") { "libtbccl.0.dylib" } else { "libtbccl.so.0" };
    refuses(&copied_alone(), &[name, "nor in the folder above", "install both from one package"]);
}

#[test]
fn a_libtbccl_of_another_release_is_refused_before_it_is_called() {
    let folder = copied_alone();
    let source = folder.path().join("other.c");
    // A table without functions, whose release differs.
    let text = "static const struct { char version[24]; unsigned long long bytes; } it = {\"9.8.7\", 32};\n\
                const void *tbccl_mpi_functions(const void *objects) { return objects ? &it : 0; }\n";
    fs::write(&source, text).expect("our folder");
    let name = if cfg!(target_os = "macos") { "libtbccl.0.dylib" } else { "libtbccl.so.0" };
    let output = folder.path().join("lib").join(name);
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(output).arg(source));
    refuses(&folder, &["tbccl 9.8.7, not ", "install both from one package"]);
}
