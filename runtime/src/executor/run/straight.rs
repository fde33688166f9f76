//! Runs of straight programs, in which all sends come first and each stream has one message: an `all_reduce`
//! in one stage, a direct `all_gather`, a barrier of two ranks.
//!
//! Their steps are taken in order, each until it is complete, without the bookkeeping of steps that wait for
//! each other. That saves a quarter of the instructions of a small call. Where a send finds no room, or a
//! message does not come soon and in one piece, the run goes on as any other.
//!
//! No rank waits for another one's receive here, since its sends are complete before its first receive.

use super::{Run, combine, following::begun, link, observer::Observer};
use crate::executor::{
    binding::Binding,
    program::{Op, OpKind, Program, Straight},
    run::Stop,
    sink::{Combine, CopySink, EmptySink, ReduceSink},
};
use topology::Rank;
use transport::{Link, RecvProgress, RecvState, SendProgress, SendState, TransportError};

/// Fruitless polls for a message before the run goes on as any other.
const POLLS: u32 = 100;

/// The steps and messages of a straight run that goes on as any other.
#[derive(Default)]
pub(super) struct Partial {
    /// The complete steps, one bit each.
    done: u64,
    /// The send that is not complete.
    send: Option<(u32, SendState)>,
    /// The receive that is not complete, by its stream.
    recv: Option<(u32, RecvState)>,
}

impl<const ANNOUNCES: bool, const GROUPED: bool, O: Observer> Run<'_, '_, ANNOUNCES, GROUPED, O> {
    /// Runs a straight program. Returns what it has done if that is not all.
    #[inline(always)]
    pub(super) fn run_straight(
        &mut self,
        straight: &[Straight],
        spins: bool,
    ) -> Result<Option<Partial>, Stop> {
        let binding = &self.bindings[0];
        let mut partial = Partial::default();
        let receives = straight.iter().any(|step| step.stream.is_some());
        for (at, stream) in self.program.streams.iter().take_while(|stream| stream.sends).enumerate() {
            let step = self.program.order[stream.first as usize];
            let source = &self.program.ops[step as usize].a;
            let src = binding.source(source);
            self.observer.polled(step);
            let link = link(self.links, stream);
            let mut state = begun(binding, self.slab, &self.protocols, link.as_ref(), (src, source.buffer));
            if !receives {
                state = state.awaited();
            }
            let sent = link.poll_send(&mut state, src);
            if sent.map_err(|error| failed(self.program, step, stream.peer, error))? != SendProgress::Complete
            {
                partial.send = Some((step, state));
                return Ok(Some(partial));
            }
            self.observer.message(self.program, binding, at, stream.first);
            partial.done |= 1 << step;
        }
        for Straight { step, stream } in straight {
            let op = &self.program.ops[*step as usize];
            self.observer.polled(*step);
            if let Some(number) = stream {
                let stream = &self.program.streams[*number as usize];
                let dst = binding.target(&op.dst);
                let mut state = self.fresh(binding, dst.len());
                let mut polls = 0;
                loop {
                    let link = link(self.links, stream);
                    let received = receive(link.as_mut(), binding, op, &mut state);
                    match received.map_err(|error| failed(self.program, *step, stream.peer, error))? {
                        RecvProgress::Complete => break,
                        RecvProgress::Idle if spins && polls < POLLS => {
                            self.observer.waits(*step);
                            self.observer.idle();
                            polls += 1;
                        }
                        RecvProgress::Advanced if spins => {
                            self.observer.advanced(*step);
                            polls = 0;
                        }
                        progress => {
                            if progress == RecvProgress::Advanced {
                                self.observer.advanced(*step);
                            } else {
                                self.observer.waits(*step);
                            }
                            partial.recv = (state.received() > 0).then_some((*number, state));
                            return Ok(Some(partial));
                        }
                    }
                }
                self.observer.message(self.program, binding, *number as usize, stream.first);
            } else {
                compute(binding, op);
                self.observer.local(self.program, binding, *step);
            }
            partial.done |= 1 << step;
        }
        Ok(None)
    }

    /// Enters how far a straight run has come into the workspace, which has begun the program.
    #[cold]
    pub(super) fn take_over(&mut self, partial: &Partial) {
        for (at, stream) in self.program.streams.iter().enumerate() {
            let step = self.program.order[stream.first as usize];
            if partial.done >> step & 1 != 0 {
                self.workspace.pass(at, stream.end);
            }
        }
        for step in (0..self.program.ops.len() as u32).filter(|step| partial.done >> step & 1 != 0) {
            self.workspace.complete(self.program, step);
        }
        self.workspace.ready.retain(|step| partial.done >> step & 1 == 0);
        if let Some((step, state)) = &partial.send {
            self.workspace.sends[*step as usize] = Some(*state);
        }
        if let Some((stream, state)) = partial.recv {
            self.workspace.keep_recv_state(stream as usize, state);
        }
    }
}

/// Polls the message of a receive.
#[inline(always)]
pub(super) fn receive(
    link: &mut dyn Link,
    binding: &Binding<'_>,
    op: &Op,
    state: &mut RecvState,
) -> Result<RecvProgress, TransportError> {
    let dst = binding.target(&op.dst);
    let combine: Option<Combine<'_>> =
        if op.kind == OpKind::RecvReduce { combine(binding, op) } else { None };
    match (op.kind, combine) {
        (OpKind::Recv, _) => link.poll_recv(state, &mut CopySink(dst)),
        (_, Some(combine)) => {
            let local = binding.source(&op.a);
            link.poll_recv(state, &mut ReduceSink { combine, local, dst })
        }
        (_, None) => link.poll_recv(state, &mut EmptySink),
    }
}

/// Carries out a local step that neither packs nor unpacks.
#[inline(always)]
pub(super) fn compute(binding: &Binding<'_>, op: &Op) {
    let dst = binding.target(&op.dst);
    if op.kind == OpKind::Copy {
        dst.copy_from(binding.source(&op.a));
    } else if let Some(combine) = combine(binding, op) {
        combine.apply(dst, binding.source(&op.a), binding.source(&op.b));
    }
}

#[cold]
fn failed(program: &Program, step: u32, peer: Rank, error: TransportError) -> Stop {
    Stop::Link { step: program.describe(step, peer), peer, error }
}
