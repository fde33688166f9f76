//! The recording of a rank: its ring of events, and the calls and steps under way.
//!
//! The clock is read once per completed step, and in waits after a few polls. A step begins when it is first
//! polled, and takes the time of the latest reading for that: nothing has completed since. Times are ticks of
//! [`EventClock`].

use super::{
    clock::{EventClock, PairTimer},
    event::{
        CLOCK_PAIR, CallEnd, CallEvent, END, EntryWait, Event, EventWords, StepCall, StepEvent, StepKind,
        StepMessage, TaggedEvent, with_outcome,
    },
    ring::{Content, Overwritten, Ring, is_open_call},
};
use crate::call::CallRecord;
use topology::Rank;

/// Short polls that find nothing from one reading of the clock to the next. Reading it costs about as much as
/// such a poll, and would end waits later.
const IDLE_POLLS: u32 = 4;
/// Nanoseconds between two readings from which polls are long: the rank yields its core, or sleeps.
const LONG_POLLS_NANOS: u64 = 2_000;

/// A step under way. Times are 0 before they are known.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    begin: u64,
    arrived: u64,
    /// Whether a poll found nothing.
    waits: bool,
    /// Whether the ring has the step without its end.
    is_open: bool,
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

/// A call of the latest run.
#[derive(Clone, Copy, Debug)]
struct RunCall {
    /// Number of its event.
    number: u64,
    of_steps: StepCall,
}

/// The recording of a rank.
#[derive(Debug)]
pub(crate) struct Tape {
    ring: Ring,
    clock: EventClock,
    /// Tells when the ring gets the next pair of the clock.
    pairs: PairTimer,
    /// Names of algorithms.
    algorithms: Vec<String>,
    /// Calls of the latest run.
    calls: Vec<RunCall>,
    /// Calls of the run that its steps have overwritten, because it has more events than the ring. They are
    /// written again at the end of the run.
    overwritten: Vec<Overwritten>,
    /// Steps of the run, by index.
    steps: Vec<Progress>,
    /// Latest reading of the clock.
    now: u64,
    /// Number of the event that follows those of the latest long wait; 0 before the first.
    recorded_wait: u64,
    /// Polls that have to find nothing before the next reading in a wait.
    idle_polls_left: u32,
    /// Ticks between two readings from which polls are long.
    long_polls: u64,
    /// Lanes between two ranks.
    lanes: u8,
}

impl Tape {
    pub(super) fn new(ring: Ring, clock: EventClock, lanes: u8) -> Tape {
        Tape {
            ring,
            clock,
            pairs: PairTimer::new(clock),
            algorithms: Vec::new(),
            calls: Vec::new(),
            overwritten: Vec::new(),
            steps: Vec::new(),
            now: 0,
            recorded_wait: 0,
            idle_polls_left: 1,
            long_polls: clock.ticks(LONG_POLLS_NANOS),
            lanes,
        }
    }

    /// Returns the lanes between two ranks.
    pub(crate) fn lanes(&self) -> u32 {
        u32::from(self.lanes)
    }

    /// Begins a run of `steps` steps. Room for more steps than any run before is allocated here.
    pub(crate) fn begin_run(&mut self, steps: usize) {
        self.calls.clear();
        self.steps.clear();
        self.steps.resize(steps, Progress::default());
        self.now = self.clock.now();
    }

    /// Relates the clock to the host's in the ring, if that was done long ago.
    #[inline]
    pub(crate) fn relate_clock(&mut self) {
        if self.pairs.is_due(self.now)
            && let Some(pair) = self.pairs.take(self.clock)
        {
            self.push(&pair.encode(CLOCK_PAIR));
        }
    }

    /// Begins a call of the run.
    pub(crate) fn begin_call(&mut self, record: &CallRecord, bytes: usize, algorithm: &str) {
        let algorithm = self.algorithm(algorithm);
        let (begin, bytes) = (self.now, bytes as u64);
        let outcome = CallEnd::UnderWay;
        let call = CallEvent { record: *record, bytes, begin, end: 0, outcome, algorithm };
        let number = self.push(&call.encode());
        self.calls.push(RunCall { number, of_steps: CallEvent::of_steps(record) });
    }

    fn algorithm(&mut self, name: &str) -> u16 {
        let known = self.algorithms.iter().position(|known| known == name);
        let index = known.unwrap_or_else(|| {
            self.algorithms.push(name.to_owned());
            self.ring.add_name(name);
            self.algorithms.len() - 1
        });
        index.try_into().unwrap_or(u16::MAX)
    }

    /// Returns the names of algorithms.
    pub(super) fn algorithms(&self) -> &[String] {
        &self.algorithms
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
            let before = self.now;
            self.now = self.clock.now().max(before);
            let is_long = self.now - before >= self.long_polls;
            self.idle_polls_left = if is_long { 1 } else { IDLE_POLLS };
        }
    }

    /// Records the end of a step.
    #[inline]
    pub(crate) fn complete(&mut self, facts: &StepFacts) {
        self.polled(facts.at);
        self.advanced(facts.at);
        // Only the end of a receive is compared with times of another rank that must be earlier.
        let receives = matches!(facts.kind, StepKind::Recv | StepKind::RecvReduce);
        let now = if receives { self.clock.now_after_loads() } else { self.clock.now() };
        // A reading need not come after one that precedes it in the program.
        self.now = now.max(self.now);
        self.end_step(facts, self.now);
    }

    fn end_step(&mut self, facts: &StepFacts, end: u64) {
        let StepFacts { at, step, call, kind, bytes, message } = *facts;
        let Progress { begin, arrived, .. } = std::mem::take(&mut self.steps[at as usize]);
        let call = self.of_steps(call);
        self.push(&StepEvent { begin, arrived, end, bytes, call, step, kind, message }.encode());
    }

    /// Returns a call of the run for its steps.
    #[inline]
    fn of_steps(&self, call: u16) -> StepCall {
        let unknown = StepCall { seq: 0, is_message: false };
        self.calls.get(usize::from(call)).map_or(unknown, |call| call.of_steps)
    }

    /// Records a step that the end of a failed run has cut off. Steps that had not begun are not recorded.
    pub(crate) fn cut_off(&mut self, facts: &StepFacts) {
        let step = &mut self.steps[facts.at as usize];
        if step.begin != 0 {
            step.arrived = if step.arrived == 0 { self.now } else { step.arrived };
            self.end_step(facts, 0);
        }
    }

    /// Records that a wait has become long, and still lasts. Returns whether the steps under way are to be
    /// recorded, which they are once until an event follows.
    pub(crate) fn begins_long_wait(&mut self) -> bool {
        self.now = self.clock.now().max(self.now);
        self.ring.set_waited_until(self.now);
        self.ring.next() != self.recorded_wait
    }

    /// Records a step under way without its end, for the reader of a killed rank's ring. A later event of the
    /// step takes its place.
    pub(crate) fn open(&mut self, facts: &StepFacts) {
        let StepFacts { at, step, call, kind, bytes, message } = *facts;
        let Progress { begin, arrived, is_open, .. } = self.steps[at as usize];
        if begin != 0 && !is_open {
            self.steps[at as usize].is_open = true;
            let call = self.of_steps(call);
            self.push(&StepEvent { begin, arrived, end: 0, bytes, call, step, kind, message }.encode());
        }
    }

    /// Records that the ring has the steps of the present wait.
    pub(crate) fn wait_is_recorded(&mut self) {
        self.recorded_wait = self.ring.next();
    }

    /// Records a long wait for a rank to enter the calls of the run, which lasts since `begin`.
    pub(crate) fn waits_for_entry(&mut self, peer: Rank, begin: u64) {
        if self.begins_long_wait() {
            self.push(&Event::EntryWait(EntryWait { begin, end: 0, peer }).encode());
            self.wait_is_recorded();
        }
    }

    /// Ends the calls of the run. A run that is done ends with its last step, whose end has just been read.
    pub(crate) fn end_run(&mut self, outcome: CallEnd) {
        if outcome != CallEnd::Done {
            self.now = self.clock.now().max(self.now);
        }
        for at in 0..self.calls.len() {
            let number = self.calls[at].number;
            if self.ring.set_end(number, self.now) {
                self.ring.set_outcome(number, outcome);
            }
        }
        if !self.overwritten.is_empty() {
            self.write_again(outcome);
        }
    }

    /// Writes the calls again that the steps of the run have overwritten.
    #[cold]
    fn write_again(&mut self, outcome: CallEnd) {
        for Overwritten { number, mut words } in std::mem::take(&mut self.overwritten) {
            (words[0], words[END]) = (with_outcome(words[0], outcome), self.now);
            let again = self.push(&words);
            if let Some(call) = self.calls.iter_mut().find(|call| call.number == number) {
                call.number = again;
            }
        }
    }

    /// Returns the time at which a wait begins after the run, which is no earlier than its end.
    pub(crate) fn begin_wait(&mut self) -> u64 {
        self.now = self.clock.now().max(self.now);
        self.now
    }

    /// Records a wait, since `begin`, for a rank to enter the calls of the run, which it makes longer.
    pub(crate) fn waited_for_entry(&mut self, peer: Rank, begin: u64) {
        let end = self.clock.now_after_loads();
        self.push(&Event::EntryWait(EntryWait { begin, end, peer }).encode());
        self.now = end;
        for call in &self.calls {
            self.ring.set_end(call.number, end);
        }
    }

    /// Records a tagged message that is complete.
    pub(crate) fn tagged(&mut self, message: TaggedEvent) {
        self.now = self.now.max(message.end);
        self.push(&Event::Tagged(message).encode());
    }

    /// Records that the calls of the run have failed after their last step.
    pub(crate) fn calls_failed(&mut self) {
        for call in &self.calls {
            self.ring.set_outcome(call.number, CallEnd::Failed);
        }
    }

    #[inline]
    fn push(&mut self, words: &EventWords) -> u64 {
        if let Some(oldest) = self.ring.oldest() {
            self.ring.lose(oldest.words[END]);
            if is_open_call(&oldest.words) {
                self.keep(oldest);
            }
        }
        self.ring.push(words)
    }

    #[cold]
    fn keep(&mut self, call: Overwritten) {
        self.overwritten.push(call);
    }

    /// Returns the events and their loss.
    pub(super) fn content(&self) -> Content {
        self.ring.content(self.clock.pair())
    }

    /// Returns the capacities of all memory beside the ring.
    #[cfg(test)]
    pub(super) fn room(&self) -> [usize; 4] {
        let Tape { algorithms, calls, steps, overwritten, .. } = self;
        [algorithms.capacity(), calls.capacity(), steps.capacity(), overwritten.capacity()]
    }

    /// Returns the time for the end of events that have none.
    pub(super) fn latest(&self) -> u64 {
        self.now
    }
}
