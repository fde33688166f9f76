//! Instructions of a function, counted by Valgrind: a figure that does not depend on how fast a machine is.

use std::{fs, process::Command};

/// Runs a program under Valgrind and counts the instructions of each call of a function, with all that it
/// calls. Returns the smallest count, since a wait for another process takes some.
///
/// `function` is the whole path of the function, such as `crate::module::function`. Other processes that the
/// program starts run by themselves. Returns `None` if there is no Valgrind.
///
/// # Panics
/// If the program fails, or never calls the function.
#[must_use]
pub fn fewest_instructions(program: &Command, function: &str) -> Option<u64> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--fair-sched=yes"])
        .arg(format!("--callgrind-out-file={}", folder.path().join("counts").display()))
        .arg(format!("--toggle-collect={function}"))
        .arg(format!("--dump-after={function}"))
        .arg(program.get_program())
        .args(program.get_args());
    for (variable, value) in program.get_envs() {
        match value {
            Some(value) => valgrind.env(variable, value),
            None => valgrind.env_remove(variable),
        };
    }
    let output = match valgrind.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        output => output.expect("Valgrind starts"),
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stdout));
    let counts = fs::read_dir(folder.path()).expect("our folder").map(|entry| {
        let counts = fs::read_to_string(entry.expect("a file").path()).expect("text");
        let line = counts.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap_or("0");
        line.trim().parse::<u64>().expect("a number")
    });
    // What was counted after the last call is nothing.
    let fewest = counts.filter(|count| *count > 0).min();
    Some(fewest.unwrap_or_else(|| panic!("{function} was not called\n{text}")))
}
