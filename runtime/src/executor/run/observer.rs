//! Observers of runs: nothing, or the recording of a trace.
//!
//! A run has its observer as a type parameter, so that a run without a trace has no code for one.

use super::super::{
    binding::Binding,
    program::{Op, OpKind, Program},
};
use crate::{
    call::CallRecord,
    trace::{CallEnd, StepFacts, StepKind, StepMessage, Tape, Trace},
};
use std::sync::MutexGuard;

/// Receives the progress of the steps of a run.
pub(super) trait Observer {
    /// A step is polled.
    #[inline(always)]
    fn polled(&mut self, _step: u32) {}

    /// A poll of a receive has found nothing.
    #[inline(always)]
    fn waits(&mut self, _step: u32) {}

    /// Bytes of a message have moved.
    #[inline(always)]
    fn advanced(&mut self, _step: u32) {}

    /// The message at a position of a stream is complete.
    #[inline(always)]
    fn message(&mut self, _program: &Program, _binding: &Binding<'_>, _stream: usize, _position: u32) {}

    /// A local step is complete.
    #[inline(always)]
    fn local(&mut self, _program: &Program, _binding: &Binding<'_>, _step: u32) {}

    /// No step has moved.
    #[inline(always)]
    fn idle(&mut self) {}

    /// No step has moved for some milliseconds.
    #[inline(always)]
    fn waits_long(&mut self, _program: &Program, _bindings: &[Binding<'_>]) {}
}

/// The observer of a run without a trace.
pub(super) struct Unobserved;

impl Observer for Unobserved {}

/// The recording of a run. The tape is locked while the run lasts.
pub(super) struct Recording<'t> {
    tape: MutexGuard<'t, Tape>,
}

impl<'t> Recording<'t> {
    /// Begins the recording of a run. `records` and `bindings` belong to the same calls, in order.
    pub(super) fn begin(
        trace: &'t Trace,
        program: &Program,
        bindings: &[Binding<'_>],
        records: &[CallRecord],
    ) -> Recording<'t> {
        let mut tape = trace.tape();
        tape.begin_run(program.ops.len());
        tape.relate_clock();
        for (at, (record, binding)) in records.iter().zip(bindings).enumerate() {
            let algorithm = program.parts.get(at).map_or(&program.algorithm, |(_, algorithm)| algorithm);
            tape.begin_call(record, binding.input.len().max(binding.output.len()), algorithm);
        }
        Recording { tape }
    }

    /// Ends the recording. Messages that a failed run has begun are recorded without an end.
    pub(super) fn end(mut self, program: &Program, bindings: &[Binding<'_>], is_ok: bool) {
        if is_ok {
            return self.tape.end_run(CallEnd::Done);
        }
        self.for_each_message(program, bindings, Tape::cut_off);
        self.tape.end_run(CallEnd::Failed);
    }

    /// Calls `record` with the tape and the facts of each message of the program.
    fn for_each_message(
        &mut self,
        program: &Program,
        bindings: &[Binding<'_>],
        record: impl Fn(&mut Tape, &StepFacts),
    ) {
        for (at, stream) in program.streams.iter().enumerate() {
            for position in stream.first..stream.end {
                let op = &program.ops[program.order[position as usize] as usize];
                let binding = &bindings[usize::from(op.call)];
                let facts = message_facts(program, binding, at, position, self.tape.lanes());
                record(&mut self.tape, &facts);
            }
        }
    }
}

impl Observer for &mut Recording<'_> {
    #[inline]
    fn polled(&mut self, step: u32) {
        self.tape.polled(step);
    }

    #[inline]
    fn waits(&mut self, step: u32) {
        self.tape.waits(step);
    }

    #[inline]
    fn advanced(&mut self, step: u32) {
        self.tape.advanced(step);
    }

    #[inline]
    fn message(&mut self, program: &Program, binding: &Binding<'_>, stream: usize, position: u32) {
        let facts = message_facts(program, binding, stream, position, self.tape.lanes());
        self.tape.complete(&facts);
    }

    #[inline]
    fn local(&mut self, program: &Program, binding: &Binding<'_>, step: u32) {
        self.tape.complete(&facts(program, binding, step, None));
    }

    #[inline]
    fn idle(&mut self) {
        self.tape.idle();
    }

    #[cold]
    fn waits_long(&mut self, program: &Program, bindings: &[Binding<'_>]) {
        if self.tape.begins_long_wait() {
            self.for_each_message(program, bindings, Tape::open);
            self.tape.wait_is_recorded();
        }
    }
}

/// Returns the facts of a message, by its position in the program's order.
fn message_facts(
    program: &Program,
    binding: &Binding<'_>,
    at: usize,
    position: u32,
    lanes: u32,
) -> StepFacts {
    let stream = &program.streams[at];
    let step = program.order[position as usize];
    let message = StepMessage {
        peer: stream.peer,
        // A remainder by multiplication: links are numbered by peer, then by lane.
        lane: (stream.link - stream.peer.0 * lanes) as u8,
        index: index_in_call(program, stream.first, position),
    };
    facts(program, binding, step, Some(message))
}

/// Returns the position of a message among those of its call in its stream.
fn index_in_call(program: &Program, first: u32, position: u32) -> u32 {
    if program.parts.is_empty() {
        return position - first;
    }
    let call = |at: &u32| program.ops[*at as usize].call;
    let of_stream = &program.order[first as usize..position as usize];
    let own = call(&program.order[position as usize]);
    of_stream.iter().rev().take_while(|at| call(at) == own).count() as u32
}

fn facts(program: &Program, binding: &Binding<'_>, at: u32, message: Option<StepMessage>) -> StepFacts {
    let op = &program.ops[at as usize];
    let first = program.parts.get(usize::from(op.call)).map_or(0, |(first, _)| *first);
    StepFacts {
        at,
        step: at - first,
        call: op.call,
        kind: kind_of(op),
        bytes: if op.kind == OpKind::Send {
            binding.source(&op.a).len()
        } else {
            binding.target(&op.dst).len()
        } as u64,
        message,
    }
}

fn kind_of(op: &Op) -> StepKind {
    match op.kind {
        OpKind::Send => StepKind::Send,
        OpKind::Recv => StepKind::Recv,
        OpKind::RecvReduce => StepKind::RecvReduce,
        OpKind::Copy => StepKind::Copy,
        OpKind::Reduce => StepKind::Reduce,
        OpKind::Encode => StepKind::Encode,
        OpKind::Decode => StepKind::Decode,
        OpKind::DecodeReduce => StepKind::DecodeReduce,
    }
}
