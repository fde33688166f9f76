//! Runs of straight programs, in which all sends come first and each stream has one message: an `all_reduce`
//! in one stage, a direct `all_gather`, a barrier of two ranks.
//!
//! Their steps are taken in order, each until it is complete, without the bookkeeping of steps that wait for
//! each other. That saves a quarter of the instructions of a small call. Where a send finds no room, or a
//! message does not come soon and in one piece, the run goes on as any other.
//!
//! The byte ranges of the steps are those that were calculated for calls of this size ([`SizedStraight`]).
//!
//! No rank waits for another one's receive here, since its sends are complete before its first receive.

use super::{Executor, Run, combine, following::begun, link, observer::Observer};
use crate::executor::{
    binding::Binding,
    program::{Op, OpKind, Program, Straight, Stream},
    run::Stop,
    sink::{Combine, CopySink, EmptySink, ReduceSink, Writes},
    sized::{SizedSend, SizedStep, SizedStraight},
};
use topology::Rank;
use transport::{
    Link, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    memory::{Span, SpanMut},
    ring::end_speculation,
};

/// Fruitless polls for a message before the run goes on as any other.
pub(super) const POLLS: u32 = 300;

/// How many of its sends, and of its other steps, a straight program has completed, in order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(in crate::executor) sends: usize,
    pub(in crate::executor) steps: usize,
    /// Whether the message of the next step has been waited for in vain.
    pub(in crate::executor) is_late: bool,
}

impl Done {
    /// Returns what a complete run has done.
    pub(crate) fn all(binding: &Binding<'_>) -> Done {
        let (sends, steps) = binding.straight.map_or((0, 0), |all| (all.sends.len(), all.steps.len()));
        Done { sends, steps, is_late: false }
    }
}

/// The steps and messages of a straight run that goes on as any other.
#[derive(Default)]
pub(super) struct Partial {
    done: Done,
    /// The send that is not complete.
    send: Option<(u32, SendState)>,
    /// The receive that is not complete, by its stream.
    recv: Option<(u32, RecvState)>,
}

impl Partial {
    /// Returns the state of a run that has come so far in brief messages.
    pub(super) fn of(done: Done) -> Partial {
        Partial { done, ..Partial::default() }
    }

    /// Returns the complete steps of a program, one bit each.
    fn steps(&self, straight: &Straight) -> u64 {
        let (sends, steps) = (&straight.sends[..self.done.sends], &straight.steps[..self.done.steps]);
        sends.iter().chain(steps).fold(0, |bits, step| bits | 1 << step.step)
    }
}

impl Executor {
    /// Runs a straight program. Returns whether it is complete, or leaves in `partial` what it has done.
    #[inline(always)]
    pub(super) fn run_straight<O: Observer>(
        &mut self,
        program: &Program,
        (binding, straight): (&Binding<'_>, &SizedStraight),
        partial: &mut Partial,
        observer: &mut O,
    ) -> Result<bool, Stop> {
        let spins = self.wait.spin_polls > 0;
        for SizedSend { step, number, stream, src, .. } in &straight.sends[partial.done.sends..] {
            observer.polled(*step);
            let bytes = binding.source_range(src);
            let link = link(&mut self.links, stream).as_mut();
            let mut state = begun((program, binding), &self.slab, &self.protocols, link, (bytes, src.buffer));
            let sent = link.poll_send(&mut state, bytes);
            if sent.map_err(|error| failed(program, *step, stream.peer, error))? != SendProgress::Complete {
                partial.send = Some((*step, state));
                return Ok(false);
            }
            observer.message(program, binding, *number as usize, stream.first);
            partial.done.sends += 1;
        }
        for step in &straight.steps[partial.done.steps..] {
            observer.polled(step.step);
            if let Some((number, stream)) = &step.stream {
                let is_reply = straight.sends.is_empty();
                let len = step.dst.len;
                let size = binding.constants.size_of(&self.protocols, len);
                let mut state = RecvState::new(binding.digest, len).with_size(size);
                let at = (step, *number, stream);
                if !self.run_receive(program, binding, at, &mut state, (spins, is_reply), observer)? {
                    // A message without a byte so far begins anew.
                    partial.recv = (state.received() > 0).then_some((*number, state));
                    return Ok(false);
                }
            } else {
                compute_step(binding, step);
                observer.local(program, binding, step.step);
            }
            partial.done.steps += 1;
        }
        self.prepare_next(straight);
        Ok(true)
    }

    /// Prepares for the messages of the next call, which are taken for ones as long as the last one. Ranks
    /// that share cores run in turns: the peer may wait for the next call already.
    #[inline(always)]
    pub(super) fn prepare_next(&mut self, straight: &SizedStraight) {
        if straight.receives && self.wait.spin_polls > 0 {
            for send in &straight.sends {
                link(&mut self.links, &send.stream).prepare_send(straight.sent_bytes);
            }
        }
    }

    /// Receives the message of a stream. Returns whether it came soon.
    #[inline(always)]
    fn run_receive<O: Observer>(
        &mut self,
        program: &Program,
        binding: &Binding<'_>,
        (step, number, stream): (&SizedStep, u32, &Stream),
        state: &mut RecvState,
        (spins, is_reply): (bool, bool),
        observer: &mut O,
    ) -> Result<bool, Stop> {
        let dst = binding.target_range(&step.dst);
        let link = link(&mut self.links, stream).as_mut();
        if spins && is_reply {
            link.await_reply(dst.len());
        }
        let combine = || combine(binding.constants, step.last);
        let local = || binding.source_range(&step.a);
        let received = with_sink((step.kind, step.writes), combine, dst, local, |sink| {
            let mut polls = 0;
            loop {
                match link.poll_recv(state, sink)? {
                    RecvProgress::Complete => return Ok(true),
                    RecvProgress::Idle => {
                        observer.waits(step.step);
                        if !spins || polls == POLLS {
                            return Ok(false);
                        }
                        observer.idle();
                        end_speculation();
                        polls += 1;
                    }
                    RecvProgress::Advanced => {
                        observer.advanced(step.step);
                        if !spins {
                            return Ok(false);
                        }
                        polls = 0;
                    }
                }
            }
        });
        let is_complete = received.map_err(|error| failed(program, step.step, stream.peer, error))?;
        if is_complete {
            observer.message(program, binding, number as usize, stream.first);
        }
        Ok(is_complete)
    }
}

impl<const ANNOUNCES: bool, const GROUPED: bool, O: Observer> Run<'_, '_, ANNOUNCES, GROUPED, O> {
    /// Enters how far a straight run has come into the workspace, which has begun the program.
    #[cold]
    pub(super) fn take_over(&mut self, partial: &Partial) {
        let done = self.program.straight.as_ref().map_or(0, |straight| partial.steps(straight));
        for (at, stream) in self.program.streams.iter().enumerate() {
            let step = self.program.order[stream.first as usize];
            if done >> step & 1 != 0 {
                self.workspace.pass(at, stream.end);
            }
        }
        for step in (0..self.program.ops.len() as u32).filter(|step| done >> step & 1 != 0) {
            self.workspace.complete(self.program, step);
        }
        self.workspace.ready.retain(|step| done >> step & 1 == 0);
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
    let combine = || combine(binding.constants, op.last);
    let (dst, local) = (binding.target(&op.dst), || binding.source(&op.a));
    with_sink((op.kind, writes(binding, op)), combine, dst, local, |sink| link.poll_recv(state, sink))
}

/// Carries out a local step that neither packs nor unpacks.
#[inline(always)]
pub(super) fn compute(binding: &Binding<'_>, op: &Op) {
    let combine = || combine(binding.constants, op.last);
    let (dst, a, b) = (binding.target(&op.dst), binding.source(&op.a), || binding.source(&op.b));
    compute_on((op.kind, writes(binding, op)), combine, dst, a, b);
}

/// Calls `poll` with the sink of a receive whose destination is `dst`, and whose local operand is `local`.
#[inline(always)]
fn with_sink<'b, R>(
    (kind, writes): (OpKind, Writes),
    combine: impl FnOnce() -> Option<Combine<'b>>,
    dst: SpanMut<'_>,
    local: impl FnOnce() -> Span<'b>,
    poll: impl FnOnce(&mut dyn Sink) -> R,
) -> R {
    if kind == OpKind::Recv {
        return poll(&mut CopySink::new(dst, writes));
    }
    match combine() {
        Some(combine) => poll(&mut ReduceSink { combine, writes, local: local(), dst }),
        None => poll(&mut EmptySink),
    }
}

/// Carries out a local step of a straight program.
#[inline(always)]
pub(super) fn compute_step(binding: &Binding<'_>, step: &SizedStep) {
    let combine = || combine(binding.constants, step.last);
    let (a, b) = (binding.source_range(&step.a), || binding.source_range(&step.b));
    compute_on((step.kind, step.writes), combine, binding.target_range(&step.dst), a, b);
}

/// Copies `a` to `dst`, or combines it with `b` there.
#[inline(always)]
fn compute_on<'b>(
    (kind, writes): (OpKind, Writes),
    combine: impl FnOnce() -> Option<Combine<'b>>,
    dst: SpanMut<'_>,
    a: Span<'_>,
    b: impl FnOnce() -> Span<'b>,
) {
    if kind == OpKind::Copy {
        CopySink::new(dst, writes).write(0, a);
    } else if let Some(combine) = combine() {
        combine.apply_by(writes, dst, a, b());
    }
}

/// Returns how a step writes.
#[inline(always)]
fn writes(binding: &Binding<'_>, op: &Op) -> Writes {
    if op.writes_result { binding.constants.results } else { Writes::Cached }
}

#[cold]
fn failed(program: &Program, step: u32, peer: Rank, error: TransportError) -> Stop {
    Stop::Link { step: program.describe(step, peer), peer, error }
}
