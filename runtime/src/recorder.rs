//! The flight recorder: the latest calls of one rank, for the analysis of failures.
//!
//! The thread that makes the calls writes a ring of entries, and any other thread may read meanwhile. An
//! entry is a sequence lock: stamp 0, words, stamp; readers accept it only if the stamp is the same before
//! and after. Nothing is allocated. The step of a long wait, which is recorded every few milliseconds, is the
//! only part behind a lock.
//!
//! Times of small calls come from the system's coarse clock, which takes a few nanoseconds to read and is a
//! few milliseconds off; those of larger calls from the exact one. A small call without a long wait ended
//! when it began, as far as the coarse clock can tell, and needs no second reading.

mod dump;
#[cfg(all(test, loom))]
mod models;

pub(crate) use dump::Flight;

use crate::{
    call::{CallRecord, Words},
    metrics::Tally,
};
use dump::Clock;
use rustix::time::{ClockId, clock_gettime};
use std::{
    io,
    sync::{
        Mutex, PoisonError,
        atomic::Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};
use transport::sync::{AtomicU64, fence};

/// The calls that are kept.
const KEPT: u64 = if cfg!(loom) { 2 } else { 128 };

/// Memory for a step's description, so that long waits allocate none.
const STEP_BYTES: usize = 256;

/// Bytes from which on the time of a call is taken exactly.
const EXACT_BYTES: u64 = 64 << 10;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Outcome {
    UnderWay,
    Done,
    Failed,
}

/// One call: the first cache line is written when it begins, the second one also when it ends.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Entry {
    /// The number of the call, from 1; 0 while the entry is written.
    stamp: AtomicU64,
    record: [AtomicU64; CallRecord::WORDS],
    bytes: AtomicU64,
    /// Nanoseconds on the system's clock; 0 for not yet.
    began: AtomicU64,
    ended: AtomicU64,
    outcome: AtomicU64,
}

/// A call in the recorder. Times are seconds.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) record: CallRecord,
    pub(crate) began_ago: f64,
    /// `None` for not yet.
    pub(crate) ended_ago: Option<f64>,
    pub(crate) outcome: Outcome,
}

/// The step of a long wait.
#[derive(Debug, Default)]
struct Step {
    /// How many calls had begun.
    begun: u64,
    /// Empty if unknown.
    step: String,
    waited: Duration,
}

/// The ring of one communicator.
#[derive(Debug)]
pub(crate) struct Recorder {
    ring: Box<[Entry; KEPT as usize]>,
    /// Written by the thread that makes the calls only.
    begun: AtomicU64,
    /// The same.
    finished: AtomicU64,
    step: Mutex<Step>,
    /// Bytes from which on the time of a call is taken exactly; 0 where calls are counted.
    exact_bytes: u64,
    /// The counts of calls by kind, where metrics are on.
    tally: Option<Box<Tally>>,
}

/// Nanoseconds on a clock that does not go back; to a few milliseconds if they are not exact.
#[inline]
fn now(is_exact: bool) -> u64 {
    let clock = if cfg!(target_os = "linux") && !is_exact { COARSE } else { ClockId::Monotonic };
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(target_os = "linux")]
const COARSE: ClockId = ClockId::MonotonicCoarse;
#[cfg(not(target_os = "linux"))]
const COARSE: ClockId = ClockId::Monotonic;

impl Recorder {
    /// Returns an empty recorder. With a tally, every ended call is counted there, with its exact time.
    pub(crate) fn new(tally: Option<Box<Tally>>) -> Recorder {
        Recorder {
            exact_bytes: if tally.is_some() { 0 } else { EXACT_BYTES },
            tally,
            ring: Box::new(std::array::from_fn(|_| Entry::default())),
            begun: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            step: Mutex::new(Step { step: String::with_capacity(STEP_BYTES), ..Step::default() }),
        }
    }

    /// Calls that have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Acquire)
    }

    /// Calls that were carried out.
    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Acquire)
    }

    /// Returns the counts of calls by kind, where metrics are on.
    pub(crate) fn tally(&self) -> Option<&Tally> {
        self.tally.as_deref()
    }

    fn entry(&self, number: u64) -> &Entry {
        &self.ring[(number % KEPT) as usize]
    }

    /// Records the beginning of a call on `bytes` bytes, whose record has these words.
    #[inline]
    pub(crate) fn begin(&self, record: &Words, bytes: usize) {
        let (number, bytes) = (self.begun.load(Relaxed) + 1, bytes as u64);
        let entry = self.entry(number);
        entry.stamp.store(0, Relaxed);
        fence(Release);
        for (at, word) in record.iter().enumerate() {
            entry.record[at].store(*word, Relaxed);
        }
        entry.bytes.store(bytes, Relaxed);
        entry.began.store(now(bytes >= self.exact_bytes), Relaxed);
        entry.ended.store(0, Relaxed);
        entry.outcome.store(Outcome::UnderWay as u64, Relaxed);
        entry.stamp.store(number, Release);
        self.begun.store(number, Release);
    }

    /// Records the end of the latest `calls` calls; none of them has waited for milliseconds if they were
    /// `brief`. Where calls are counted, `publish` makes the other counters of the rank known from time to
    /// time.
    #[inline]
    pub(crate) fn end(&self, calls: usize, outcome: Outcome, brief: bool, publish: impl Fn()) {
        let begun = self.begun.load(Relaxed);
        let calls = calls as u64;
        for before in begun - calls.min(KEPT)..begun {
            let entry = self.entry(before + 1);
            let bytes = entry.bytes.load(Relaxed);
            let is_at_once = brief && bytes < self.exact_bytes;
            let ended =
                if is_at_once { entry.began.load(Relaxed) } else { self.count(entry, outcome, &publish) };
            entry.ended.store(ended, Relaxed);
            entry.outcome.store(outcome as u64, Release);
        }
        if outcome == Outcome::Done {
            self.finished.store(self.finished.load(Relaxed) + calls, Release);
        }
    }

    /// Returns the time at which a call ends, and counts the call where metrics are on.
    // Out of line, so that a small call that is not counted pays nothing.
    #[inline(never)]
    fn count(&self, entry: &Entry, outcome: Outcome, publish: &dyn Fn()) -> u64 {
        let bytes = entry.bytes.load(Relaxed);
        let ended = now(bytes >= self.exact_bytes);
        let Some(tally) = &self.tally else { return ended };
        let nanos = ended.saturating_sub(entry.began.load(Relaxed));
        tally.add(
            CallRecord::kind_code(entry.record[1].load(Relaxed)),
            bytes,
            nanos,
            outcome == Outcome::Done,
        );
        if tally.is_publication_due(ended) {
            publish();
        }
        ended
    }

    /// Records how long the calls under way have waited; `write` appends the step to an empty string, or
    /// nothing if the step is unknown.
    pub(crate) fn at(&self, waited: Duration, write: impl FnOnce(&mut String)) {
        let begun = self.begun.load(Relaxed);
        // A reader that holds the lock gets the next step.
        if let Ok(mut at) = self.step.try_lock() {
            (at.begun, at.waited) = (begun, waited);
            at.step.clear();
            write(&mut at.step);
        }
    }

    /// Whether the latest call is under way.
    pub(crate) fn is_in_call(&self) -> bool {
        let latest = Some(self.begun()).filter(|begun| *begun > 0);
        latest.and_then(|number| self.read(number)).is_some_and(|kept| kept.outcome == Outcome::UnderWay)
    }

    /// Returns the latest calls, the oldest first, as they are now.
    pub(crate) fn latest(&self) -> Vec<Recorded> {
        let (begun, now) = (self.begun(), now(true));
        let ago = |time: u64| now.saturating_sub(time) as f64 * 1e-9;
        let recorded = |kept: Kept| Recorded {
            record: kept.record,
            began_ago: ago(kept.began),
            ended_ago: kept.ended.map(ago),
            outcome: kept.outcome,
        };
        let kept = (begun.saturating_sub(KEPT) + 1..=begun).filter_map(|number| self.read(number));
        kept.map(recorded).collect()
    }

    /// Returns the record of a call, unless it is being overwritten.
    fn read(&self, number: u64) -> Option<Kept> {
        let entry = self.entry(number);
        if entry.stamp.load(Acquire) != number {
            return None;
        }
        let outcome = match entry.outcome.load(Acquire) {
            0 => Outcome::UnderWay,
            1 => Outcome::Done,
            _ => Outcome::Failed,
        };
        let record = std::array::from_fn(|at| entry.record[at].load(Relaxed));
        let [bytes, began, ended] = [&entry.bytes, &entry.began, &entry.ended].map(|word| word.load(Relaxed));
        fence(Acquire);
        if entry.stamp.load(Relaxed) != number {
            return None;
        }
        let record = CallRecord::decode(record)?;
        Some(Kept { number, record, bytes, began, ended: (ended != 0).then_some(ended), outcome })
    }

    /// Writes the latest calls as lines of JSON, the oldest first, after a line about the rank.
    pub(crate) fn dump(&self, flight: &Flight<'_>, out: &mut dyn io::Write) -> io::Result<()> {
        let begun = self.begun();
        let clock = Clock::read();
        let mut lines = serde_json::to_vec(&flight.headline(&clock))?;
        lines.push(b'\n');
        for kept in (begun.saturating_sub(KEPT) + 1..=begun).filter_map(|number| self.read(number)) {
            let step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
            let at = Some(step).filter(|step| kept.outcome != Outcome::Done && step.begun >= kept.number);
            serde_json::to_writer(&mut lines, &kept.line(at.as_deref(), &clock))?;
            lines.push(b'\n');
        }
        // At once, so that lines of several ranks don't get mixed.
        out.write_all(&lines)?;
        out.flush()
    }
}

/// A call as it was kept.
#[derive(Debug, PartialEq)]
struct Kept {
    number: u64,
    record: CallRecord,
    bytes: u64,
    began: u64,
    ended: Option<u64>,
    outcome: Outcome,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        call::CallKind,
        error::{Error, PeerName},
    };
    use collectives::{Collective, DType, ReduceOp};
    use serde_json::Value;
    use topology::Rank;
    use transport::Counters;

    fn record(seq: u64) -> CallRecord {
        CallRecord {
            seq,
            kind: CallKind::Collective(Collective::AllReduce),
            dtype: DType::F32,
            op: Some(ReduceOp::Sum),
            count: seq * 2,
            root: Rank(0),
            plan: 7,
            uneven: false,
            codec: None,
        }
    }

    fn dumped(recorder: &Recorder, error: Option<&Error>) -> Vec<Value> {
        let names = [0, 1].map(|rank| PeerName { rank: Rank(rank), pid: 77, host: "a \"host\"".into() });
        let flight = Flight {
            rank: Rank(1),
            names: &names,
            transport: "local",
            begun: recorder.begun(),
            finished: recorder.finished(),
            links: Counters::default(),
            error,
        };
        let mut out = Vec::new();
        recorder.dump(&flight, &mut out).expect("memory takes all");
        let text = String::from_utf8(out).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// The status of a process waited 0.4 s for each communicator that had made no call.
    #[test]
    fn a_rank_that_has_made_no_call_is_in_none() {
        let recorder = Recorder::new(None);
        assert!(!recorder.is_in_call());
        recorder.begin(&record(1).encode(), 8);
        assert!(recorder.is_in_call());
        recorder.end(1, Outcome::Done, true, || {});
        assert!(!recorder.is_in_call());
    }

    #[test]
    fn the_latest_calls_are_kept_in_order() {
        let recorder = Recorder::new(None);
        for seq in 1..=200 {
            recorder.begin(&record(seq).encode(), 8);
            recorder.end(1, Outcome::Done, true, || {});
        }
        let lines = dumped(&recorder, None);
        assert_eq!(lines.len() as u64, 1 + KEPT);
        assert_eq!((&lines[0]["rank"], &lines[0]["host"]), (&1.into(), &"a \"host\"".into()));
        assert_eq!((&lines[0]["begun"], &lines[0]["finished"]), (&200.into(), &200.into()));
        let numbers: Vec<u64> = lines[1..].iter().filter_map(|line| line["seq"].as_u64()).collect();
        assert_eq!(numbers, (200 - KEPT + 1..=200).collect::<Vec<_>>());
        assert_eq!(lines[1]["outcome"], "done");
        assert!(lines[1]["ended"].as_f64() >= lines[1]["began"].as_f64());
        assert_eq!(lines[KEPT as usize]["call"], "all_reduce of 400 f32, op sum");
    }

    #[test]
    fn what_is_under_way_says_where_it_stands_and_what_failed_why() {
        let recorder = Recorder::new(None);
        recorder.begin(&record(1).encode(), 1 << 20);
        recorder.end(1, Outcome::Done, true, || {});
        recorder.begin(&record(2).encode(), 1 << 20);
        recorder.at(Duration::from_millis(1500), |step| step.push_str("step 3 of ring: recv from rank 0"));
        let lines = dumped(&recorder, None);
        assert_eq!((&lines[1]["step"], &lines[2]["outcome"]), (&Value::Null, &"under way".into()));
        assert_eq!(
            (&lines[2]["step"], &lines[2]["waited"]),
            (&"step 3 of ring: recv from rank 0".into(), &1.5.into())
        );
        assert_eq!(lines[2]["ended"], Value::Null);
        recorder.end(1, Outcome::Failed, false, || {});
        let lines = dumped(&recorder, Some(&Error::LauncherGone));
        assert_eq!((&lines[2]["outcome"], &lines[0]["finished"]), (&"failed".into(), &1.into()));
        assert!(lines[0]["error"].as_str().is_some_and(|error| error.contains("launcher")));
    }

    #[test]
    fn the_calls_of_a_group_end_together_even_if_they_are_more_than_are_kept() {
        let recorder = Recorder::new(None);
        for seq in 1..=KEPT + 5 {
            recorder.begin(&record(seq).encode(), 8);
        }
        recorder.end(KEPT as usize + 5, Outcome::Done, true, || {});
        assert_eq!(recorder.finished(), KEPT + 5);
        assert!(dumped(&recorder, None)[1..].iter().all(|line| line["outcome"] == "done"));
    }

    #[test]
    fn readers_see_whole_entries_while_others_are_written() {
        let recorder = Recorder::new(None);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for seq in 1..=200_000 {
                    recorder.begin(&record(seq).encode(), 0);
                    recorder.end(1, Outcome::Done, true, || {});
                }
                is_over.store(true, Release);
            });
            let mut seen = 0;
            while !is_over.load(Acquire) {
                let begun = recorder.begun();
                for kept in (begun.saturating_sub(KEPT) + 1..=begun).filter_map(|n| recorder.read(n)) {
                    assert_eq!(kept.record, record(kept.number));
                    seen += 1;
                }
            }
            assert!(seen > 0 || recorder.begun() == 200_000);
        });
        assert_eq!(recorder.read(200_000).map(|kept| kept.record), Some(record(200_000)));
    }
}
