//! `tbccl selftest` on software devices: without faults, and with one that breaks each assumption.
//!
//! | module | subject |
//! |---|---|
//! | `broken` | the library that breaks one rule |
//! | `faults` | each check fails when its rule is broken |
//! | `whole` | a complete test, the file, interrupts and errors |

mod broken;
mod faults;
mod whole;

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use support::tbccl_with_software_device;

/// Returns the fabric of two nodes with one cable, whose devices have this profile and these settings.
fn fabric(profile: &str, settings: &str, link: &str) -> String {
    format!(
        "profile = '{profile}'
        [link]
        {link}
        [[node]]
        name = 'a'
        device = [{{ name = 'x0'{settings} }}]
        [[node]]
        name = 'b'
        device = [{{ name = 'x1'{settings} }}]
        [[cable]]
        ends = ['a/x0', 'b/x1']"
    )
}

/// A finished test: exit status, output, and the lines of its file.
#[derive(Debug)]
struct Tested {
    status: i32,
    stdout: String,
    stderr: String,
    file: String,
    json: Value,
}

impl Tested {
    /// Returns verdict and text of a check, by the end of its name.
    fn check(&self, name: &str) -> (&str, &str) {
        let checks = self.json["checks"].as_array().unwrap_or_else(|| panic!("no checks: {self:?}"));
        let is_it = |check: &&Value| check["name"].as_str().is_some_and(|known| known.ends_with(name));
        let check = checks.iter().find(is_it).unwrap_or_else(|| panic!("no check {name}: {self:?}"));
        (check["verdict"].as_str().expect("a verdict"), check["text"].as_str().expect("a text"))
    }

    /// Returns the names of the checks with a verdict.
    fn names(&self, verdict: &str) -> Vec<&str> {
        let checks = self.json["checks"].as_array().into_iter().flatten();
        checks
            .filter(|check| check["verdict"] == verdict)
            .filter_map(|check| check["name"].as_str())
            .collect()
    }
}

/// Runs `tbccl selftest` on a fabric; `prepare` changes the command.
fn test_on(fabric: &str, options: &[&str], prepare: impl FnOnce(&mut Command)) -> Tested {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, out) = (folder.path().join("fabric.toml"), folder.path().join("report.txt"));
    fs::write(&file, fabric).expect("writable");
    let mut command = tbccl_with_software_device();
    command.args(["selftest", "--quick", "--python", "/there/is/no/python", "--fabric"]).arg(&file);
    command.arg("--out").arg(&out).args(options);
    prepare(&mut command);
    tested(&command.output().expect("it starts"), &out)
}

/// Reads the file of a test that has ended.
fn tested(output: &Output, out: &Path) -> Tested {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let file = fs::read_to_string(out).unwrap_or_default();
    let json = file.split_once("---- the same as JSON ----").map_or("null", |(_, json)| json);
    Tested {
        status: output.status.code().unwrap_or(-1),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        json: serde_json::from_str(json).expect("JSON"),
        file,
    }
}

/// Returns the path of the software device.
fn software_device() -> PathBuf {
    let beside = support::tbccl_path().with_file_name("libsoftrdma.so");
    if beside.is_file() { beside } else { beside.with_file_name("deps").join("libsoftrdma.so") }
}
