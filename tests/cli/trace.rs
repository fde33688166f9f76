//! Traces of real jobs: `tbccl run --trace` and `tbccl trace`.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Output,
};
use support::{host_wrapper, tbccl, tbccl_path};

/// Runs a benchmark of four ranks, two on each of two hosts, with these variables.
fn job(trace: Option<&Path>, variables: &[(&str, &str)]) -> Output {
    let between_hosts = [("TBCCL_TRANSPORT", "shm+tcp")];
    let mut command = tbccl();
    command.args(["run", "-n", "4", "-x", "TBCCL_TRANSPORT=shm+tcp"]);
    if let Some(folder) = trace {
        command.arg("--trace").arg(folder);
    }
    command.envs(variables.iter().copied()).arg("--").args(host_wrapper(&between_hosts)).arg(tbccl_path());
    command.args(["bench", "all_reduce", "-b", "8", "-e", "32K", "-f", "64", "-n", "3", "-w", "1"]);
    command.output().expect("it runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `tbccl trace`, and returns its status, its output and its errors.
fn trace(args: &[&str]) -> (Option<i32>, String, String) {
    let output = tbccl().arg("trace").args(args).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text, stderr(&output))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Returns the files of ranks, by rank.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    found.sort_unstable();
    found
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("valid JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Merges a folder, and returns the merged file.
fn merge(folder: &Path, output: &Path) -> Value {
    let (status, _, errors) = trace(&["merge", text(folder), "-o", text(output)]);
    assert_eq!(status, Some(0), "{errors}");
    assert!(errors.contains("clocks of hosts agree within "), "{errors}");
    read(output)
}

fn slices(file: &Value) -> impl Iterator<Item = &Value> {
    file["traceEvents"].as_array().expect("events").iter().filter(|event| event["ph"] == "X")
}

/// Returns the messages of a category: begin and end by call, sender, receiver, lane and position.
fn messages(file: &Value, category: &str) -> BTreeMap<String, (f64, f64)> {
    let of = |event: &Value| {
        let (args, own) = (&event["args"], &event["pid"]);
        let (from, to) = if category == "send" { (own, &args["peer"]) } else { (&args["peer"], own) };
        let key = [&args["scope"], &args["call"], from, to, &args["lane"], &args["index"]];
        let begin = number(&event["ts"]);
        (format!("{key:?}"), (begin, begin + number(&event["dur"])))
    };
    let found: Vec<_> = slices(file).filter(|event| event["cat"] == category).map(of).collect();
    let count = found.len();
    let by_key: BTreeMap<_, _> = found.into_iter().collect();
    assert_eq!(by_key.len(), count, "each message is there once");
    by_key
}

/// Asserts that slices of a thread are inside of each other or apart.
fn assert_nested(file: &Value) {
    let mut threads: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for event in slices(file) {
        let nanos = |value: &Value| (number(value) * 1e3).round() as u64;
        let thread = (event["pid"].as_u64().expect("a rank"), event["tid"].as_u64().expect("a thread"));
        let begin = nanos(&event["ts"]);
        threads.entry(thread).or_default().push((begin, begin + nanos(&event["dur"])));
    }
    for (thread, slices) in threads {
        for (at, (begin, end)) in slices.iter().enumerate() {
            for (other, until) in &slices[at + 1..] {
                let apart = end <= other || until <= begin;
                let inside = (begin <= other && until <= end) || (other <= begin && end <= until);
                assert!(apart || inside, "{thread:?}: {begin}-{end} and {other}-{until}");
            }
        }
    }
}

/// Asserts what a merged trace of two hosts must hold: nesting, messages, and clocks within the stated error.
fn assert_holds(file: &Value) {
    assert_nested(file);
    let (sends, receives) = (messages(file, "send"), messages(file, "receive"));
    assert!(sends.len() > 100, "{} messages", sends.len());
    assert!(sends.keys().eq(receives.keys()), "every send has its receive");
    let error = number(&file["tbccl"]["clock_error_us"]);
    for (key, (began, _)) in &sends {
        assert!(receives[key].1 + error >= *began, "{key} was received before it was sent");
    }
    let events = file["traceEvents"].as_array().expect("events");
    let flows = |ph: &str| events.iter().filter(|event| event["ph"] == ph).count();
    assert_eq!((flows("s"), flows("f")), (sends.len(), sends.len()), "an arrow for each message");
}

/// Changes the clock of a rank's file: it runs ahead of the true one by `offset` ns, and by `drift` per ns.
fn set_clock(path: &Path, offset: f64, drift: f64, with_samples: bool) {
    let mut file = read(path);
    let start = number(&file["traceEvents"][1]["ts"]) * 1e3;
    let local = |nanos: f64| nanos + offset + drift * (nanos - start);
    for event in file["traceEvents"].as_array_mut().expect("events") {
        if event["ph"] == "X" {
            // Whole nanoseconds, so that an end and a begin at the same time stay at the same time.
            let [begin, lasted] = ["ts", "dur"].map(|time| (number(&event[time]) * 1e3).round());
            let (begin, end) = (local(begin).round(), local(begin + lasted).round());
            (event["ts"], event["dur"]) = (json!(begin / 1e3), json!((end - begin) / 1e3));
        }
    }
    for sample in file["tbccl"]["clock"]["samples"].as_array_mut().expect("samples") {
        for at in if with_samples { &[0, 2][..] } else { &[] } {
            sample[*at] = json!(local(number(&sample[*at])).round() as u64);
        }
    }
    fs::write(path, file.to_string()).expect("written");
}

#[test]
fn a_job_on_two_hosts_has_traces_that_merge_into_one_on_one_clock() {
    let folder = tempfile::tempdir().expect("a folder");
    let (traces, merged) = (folder.path().join("traces"), folder.path().join("job.json"));
    let output = job(Some(&traces), &[]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let names = files(&traces);
    assert_eq!(names.len(), 4);
    for (rank, path) in names.iter().enumerate() {
        let file = read(path);
        let about = &file["tbccl"];
        assert_eq!((&about["rank"], &about["size"], &about["lost"]), (&rank.into(), &4.into(), &0.into()));
        assert!(about["clock"]["samples"].as_array().is_some_and(|samples| samples.len() >= 10), "{about}");
        assert_nested(&file);
    }
    let file = merge(&traces, &merged);
    assert_holds(&file);
    let clocks = file["tbccl"]["clocks"].as_array().expect("clocks");
    let ranks: Vec<&Value> = clocks.iter().map(|clock| &clock["ranks"]).collect();
    assert_eq!(ranks, [&json!([0, 1]), &json!([2, 3])]);
    // One machine plays both hosts, so their clocks are the same.
    for clock in clocks {
        assert!(number(&clock["offset_us"]).abs() <= number(&clock["error_us"]), "{clock}");
    }
    let (status, said, errors) = trace(&["check", text(&merged)]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{said}");
    let (status, said, errors) = trace(&["summary", text(&merged)]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    for word in ["all_reduce", "32768", "waits for", "last to begin"] {
        assert!(said.contains(word), "{word} is missing:\n{said}");
    }

    // The clock of the second host is 5 s ahead and too fast.
    names[2..].iter().for_each(|path| set_clock(path, 5e9, 80e-6, true));
    let file = merge(&traces, &merged);
    assert_holds(&file);
    let clock = &file["tbccl"]["clocks"][1];
    let off = (number(&clock["offset_us"]) + 5e6).abs();
    assert!(off <= number(&clock["error_us"]) + 1.0, "{clock}");
    assert_eq!(trace(&["check", text(&merged)]).0, Some(0));

    // Samples that are not those of its clock.
    names[2..].iter().for_each(|path| set_clock(path, 1e9, 0.0, false));
    merge(&traces, &merged);
    let (status, said, _) = trace(&["check", text(&merged)]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("ends before its send began"), "{said}");
}

#[test]
fn a_simulated_trace_is_laid_over_a_real_one_at_the_begin_of_a_call() {
    let folder = tempfile::tempdir().expect("a folder");
    let (traces, merged) = (folder.path().join("traces"), folder.path().join("job.json"));
    let plan = folder.path().join("plan.json");
    let bench = [
        "bench",
        "all_reduce",
        "--ranks",
        "2",
        "--transport",
        "local",
        "-b",
        "1K",
        "-e",
        "1K",
        "-n",
        "3",
        "-w",
        "1",
    ];
    let output = tbccl().args(bench).env("TBCCL_TRACE", &traces).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let simulate = ["plan", "simulate", "all_reduce", "-n", "2", "--algo", "mesh", "--cluster"];
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/clusters/mac-mesh4.toml");
    let simulated = tbccl().args(simulate).args([cluster, "--trace", text(&plan)]).output().expect("it runs");
    assert_eq!(simulated.status.code(), Some(0), "{}", stderr(&simulated));
    let args = ["merge", text(&traces), "-o", text(&merged), "--with", text(&plan), "--at", "3"];
    let (status, _, errors) = trace(&args);
    assert_eq!(status, Some(0), "{errors}");
    let file = read(&merged);
    let begin_of = |is_wanted: &dyn Fn(&Value) -> bool| {
        let begins = slices(&file).filter(|event| is_wanted(event)).map(|event| number(&event["ts"]));
        begins.fold(f64::INFINITY, f64::min)
    };
    let call = begin_of(&|event| {
        let args = &event["args"];
        event["cat"] == "call" && args["scope"] == "collective" && args["call"] == 3
    });
    let simulated = begin_of(&|event| event["pid"].as_u64().is_some_and(|pid| pid >= 1_000_000));
    assert!(call.is_finite() && simulated - call < 10.0 && simulated >= call, "{call} {simulated}");
    assert_eq!(trace(&["check", text(&merged)]).0, Some(0));
    let (status, _, errors) = trace(&[&args[..7], &["999999"]].concat());
    assert!(status == Some(2) && errors.contains("collective 999999 is not in the files"), "{errors}");
}

#[test]
fn a_full_ring_keeps_the_latest_events_and_its_trace_still_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let (traces, merged) = (folder.path().join("traces"), folder.path().join("job.json"));
    let output = job(Some(&traces), &[("TBCCL_TRACE_EVENTS", "100")]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (status, _, errors) = trace(&["merge", text(&traces), "-o", text(&merged)]);
    assert!(status == Some(0) && errors.contains("early events are not in the files"), "{errors}");
    let file = read(&merged);
    for rank in file["tbccl"]["ranks"].as_array().expect("ranks") {
        assert!(rank["lost"].as_u64().is_some_and(|lost| lost > 100), "{rank}");
    }
    let (status, said, _) = trace(&["check", text(&merged)]);
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn a_folder_that_cannot_be_written_is_a_warning_and_the_job_goes_on() {
    let output = job(Some(Path::new("/dev/null/traces")), &[]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    for rank in 0..4 {
        let warning =
            format!("tbccl: warning: rank {rank}: can't write the trace to /dev/null/traces/rank-{rank}-");
        assert!(errors.contains(&warning) && errors.contains("Not a directory"), "{errors}");
    }
}

#[test]
fn options_that_are_wrong_are_errors() {
    let output = job(None, &[("TBCCL_TRACE_EVENTS", "3")]);
    let errors = stderr(&output);
    assert!(errors.contains("TBCCL_TRACE_EVENTS=3: must be from 16 to 16777216"), "{errors}");
}

#[test]
fn files_that_are_no_traces_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let merged = path("job.json");
    let error = |args: &[&str]| {
        let (status, said, errors) = trace(args);
        assert_eq!((status, said.as_str(), errors.lines().count()), (Some(2), "", 1), "{errors}");
        errors
    };
    let no_folder = error(&["merge", "/nowhere/at/all", "-o", text(&merged)]);
    assert!(no_folder.contains("can't read `/nowhere/at/all`: No such file"), "{no_folder}");
    let empty = error(&["merge", text(folder.path()), "-o", text(&merged)]);
    assert!(empty.contains("it has no file rank-*.json"), "{empty}");
    fs::write(path("rank-0-a.json"), "{\"traceEvents\":[{\"ph\":\"X\"").expect("written");
    let cut = error(&["merge", text(folder.path()), "-o", text(&merged)]);
    assert!(cut.contains("rank-0-a.json`: the file ends early"), "{cut}");
    fs::write(path("rank-0-a.json"), "[1, 2]").expect("written");
    let other = error(&["merge", text(folder.path()), "-o", text(&merged)]);
    assert!(other.contains("rank-0-a.json`: it is no trace of tbccl"), "{other}");
    let about = |communicator: &str, rank: u32, size: u32| {
        json!({
            "tbccl": {
                "format": 1, "kind": "rank", "rank": rank, "size": size, "host": "h", "process": 1,
                "communicator": communicator, "made_by": "split 3", "transport": "tcp",
                "clock": { "name": format!("h{rank}"), "samples": [] },
                "lost": 0, "lost_until": 0.0, "error": null,
            },
            "traceEvents": [],
        })
        .to_string()
    };
    fs::write(path("rank-0-a.json"), about("a", 0, 2)).expect("written");
    fs::write(path("rank-0-b.json"), about("b", 0, 2)).expect("written");
    let two = error(&["merge", text(folder.path()), "-o", text(&merged)]);
    assert!(two.contains("choose one with --communicator: a (1 of 2 ranks by split 3), b (1 of 2"), "{two}");
    fs::write(path("rank-1-a.json"), about("a", 1, 2)).expect("written");
    let chosen = ["merge", text(folder.path()), "-o", text(&merged), "--communicator", "a"];
    let unaligned = error(&chosen);
    assert!(unaligned.contains("it has no samples of the rendezvous' clock"), "{unaligned}");
    assert!(!merged.exists(), "nothing is written after an error");
}
