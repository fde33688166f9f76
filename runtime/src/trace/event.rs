//! Events, and their form as words of a ring.
//!
//! An event has the words of one cache line: seven of its own, and the last one for the ring. The first word
//! has a tag in its highest byte. The form is that of rings in files, so a change of it is a new
//! [`FORMAT`](super::ring::FORMAT). Decoding trusts no word.

use crate::call::{CallKind, CallRecord};
use topology::Rank;

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
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

impl StepKind {
    const ALL: [StepKind; 8] = [
        StepKind::Send,
        StepKind::Recv,
        StepKind::RecvReduce,
        StepKind::Copy,
        StepKind::Reduce,
        StepKind::Encode,
        StepKind::Decode,
        StepKind::DecodeReduce,
    ];
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    UnderWay,
    Done,
    Failed,
}

/// A call. Times of events are ticks of the trace's clock as they are recorded, and nanoseconds on the host's
/// monotonic clock as they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallEvent {
    /// The call. Only the lower half of its plan is kept.
    pub(super) record: CallRecord,
    pub(super) bytes: u64,
    pub(super) begin: u64,
    /// 0 while the call is under way.
    pub(super) end: u64,
    pub(super) outcome: CallEnd,
    /// Index among the names of algorithms.
    pub(super) algorithm: u16,
}

/// The call that a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StepCall {
    /// Number of the call; 0 if unknown.
    pub(super) seq: u64,
    /// Whether it is a message and no collective, which are numbered apart.
    pub(super) is_message: bool,
}

/// The message of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepMessage {
    pub(crate) peer: Rank,
    pub(crate) lane: u8,
    /// Position among the messages of the call with this peer, direction and lane.
    pub(crate) index: u32,
}

/// A step: a message or local work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepEvent {
    pub(super) begin: u64,
    /// Time at which the first bytes of a receive arrived; equal to `begin` if they were there, and 0 if they
    /// had not arrived.
    pub(super) arrived: u64,
    /// 0 if the run, or the process, ended before the step did.
    pub(super) end: u64,
    pub(super) bytes: u64,
    pub(super) call: StepCall,
    pub(super) step: u32,
    pub(super) kind: StepKind,
    pub(super) message: Option<StepMessage>,
}

/// A wait for a rank to enter a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryWait {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) peer: Rank,
}

/// A tagged message, from the request to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Call(CallEvent),
    Step(StepEvent),
    EntryWait(EntryWait),
    Tagged(TaggedEvent),
}

/// Identity of an event without an end, and of the later one that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum UnfinishedKey {
    /// Call, step and message.
    Step(StepCall, u32, Option<StepMessage>),
    /// Begin and peer.
    EntryWait(u64, Rank),
}

/// The words of an event.
pub(super) type EventWords = [u64; 7];

/// Index of the word that has the end of an event, for all kinds of events.
pub(super) const END: usize = 3;

/// Position of the tag in the first word.
const TAG: u32 = 56;
/// Tags. A call has its outcome in its tag.
const CALL_UNDER_WAY: u8 = 1;
const CALL_DONE: u8 = 2;
const CALL_FAILED: u8 = 3;
const ENTRY_WAIT: u8 = 4;
const TAGGED_SEND: u8 = 5;
const TAGGED_RECV: u8 = 6;
const CLOCK: u8 = 7;
/// Tag of the first kind of steps.
const STEP: u8 = 8;

/// First word of a pair of the clock, which is no event of the trace.
pub(super) const CLOCK_PAIR: u64 = (CLOCK as u64) << TAG;

/// Flags of a step, beside its number and its lane.
const OF_MESSAGE: u64 = 1 << 40;
const HAS_MESSAGE: u64 = 1 << 41;

/// Position of the algorithm in the first word of a call, above the bits of [`CallRecord::encode`].
const ALGORITHM: u32 = 40;

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Returns the tag of an event's first word.
fn tag_of(first: u64) -> u8 {
    (first >> TAG) as u8
}

/// Whether the first word is that of a call under way.
pub(super) fn is_under_way(first: u64) -> bool {
    tag_of(first) == CALL_UNDER_WAY
}

/// Returns the first word of a call with another outcome.
pub(super) fn with_outcome(first: u64, outcome: CallEnd) -> u64 {
    let tag = match outcome {
        CallEnd::UnderWay => CALL_UNDER_WAY,
        CallEnd::Done => CALL_DONE,
        CallEnd::Failed => CALL_FAILED,
    };
    first & !(0xff << TAG) | u64::from(tag) << TAG
}

impl StepEvent {
    #[inline]
    pub(super) fn encode(&self) -> EventWords {
        let StepEvent { begin, arrived, end, bytes, call, step, kind, message } = *self;
        let of_message = if call.is_message { OF_MESSAGE } else { 0 };
        let first = u64::from(step) | of_message | u64::from(STEP + kind as u8) << TAG;
        match message {
            Some(StepMessage { peer, lane, index }) => {
                let first = first | HAS_MESSAGE | u64::from(lane) << 32;
                let place = u64::from(peer.0) | u64::from(index) << 32;
                [first, begin, arrived, end, bytes, call.seq, place]
            }
            None => [first, begin, arrived, end, bytes, call.seq, 0],
        }
    }

    fn decode(words: EventWords, kind: StepKind) -> StepEvent {
        let [first, begin, arrived, end, bytes, seq, place] = words;
        let message = StepMessage { peer: Rank(place as u32), lane: (first >> 32) as u8, index: high(place) };
        StepEvent {
            begin,
            arrived,
            end,
            bytes,
            call: StepCall { seq, is_message: first & OF_MESSAGE != 0 },
            step: first as u32,
            kind,
            message: (first & HAS_MESSAGE != 0).then_some(message),
        }
    }
}

impl CallEvent {
    #[inline]
    pub(super) fn encode(&self) -> EventWords {
        let [seq, packed, count, root, plan] = self.record.encode();
        let first = with_outcome(packed | u64::from(self.algorithm) << ALGORITHM, self.outcome);
        [first, self.begin, seq, self.end, self.bytes, count, root | plan << 32]
    }

    fn decode(words: EventWords, outcome: CallEnd) -> Option<CallEvent> {
        let [first, begin, seq, end, bytes, count, place] = words;
        let packed = first & ((1 << ALGORITHM) - 1);
        let root = u64::from(place as u32);
        let record = CallRecord::decode([seq, packed, count, root, u64::from(high(place))])?;
        Some(CallEvent { record, bytes, begin, end, outcome, algorithm: (first >> ALGORITHM) as u16 })
    }

    /// Returns the call for its steps.
    pub(super) fn of_steps(record: &CallRecord) -> StepCall {
        StepCall { seq: record.seq, is_message: !matches!(record.kind, CallKind::Collective(_)) }
    }
}

impl Event {
    pub(super) fn encode(&self) -> EventWords {
        match self {
            Event::Call(call) => call.encode(),
            Event::Step(step) => step.encode(),
            Event::EntryWait(EntryWait { begin, end, peer }) => {
                [u64::from(ENTRY_WAIT) << TAG, *begin, 0, *end, 0, 0, u64::from(peer.0)]
            }
            Event::Tagged(TaggedEvent { begin, end, request, is_send, peer, context, tag, bytes }) => {
                let kind = if *is_send { TAGGED_SEND } else { TAGGED_RECV };
                let first = u64::from(*tag as u32) | u64::from(kind) << TAG;
                let place = u64::from(peer.0) | u64::from(*context) << 32;
                [first, *begin, *request, *end, *bytes, 0, place]
            }
        }
    }

    /// Returns the latest time of the event.
    pub(super) fn latest(&self) -> u64 {
        match self {
            Event::Call(CallEvent { begin, end, .. })
            | Event::Step(StepEvent { begin, end, .. })
            | Event::Tagged(TaggedEvent { begin, end, .. })
            | Event::EntryWait(EntryWait { begin, end, .. }) => *begin.max(end),
        }
    }

    /// Returns the event with other times.
    pub(super) fn with_times(self, time: impl Fn(u64) -> u64) -> Event {
        match self {
            Event::Call(call) => {
                Event::Call(CallEvent { begin: time(call.begin), end: time(call.end), ..call })
            }
            Event::Step(step) => Event::Step(StepEvent {
                begin: time(step.begin),
                arrived: time(step.arrived),
                end: time(step.end),
                ..step
            }),
            Event::EntryWait(wait) => {
                Event::EntryWait(EntryWait { begin: time(wait.begin), end: time(wait.end), ..wait })
            }
            Event::Tagged(tagged) => {
                Event::Tagged(TaggedEvent { begin: time(tagged.begin), end: time(tagged.end), ..tagged })
            }
        }
    }

    /// Returns the identity of an event that was recorded before its end; `None` for other kinds.
    pub(super) fn unfinished_key(&self) -> Option<UnfinishedKey> {
        match self {
            Event::Step(StepEvent { call, step, message, .. }) => {
                Some(UnfinishedKey::Step(*call, *step, *message))
            }
            Event::EntryWait(EntryWait { begin, peer, .. }) => Some(UnfinishedKey::EntryWait(*begin, *peer)),
            Event::Call(_) | Event::Tagged(_) => None,
        }
    }

    /// Whether the event has no end.
    pub(super) fn is_unfinished(&self) -> bool {
        matches!(self, Event::Step(StepEvent { end: 0, .. }) | Event::EntryWait(EntryWait { end: 0, .. }))
    }

    /// Decodes an event; `None` if the words hold none.
    pub(super) fn decode(words: EventWords) -> Option<Event> {
        let [first, begin, request, end, bytes, _, place] = words;
        let call = |outcome| CallEvent::decode(words, outcome).map(Event::Call);
        let peer = Rank(place as u32);
        match tag_of(first) {
            CALL_UNDER_WAY => call(CallEnd::UnderWay),
            CALL_DONE => call(CallEnd::Done),
            CALL_FAILED => call(CallEnd::Failed),
            ENTRY_WAIT => Some(Event::EntryWait(EntryWait { begin, end, peer })),
            kind @ (TAGGED_SEND | TAGGED_RECV) => {
                let (is_send, tag) = (kind == TAGGED_SEND, first as u32 as i32);
                let context = high(place);
                Some(Event::Tagged(TaggedEvent { begin, end, request, is_send, peer, context, tag, bytes }))
            }
            tag => {
                let kind = *StepKind::ALL.get(usize::from(tag.checked_sub(STEP)?))?;
                Some(Event::Step(StepEvent::decode(words, kind)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectives::{Codec, Collective, DType, ReduceOp};
    use proptest::prelude::*;

    fn call(outcome: CallEnd) -> CallEvent {
        let record = CallRecord {
            seq: u64::MAX - 1,
            kind: CallKind::Collective(Collective::AllReduce),
            dtype: DType::Bf16,
            op: Some(ReduceOp::Max),
            count: u64::MAX,
            root: Rank(u32::MAX),
            plan: u64::from(u32::MAX),
            uneven: true,
            codec: Some(Codec::ALL[0]),
        };
        CallEvent { record, bytes: 1 << 40, begin: 5, end: 0, outcome, algorithm: u16::MAX }
    }

    #[test]
    fn events_come_back_from_their_words() {
        let message = StepMessage { peer: Rank(1023), lane: 255, index: u32::MAX };
        let mut events = vec![
            Event::EntryWait(EntryWait { begin: 1, end: u64::MAX, peer: Rank(7) }),
            Event::Call(call(CallEnd::UnderWay)),
            Event::Call(call(CallEnd::Done)),
            Event::Call(call(CallEnd::Failed)),
        ];
        for kind in StepKind::ALL {
            for (message, is_message) in [(None, true), (Some(message), false)] {
                let call = StepCall { seq: 1 << 50, is_message };
                let (begin, arrived, end, bytes, step) = (1, 2, 3, u64::MAX, u32::MAX);
                let step = StepEvent { begin, arrived, end, bytes, call, step, kind, message };
                events.push(Event::Step(step));
            }
        }
        for is_send in [true, false] {
            let (begin, end, request, peer) = (9, 10, 11, Rank(3));
            let (context, tag, bytes) = (u32::MAX, -1, 12);
            let message = TaggedEvent { begin, end, request, is_send, peer, context, tag, bytes };
            events.push(Event::Tagged(message));
        }
        for event in events {
            assert_eq!(Event::decode(event.encode()), Some(event));
        }
        assert_eq!(Event::decode([0; 7]), None);
    }

    #[test]
    fn an_outcome_changes_nothing_else_of_a_call() {
        let mut words = call(CallEnd::UnderWay).encode();
        assert!(is_under_way(words[0]));
        words[0] = with_outcome(words[0], CallEnd::Failed);
        assert_eq!(Event::decode(words), Some(Event::Call(call(CallEnd::Failed))));
    }

    proptest! {
        #[test]
        fn any_words_decode_to_an_event_or_to_none(words: EventWords) {
            if let Some(event) = Event::decode(words) {
                prop_assert_eq!(Event::decode(event.encode()), Some(event));
            }
        }
    }
}
