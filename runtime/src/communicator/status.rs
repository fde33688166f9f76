//! The status of this process, for reports of a hang: read by any thread while others make calls.
//!
//! The flight recorder and this rank's board have the calls. The wait of a call in progress is more than they
//! hold, so the thread that makes the call publishes it on request (`wait_cell`): within some milliseconds,
//! since a call that waits looks at its requests, and a call that moves does so between two steps. A call
//! that publishes nothing is at work in a step, or its thread gets no core.

use super::{control::Control, live, rank_metrics};
use crate::{
    call::{CallKind, CallRecord},
    recorder::{Outcome, Recorded},
    why::{
        CallStatus, CommunicatorStatus, JoinStatus, Kind, PastCall, PauseStatus, ProcessStatus, RailStatus,
        Wait,
    },
};
use bootstrap::Pause;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use topology::Rank;
use transport::driver::RailInfo;

/// Time in which calls in progress publish their waits. A rank that its device wakes looks every 25 ms; on a
/// busy machine it may not get a core for much longer. Whoever asks waits for 1.3 s.
const PUBLISH_TIMEOUT: Duration = Duration::from_millis(400);

/// Maximum size of the status as text.
const MAX_BYTES: usize = 30 << 10;

/// Number of ended calls in a status.
const PAST: usize = 3;

/// Maximum size of a communicator whose ranks all name its members; of a larger one the first two do.
const NAMED_BY_ALL: usize = 32;

/// Maximum length of an error message in a status.
const MAX_ERROR_BYTES: usize = 400;

/// Returns the rails of a driver for a status.
pub(super) fn rails_of(rails: Vec<RailInfo>) -> Vec<RailStatus> {
    let status = |rail: RailInfo| RailStatus { ours: rail.ours, theirs: rail.theirs, is_up: rail.is_up };
    rails.into_iter().map(status).collect()
}

/// Returns the status of this process as text, for other processes.
pub(super) fn describe() -> String {
    let mut status = of_process();
    status.metrics = rank_metrics::fitting(status.metrics);
    // Communicators in a call come first; the others are left out if there is no room.
    status.communicators.sort_by_key(|communicator| communicator.call.is_none());
    loop {
        let text = serde_json::to_string(&status).unwrap_or_default();
        if text.len() <= MAX_BYTES || status.communicators.pop().is_none() {
            return text;
        }
    }
}

/// Returns the status of this process.
pub(super) fn of_process() -> ProcessStatus {
    of_process_until(Instant::now() + PUBLISH_TIMEOUT)
}

/// Returns the status of this process. Calls in progress publish their waits until the deadline, and for no
/// longer than usually.
pub(super) fn of_process_until(deadline: Instant) -> ProcessStatus {
    let deadline = deadline.min(Instant::now() + PUBLISH_TIMEOUT);
    let live: Vec<Arc<Control>> = live::all().into_iter().filter(|control| control.is_here()).collect();
    live.iter().for_each(|control| control.request_counters());
    let asked: Vec<Option<u64>> =
        live.iter().map(|control| control.is_in_call().then(|| control.request_wait())).collect();
    let communicators = live.iter().zip(asked).map(|(control, asked)| {
        let wait = asked.and_then(|count| control.published_wait(count, deadline));
        of_communicator(control, wait)
    });
    // Counters are published before waits, so they come second.
    let communicators = communicators.collect();
    let joining = live::in_the_making().into_iter();
    ProcessStatus {
        host: super::machine::host_name(),
        pid: std::process::id(),
        communicators,
        joining: joining.map(|(made_by, seconds)| JoinStatus { made_by, seconds }).collect(),
        pause: bootstrap::latest_pause().map(pause_status),
        metrics: rank_metrics::of_process(&live),
    }
}

fn of_communicator(control: &Control, wait: Option<Wait>) -> CommunicatorStatus {
    let calls = control.recorder.latest();
    let under_way: Vec<&Recorded> = calls.iter().filter(|call| call.outcome == Outcome::UnderWay).collect();
    let call = match under_way.first() {
        Some(first) => Some(call_status(&first.record, first.began_ago, under_way.len() - 1, wait)),
        None => control.tagged_message().map(|record| {
            let seconds = wait.as_ref().map_or(0.0, |wait| wait.seconds);
            CallStatus { is_tagged: true, ..call_status(&record, seconds, 0, wait) }
        }),
    };
    let past = calls.iter().rev().filter(|call| call.outcome != Outcome::UnderWay).take(PAST).map(past_call);
    let names = control.names();
    let names_members = names.len() <= NAMED_BY_ALL || control.rank().0 < 2;
    let members = names.iter().filter(|_| names_members).map(|name| (name.pid, name.host.clone()));
    let mut error = control.failed().map(|error| error.to_string());
    if let Some(error) = &mut error {
        error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
    }
    CommunicatorStatus {
        id: control.id(),
        made_by: control.made_by().to_owned(),
        rank: control.rank().0,
        size: names.len() as u32,
        place: control.place(),
        members: members.collect(),
        transport: control.transport().to_owned(),
        age: control.age().as_secs_f64(),
        entered: control.entered(),
        call,
        past: past.collect(),
        error,
    }
}

fn kind_of(record: &CallRecord) -> Kind {
    match record.kind {
        CallKind::Collective(_) => Kind::Collective,
        CallKind::Send => Kind::Send,
        CallKind::Recv => Kind::Recv,
    }
}

fn call_status(record: &CallRecord, seconds: f64, others: usize, wait: Option<Wait>) -> CallStatus {
    let kind = kind_of(record);
    let has_peer = kind != Kind::Collective && record.root != CallRecord::ANY;
    CallStatus {
        text: record.to_string(),
        name: record.name(),
        number: record.seq,
        digest: record.digest(),
        kind,
        peer: has_peer.then_some(record.root.0),
        seconds,
        is_tagged: false,
        others,
        wait,
    }
}

fn pause_status(pause: Pause) -> PauseStatus {
    PauseStatus { seconds: pause.lasted.as_secs_f64(), ended: pause.ended.as_secs_f64() }
}

fn past_call(call: &Recorded) -> PastCall {
    PastCall {
        text: call.record.to_string(),
        name: call.record.name(),
        number: call.record.seq,
        digest: call.record.digest(),
        kind: kind_of(&call.record),
        seconds: call.ended_ago.unwrap_or_default(),
        is_done: call.outcome == Outcome::Done,
    }
}

/// Returns the wait of a call for a status.
pub(super) fn wait_of(
    (peer, sends): (Option<Rank>, bool),
    step: String,
    waited: Duration,
    rails: Vec<RailInfo>,
) -> Wait {
    Wait { seconds: waited.as_secs_f64(), peer: peer.map(|peer| peer.0), sends, step, rails: rails_of(rails) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Communicator, Config};
    use collectives::ReduceOp;
    use std::thread;

    /// Returns the status of a rank of the communicator with these ranks' places.
    fn statuses(of: &[Communicator]) -> Vec<CommunicatorStatus> {
        let places: Vec<u64> = of.iter().map(|comm| comm.control().place()).collect();
        let mut found = of_process().communicators;
        found.retain(|status| places.contains(&status.place));
        found
    }

    fn pair() -> Vec<Communicator> {
        let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
        Communicator::local(2, &config).expect("memory for a test")
    }

    #[test]
    fn a_rank_that_waits_says_for_whom_and_one_outside_says_since_when() {
        let mut comms = pair();
        thread::scope(|scope| {
            let late = comms.pop().expect("two");
            let place = comms[0].control().place();
            let mut early = comms.pop().expect("two");
            let waiting = scope.spawn(move || {
                let done = early.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum);
                (early, done)
            });
            let wait = || {
                let status = of_process().communicators.into_iter().find(|status| status.place == place)?;
                status.call?.wait.filter(|wait| wait.seconds > 0.02)
            };
            let found = (0..500).find_map(|_| {
                thread::sleep(Duration::from_millis(5));
                wait()
            });
            let found = found.expect("it waits");
            assert_eq!((found.peer, found.sends), (Some(1), false), "{found:?}");
            assert!(found.step.contains("from rank 1"), "{found:?}");
            let outside = statuses(std::slice::from_ref(&late)).remove(0);
            assert_eq!((outside.entered, outside.call), (0, None));
            let mut late = late;
            late.all_reduce_in_place(&mut [1.0f32; 64], ReduceOp::Sum).expect("both are there");
            let (early, done) = waiting.join().expect("no panic");
            done.expect("both are there");
            for status in statuses(&[early, late]) {
                let past = &status.past[0];
                assert_eq!((status.entered, status.call, past.number), (1, None, 1));
                assert!(past.is_done && past.name == "all_reduce" && past.seconds < 5.0, "{past:?}");
                assert_eq!(status.members.len(), 2);
            }
        });
    }

    #[test]
    fn a_communicator_made_from_another_one_is_at_the_same_place() {
        let comms = pair();
        thread::scope(|scope| {
            for mut comm in comms {
                scope.spawn(move || {
                    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
                    let split = comm.split(Some(1), 0, &config).expect("both split").expect("a color");
                    assert_eq!(split.control().place(), comm.control().place());
                    assert_ne!(split.control().id(), comm.control().id());
                    assert!(split.control().made_by().starts_with("split"), "{}", split.control().made_by());
                });
            }
        });
    }

    #[test]
    fn a_status_fits_the_message_however_many_communicators_there_are() {
        let many: Vec<_> = (0..200).map(|_| pair()).collect();
        let text = describe();
        assert!(text.len() <= MAX_BYTES, "{}", text.len());
        let status: ProcessStatus = serde_json::from_str(&text).expect("JSON");
        assert!(status.communicators.len() > 10 && status.communicators.len() < 2 * many.len());
    }
}
