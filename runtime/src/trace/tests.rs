//! Files of traces: events, a full ring, failed calls, files of others.

use super::*;
use crate::call::{CallKind, CallRecord};
use collectives::{Collective, DType, ReduceOp};
use serde_json::Value;
use std::sync::Arc;
use tape::{StepFacts, StepKind, StepMessage};

fn trace(folder: &Path, events: u32) -> Trace {
    let names: Arc<[PeerName]> =
        [0, 1].map(|rank| PeerName { rank: Rank(rank), pid: 7, host: "a \"host\"".into() }).into();
    let traced = TracedRank {
        rank: Rank(0),
        names,
        transport: "local",
        communicator: "00ff".into(),
        made_by: String::new(),
    };
    Trace::new(folder, events, "", 2, traced)
}

fn record(seq: u64) -> CallRecord {
    CallRecord {
        seq,
        kind: CallKind::Collective(Collective::AllReduce),
        dtype: DType::F32,
        op: Some(ReduceOp::Sum),
        count: 8,
        root: Rank(0),
        plan: 7,
        uneven: false,
        codec: None,
    }
}

fn message(at: u32, kind: StepKind) -> StepFacts {
    let message = StepMessage { peer: Rank(1), lane: 0, index: at };
    StepFacts { at, step: at, call: 0, kind, bytes: 32, message: Some(message) }
}

/// Records polls of step 1 that find nothing, until the clock is read.
fn wait(tape: &mut Tape) {
    for _ in 0..4 {
        tape.waits(1);
        tape.idle();
    }
}

/// Records a call of a send and a receive that waits.
fn call(trace: &Trace, seq: u64) {
    let mut tape = trace.tape();
    tape.begin_run(2);
    tape.begin_call(&record(seq), 32, "mesh");
    tape.complete(&message(0, StepKind::Send));
    tape.polled(1);
    wait(&mut tape);
    tape.complete(&message(1, StepKind::Recv));
    tape.end_run(CallEnd::Done);
}

fn written(trace: &Trace) -> Value {
    trace.write(None);
    let text = std::fs::read_to_string(trace.path()).expect("written");
    serde_json::from_str(&text).expect("valid JSON")
}

fn slices<'v>(file: &'v Value, category: &str) -> Vec<&'v Value> {
    let events = file["traceEvents"].as_array().expect("events");
    events.iter().filter(|event| event["ph"] == "X" && event["cat"] == category).collect()
}

#[test]
fn a_file_has_the_calls_their_messages_and_their_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 100);
    (1..=3).for_each(|seq| call(&trace, seq));
    let file = written(&trace);
    let about = &file["tbccl"];
    assert_eq!((&about["host"], &about["lost"]), (&"a \"host\"".into(), &0.into()));
    let counts = ["call", "send", "receive", "wait"].map(|category| slices(&file, category).len());
    assert_eq!(counts, [3; 4]);
    let (sent, received) = (slices(&file, "send")[0], slices(&file, "receive")[0]);
    assert_eq!((&sent["tid"], &received["tid"]), (&3.into(), &4.into()), "as in simulated traces");
    assert_eq!((&sent["args"]["call"], &sent["args"]["bytes"]), (&1.into(), &32.into()));
    assert_eq!(slices(&file, "call")[0]["args"]["algorithm"], "mesh");
}

#[test]
fn a_full_ring_loses_the_oldest_events_and_says_how_many() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 16);
    (1..=100).for_each(|seq| call(&trace, seq));
    let capacity = trace.tape().events().count();
    let file = written(&trace);
    let calls = slices(&file, "call");
    let numbers: Vec<u64> = calls.iter().filter_map(|call| call["args"]["call"].as_u64()).collect();
    assert_eq!(numbers.last(), Some(&100));
    assert!(numbers.is_sorted() && numbers[0] > 90, "{numbers:?}");
    // Three events per call; the latest call is not in the ring yet.
    assert_eq!((file["tbccl"]["lost"].as_u64(), capacity), (Some(300 - 1 - 16), 17));
    let until = file["tbccl"]["lost_until"].as_f64().expect("a time");
    let ends =
        slices(&file, "send").iter().map(|event| event["ts"].as_f64().expect("a time")).collect::<Vec<_>>();
    assert!(until > 0.0 && ends.iter().skip(1).all(|begin| *begin >= until), "{until} {ends:?}");
}

#[test]
fn recording_allocates_no_memory_beyond_the_ring() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 16);
    call(&trace, 1);
    let before = trace.tape().room();
    (2..=1000).for_each(|seq| call(&trace, seq));
    assert_eq!(trace.tape().room(), before);
}

#[test]
fn messages_that_a_failed_run_has_begun_are_in_the_file_without_an_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 16);
    {
        let mut tape = trace.tape();
        tape.begin_run(3);
        tape.begin_call(&record(5), 32, "ring");
        tape.complete(&message(0, StepKind::Send));
        tape.polled(1);
        wait(&mut tape);
        (0..3).for_each(|at| tape.cut_off(&message(at, StepKind::RecvReduce)));
        tape.end_run(CallEnd::Failed);
    }
    let file = written(&trace);
    assert_eq!(slices(&file, "call")[0]["args"]["outcome"], "failed");
    let received = slices(&file, "receive");
    assert_eq!((received.len(), &received[0]["args"]["outcome"]), (1, &"unfinished".into()));
}

#[test]
fn a_call_under_way_is_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 16);
    trace.tape().begin_run(1);
    trace.tape().begin_call(&record(1), 8, "ring");
    assert_eq!(slices(&written(&trace), "call")[0]["args"]["outcome"], "under way");
}

#[test]
fn a_file_of_another_user_or_behind_a_link_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 16);
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "mine").expect("written");
    std::os::unix::fs::symlink(&precious, trace.path()).expect("linked");
    trace.write(None);
    assert_eq!(std::fs::read_to_string(&precious).expect("read"), "mine");
}
