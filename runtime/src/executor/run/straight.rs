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
    program::{Op, OpKind, Program, Straight, StraightStep, Stream},
    run::Stop,
    sink::{Combine, CopySink, EmptySink, ReduceSink, Writes},
};
use topology::Rank;
use transport::{
    Link, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError, memory::SpanMut,
    ring::end_speculation,
};

/// Fruitless polls for a message before the run goes on as any other.
const POLLS: u32 = 300;

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
    pub(super) fn run_straight(&mut self, straight: &Straight, spins: bool) -> Result<Option<Partial>, Stop> {
        let binding = &self.bindings[0];
        let mut partial = Partial::default();
        let mut sent_bytes = 0;
        for StraightStep { step, op, stream } in &straight.sends {
            let Some((number, stream)) = stream else { continue };
            let src = binding.source(&op.a);
            sent_bytes = src.len();
            self.observer.polled(*step);
            let link = link(self.links, stream);
            let of = (self.program, binding);
            let mut state = begun(of, self.slab, &self.protocols, link.as_ref(), (src, op.a.buffer));
            if !straight.receives {
                state = state.awaited();
            }
            let sent = link.poll_send(&mut state, src);
            if sent.map_err(|error| failed(self.program, *step, stream.peer, error))?
                != SendProgress::Complete
            {
                partial.send = Some((*step, state));
                return Ok(Some(partial));
            }
            self.observer.message(self.program, binding, *number as usize, stream.first);
            partial.done |= 1 << step;
        }
        for StraightStep { step, op, stream } in &straight.steps {
            self.observer.polled(*step);
            if let Some((number, stream)) = stream {
                let at = (*step, op, *number, stream);
                partial.recv = self.run_receive(binding, at, (spins, straight.sends.is_empty()))?;
                if partial.recv.is_some() {
                    // A message without a byte so far begins anew.
                    partial.recv = partial.recv.filter(|(_, state)| state.received() > 0);
                    return Ok(Some(partial));
                }
            } else {
                compute(binding, op);
                self.observer.local(self.program, binding, *step);
            }
            partial.done |= 1 << step;
        }
        // The next messages are taken for ones as long as the last one. Ranks that share cores run in turns:
        // the peer may wait for the next call already.
        if straight.receives && spins {
            for (_, stream) in straight.sends.iter().filter_map(|send| send.stream.as_ref()) {
                link(self.links, stream).prepare_send(sent_bytes);
            }
        }
        Ok(None)
    }

    /// Receives the message of a stream. Returns its state if it does not come soon.
    #[inline(always)]
    fn run_receive(
        &mut self,
        binding: &Binding<'_>,
        (step, op, number, stream): (u32, &Op, u32, &Stream),
        (spins, is_reply): (bool, bool),
    ) -> Result<Option<(u32, RecvState)>, Stop> {
        let dst = binding.target(&op.dst);
        let mut state = self.fresh(binding, dst.len());
        let link = link(self.links, stream).as_mut();
        if spins && is_reply {
            link.await_reply(dst.len());
        }
        let observer = &mut self.observer;
        let received = with_sink(binding, op, dst, |sink| {
            let mut polls = 0;
            loop {
                match link.poll_recv(&mut state, sink)? {
                    RecvProgress::Complete => return Ok(true),
                    RecvProgress::Idle => {
                        observer.waits(step);
                        if !spins || polls == POLLS {
                            return Ok(false);
                        }
                        observer.idle();
                        end_speculation();
                        polls += 1;
                    }
                    RecvProgress::Advanced => {
                        observer.advanced(step);
                        if !spins {
                            return Ok(false);
                        }
                        polls = 0;
                    }
                }
            }
        });
        if !received.map_err(|error| failed(self.program, step, stream.peer, error))? {
            return Ok(Some((number, state)));
        }
        self.observer.message(self.program, binding, number as usize, stream.first);
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
    with_sink(binding, op, binding.target(&op.dst), |sink| link.poll_recv(state, sink))
}

/// Calls `poll` with the sink of a receive whose destination is `dst`.
#[inline(always)]
fn with_sink<R>(
    binding: &Binding<'_>,
    op: &Op,
    dst: SpanMut<'_>,
    poll: impl FnOnce(&mut dyn Sink) -> R,
) -> R {
    let combine: Option<Combine<'_>> =
        if op.kind == OpKind::RecvReduce { combine(binding, op) } else { None };
    let writes = writes(binding, op);
    match (op.kind, combine) {
        (OpKind::Recv, _) => poll(&mut CopySink::new(dst, writes)),
        (_, Some(combine)) => poll(&mut ReduceSink { combine, writes, local: binding.source(&op.a), dst }),
        (_, None) => poll(&mut EmptySink),
    }
}

/// Carries out a local step that neither packs nor unpacks.
#[inline(always)]
pub(super) fn compute(binding: &Binding<'_>, op: &Op) {
    let dst = binding.target(&op.dst);
    let writes = writes(binding, op);
    if op.kind == OpKind::Copy {
        CopySink::new(dst, writes).write(0, binding.source(&op.a));
    } else if let Some(combine) = combine(binding, op) {
        combine.apply_by(writes, dst, binding.source(&op.a), binding.source(&op.b));
    }
}

/// Returns how a step writes.
#[inline(always)]
fn writes(binding: &Binding<'_>, op: &Op) -> Writes {
    if op.writes_result { binding.results } else { Writes::Cached }
}

#[cold]
fn failed(program: &Program, step: u32, peer: Rank, error: TransportError) -> Stop {
    Stop::Link { step: program.describe(step, peer), peer, error }
}
