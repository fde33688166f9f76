//! Reports and comparisons: `tbccl bench --report` and `--compare`, and the reports of `tbccl ping` and
//! `tbccl plan simulate`.

use crate::TBCCL;
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

fn tbccl(folder: &Path, args: &[&str]) -> Output {
    let mut command = support::tbccl();
    command.current_dir(folder).args(args).stdin(Stdio::null());
    command.output().expect("the program was built for this test")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts that a command ends with this status, and returns what it printed.
fn ends_with(status: i32, folder: &Path, args: &[&str]) -> String {
    let output = tbccl(folder, args);
    let text = stdout(&output) + &stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    text
}

/// Returns a row of an `all_reduce` of two ranks, with noise of a hundredth.
fn row(bytes: u64, us: f64) -> Value {
    json!({"op": "all_reduce", "ranks": 2, "bytes": bytes, "us_median": us, "us_q1": us * 0.99,
        "us_q3": us * 1.01, "transport": "shm", "dtype": "f32", "wrong": 0})
}

fn write(folder: &Path, name: &str, rows: &[Value]) {
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.join(name), text).expect("written");
}

#[test]
fn a_slower_file_fails_and_the_same_one_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    write(path, "a.jsonl", &[row(4, 10.0), row(64, 20.0), row(1024, 9.0)]);
    write(path, "b.jsonl", &[row(4, 12.0), row(64, 20.1), row(4096, 9.0)]);
    let text = ends_with(0, path, &["bench", "--compare", "a.jsonl", "b.jsonl"]);
    for part in ["1.200  slower", "only in A: all_reduce, 2 ranks, shm, f32, 1024 B", "only in B", "2 cells:"]
    {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    ends_with(0, path, &["bench", "--compare", "a.jsonl", "b.jsonl", "--fail-above", "25%"]);
    let text = ends_with(1, path, &["bench", "--compare", "a.jsonl", "b.jsonl", "--fail-above", "5%"]);
    assert!(text.contains("slower: fails") && text.contains("beyond the noise: 1"), "{text}");
    ends_with(0, path, &["bench", "--compare", "b.jsonl", "a.jsonl", "--fail-above", "5%"]);
    ends_with(0, path, &["bench", "all_reduce", "--compare", "a.jsonl", "a.jsonl", "--fail-above", "0"]);
}

#[test]
fn repeats_tell_that_a_difference_is_noise() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    write(path, "a.jsonl", &[row(4, 10.0), row(4, 13.0), row(4, 9.0)]);
    write(path, "b.jsonl", &[row(4, 12.0), row(4, 12.5), row(4, 11.5)]);
    let text = ends_with(0, path, &["bench", "--compare", "a.jsonl", "b.jsonl", "--fail-above", "5%"]);
    assert!(text.contains("1 within the noise"), "{text}");
}

#[test]
fn wrong_elements_fail_a_comparison() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let mut wrong = row(4, 10.0);
    wrong["wrong"] = 3.into();
    write(path, "a.jsonl", &[row(4, 10.0)]);
    write(path, "b.jsonl", &[wrong]);
    assert!(ends_with(1, path, &["bench", "--compare", "a.jsonl", "b.jsonl"]).contains("3 wrong elements"));
}

#[test]
fn a_library_is_chosen_where_a_file_has_several() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let of = |peer: &str, us: f64| {
        json!({"peer": peer, "op": "allreduce", "ranks": 2, "bytes": 4, "us_median": us, "us_min": us * 0.99,
            "us_p99": us * 2.0, "wrong": 0, "inplace": 0, "transport": "shm", "round": 0, "foreign": 0.01})
    };
    write(path, "ours.jsonl", &[row(4, 10.0)]);
    let limit = json!({"limit": "copy", "cores": 2, "bytes": 4, "us": 0.1, "gbs": 1});
    write(path, "peers.jsonl", &[of("gloo", 30.0), of("mpi", 5.0), limit]);
    let files = ["bench", "--compare", "ours.jsonl", "peers.jsonl"];
    let text = ends_with(2, path, &files);
    assert!(text.contains("peers.jsonl has rows of gloo, mpi") && text.contains("--peer"), "{text}");
    let text = ends_with(0, path, &[&files[..], &["--peer", "gloo"]].concat());
    assert!(text.contains("3.000  slower [tbccl > gloo]"), "{text}");
    let text = ends_with(0, path, &[&files[..], &["--peer", "best"]].concat());
    assert!(text.contains("0.500  faster [tbccl > mpi]"), "{text}");
}

#[test]
fn files_that_cannot_be_compared_are_named_with_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    write(path, "good.jsonl", &[row(4, 10.0)]);
    write(path, "other.jsonl", &[row(8, 10.0)]);
    fs::write(path.join("empty.jsonl"), "").expect("written");
    fs::write(path.join("broken.jsonl"), format!("{}\n{{\"op\": 1\n", row(4, 1.0))).expect("written");
    for (name, part) in [
        ("missing.jsonl", "missing.jsonl: No such file"),
        ("empty.jsonl", "empty.jsonl: has no results"),
        ("broken.jsonl", "broken.jsonl:2: no line of JSON"),
        ("other.jsonl", "no cell in common"),
    ] {
        let text = ends_with(2, path, &["bench", "--compare", "good.jsonl", name]);
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    for args in [&["good.jsonl"][..], &["good.jsonl", "good.jsonl", "--fail-above", "much"]] {
        ends_with(2, path, &[&["bench", "--compare"], args].concat());
    }
    ends_with(2, path, &["bench"]);
    ends_with(2, path, &["bench", "--from", "good.jsonl"]);
    ends_with(2, path, &["bench", "all_reduce", "--ranks", "2", "--peer", "gloo"]);
}

/// Returns the page of a folder, which must be well-formed, as HTML and as XML.
fn page(folder: &Path) -> (String, String) {
    let html = fs::read_to_string(folder.join("index.html")).expect("a page");
    let xml = html.replacen("<!DOCTYPE html>", "", 1).replace("charset=\"utf-8\">", "/>");
    (html, xml.replace("initial-scale=1\">", "initial-scale=1\"/>"))
}

fn count(document: &roxmltree::Document<'_>, name: &str, class: &str) -> usize {
    let has_class = |node: &roxmltree::Node<'_, '_>| {
        class.is_empty() || node.attribute("class").is_some_and(|all| all.split(' ').any(|one| one == class))
    };
    document.descendants().filter(|node| node.tag_name().name() == name).filter(has_class).count()
}

#[test]
fn a_report_has_every_row_of_this_run_and_of_earlier_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let hostile = "</td><script>alert('x')</script>&";
    let mut peer = row(64, 7.0);
    peer["peer"] = hostile.into();
    write(path, "earlier.jsonl", &[row(4, 10.0), row(64, 20.0), peer]);
    let sizes = ["bench", "all_reduce", "--ranks", "2", "-e", "64", "-n", "2", "-w", "1"];
    let report = ["--transport", "shm", "--report", "new/out", "--from", "earlier.jsonl"];
    let text = ends_with(0, path, &[&sizes[..], &report].concat());
    assert!(text.contains("new/out/index.html"), "{text}");
    let (html, xml) = page(&path.join("new/out"));
    let document = roxmltree::Document::parse(&xml).expect("well-formed");
    // Three sizes out of place with three earlier rows, and three in place.
    assert_eq!(count(&document, "tr", "") - count(&document, "section", ""), 3 + 3 + 3);
    assert_eq!(count(&document, "section", ""), 2);
    assert_eq!(count(&document, "script", ""), 0);
    assert!(html.contains("&lt;script&gt;") && html.contains("this run") && html.contains("earlier"));
    let limits = count(&document, "path", "limit");
    assert_eq!(count(&document, "path", "series") - limits, 2 * (3 + 1));
    let rows = fs::read_to_string(path.join("new/out/rows.jsonl")).expect("rows");
    assert_eq!(rows.lines().count(), 1 + 9, "{rows}");
    assert_eq!(fs::read_dir(path.join("new/out")).expect("a folder").count(), 2);
    // The rows of a report are rows to show and to compare.
    ends_with(0, path, &["bench", "--report", "again", "--from", "new/out/rows.jsonl"]);
    let (again, _) = page(&path.join("again"));
    assert!(again.contains("this run") && again.contains("earlier"));
    ends_with(0, path, &["bench", "--compare", "earlier.jsonl", "earlier.jsonl", "--peer", "tbccl"]);
}

#[test]
fn all_operations_make_one_page_and_jobs_write_one_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let quick = ["-b", "64", "-e", "64", "-n", "2", "-w", "1", "--report", "out"];
    ends_with(0, path, &[&["bench", "all", "--ranks", "2", "--transport", "local"], &quick[..]].concat());
    let (_, xml) = page(&path.join("out"));
    let document = roxmltree::Document::parse(&xml).expect("well-formed");
    assert!(count(&document, "section", "") >= 18, "{xml}");
    ends_with(0, path, &[&["run", "-n", "2", "--", TBCCL, "bench", "barrier"], &quick[..]].concat());
    assert!(page(&path.join("out")).0.contains("tbccl bench: barrier"));
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::write(path.join("file"), "").expect("written");
    fs::create_dir_all(path.join("taken/index.html")).expect("a folder");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/clusters/mac-mesh4.toml");
    for report in ["file", "file/below", "taken"] {
        for command in [
            &["bench", "all_reduce", "--ranks", "2"][..],
            &["ping", "--ranks", "2"],
            &["plan", "simulate", "all_reduce", "--cluster", model],
        ] {
            let output = tbccl(path, &[command, &["--report", report]].concat());
            assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
            assert!(stderr(&output).contains("name a folder that can"), "{}", stderr(&output));
            assert!(output.stdout.is_empty(), "{}", stdout(&output));
        }
    }
}

#[test]
fn ping_and_simulation_make_pages_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let ping = ["ping", "--ranks", "3", "--transport", "tcp", "--time", "0.01", "--size", "64K"];
    ends_with(0, path, &[&ping[..], &["--report", "ping"]].concat());
    let (_, xml) = page(&path.join("ping"));
    let document = roxmltree::Document::parse(&xml).expect("well-formed");
    assert_eq!((count(&document, "path", "series"), count(&document, "tr", "")), (3, 1 + 6), "{xml}");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/clusters/mac-mesh4.toml");
    let simulate =
        ["plan", "simulate", "all_reduce", "--cluster", model, "--size", "64K", "--report", "plan"];
    ends_with(0, path, &simulate);
    let (html, xml) = page(&path.join("plan"));
    let document = roxmltree::Document::parse(&xml).expect("well-formed");
    assert!(html.contains("bound of any plan") && html.contains("rsag_mesh"), "{html}");
    assert_eq!(count(&document, "path", "limit"), 2, "{xml}");
    ends_with(0, path, &["bench", "--report", "both", "--from", "plan/rows.jsonl"]);
}
