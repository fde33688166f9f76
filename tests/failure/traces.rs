//! Traces of jobs in which a rank is killed, or ends without closing its communicator.

use crate::job;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};
use support::{Message, tbccl};

/// Returns the file of a rank with an extension.
fn file_of(folder: &Path, rank: u32, extension: &str) -> Option<PathBuf> {
    let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (start, end) = (format!("rank-{rank}-"), format!(".{extension}"));
    let is_it = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|n| n.starts_with(&start) && n.ends_with(&end))
    };
    files.into_iter().find(is_it)
}

/// Merges the traces of a folder, checks the result, and returns it with the warnings.
fn merged(folder: &Path) -> (Value, String) {
    let output = tempfile::NamedTempFile::new().expect("a file");
    let merge = tbccl().args(["trace", "merge"]).arg(folder).arg("-o").arg(output.path()).output();
    let merge = merge.expect("it runs");
    let said = String::from_utf8_lossy(&merge.stderr).into_owned();
    assert!(merge.status.success(), "{said}");
    let check = tbccl().args(["trace", "check"]).arg(output.path()).output().expect("it runs");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    (serde_json::from_str(&fs::read_to_string(output.path()).expect("read")).expect("valid JSON"), said)
}

/// Returns the outcomes of a rank's calls, in order.
fn outcomes(file: &Value, rank: u32) -> Vec<&str> {
    let events = file["traceEvents"].as_array().expect("events");
    let mut calls: Vec<&Value> =
        events.iter().filter(|event| event["cat"] == "call" && event["pid"] == rank).collect();
    calls.sort_by_key(|call| call["args"]["call"].as_u64());
    calls.iter().map(|call| call["args"]["outcome"].as_str().expect("an outcome")).collect()
}

/// Returns the peers of a rank's receives without an end.
fn unfinished_receives(file: &Value, rank: u32) -> Vec<u64> {
    let events = file["traceEvents"].as_array().expect("events");
    let is_open = |event: &&Value| {
        event["cat"] == "receive" && event["pid"] == rank && event["args"]["outcome"] == "unfinished"
    };
    events.iter().filter(is_open).filter_map(|event| event["args"]["peer"].as_u64()).collect()
}

fn process(ready: &[Message], rank: u32) -> Pid {
    let said = ready.iter().find(|said| said.rank == rank).expect("all are ready");
    said.rest.parse().ok().and_then(Pid::from_raw).expect("a process")
}

#[test]
fn the_calls_of_a_killed_rank_are_in_the_merged_trace_and_the_last_one_is_killed() {
    for transport in ["shm", "tcp"] {
        let folder = tempfile::tempdir().expect("a folder");
        let traces = folder.path().to_str().expect("text");
        let job = job::start(3, "reduce", &[("TBCCL_TRANSPORT", transport), ("TBCCL_TRACE", traces)]);
        let ready: Vec<Message> = (0..3).map(|_| job.next_message()).collect();
        // Rank 1 waits for rank 0 in a call when it is killed.
        kill_process(process(&ready, 0), Signal::STOP).expect("it runs");
        sleep(Duration::from_millis(500));
        kill_process(process(&ready, 1), Signal::KILL).expect("it runs");
        kill_process(process(&ready, 0), Signal::CONT).expect("it is stopped");
        let done = job.finish();
        assert_eq!(done.code(), 137, "{}", done.stderr);
        let has =
            |rank: u32| ["json", "ring"].map(|extension| file_of(folder.path(), rank, extension).is_some());
        assert_eq!([0, 1, 2].map(has), [[true, false], [false, true], [true, false]], "{transport}");

        let (file, said) = merged(folder.path());
        let killed = outcomes(&file, 1);
        let wait = "while it waited for rank 0 in step ";
        let call = format!(" of call {}", killed.len());
        assert!(said.contains("rank 1 has left no complete trace: the process was killed"), "{said}");
        assert!(said.contains(wait) && said.contains(&call), "{said}");
        // Rank 2 may lack a block of rank 0, too, and not have sent its own one then.
        let waits_for = unfinished_receives(&file, 1);
        assert!(waits_for.contains(&0) && !waits_for.contains(&1), "{transport}: {waits_for:?}");
        assert!(killed.len() >= 2, "{transport}: {killed:?}");
        let (last, others) = killed.split_last().expect("calls");
        assert_eq!((*last, others.iter().all(|outcome| *outcome == "done")), ("killed", true), "{killed:?}");
        assert_eq!(outcomes(&file, 2).last(), Some(&"failed"), "{transport}");
        let error = file["tbccl"]["ranks"][1]["error"].as_str().expect("a reason");
        assert!(error.contains("was killed"), "{error}");

        assert_a_ring_helps_where_the_file_does_not(folder.path(), killed.len());
    }
}

/// Checks that the ring of rank 1 is read beside a file that was cut off, and is left out if it is no ring.
fn assert_a_ring_helps_where_the_file_does_not(folder: &Path, calls: usize) {
    let ring = file_of(folder, 1, "ring").expect("a ring");
    fs::write(ring.with_extension("json"), "{\"traceEvents\":[{\"ph\":\"X\"").expect("written");
    let (file, _) = merged(folder);
    assert_eq!(outcomes(&file, 1).len(), calls);
    fs::write(&ring, [0; 100]).expect("written");
    let (file, said) = merged(folder);
    assert_eq!(outcomes(&file, 1).len(), 0);
    let name = ring.file_name().and_then(|name| name.to_str()).expect("text");
    for part in [name, "is left out: the rank ended before", "no file of rank 1"] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
}

#[test]
fn a_rank_that_ends_without_closing_its_communicator_leaves_the_calls_that_it_has_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let traces = folder.path().to_str().expect("text");
    let done = job::start(3, "one_fails exit0", &[("TBCCL_TRACE", traces)]).finish();
    assert_eq!(done.all("error").len(), 2, "{}", done.stderr);
    let (file, _) = merged(folder.path());
    assert_eq!(outcomes(&file, 1), ["done"]);
    let error = file["tbccl"]["ranks"][1]["error"].as_str().expect("a reason");
    assert!(error.contains("without closing its communicator"), "{error}");
}

#[test]
fn a_disk_without_room_for_the_events_is_one_warning_and_no_end_of_the_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let traces = folder.path().to_str().expect("text");
    // The rings would have 256 MiB, and the limit is 64 or 128: it is in blocks of 512 or 1024 bytes.
    let limit = ["sh", "-c", "ulimit -f 131072; exec \"$@\"", "sh"];
    let variables = [("TBCCL_TRACE", traces), ("TBCCL_TRACE_EVENTS", "4194304"), ("TBCCL_SLAB_BYTES", "1M")];
    let done = job::start_under(&limit, 2, "one_fails exit0", &variables).finish();
    assert_eq!(done.all("error").len(), 1, "{}", done.stderr);
    let warning = "can't keep the events of the trace in a file of ";
    assert_eq!(done.stderr.matches(warning).count(), 2, "one of each rank: {}", done.stderr);
    assert!(done.stderr.contains("File too large"), "{}", done.stderr);
    assert!(file_of(folder.path(), 0, "json").is_some());
    assert!([0, 1].iter().all(|rank| file_of(folder.path(), *rank, "ring").is_none()));
}
