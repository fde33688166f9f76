//! `tbccl topology` on this machine and on recorded machines.

use crate::TBCCL;
use std::process::{Command, Output};

fn topology(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(TBCCL).arg("topology").args(args).output().expect("it starts");
    let Output { status, stdout, stderr } = output;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code().expect("no signal"), text(&stdout), text(&stderr))
}

fn recording(name: &str) -> String {
    format!("{}/tests/data/machines/{name}.txt", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn this_machine_has_the_cores_that_the_system_counts() {
    let (status, text, stderr) = topology(&["--json"]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let processors = &value["hosts"][0]["processors"];
    let cpus = processors["machine"]["cpus"].as_array().expect("threads").len();
    let usable = std::thread::available_parallelism().expect("a number").get();
    assert!(cpus >= usable, "{cpus} of {usable}: {text}");
    let (status, text, _) = topology(&[]);
    assert_eq!(status, 0);
    assert!(text.contains("core") && text.contains("thread"), "{text}");
}

#[test]
fn a_drawing_is_written_and_nothing_printed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("machine.svg");
    let file_name = file.to_str().expect("text");
    let replay = recording("mac-studio-m3-ultra");
    let (status, text, stderr) = topology(&["--replay", &replay, "--svg", file_name]);
    assert_eq!((status, text.as_str(), stderr.as_str()), (0, "", ""));
    let svg = std::fs::read_to_string(&file).expect("written");
    roxmltree::Document::parse(&svg).expect("well-formed");
    let (status, _, stderr) = topology(&["--replay", &replay, "--svg", "/no/such/folder/x.svg"]);
    assert_eq!(status, 2);
    assert!(stderr.contains("/no/such/folder/x.svg: "), "{stderr}");
}

#[test]
fn a_host_that_does_not_answer_is_named_and_the_others_are_shown() {
    let (status, text, stderr) = topology(&["--hosts", "localhost,no-such-host", "--ssh", "false"]);
    assert_eq!(status, 1, "{text}{stderr}");
    assert!(stderr.contains("host no-such-host: "), "{stderr}");
    assert!(text.starts_with("localhost: "), "{text}");
}
