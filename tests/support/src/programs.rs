//! The programs of the build under test: `tbccl`, and the test program itself as a rank.

use crate::process::with_default_signals;
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Variables that would lead a program to another software device, or to another job.
const FOREIGN: [&str; 18] = [
    "LD_PRELOAD",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "RANK",
    "SLURM_PROCID",
    "SOFTRDMA_BASE",
    "SOFTRDMA_DIR",
    "SOFTRDMA_FABRIC",
    "SOFTRDMA_LIB",
    "SOFTRDMA_NODE",
    "TBCCL_BOOTSTRAP",
    "TBCCL_JOB",
    "TBCCL_RANK",
    "TBCCL_ROOT",
    "TBCCL_SECRET",
    "TBCCL_SIZE",
    "TBCCL_VERBS_LIB",
    "WORLD_SIZE",
];

/// Returns the folder of the build's programs: the parent of the folder of this test program.
fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    program.ancestors().nth(2).expect("a build folder").to_owned()
}

/// Returns the path of `tbccl`. Cargo builds it for the tests of its own package.
#[must_use]
pub fn tbccl_path() -> PathBuf {
    folder().join("tbccl")
}

fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in FOREIGN {
        command.env_remove(name);
    }
    // Tests leave nothing in the user's cache folder, and don't depend on the machine's calibration.
    command.env("TBCCL_CALIBRATE", "0");
    command.stdin(Stdio::null());
    with_default_signals(&mut command);
    command
}

/// Returns a command for `tbccl`.
#[must_use]
pub fn tbccl() -> Command {
    let mut tbccl = command(tbccl_path());
    tbccl.env("TBCCL", tbccl_path());
    tbccl
}

/// Returns a command for `tbccl` with the software device built beside it.
///
/// Cargo builds the device only for the package that it belongs to, so it is built here, once. All packages
/// are built together, so that crates below them have the features that they have in tests of all packages,
/// and are not built again.
///
/// # Panics
/// If the device cannot be built.
#[must_use]
pub fn tbccl_with_software_device() -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = folder();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "-q", "--workspace", "--lib", "--bins", "--features=tbccl/test-driver"]);
        cargo.arg("--target-dir");
        cargo.arg(folder.parent().unwrap_or(Path::new("target")));
        if !cfg!(target_os = "linux") {
            cargo.args(["--exclude", "tbccl-softrdma"]);
        }
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "the software device can't be built");
    });
    tbccl()
}

/// Returns the command line with which this test program runs its test `roles::play` as a rank.
#[must_use]
pub fn rank_arguments() -> Vec<String> {
    rank_arguments_of("roles::play")
}

/// Returns the command line with which this test program runs one of its tests as a rank.
///
/// # Panics
/// If the path of this program is unknown.
#[must_use]
pub fn rank_arguments_of(test: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("the path of this program").to_string_lossy().into_owned();
    [&program, "--exact", test, "--nocapture", "--test-threads=1"].map(str::to_owned).into()
}

/// Returns the command that goes before a rank's own command line in a job with these variables. Ranks over
/// `shm+tcp` are distributed over hosts: two successive ranks count as being on a host of their own.
#[must_use]
pub fn host_wrapper(env: &[(&str, &str)]) -> &'static [&'static str] {
    const PAIRS: [&str; 3] = ["/bin/sh", "-c", "TBCCL_HOST_ID=host-$((TBCCL_RANK / 2)) exec \"$0\" \"$@\""];
    if env.contains(&("TBCCL_TRANSPORT", "shm+tcp")) { &PAIRS } else { &[] }
}

/// Returns a command that runs this test program with the arguments of [`rank_arguments_of`].
#[must_use]
pub fn rank_command_of(arguments: &[String]) -> Command {
    let mut command = command(&arguments[0]);
    command.args(&arguments[1..]);
    command
}
