//! The flight recorder: while a call waits, when a communicator fails, and on a signal.

use crate::shared::issued::{TIMEOUT, call, issue, ranks};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::Value;
use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use tbccl::{CallOptions, Collective, Config, Operation, ReduceOp, SharedCommunicator, record_on_signal};

const SUM: Operation<'static> = Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum);

fn parsed(text: &str) -> Vec<Value> {
    // The last line may be incomplete while it is written.
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn dumped(comm: &SharedCommunicator) -> Vec<Value> {
    let mut out = Vec::new();
    comm.dump(&mut out).expect("memory takes all");
    parsed(std::str::from_utf8(&out).expect("text"))
}

#[test]
fn a_call_that_waits_says_where_it_stands() {
    let comms = ranks(2, &Config::default());
    let issued = issue(&comms[0], SUM, (Vec::new(), vec![1.0f32; 50_000]), &CallOptions::default());
    let until = Instant::now() + TIMEOUT;
    let lines = loop {
        let lines = dumped(&comms[0]);
        if lines.get(1).is_some_and(|line| !line["step"].is_null()) {
            break lines;
        }
        assert!(Instant::now() < until, "never: {lines:?}");
        sleep(Duration::from_millis(2));
    };
    let waiting = &lines[1];
    assert_eq!((&waiting["outcome"], &waiting["bytes"]), (&"under way".into(), &200_000.into()));
    assert_eq!(waiting["call"], "all_reduce of 50000 f32, op sum");
    assert!(waiting["step"].as_str().is_some_and(|step| step.contains("from rank 1")), "{waiting}");
    assert_eq!((&lines[0]["rank"], &lines[0]["transport"]), (&0.into(), &"local".into()));
    call(&comms[1], SUM, &mut [1.0f32; 50_000], &CallOptions::default()).expect("both are there");
    issued.expect("issued").finish().expect("both are there");
    assert_eq!(dumped(&comms[0])[1]["outcome"], "done");
}

fn file_of(folder: &Path, rank: u32) -> Option<Vec<Value>> {
    let name = format!("tbccl-rank{rank}-pid{}.jsonl", std::process::id());
    std::fs::read_to_string(folder.join(name)).ok().map(|text| parsed(&text))
}

#[test]
fn a_communicator_that_fails_writes_what_came_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config {
        dump: Some(folder.path().join("inner")),
        timeout: Duration::from_millis(200),
        ..Config::default()
    };
    let comms = ranks(2, &config);
    call(&comms[0], SUM, &mut [1u8; 4], &CallOptions::default()).expect_err("alone");
    // The signal of another test may have written these files too.
    let why = |rank| {
        let lines = file_of(&folder.path().join("inner"), rank)?;
        let failed = lines.iter().any(|line| line["outcome"] == "failed");
        let error = lines.iter().find_map(|line| line["error"].as_str())?;
        Some((error.to_owned(), failed))
    };
    assert!(why(0).is_some_and(|(error, failed)| error.contains("no progress") && failed), "{:?}", why(0));
    assert_eq!(why(1), None, "it does not know yet");
    call(&comms[1], SUM, &mut [1u8; 4], &CallOptions::default()).expect_err("rank 0 has failed");
    assert!(why(1).is_some_and(|(error, _)| error.contains("rank 0")), "{:?}", why(1));
}

#[test]
fn a_signal_has_all_communicators_written_and_those_that_name_a_folder_there() {
    let (folder, own) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("another folder"));
    let comms = ranks(2, &Config::default());
    let with_a_folder = ranks(1, &Config { dump: Some(own.path().to_owned()), ..Config::default() });
    call(&with_a_folder[0], SUM, &mut [1u16; 4099], &CallOptions::default()).expect("alone");
    let issued = issue(&comms[1], SUM, (Vec::new(), vec![1i64; 3]), &CallOptions::default()).expect("issued");
    let until = Instant::now() + TIMEOUT;
    while comms[1].stats().begun == 0 {
        assert!(Instant::now() < until, "never begun");
    }
    record_on_signal(Some(folder.path())).expect("it can be caught");
    kill_process(getpid(), Signal::USR2).expect("a signal");
    // The files also contain other tests' communicators.
    let is_ours = |line: &Value| line["call"] == "all_reduce of 3 i64, op sum";
    while !file_of(folder.path(), 1).is_some_and(|lines| lines.iter().any(is_ours)) {
        assert!(Instant::now() < until, "never written");
        sleep(Duration::from_millis(5));
    }
    while file_of(own.path(), 0).is_none() {
        assert!(Instant::now() < until, "never written to its own folder");
        sleep(Duration::from_millis(5));
    }
    let theirs = file_of(own.path(), 0).expect("a file");
    let is_alone = |line: &Value| line["call"] == "all_reduce of 4099 u16, op sum";
    assert!(theirs.iter().any(is_alone), "{theirs:?}");
    assert!(!file_of(folder.path(), 0).expect("rank 0's").iter().any(is_alone));
    record_on_signal(None).expect("it is caught");
    call(&comms[0], SUM, &mut [1i64; 3], &CallOptions::default()).expect("both are there");
    assert_eq!(issued.finish().expect("both are there"), [2; 3]);
}
