//! Straight programs with the byte ranges of calls of one size.
//!
//! The instructions of a small call are most of its time, and its ranges are the same each time. So they are
//! calculated once per kind and size of call, and kept with the plan.

use super::{
    constants::{CallConstants, Range},
    program::{OpKind, Program, StraightStep, Stream},
    protocols::Protocols,
    sink::Writes,
};

/// A straight program for calls of one kind and size.
#[derive(Clone, Debug)]
pub(crate) struct SizedStraight {
    /// The sends, one for each of the first streams.
    pub(super) sends: Box<[SizedSend]>,
    /// The other steps, in order.
    pub(super) steps: Box<[SizedStep]>,
    /// Whether one of them is a receive.
    pub(super) receives: bool,
    /// Bytes of the last send.
    pub(super) sent_bytes: usize,
    /// Bytes of the only send, if there is one, and the only receive is of the same link.
    pub(super) exchanged_bytes: Option<usize>,
}

/// A send, which begins the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizedSend {
    pub(super) step: u32,
    /// The number of its stream, and the stream.
    pub(super) number: u32,
    pub(super) stream: Stream,
    pub(super) src: Range,
    /// Whether it is copied wherever its bytes are.
    pub(super) is_copied: bool,
}

/// A step that does not send.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizedStep {
    pub(super) step: u32,
    pub(super) kind: OpKind,
    /// The number of the stream of a receive, and the stream; `None` for a local step.
    pub(super) stream: Option<(u32, Stream)>,
    pub(super) dst: Range,
    pub(super) a: Range,
    pub(super) b: Range,
    /// The result is complete: an average divides.
    pub(super) last: bool,
    pub(super) writes: Writes,
}

impl SizedStraight {
    /// Returns the ranges of a straight program; `None` for another program.
    pub(crate) fn new(
        program: &Program,
        constants: &CallConstants,
        protocols: &Protocols,
    ) -> Option<SizedStraight> {
        let straight = program.straight.as_ref()?;
        let send = |&StraightStep { step, stream }: &StraightStep| {
            let src = constants.range(&program.ops[step as usize].a);
            let size = constants.size_of(protocols, src.len);
            let is_copied = protocols.always_copies(size, constants.counted(src.len));
            stream.map(|(number, stream)| SizedSend { step, number, stream, src, is_copied })
        };
        let sized = |&StraightStep { step, stream }: &StraightStep| {
            let op = &program.ops[step as usize];
            let [dst, a, b] = [op.dst, op.a, op.b].map(|run| constants.range(&run));
            let writes = if op.writes_result { constants.results } else { Writes::Cached };
            SizedStep { step, kind: op.kind, stream, dst, a, b, last: op.last, writes }
        };
        let sends: Box<[_]> = straight.sends.iter().filter_map(send).collect();
        let steps: Box<[_]> = straight.steps.iter().map(sized).collect();
        let mut receives = steps.iter().filter_map(|step| step.stream);
        let received = receives.next().filter(|_| receives.next().is_none());
        let exchanged_bytes = match (&*sends, received) {
            ([sent], Some((_, stream))) if sent.stream.link == stream.link => Some(sent.src.len),
            _ => None,
        };
        Some(SizedStraight {
            sent_bytes: sends.last().map_or(0, |send| send.src.len),
            sends,
            steps,
            receives: straight.receives,
            exchanged_bytes,
        })
    }
}
