//! Traces of calls between threads: groups, messages, failed calls.
//!
//! # Safety
//! Tagged messages use memory of the test, which outlives them and has no other user.

use serde_json::Value;
use std::{fs, path::Path, thread, time::Duration};
use support::tbccl;
use tbccl::{Communicator, Config, P2p, P2pRequest, Rank, ReduceOp};

fn config(folder: Option<&Path>) -> Config {
    let mut config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    config.trace.folder = folder.map(Path::to_owned);
    config
}

/// Runs a role on each rank of a communicator of threads.
fn run(ranks: u32, config: &Config, role: impl Fn(Communicator) + Sync) {
    let comms = Communicator::local(ranks, config).expect("memory for a test");
    thread::scope(|scope| comms.into_iter().for_each(|comm| drop(scope.spawn(|| role(comm)))));
}

/// Returns the files of ranks, in order.
fn files(folder: &Path) -> Vec<Value> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort_unstable();
    let read = |path| serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("valid JSON");
    paths.into_iter().map(read).collect()
}

fn slices<'v>(file: &'v Value, category: &str) -> Vec<&'v Value> {
    let events = file["traceEvents"].as_array().expect("events");
    events.iter().filter(|event| event["ph"] == "X" && event["cat"] == category).collect()
}

/// Merges the traces of a folder, checks the result, and returns its summary.
fn assert_checked(folder: &Path) -> String {
    let merged = tempfile::NamedTempFile::new().expect("a file");
    let merge = tbccl().args(["trace", "merge"]).arg(folder).arg("-o").arg(merged.path()).output();
    let merge = merge.expect("it runs");
    assert!(merge.status.success(), "{merge:?}");
    let check = tbccl().args(["trace", "check"]).arg(merged.path()).output().expect("it runs");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(said.contains(" 0 with one end in failed or lost calls"), "{said}");
    let summary = tbccl().args(["trace", "summary"]).arg(merged.path()).output().expect("it runs");
    assert!(summary.status.success(), "{summary:?}");
    String::from_utf8(summary.stdout).expect("text")
}

#[test]
fn messages_groups_and_large_calls_have_both_ends_in_a_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    run(3, &config(Some(folder.path())), |mut comm| {
        let (rank, size) = (comm.rank().0, comm.size());
        let (next, last) = (Rank((rank + 1) % size), Rank((rank + size - 1) % size));
        for count in [2, 40_000] {
            comm.all_reduce_in_place(&mut vec![1.0f32; count], ReduceOp::Sum).expect("a result");
        }
        let (mut sum, mut other, mut received) = ([1.0f32; 3], [1i64; 9], [0u8; 5]);
        let sent = [rank as u8; 5];
        for _ in 0..2 {
            let mut group = comm.group();
            group.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect("fits");
            group.all_reduce_in_place(&mut other, ReduceOp::Max).expect("fits");
            group.send(&sent, next).expect("fits");
            group.recv(&mut received, last).expect("fits");
            group.run().expect("a result");
        }
        if rank == 0 {
            comm.send(&[7u8; 100], Rank(2)).expect("sent");
        }
        if rank == 2 {
            comm.recv(&mut [0u8; 100], Rank(0)).expect("received");
        }
        comm.broadcast(&mut [1u8; 10], Rank(1)).expect("a result");
    });
    let files = files(folder.path());
    assert_eq!(files.len(), 3);
    let calls: Vec<&str> =
        slices(&files[0], "call").iter().filter_map(|call| call["args"]["what"].as_str()).collect();
    assert!(calls.contains(&"send of 100 u8 to rank 2"), "{calls:?}");
    assert!(calls.contains(&"all_reduce of 40000 f32, op sum"), "{calls:?}");
    let summary = assert_checked(folder.path());
    assert!(!summary.contains("context"), "no message is tagged: {summary}");
}

#[test]
fn a_call_that_times_out_is_in_the_file_with_what_it_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config { timeout: Duration::from_millis(300), ..config(Some(folder.path())) };
    run(2, &config, |mut comm| {
        let reduce = |comm: &mut Communicator| comm.all_reduce_in_place(&mut [1.0f32; 4], ReduceOp::Sum);
        reduce(&mut comm).expect("both make it");
        if comm.rank().0 == 0 {
            reduce(&mut comm).expect_err("rank 1 does not make it");
        } else {
            thread::sleep(Duration::from_millis(900));
        }
    });
    let files = files(folder.path());
    assert_eq!(files.len(), 2);
    let error = files[0]["tbccl"]["error"].as_str().expect("the reason");
    assert!(error.contains("rank"), "{error}");
    let calls = slices(&files[0], "call");
    let outcomes: Vec<&Value> = calls.iter().map(|call| &call["args"]["outcome"]).collect();
    assert_eq!(outcomes, ["done", "failed"]);
    assert!(calls[1]["dur"].as_f64().is_some_and(|micros| micros > 250_000.0), "{}", calls[1]);
    let receives = slices(&files[0], "receive");
    let open = receives.last().expect("receives");
    assert_eq!((&open["args"]["outcome"], &open["args"]["call"]), (&"unfinished".into(), &2.into()));
    assert_eq!(open["args"]["peer"], 1);
}

#[test]
fn without_the_option_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = config(None);
    config.dump = Some(folder.path().to_owned());
    run(2, &config, |mut comm| comm.barrier().expect("both make it"));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn tagged_messages_have_both_ends_in_a_trace() {
    const LENGTHS: [usize; 4] = [8, 3_000, 100_000, 9];
    let folder = tempfile::tempdir().expect("a folder");
    run(3, &config(Some(folder.path())), |comm| {
        let (rank, size) = (comm.rank().0, comm.size());
        let messages = P2p::new(comm).expect("it has not failed");
        let next = Rank((rank + 1) % size);
        let sent = vec![1u8; 100_000];
        let mut received = LENGTHS.map(|len| vec![0u8; len]);
        // Receives of any source and any tag, and more than one of a tag.
        let patterns =
            [(None, Some(5)), (Some(Rank((rank + 2) % size)), None), (None, Some(6)), (None, None)];
        let mut requests: Vec<P2pRequest> = Vec::new();
        for ((from, tag), memory) in patterns.into_iter().zip(&mut received) {
            // SAFETY: the memory outlives the messages, and nothing else uses it.
            let request = unsafe { messages.recv(from, 3, tag, memory.as_mut_ptr(), memory.len()) };
            requests.push(request.expect("posted"));
        }
        for (len, tag) in LENGTHS.into_iter().zip([5, 5, 6, 5]) {
            // SAFETY: the memory outlives the messages, and does not change.
            let request = unsafe { messages.send(next, 3, tag, sent.as_ptr(), len) };
            requests.push(request.expect("posted"));
        }
        for request in &requests {
            request.wait(None).expect("no limit").expect("delivered");
        }
        assert!(received.iter().flatten().all(|byte| *byte == 1));
        drop(messages);
    });
    let files = files(folder.path());
    assert_eq!(files.len(), 3);
    for file in &files {
        for category in ["send", "receive"] {
            let mut lengths: Vec<u64> =
                slices(file, category).iter().filter_map(|slice| slice["args"]["bytes"].as_u64()).collect();
            lengths.sort_unstable();
            assert_eq!(lengths, [8, 9, 3_000, 100_000], "{category}");
        }
    }
    let summary = assert_checked(folder.path());
    let rows: Vec<Vec<&str>> = summary.lines().map(|line| line.split_whitespace().collect()).collect();
    for from in 0..3 {
        for (tag, messages, bytes) in [("5", "3", "3017"), ("6", "1", "100000")] {
            let (from, to) = (from.to_string(), ((from + 1) % 3).to_string());
            let begin = [&*from, &*to, "3", tag, messages, bytes];
            assert!(rows.iter().any(|row| row.starts_with(&begin)), "{begin:?} is missing:\n{summary}");
        }
    }
}
