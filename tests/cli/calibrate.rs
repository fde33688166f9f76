//! `tbccl calibrate`, and the calibration of the first job of a machine.

use crate::TBCCL;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Returns a command whose cache folder is `cache`.
fn tbccl(cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(TBCCL);
    command.args(args).stdin(Stdio::null());
    command.env("TBCCL_CALIBRATE", "1").env("HOME", cache).env("XDG_CACHE_HOME", cache);
    command
}

fn output(command: &mut Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the program was built for this test");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}: {stderr}");
    (stdout.into_owned(), stderr.into_owned())
}

/// Returns the line of one measurement of `op` on two ranks, and stderr.
fn bench(cache: &Path, op: &str, bytes: &str, more: &[&str], vars: &[(&str, &str)]) -> (Value, String) {
    let args =
        ["bench", op, "--ranks", "2", "-b", bytes, "-e", bytes, "-n", "3", "--tries", "1", "--json", "-"];
    let (rows, stderr) = output(tbccl(cache, &[&args[..], more].concat()).envs(vars.iter().copied()));
    (serde_json::from_str(&rows).expect("one line of JSON"), stderr)
}

/// Returns the files below a folder, but for locks.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("our folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_none_or(|end| end != "lock") {
            found.push(path);
        }
    }
    found
}

/// Repeats a first job until it has left a file that is a record, and returns that. `None` if the machine is
/// too busy to be calibrated, as beside other tests, which `tbccl calibrate` says then.
fn until_calibrated(cache: &Path, job: impl Fn()) -> Option<PathBuf> {
    for _ in 0..20 {
        job();
        let is_record =
            |path: &PathBuf| serde_json::from_slice::<Value>(&fs::read(path).expect("ours")).is_ok();
        if let Some(file) = files(cache).into_iter().find(is_record) {
            return Some(file);
        }
    }
    let elsewhere = cache.join("other");
    for _ in 0..20 {
        let output = tbccl(&elsewhere, &["calibrate"]).output().expect("it runs");
        if output.status.success() {
            continue;
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("the machine is too busy"), "{stderr}");
        return None;
    }
    panic!("jobs did not calibrate a machine that can be calibrated");
}

/// Whether the machine can be calibrated: with one core it cannot.
fn has_two_cores() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1)
}

#[test]
fn the_first_job_measures_the_machine_and_later_ones_read_the_file() {
    let cache = tempfile::tempdir().expect("a folder");
    let bench = |vars: &[_]| bench(cache.path(), "all_reduce", "4", &[], vars).1;
    bench(&[("TBCCL_CALIBRATE", "0")]);
    assert!(files(cache.path()).is_empty(), "it is turned off");
    if !has_two_cores() {
        return;
    }
    let job = || assert_eq!(bench(&[]), "", "it is silent");
    let Some(file) = until_calibrated(cache.path(), job) else { return };
    let first = fs::read(&file).expect("readable");
    job();
    assert_eq!(fs::read(&file).expect("readable"), first, "nothing is measured again");
    fs::write(&file, "{").expect("our file");
    let Some(file) = until_calibrated(cache.path(), job) else { return };
    let repaired: Value = serde_json::from_slice(&fs::read(&file).expect("readable")).expect("JSON");
    assert_eq!(repaired["seen"].as_array().map(Vec::len), Some(1), "{repaired}");
}

#[test]
fn first_jobs_at_the_same_time_leave_one_file_at_most() {
    let cache = tempfile::tempdir().expect("a folder");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(bench(cache.path(), "all_reduce", "4", &[], &[]).0["wrong"], 0));
        }
    });
    assert!(files(cache.path()).len() <= 1, "{:?}", files(cache.path()));
}

#[test]
fn a_job_without_a_folder_for_the_file_says_so_once_and_runs() {
    let cache = tempfile::tempdir().expect("a folder");
    let file = cache.path().join("file");
    fs::write(&file, "").expect("our folder");
    let (row, stderr) = bench(&file, "all_reduce", "4", &[], &[]);
    assert_eq!(row["wrong"], 0);
    assert_eq!(stderr.matches("tbccl: warning: this machine is not calibrated").count(), 1, "{stderr}");
    assert!(stderr.contains("TBCCL_CALIBRATION") && stderr.contains("TBCCL_CALIBRATE=0"), "{stderr}");
}

#[test]
fn the_command_shows_what_was_measured_and_measures_again() {
    let cache = tempfile::tempdir().expect("a folder");
    let failed = tbccl(cache.path(), &["calibrate", "--show"]).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(failed.status.code() == Some(2) && stderr.contains("has not been calibrated"), "{stderr}");
    let file = cache.path().join("calibration.json");
    calibrated(&file, 16384, (10.0, 5.0, Some(5.0)));
    let tbccl = |args: &[&str]| {
        let mut command = tbccl(cache.path(), args);
        command.env("TBCCL_CALIBRATION", &file);
        command
    };
    let (text, _) = output(&mut tbccl(&["calibrate"]));
    let (explained, _) =
        output(&mut tbccl(&["plan", "explain", "all_gather", "--ranks", "2", "--cluster", "shm"]));
    for part in ["read by system call from 16384 bytes on", "read in place from 16384 bytes on"] {
        assert!(text.contains(part) && explained.contains(part), "no `{part}` in {text}{explained}");
    }
    assert_eq!(output(&mut tbccl(&["calibrate", "--show"])).0, text, "it was measured");
    let again = tbccl(&["calibrate", "--again", "--json"]).output().expect("it runs");
    let error = String::from_utf8_lossy(&again.stderr);
    let is_measured = |json: Value| {
        json["seen"][0]["line_ns"].as_f64().is_some_and(|line_ns| line_ns > 0.0 && line_ns != 50.0)
    };
    let is_again = serde_json::from_slice(&again.stdout).is_ok_and(is_measured);
    assert!(is_again || error.contains("too busy") || error.contains("only one core"), "{again:?}");
}

/// Writes a calibration by which messages of `bytes / 4` are staged, and those of `bytes` and more take these
/// times.
fn calibrated(file: &Path, bytes: usize, (staged_us, in_place_us, pulled_us): (f64, f64, Option<f64>)) {
    let (shown, _) = output(&mut tbccl(file.parent().expect("a folder"), &["calibrate", "--show", "--json"]));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let cost = |bytes, staged_us: f64, in_place_us: f64, pulled_us: Option<f64>| {
        let gather = json!({ "staged_us": staged_us, "pulled_us": pulled_us });
        let combined = json!({ "staged_us": staged_us, "in_place_us": in_place_us });
        json!({
            "bytes": bytes, "fresh": gather, "rewritten": gather, "unchanged": gather, "combined": combined
        })
    };
    let exchanges = [cost(bytes / 4, 1.0, 9.0, Some(9.0)), cost(bytes, staged_us, in_place_us, pulled_us)];
    let seen = json!({
        "cores": [0, 1], "line_ns": 50.0, "yield_ns": 200.0, "wake_ns": 5000.0, "took_ms": 150.0,
        "exchanges": exchanges,
    });
    let record = json!({ "version": 4, "fingerprint": shown["fingerprint"], "seen": [seen] });
    fs::write(file, record.to_string()).expect("our folder");
}

/// Returns whether one call copies through the staging area, by the calibration of a file.
fn copies(file: &Path, op: &str, bytes: &str, more: &[&str], vars: &[(&str, &str)]) -> bool {
    let named = ("TBCCL_CALIBRATION", file.to_str().expect("text"));
    let cache = file.parent().expect("a folder");
    let (row, _) = bench(cache, op, bytes, more, &[vars, &[named]].concat());
    assert!(row["wrong"] == 0 || more.contains(&"-c"), "{row}");
    row["copied_bytes"].as_u64().expect("a number") > 0
}

/// A rank may read the memory of another one only where the system allows it.
#[cfg(target_os = "linux")]
#[test]
fn jobs_go_by_the_calibration() {
    let cache = tempfile::tempdir().expect("a folder");
    let file = cache.path().join("calibration.json");
    let copied = |op, bytes, more: &[&str], vars: &[(&str, &str)]| copies(&file, op, bytes, more, vars);
    calibrated(&file, 16384, (10.0, 5.0, Some(5.0)));
    let may_pull = !copied("all_gather", "64K", &[], &[("TBCCL_PULL_MIN_BYTES", "1")]);
    assert_eq!(copied("all_gather", "64K", &[], &[]), !may_pull, "16 KiB and more are read by system call");
    assert!(copied("all_gather", "8K", &[], &[]), "messages of 4 KiB are staged");
    assert!(copied("all_reduce", "64K", &[], &[]), "messages that are combined are staged");
    assert!(copied("broadcast", "64K", &[], &[]), "messages that go one way are staged");
    assert!(copied("all_gather", "64K", &[], &[("TBCCL_PULL", "0")]), "an option forbids it");
    let registered = ["--registered", "--in-place", "--algo", "mesh"];
    assert!(!copied("all_reduce", "16K", &registered, &[]), "16 KiB are read in place");
    assert!(copied("all_reduce", "4K", &registered, &[]), "4 KiB that the call writes are staged");
    assert!(
        !copied("all_reduce", "4K", &registered, &[("TBCCL_DIRECT_MIN_BYTES", "4K")]),
        "an option counts"
    );
    assert!(
        !copied("all_reduce", "4K", &["--registered", "--algo", "mesh"], &[]),
        "inputs are read in place"
    );
    let defaults = [("TBCCL_CALIBRATE", "0")];
    assert!(
        copied("all_gather", "64K", &[], &defaults) && !copied("all_reduce", "4K", &registered, &defaults)
    );
    calibrated(&file, 16384, (10.0, 20.0, None));
    assert!(copied("all_gather", "64K", &[], &[]), "the system forbids to read");
    assert!(copied("all_reduce", "16K", &registered, &[]), "reading in place was slower at every size");
}

/// No message that a plan sends is longer than 512 KiB, so that thresholds above that held for none:
/// registered memory was staged in calls of any size, in up to 1.5 times the time.
#[cfg(target_os = "linux")]
#[test]
fn messages_count_as_a_whole_where_plans_cut_them_into_pieces() {
    let cache = tempfile::tempdir().expect("a folder");
    let file = cache.path().join("calibration.json");
    let copied = |op, bytes, more: &[&str]| copies(&file, op, bytes, more, &[]);
    calibrated(&file, 1 << 20, (10.0, 5.0, Some(5.0)));
    let may_pull = !copies(&file, "all_gather", "64K", &[], &[("TBCCL_PULL_MIN_BYTES", "1")]);
    assert!(copied("all_gather", "1M", &[]), "messages of 512 KiB");
    assert_eq!(copied("all_gather", "4M", &[]), !may_pull, "messages of 2 MiB");
    let registered = ["--registered", "--in-place", "--algo", "rsag_mesh"];
    assert!(copied("all_reduce", "1M", &registered), "messages of 512 KiB");
    assert!(!copied("all_reduce", "4M", &registered), "messages of 2 MiB");
}

/// Messages that the program has written are faster copied, and others read by system call.
#[cfg(target_os = "linux")]
#[test]
fn messages_that_are_sent_again_as_they_were_are_read_by_system_call() {
    let cache = tempfile::tempdir().expect("a folder");
    let file = cache.path().join("calibration.json");
    calibrated(&file, 16384, (10.0, 5.0, Some(5.0)));
    let may_pull = !copies(&file, "all_gather", "64K", &[], &[("TBCCL_PULL_MIN_BYTES", "1")]);
    let mut record: Value = serde_json::from_slice(&fs::read(&file).expect("ours")).expect("JSON");
    record["seen"][0]["exchanges"][1]["rewritten"]["pulled_us"] = json!(20.0);
    fs::write(&file, record.to_string()).expect("our folder");
    // Without checks the call whose bytes are counted has the input of those before it.
    let unchecked = ["-c", "0"];
    assert!(copies(&file, "all_gather", "64K", &[], &[]), "a new input for each check");
    assert_eq!(copies(&file, "all_gather", "64K", &unchecked, &[]), !may_pull, "messages of 32 KiB");
    assert!(copies(&file, "all_gather", "8K", &unchecked, &[]), "messages of 4 KiB");
    assert!(copies(&file, "broadcast", "64K", &unchecked, &[]), "messages that go one way");
    assert!(copies(&file, "all_gather", "64K", &["-c", "0", "--in-place"], &[]), "memory that calls write");
    assert!(copies(&file, "all_gather", "64K", &unchecked, &[("TBCCL_PULL", "0")]), "an option forbids it");
}
