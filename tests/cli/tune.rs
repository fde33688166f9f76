//! `tbccl tune`, and the effect of its file on later jobs.

use crate::TBCCL;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

const QUICK: [&str; 8] = ["--time", "0.01", "--ops", "allreduce,barrier", "-e", "4K", "-f", "32"];

fn tbccl(args: &[&str], env: &[(&str, &Path)]) -> Output {
    let mut command = support::tbccl();
    command.args(args).envs(env.iter().copied()).stdin(Stdio::null());
    command.output().expect("the program was built for this test")
}

fn tune(args: &[&str]) -> Output {
    tbccl(&[&["tune"], args].concat(), &[])
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Measures a tuning file between two ranks, in a temporary folder.
fn tuned() -> (tempfile::TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tuning.toml");
    let output = tune(&[&["-n", "2", "-o", path.to_str().expect("text")], &QUICK[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = fs::read_to_string(&path).expect("written");
    (folder, path, text)
}

/// Returns the algorithms that `tbccl bench` of two ranks reports, and its stderr.
fn algorithms(ranks: &str, tuning: &Path) -> (Vec<String>, String) {
    let args = ["bench", "all_reduce", "--ranks", ranks, "-b", "4", "-e", "128", "-f", "32"];
    let quick = ["-w", "1", "-n", "2", "--json", "-"];
    let output = tbccl(&[&args[..], &quick].concat(), &[("TBCCL_TUNING", tuning)]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = stdout(&output);
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    (rows.map(|row| row["algo"].as_str().expect("a name").to_owned()).collect(), stderr(&output))
}

#[test]
fn what_is_measured_is_written_and_later_jobs_go_by_it() {
    let (folder, path, text) = tuned();
    for part in ["version = 1", "transport = \"shm\"", "ranks = 2", "hosts = 1", "[links]", "reduce_gbs = "] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    for (collective, choices) in [("all_reduce", 3), ("barrier", 1)] {
        assert_eq!(text.matches(&format!("collective = \"{collective}\"")).count(), choices, "{text}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1, "nothing else is left");
    // An algorithm that is never chosen automatically shows that the file decides.
    let (head, _) = text.split_once("[[choice]]").expect("choices");
    let choice = |bytes: u32, algorithm: &str| {
        format!(
            "[[choice]]\ncollective = \"all_reduce\"\nbytes = {bytes}\nalgorithm = \"{algorithm}\"\nsegments \
            = 1\nus = 1.0\n"
        )
    };
    fs::write(&path, format!("{head}{}{}", choice(4, "torus"), choice(128, "ring"))).expect("writable");
    assert_eq!(algorithms("2", &path), (vec!["torus".to_owned(), "ring".to_owned()], String::new()));
    // A new measurement overwrites the file.
    let again = tune(&[&["-n", "2", "-o", path.to_str().expect("text")], &QUICK[..]].concat());
    assert!(again.status.success(), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(&path).expect("written").matches("[[choice]]").count(), 4);
}

#[test]
fn a_stale_file_is_reported_once_and_not_used() {
    let (_folder, path, text) = tuned();
    fs::write(&path, text.replace("\"mesh\"", "\"ring\"").replace("ranks = 2", "ranks = 4"))
        .expect("writable");
    let (algorithms, message) = algorithms("2", &path);
    assert_eq!(algorithms, ["mesh", "mesh"]);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(
        message.contains("measured with ranks 4, and this job has 2; measure anew with `tbccl tune`"),
        "{message}"
    );
    let output = tune(&["-n", "2", "--check", path.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("measured with ranks 4, and this job has 2"), "{}", stderr(&output));
}

#[test]
fn ranks_with_different_files_are_told_which_option_differs() {
    let (_folder, path, text) = tuned();
    let (head, _) = text.split_once("[[choice]]").expect("choices");
    fs::write(path.with_extension("0"), &text).expect("writable");
    fs::write(path.with_extension("1"), head).expect("writable");
    let command = format!(
        "TBCCL_TUNING={}.$TBCCL_RANK exec {TBCCL} bench barrier -n 2",
        path.with_extension("").display()
    );
    let output = tbccl(&["run", "-n", "2", "--", "sh", "-c", &command], &[]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("TBCCL_TUNING"), "{}", stderr(&output));
}

#[test]
fn a_job_that_somebody_else_has_started_is_tuned_by_its_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("three.toml");
    let tune = [&[TBCCL, "tune", "-o", path.to_str().expect("text")], &QUICK[..]].concat();
    let run =
        |transport| tbccl(&[&["run", "-n", "3", "--transport", transport, "--"], &tune[..]].concat(), &[]);
    for transport in ["shm", "tcp"] {
        let output = run(transport);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stdout(&output).matches("# written to").count(), 1, "{}", stdout(&output));
        let text = fs::read_to_string(&path).expect("written");
        assert!(text.contains(&format!("transport = \"{transport}\"\nranks = 3")), "{text}");
    }
    fs::write(&path, "a letter").expect("writable");
    let output = run("shm");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("not a tuning file"), "{}", stderr(&output));
}

#[test]
fn choices_are_judged_with_a_file_and_without() {
    let (_folder, path, text) = tuned();
    // A choice with a number of segments that is not a candidate.
    fs::write(&path, text.replace("segments = 1", "segments = 3")).expect("writable");
    for (args, columns) in [(&["--check"][..], 1), (&["--check", path.to_str().expect("text")], 2)] {
        let output = tune(&[&["-n", "2"], &QUICK[..], args].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let table = stdout(&output);
        let lines: Vec<&str> = table.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), 4, "{table}");
        let ratios =
            lines.iter().flat_map(|line| line.split_whitespace()).filter_map(|word| word.parse::<f64>().ok());
        assert!(ratios.clone().filter(|ratio| *ratio >= 1.0).count() >= 4 * columns, "{table}");
        assert_eq!(table.matches("within 10 % of the best; worst ").count(), columns, "{table}");
        assert_eq!(table.contains("/3 "), columns == 2, "{table}");
    }
}

#[test]
fn what_can_not_be_is_refused_in_one_line_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let letter = folder.path().join("letter.txt");
    fs::write(&letter, "Dear reader\n").expect("writable");
    let letter = letter.to_str().expect("text");
    let nowhere = folder.path().join("none/tuning.toml");
    for (args, expected) in [
        (&[][..], "use --ranks N, or start this in a job, as in: tbccl run -n 4 -- tbccl tune"),
        (&["-n", "1"], "nothing to tune; use -n 2 or more"),
        (&["-n", "2", "--ops", "all_redcue"], "did you mean `all_reduce`?"),
        (&["-n", "2", "-b", "8", "-e", "4"], "the smallest size comes first"),
        (&["-n", "2", "-b", "1", "-e", "2", "--ops", "all_reduce"], "raise -e"),
        (
            &["-n", "2", "-o", letter],
            "not a tuning file of this version; choose another name, or say --force",
        ),
        (&["-n", "2", "-o", nowhere.to_str().expect("text")], "there is no such folder"),
        (&["-n", "2", "--check", letter], "measure anew with `tbccl tune`"),
        (&["-n", "2", "--check", letter, "--force"], "cannot be used with"),
        (&["-n", "2", "--transport", "shn"], "did you mean `shm`?"),
    ] {
        let output = tune(args);
        let message = stderr(&output);
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{args:?}: {message}");
        assert!(message.starts_with("tbccl: error: ") && message.contains(expected), "{args:?}: {message}");
    }
    assert_eq!(fs::read_to_string(letter).expect("still there"), "Dear reader\n");
    let forced = tune(&[&["-n", "2", "-o", letter, "--force"], &QUICK[..]].concat());
    assert!(forced.status.success(), "{}", stderr(&forced));
}

#[test]
fn help_tells_how_the_file_is_used() {
    let output = tune(&["--help"]);
    assert!(output.status.success());
    for part in ["TBCCL_TUNING", "--check", "docs/tuning.md", "tbccl run --hostfile"] {
        assert!(stdout(&output).contains(part), "no {part}");
    }
}
