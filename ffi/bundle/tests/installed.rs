//! Tests of the library and of its program, in the folders of a wheel.

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;

/// Functions that the library exports beside those of the header.
const PRIVATE: [&str; 4] =
    ["tbccl_jaccl_functions", "tbccl_mpi_functions", "tbccl_native_functions", "tbccl_program"];

const IS_MAC: bool = cfg!(target_os = "macos");

/// Returns the library, which cargo puts beside this test program.
fn library() -> PathBuf {
    let program = env::current_exe().expect("this program");
    program.with_file_name(if IS_MAC { "libtbccl_bundle.dylib" } else { "libtbccl_bundle.so" })
}

/// Returns a folder with `bin/tbccl`, and with the library if a wheel has it.
fn installed(with_library: bool) -> TempDir {
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let at = |name: &str| home.path().join(name);
    ["bin", "lib"].iter().for_each(|name| fs::create_dir(at(name)).expect("our folder"));
    // A copy could not be started ("text file busy") while the child of another test has it open for writing.
    fs::hard_link(env!("CARGO_BIN_EXE_tbccl-program"), at("bin/tbccl")).expect("our folder");
    if with_library {
        let name = if IS_MAC { "lib/libtbccl.0.dylib" } else { "lib/libtbccl.so.0" };
        symlink(library(), at(name)).expect("our folder");
    }
    home
}

fn tbccl(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(home.join("bin/tbccl"));
    command.args(arguments).output().expect("a program")
}

#[test]
fn it_exports_the_c_interface_and_the_program_only() {
    let options: &[&str] = if IS_MAC { &["-gU"] } else { &["-D", "--defined-only"] };
    let output = Command::new("nm").args(options).arg(library()).output().expect("nm");
    let text = String::from_utf8(output.stdout).expect("names");
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let exported: BTreeSet<&str> =
        names.map(|name| name.strip_prefix('_').filter(|_| IS_MAC).unwrap_or(name)).collect();
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/symbols.txt");
    let list = fs::read_to_string(list).expect("the list of libtbccl");
    assert_eq!(exported, list.lines().chain(PRIVATE).collect());
}

#[test]
fn the_program_prints_all_of_its_output_and_passes_on_its_status() {
    let home = installed(true);
    let version = tbccl(home.path(), &["--version"]);
    assert_eq!(String::from_utf8_lossy(&version.stdout), format!("tbccl {}\n", env!("CARGO_PKG_VERSION")));
    assert!(version.status.success(), "{version:?}");
    let misspelt = tbccl(home.path(), &["rnu"]);
    assert_eq!(misspelt.status.code(), Some(2), "{misspelt:?}");
    assert!(String::from_utf8_lossy(&misspelt.stderr).starts_with("tbccl: error: "), "{misspelt:?}");
    // Output without an end of line, which only the end of the program writes.
    let script = tbccl(home.path(), &["completions", "bash"]).stdout;
    assert!(String::from_utf8_lossy(&script).contains("complete -F _tbccl"), "the script is cut");
}

#[test]
fn its_agents_and_ranks_are_started_by_the_same_program() {
    let home = installed(true);
    let job = tbccl(home.path(), &["run", "-n", "2", "--", "sh", "-c", "exit 7"]);
    assert_eq!(job.status.code(), Some(7), "{job:?}");
}

#[test]
fn without_the_library_it_names_the_missing_file() {
    let home = installed(false);
    let output = tbccl(home.path(), &["--version"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text.starts_with("tbccl: error: ../lib/libtbccl."), "{text}");
}
