//! The events of a rank: a ring of fixed size, and the calls and steps under way.
//!
//! The clock is read once per completed step, and in waits after a few polls. A step begins when it is first
//! polled, and takes the time of the latest reading for that: nothing has completed since.

use crate::call::{CallKind, CallRecord};
use bootstrap::monotonic_nanos;
use topology::Rank;

/// Short polls that find nothing from one reading of the clock to the next. Reading it costs about as much as
/// such a poll, and would end waits later.
const IDLE_POLLS: u32 = 4;
/// Nanoseconds between two readings from which polls are long: the rank yields its core, or sleeps.
const LONG_POLLS_NANOS: u64 = 2_000;

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    Send,
    Recv,
    RecvReduce,
    Copy,
    Reduce,
    Encode,
    Decode,
    DecodeReduce,
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    UnderWay,
    Done,
    Failed,
}

/// A call. Times are nanoseconds on the host's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallEvent {
    pub(super) record: CallRecord,
    pub(super) bytes: u64,
    pub(super) begin: u64,
    /// 0 while the call is under way.
    pub(super) end: u64,
    pub(super) outcome: CallEnd,
    /// Index in [`Tape::algorithms`].
    pub(super) algorithm: u16,
}

/// The call that a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepCall {
    /// Number of the call; 0 if unknown.
    pub(super) seq: u64,
    /// Whether it is a message and no collective, which are numbered apart.
    pub(super) is_message: bool,
}

/// The message of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepMessage {
    pub(crate) peer: Rank,
    pub(crate) lane: u8,
    /// Position among the messages of the call with this peer, direction and lane.
    pub(crate) index: u32,
}

/// A step: a message or local work.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepEvent {
    pub(super) begin: u64,
    /// Time at which the first bytes of a receive arrived; equal to `begin` if they were there.
    pub(super) arrived: u64,
    /// 0 if the run ended before the step did.
    pub(super) end: u64,
    pub(super) bytes: u64,
    pub(super) call: StepCall,
    pub(super) step: u32,
    pub(super) kind: StepKind,
    pub(super) message: Option<StepMessage>,
}

/// A wait for a rank to enter a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryWait {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) peer: Rank,
}

/// A tagged message, from the request to its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaggedEvent {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// Number of the request on this rank.
    pub(crate) request: u64,
    pub(crate) is_send: bool,
    /// The other rank; this one for a message to itself.
    pub(crate) peer: Rank,
    pub(crate) context: u32,
    pub(crate) tag: i32,
    pub(crate) bytes: u64,
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Call(CallEvent),
    Step(StepEvent),
    EntryWait(EntryWait),
    Tagged(TaggedEvent),
}

impl Event {
    /// Returns the time at which the event ended; 0 if it did not.
    fn end(&self) -> u64 {
        match self {
            Event::Call(CallEvent { end, .. })
            | Event::Step(StepEvent { end, .. })
            | Event::Tagged(TaggedEvent { end, .. })
            | Event::EntryWait(EntryWait { end, .. }) => *end,
        }
    }
}

/// A step under way. Times are 0 before they are known.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    begin: u64,
    arrived: u64,
    /// Whether a poll found nothing.
    waits: bool,
}

/// The step of a message or of local work, as the executor knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepFacts {
    /// Index of the step in the run.
    pub(crate) at: u32,
    /// Number of the step in its call's plan.
    pub(crate) step: u32,
    /// Index of the call among those that run together.
    pub(crate) call: u16,
    pub(crate) kind: StepKind,
    pub(crate) bytes: u64,
    pub(crate) message: Option<StepMessage>,
}

/// The events of a rank.
#[derive(Debug)]
pub(crate) struct Tape {
    /// Ring of the latest events; grows up to its capacity, which is allocated at the start.
    ring: Vec<Event>,
    capacity: usize,
    /// Position of the oldest event, once the ring is full.
    oldest: usize,
    /// Number of events that were overwritten.
    lost: u64,
    /// Time of the latest end among the lost events.
    lost_until: u64,
    /// Names of algorithms.
    algorithms: Vec<String>,
    /// Calls of the latest run. They move to the ring when the next run begins: their end may change.
    calls: Vec<CallEvent>,
    /// Steps of the run, by index.
    steps: Vec<Progress>,
    /// Latest reading of the clock.
    now: u64,
    /// Polls that have to find nothing before the next reading in a wait.
    idle_polls_left: u32,
    /// Lanes between two ranks.
    lanes: u8,
}

impl Tape {
    pub(super) fn new(capacity: usize, lanes: u8) -> Tape {
        let capacity = capacity.max(1);
        Tape {
            ring: Vec::with_capacity(capacity),
            capacity,
            oldest: 0,
            lost: 0,
            lost_until: 0,
            algorithms: Vec::new(),
            calls: Vec::new(),
            steps: Vec::new(),
            now: 0,
            idle_polls_left: 1,
            lanes,
        }
    }

    /// Returns the lanes between two ranks.
    pub(crate) fn lanes(&self) -> u32 {
        u32::from(self.lanes)
    }

    /// Begins a run of `steps` steps. Room for more steps than any run before is allocated here.
    pub(crate) fn begin_run(&mut self, steps: usize) {
        self.keep_calls();
        self.steps.clear();
        self.steps.resize(steps, Progress::default());
        self.now = monotonic_nanos();
    }

    /// Begins a call of the run.
    pub(crate) fn begin_call(&mut self, record: &CallRecord, bytes: usize, algorithm: &str) {
        let algorithm = self.algorithm(algorithm);
        let (begin, bytes) = (self.now, bytes as u64);
        let outcome = CallEnd::UnderWay;
        self.calls.push(CallEvent { record: *record, bytes, begin, end: 0, outcome, algorithm });
    }

    fn algorithm(&mut self, name: &str) -> u16 {
        let known = self.algorithms.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.algorithms.push(name.to_owned());
            self.algorithms.len() - 1
        });
        index.try_into().unwrap_or(u16::MAX)
    }

    /// Returns the name of an algorithm.
    pub(super) fn algorithm_name(&self, index: u16) -> &str {
        self.algorithms.get(usize::from(index)).map_or("", String::as_str)
    }

    /// Records that a step is polled, which begins it.
    #[inline]
    pub(crate) fn polled(&mut self, at: u32) {
        let (step, now) = (&mut self.steps[at as usize], self.now);
        if step.begin == 0 {
            step.begin = now;
        }
    }

    /// Records that a poll of a receive found nothing.
    #[inline]
    pub(crate) fn waits(&mut self, at: u32) {
        self.steps[at as usize].waits = true;
    }

    /// Records that bytes of a message have moved.
    #[inline]
    pub(crate) fn advanced(&mut self, at: u32) {
        let (step, now) = (&mut self.steps[at as usize], self.now);
        if step.arrived == 0 {
            step.arrived = if step.waits { now } else { step.begin };
        }
    }

    /// Records that nothing has moved, so that the next event begins no earlier, but for a few polls.
    #[inline]
    pub(crate) fn idle(&mut self) {
        self.idle_polls_left -= 1;
        if self.idle_polls_left == 0 {
            let before = std::mem::replace(&mut self.now, monotonic_nanos());
            self.idle_polls_left = if self.now - before < LONG_POLLS_NANOS { IDLE_POLLS } else { 1 };
        }
    }

    /// Records the end of a step.
    #[inline]
    pub(crate) fn complete(&mut self, facts: &StepFacts) {
        self.polled(facts.at);
        self.advanced(facts.at);
        self.now = monotonic_nanos();
        self.end_step(facts, self.now);
    }

    fn end_step(&mut self, facts: &StepFacts, end: u64) {
        let StepFacts { at, step, call, kind, bytes, message } = *facts;
        let Progress { begin, arrived, .. } = std::mem::take(&mut self.steps[at as usize]);
        let call = self.calls.get(usize::from(call)).map_or(StepCall { seq: 0, is_message: false }, |call| {
            StepCall {
                seq: call.record.seq,
                is_message: !matches!(call.record.kind, CallKind::Collective(_)),
            }
        });
        self.push(Event::Step(StepEvent { begin, arrived, end, bytes, call, step, kind, message }));
    }

    /// Records a step that the end of a failed run has cut off. Steps that had not begun are not recorded.
    pub(crate) fn cut_off(&mut self, facts: &StepFacts) {
        let step = &mut self.steps[facts.at as usize];
        if step.begin != 0 {
            step.arrived = if step.arrived == 0 { self.now } else { step.arrived };
            self.end_step(facts, 0);
        }
    }

    /// Ends the calls of the run.
    pub(crate) fn end_run(&mut self, outcome: CallEnd) {
        self.now = monotonic_nanos();
        for call in &mut self.calls {
            (call.end, call.outcome) = (self.now, outcome);
        }
    }

    /// Records a wait, since `begin`, for a rank to enter the calls of the run, which it makes longer.
    pub(crate) fn waited_for_entry(&mut self, peer: Rank, begin: u64) {
        let end = monotonic_nanos();
        self.push(Event::EntryWait(EntryWait { begin, end, peer }));
        self.now = end;
        self.calls.iter_mut().for_each(|call| call.end = end);
    }

    /// Records a tagged message that is complete.
    pub(crate) fn tagged(&mut self, message: TaggedEvent) {
        self.now = self.now.max(message.end);
        self.push(Event::Tagged(message));
    }

    /// Records that the calls of the run have failed after their last step.
    pub(crate) fn calls_failed(&mut self) {
        self.calls.iter_mut().for_each(|call| call.outcome = CallEnd::Failed);
    }

    /// Moves the calls of the latest run to the ring.
    fn keep_calls(&mut self) {
        for at in 0..self.calls.len() {
            self.push(Event::Call(self.calls[at]));
        }
        self.calls.clear();
    }

    #[inline]
    fn push(&mut self, event: Event) {
        if self.ring.len() < self.capacity {
            return self.ring.push(event);
        }
        let oldest = std::mem::replace(&mut self.ring[self.oldest], event);
        self.lost += 1;
        self.lost_until = self.lost_until.max(oldest.end());
        self.oldest = (self.oldest + 1) % self.capacity;
    }

    /// Returns the events, in the order of their ends, and then the calls of the latest run.
    pub(super) fn events(&self) -> impl Iterator<Item = Event> + '_ {
        let (newer, older) = self.ring.split_at(self.oldest);
        let calls = self.calls.iter().map(|call| Event::Call(*call));
        older.iter().chain(newer).copied().chain(calls)
    }

    /// Returns the number of lost events, and the time of the latest end among them.
    pub(super) fn lost(&self) -> (u64, u64) {
        (self.lost, self.lost_until)
    }

    /// Returns the capacities of all memory.
    #[cfg(test)]
    pub(super) fn room(&self) -> [usize; 4] {
        let Tape { ring, algorithms, calls, steps, .. } = self;
        [ring.capacity(), algorithms.capacity(), calls.capacity(), steps.capacity()]
    }

    /// Returns the time for the end of events that have none.
    pub(super) fn latest(&self) -> u64 {
        self.now
    }
}
