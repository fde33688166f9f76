//! Files of traces: events, a full ring, failed calls, killed ranks, files of others.

use super::*;
use crate::call::{CallKind, CallRecord};
use collectives::{Collective, DType, ReduceOp};
use serde_json::Value;
use std::{fs, os::unix::fs::FileExt, sync::Arc};

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
    let options = TraceOptions { folder, events, host_id: "", lanes: 2 };
    Trace::new(options, traced, None).expect("memory for a test")
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
    let text = fs::read_to_string(&trace.path).expect("written");
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
    let kept = trace.tape().content().events.len();
    let file = written(&trace);
    let calls = slices(&file, "call");
    let numbers: Vec<u64> = calls.iter().filter_map(|call| call["args"]["call"].as_u64()).collect();
    assert_eq!(numbers.last(), Some(&100));
    assert!(numbers.is_sorted() && numbers[0] > 90, "{numbers:?}");
    // Three events per call.
    assert_eq!((file["tbccl"]["lost"].as_u64(), kept), (Some(300 - 16), 16));
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
    fs::write(&precious, "mine").expect("written");
    std::os::unix::fs::symlink(&precious, &trace.path).expect("linked");
    trace.write(None);
    assert_eq!(fs::read_to_string(&precious).expect("read"), "mine");
}

/// Returns the trace that is read from the ring of a rank.
fn recovered(trace: &Trace) -> Value {
    let json = json_of_ring(&trace.path.with_extension("ring")).expect("a ring");
    serde_json::from_slice(&json).expect("valid JSON")
}

/// Changes the words of a slot of a rank's ring, as its process would have left them.
fn change_slot(trace: &Trace, slot: usize, change: impl Fn(&mut [u8])) {
    let path = trace.path.with_extension("ring");
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("a ring");
    let (mut words, at) = ([0; 64], 2048 + 64 * slot as u64);
    file.read_exact_at(&mut words, at).expect("read");
    change(&mut words);
    file.write_all_at(&words, at).expect("written");
}

#[test]
fn the_events_of_a_rank_that_writes_no_file_are_in_its_ring() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 100);
    (1..=3).for_each(|seq| call(&trace, seq));
    trace.tape().begin_run(2);
    trace.tape().begin_call(&record(4), 32, "ring");
    trace.tape().complete(&message(0, StepKind::Send));
    let path = trace.path.with_extension("ring");
    let left = folder.path().join("left.ring");
    fs::copy(&path, &left).expect("copied");
    let json = json_of_ring(&left).expect("a ring");
    let file: Value = serde_json::from_slice(&json).expect("valid JSON");
    let calls = slices(&file, "call");
    let of = |name: &str| calls.iter().map(|call| call["args"][name].clone()).collect::<Vec<_>>();
    assert_eq!(of("outcome"), ["done", "done", "done", "killed"]);
    assert_eq!(of("algorithm"), ["mesh", "mesh", "mesh", "ring"]);
    assert_eq!(of("what"), ["all_reduce of 8 f32, op sum"; 4]);
    assert_eq!((slices(&file, "send").len(), slices(&file, "receive").len()), (4, 3));
    let about = &file["tbccl"];
    assert_eq!(
        (&about["host"], &about["process"], &about["lost"]),
        (&"a \"host\"".into(), &7.into(), &0.into())
    );
    assert!(about["error"].as_str().is_some_and(|error| error.contains("was killed")), "{about}");
    // The trace that the rank writes has the same events, and takes the place of the ring.
    let whole = written(&trace);
    let (sent, recovered) = (slices(&whole, "send"), slices(&file, "send"));
    assert_eq!(sent.len(), recovered.len());
    for (sent, recovered) in sent.iter().zip(recovered) {
        assert_eq!((&sent["args"], &sent["tid"]), (&recovered["args"], &recovered["tid"]));
        // The clock of the ring has no pair of the end.
        let off = ["ts", "dur"].map(|time| sent[time].as_f64().unwrap() - recovered[time].as_f64().unwrap());
        assert!(off.iter().all(|micros| micros.abs() < 1.0), "{off:?} us");
    }
    assert!(!path.exists(), "the events are in the other file");
}

/// Once nothing told for whom a killed rank had waited.
#[test]
fn the_ring_of_a_rank_that_is_killed_in_a_long_wait_tells_for_whom_it_waited() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 100);
    call(&trace, 1);
    let mut tape = trace.tape();
    tape.begin_run(3);
    tape.begin_call(&record(2), 32, "ring");
    tape.complete(&message(0, StepKind::Send));
    tape.polled(1);
    wait(&mut tape);
    for _ in 0..3 {
        if tape.begins_long_wait() {
            (0..3).for_each(|at| tape.open(&message(at, StepKind::RecvReduce)));
            tape.wait_is_recorded();
        }
    }
    let file = recovered(&trace);
    let received = slices(&file, "receive");
    let open = received.last().expect("receives");
    assert_eq!((received.len(), &open["args"]["outcome"]), (2, &"unfinished".into()), "it is there once");
    let wait = slices(&file, "wait").pop().expect("a wait");
    assert_eq!(
        (&wait["name"], &wait["ts"], &wait["dur"]),
        (&"wait for rank 1".into(), &open["ts"], &open["dur"])
    );
    let error = file["tbccl"]["error"].as_str().expect("a reason");
    assert!(
        error.contains("was killed") && error.ends_with("while it waited for rank 1 in step 1 of call 2"),
        "{error}"
    );
    tape.complete(&message(1, StepKind::RecvReduce));
    tape.end_run(CallEnd::Done);
    tape.waits_for_entry(Rank(1), trace.now());
    drop(tape);
    let file = recovered(&trace);
    let received = slices(&file, "receive");
    assert_eq!((received.len(), &received[1]["args"]["outcome"]), (2, &Value::Null), "the end is known");
    let error = file["tbccl"]["error"].as_str().expect("a reason");
    assert!(error.ends_with("while it waited for rank 1 to enter call 2"), "{error}");
}

#[test]
fn an_event_that_the_end_of_the_process_has_cut_off_is_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 16);
    (1..=10).for_each(|seq| call(&trace, seq));
    // 30 events; the next one goes to slot 14, where event 15 is, the last one of call 5.
    assert_eq!(
        (slices(&recovered(&trace), "receive").len(), slices(&recovered(&trace), "call").len()),
        (6, 5)
    );
    change_slot(&trace, 14, |slot| {
        slot[..8].fill(0xff);
        slot[56..].fill(0);
    });
    let file = recovered(&trace);
    assert_eq!((slices(&file, "receive").len(), slices(&file, "call").len()), (5, 5));
    assert_eq!(file["tbccl"]["lost"], 15);
    // A number that belongs to another slot, and a word that is no event.
    change_slot(&trace, 13, |slot| slot[56..].copy_from_slice(&99u64.to_le_bytes()));
    change_slot(&trace, 12, |slot| slot[..8].fill(0xff));
    let file = recovered(&trace);
    assert_eq!(file["tbccl"]["lost"], 29 - 13);
    assert_eq!((slices(&file, "call").len(), slices(&file, "send").len()), (5, 4));
}

#[test]
fn a_call_of_more_steps_than_the_ring_has_events_is_in_the_file_with_its_outcome() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 16);
    {
        let mut tape = trace.tape();
        tape.begin_run(50);
        tape.begin_call(&record(1), 32, "ring");
        (0..50).for_each(|at| tape.complete(&message(at, StepKind::Send)));
        tape.end_run(CallEnd::Done);
        tape.waited_for_entry(Rank(1), trace.now());
    }
    let file = written(&trace);
    let calls = slices(&file, "call");
    assert_eq!((calls.len(), &calls[0]["args"]["outcome"]), (1, &"done".into()));
    assert_eq!(file["tbccl"]["lost"], 53 - 16, "the call is written twice");
    let [begin, lasted] = ["ts", "dur"].map(|time| calls[0][time].as_f64().expect("a time"));
    let wait = slices(&file, "wait")[0];
    assert!(wait["ts"].as_f64().expect("a time") <= begin + lasted, "the wait is a part of the call");
}

#[test]
fn a_ring_of_another_user_or_behind_a_link_is_left_alone_and_the_trace_goes_on_in_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let precious = folder.path().join("precious");
    fs::write(&precious, "mine").expect("written");
    std::os::unix::fs::symlink(&precious, folder.path().join("rank-0-00ff.ring")).expect("linked");
    let trace = trace(folder.path(), 16);
    call(&trace, 1);
    assert_eq!(slices(&written(&trace), "call").len(), 1);
    assert_eq!(fs::read_to_string(&precious).expect("read"), "mine");
}

#[test]
fn files_that_are_no_rings_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), 16);
    call(&trace, 1);
    let path = trace.path.with_extension("ring");
    let whole = fs::read(&path).expect("a ring");
    let refused = |bytes: &[u8]| {
        let other = folder.path().join("other.ring");
        fs::write(&other, bytes).expect("written");
        json_of_ring(&other).expect_err("no ring")
    };
    assert!(refused(&[0; 9]).contains("before it had written the header"));
    assert!(refused(&vec![0; whole.len()]).contains("before it had written the header"));
    assert!(refused(&[b'x'; 5000]).contains("no ring of events"));
    assert!(refused(&whole[..3000]).contains("ends early"));
    assert!(refused(&whole[..2048 + 64 * 16 + 5]).contains("without the description"));
    let mut huge = whole;
    huge[8..16].fill(0xff);
    assert!(refused(&huge).contains("ends early"));
}
