//! Running a program: polls its streams until every step is complete.

mod announcing;
mod brief;
mod brief_wait;
mod entry;
mod following;
mod message;
mod observer;
mod recorded;
mod straight;
mod waiting;

pub(crate) use brief_wait::OnOtherCores;
pub(crate) use message::{Message, MessageMemory};
pub(crate) use straight::Done;
pub(crate) use waiting::{Stop, Waiting, Watch};

use super::{
    binding::Binding,
    constants::CallConstants,
    links::{LinkMaker, Links},
    packing,
    program::{Op, OpKind, Program, Stream},
    protocols::Protocols,
    sink::Combine,
    workspace::Workspace,
};
use crate::call::{CallKind, CallRecord};
use brief_wait::BriefWait;
use following::begun;
use observer::{Observer, Unobserved};
use recorded::Recorded;
use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use straight::{Partial, compute, receive};
use transport::{
    Link, RecvProgress, RecvState, SendProgress, Sleeper, TransportError, WaitPolicy, Waiter, memory::Slab,
};
use waiting::At;

/// Runs programs over the links of one rank.
#[derive(Debug)]
pub(crate) struct Executor {
    /// Links by peer and lane.
    links: Links,
    /// Bytes from which announcements of messages are of use to any link; 0 with a trace, so that all runs
    /// leave the way of small calls, which has no branch for a trace.
    announced_bytes: Option<usize>,
    /// The trace that runs are recorded in.
    trace: Option<Recorded>,
    /// The slab of registered memory.
    slab: Slab,
    wait: WaitPolicy,
    /// Ranks for which it polls a little before it yields a shared core.
    others: OnOtherCores,
    sleeper: Option<Arc<dyn Sleeper>>,
    protocols: Protocols,
    workspace: Workspace,
    /// Not 0 when the watch wants to check a run whose wait is not long.
    wanted: Arc<AtomicU32>,
}

/// Whether a call has messages that are announced. No message has more bytes than the buffers that it may be
/// a part of.
#[inline(always)]
fn is_announced(binding: &Binding<'_>, announced_bytes: &Option<usize>) -> bool {
    let bytes = binding.input.len().max(binding.output.len()).max(binding.scratch.len());
    announced_bytes.is_some_and(|from| bytes >= from)
}

impl Executor {
    pub(crate) fn new(
        links: Vec<Option<Box<dyn Link>>>,
        slab: Slab,
        wait: WaitPolicy,
        protocols: Protocols,
    ) -> Executor {
        let from = links.iter().flatten().filter_map(|link| link.capabilities().announced_bytes);
        let announced_bytes = from.min();
        let links = Links::new(links);
        let (workspace, wanted) = (Workspace::default(), Arc::default());
        let (trace, sleeper, others) = (None, None, OnOtherCores::default());
        Executor { links, announced_bytes, trace, slab, wait, others, sleeper, protocols, workspace, wanted }
    }

    /// Returns the executor with a word that is not 0 while the watch has requests.
    pub(crate) fn with_requests(self, wanted: Arc<AtomicU32>) -> Executor {
        Executor { wanted, ..self }
    }

    /// Returns the executor with a driver that can sleep until its device wakes it.
    pub(crate) fn with_sleeper(self, sleeper: Option<Arc<dyn Sleeper>>) -> Executor {
        Executor { sleeper, ..self }
    }

    /// Returns the executor of a rank that polls a little for ranks on other cores, before it yields its own.
    pub(crate) fn with_others(self, others: OnOtherCores) -> Executor {
        Executor { others, ..self }
    }

    /// Sets the function that makes missing links on demand. Such links take no announcements.
    pub(crate) fn set_link_maker(&mut self, make: LinkMaker) {
        self.links.set_maker(make);
    }

    /// Returns the thresholds by which protocols are chosen.
    pub(crate) fn protocols(&self) -> &Protocols {
        &self.protocols
    }

    /// Returns the links, for their counters.
    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    /// Returns the link with an index, for callers that run no program.
    #[inline]
    pub(crate) fn link(&mut self, index: usize) -> &mut dyn Link {
        &mut **self.links.at(index)
    }

    /// Replaces the link with an index by what is made of it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn wrap_link(&mut self, index: usize, wrap: impl FnOnce(Box<dyn Link>) -> Box<dyn Link>) {
        self.links.wrap(index, wrap);
    }

    /// Returns the empty polls before a wait yields the core.
    pub(crate) fn spin_polls(&self) -> u32 {
        self.wait.spin_polls
    }

    /// Lets waits yield the core after at most this many empty polls.
    pub(crate) fn spin_at_most(&mut self, polls: u32) {
        self.wait.spin_polls = self.wait.spin_polls.min(polls);
    }

    /// Returns how to wait for links, and the driver that can wake the wait.
    pub(crate) fn wait_policy(&self) -> (WaitPolicy, Option<Arc<dyn Sleeper>>) {
        (self.wait, self.sleeper.clone())
    }

    /// Returns the wait of a caller that uses links without a program, for a message with these details.
    pub(crate) fn waiting_for_message<'a>(
        &'a self,
        record: &CallRecord,
        details: &'a str,
        waited: Duration,
    ) -> Waiting<'a> {
        let peer = (record.root != CallRecord::ANY).then_some(record.root);
        let at = At::Message { peer, sends: record.kind == CallKind::Send, details };
        Waiting { at, links: &self.links, waited }
    }

    /// Ends all use of memory by links.
    pub(crate) fn abort_links(&mut self) {
        self.links.iter_mut().for_each(|link| link.abort());
    }

    /// Runs `program` on the memory of `bindings`, one for each call that it is made from. After an error no
    /// link uses that memory.
    #[inline]
    pub(crate) fn run(
        &mut self,
        program: &Program,
        bindings: &[Binding<'_>],
        watch: &mut dyn Watch,
    ) -> Result<(), Stop> {
        if let [binding] = bindings {
            return self.run_call(program, binding, Done::default(), watch);
        }
        let announced_bytes = &self.announced_bytes;
        let ran = match bindings.iter().any(|binding| is_announced(binding, announced_bytes)) {
            false => self.run_to_completion::<false, true, _>(program, bindings, watch, Unobserved, None),
            true => self.run_announced::<true>(program, bindings, watch),
        };
        ran.map_err(|stop| self.abort(stop))
    }

    /// Runs the program of one call, from where a run in brief messages has come to. After an error no link
    /// uses its memory.
    #[inline(always)]
    pub(crate) fn run_call(
        &mut self,
        program: &Program,
        binding: &Binding<'_>,
        done: Done,
        watch: &mut dyn Watch,
    ) -> Result<(), Stop> {
        let ran = match is_announced(binding, &self.announced_bytes) {
            false => self.run_one(program, (binding, done), watch, Unobserved),
            true => self.run_announced::<false>(program, slice::from_ref(binding), watch),
        };
        ran.map_err(|stop| self.abort(stop))
    }

    /// Runs the program of one call, which announces no messages.
    // Always inlined, as `run_straight`: out of line they cost 5 % of the smallest calls.
    #[inline(always)]
    fn run_one<O: Observer>(
        &mut self,
        program: &Program,
        (binding, done): (&Binding<'_>, Done),
        watch: &mut dyn Watch,
        mut observer: O,
    ) -> Result<(), Stop> {
        let mut partial = Partial::of(done);
        if let Some(straight) = binding.straight.filter(|_| !done.is_late) {
            self.workspace.make_room(program);
            if self.run_straight(program, (binding, straight), &mut partial, &mut observer)? {
                return Ok(());
            }
        }
        let (bindings, partial) = (slice::from_ref(binding), binding.straight.map(|_| &partial));
        self.run_to_completion::<false, false, _>(program, bindings, watch, observer, partial)
    }

    /// Runs a program whose messages may be announced, or any program if there is a trace.
    #[inline(never)]
    fn run_announced<const GROUPED: bool>(
        &mut self,
        program: &Program,
        bindings: &[Binding<'_>],
        watch: &mut dyn Watch,
    ) -> Result<(), Stop> {
        if self.trace.is_some() {
            return self.run_recorded(program, bindings, watch);
        }
        self.run_to_completion::<true, GROUPED, _>(program, bindings, watch, Unobserved, None)
    }

    #[cold]
    fn abort(&mut self, stop: Stop) -> Stop {
        self.abort_links();
        stop
    }

    /// Runs a program step by step, from where `partial` says.
    #[inline(never)]
    fn run_to_completion<const ANNOUNCES: bool, const GROUPED: bool, O: Observer>(
        &mut self,
        program: &Program,
        bindings: &[Binding<'_>],
        watch: &mut dyn Watch,
        observer: O,
        partial: Option<&Partial>,
    ) -> Result<(), Stop> {
        let mut run: Run<'_, '_, ANNOUNCES, GROUPED, O> = Run {
            program,
            bindings,
            links: &mut self.links,
            slab: &self.slab,
            protocols: self.protocols,
            workspace: &mut self.workspace,
            observer,
        };
        run.workspace.make_room(program);
        run.workspace.begin(program, ANNOUNCES);
        if let Some(partial) = partial {
            run.take_over(partial);
        }
        run.announce_all()?;
        let mut waiter = Waiter::new(self.wait, self.sleeper.as_deref());
        let mut brief = BriefWait::new(&self.others, program.exchanges && self.wait.spin_polls == 0);
        loop {
            let advanced = run.poll()?;
            if run.workspace.remaining == 0 {
                return Ok(());
            }
            if advanced {
                waiter.reset();
                brief.reset();
                if self.wanted.load(Relaxed) != 0 {
                    run.look_in_passing(watch)?;
                }
            } else if !brief.goes_on(run.missing()) && waiter.idle() {
                run.observer.waits_long(program, bindings);
                if let Err(error) = watch.look(&run.waiting(waiter.waited())) {
                    // Messages that a peer sent before it left may have arrived since the last poll.
                    if !run.poll()? {
                        return Err(Stop::Watch(error));
                    }
                    if run.workspace.remaining == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// One run in progress. The parameters keep runs without announcements, single calls, and runs without a
/// trace free of their cost.
struct Run<'r, 'm, const ANNOUNCES: bool, const GROUPED: bool, O: Observer> {
    program: &'r Program,
    bindings: &'r [Binding<'m>],
    links: &'r mut Links,
    slab: &'r Slab,
    protocols: Protocols,
    workspace: &'r mut Workspace,
    observer: O,
}

impl<'r, 'm, const ANNOUNCES: bool, const GROUPED: bool, O: Observer> Run<'r, 'm, ANNOUNCES, GROUPED, O> {
    /// Returns the memory that a step works on.
    #[inline]
    fn binding(&self, op: &Op) -> &'r Binding<'m> {
        &self.bindings[if GROUPED { usize::from(op.call) } else { 0 }]
    }

    /// Polls everything that might move once. Returns whether anything moved.
    #[inline]
    fn poll(&mut self) -> Result<bool, Stop> {
        let mut advanced = self.run_local();
        for (at, stream) in self.program.streams.iter().enumerate() {
            if self.workspace.cursors[at].done == stream.end {
                continue;
            }
            let moved = if stream.sends { self.poll_sends(at) } else { self.poll_recvs(at) };
            advanced |= moved.map_err(|error| self.failed(at, error))?;
            if !self.workspace.ready.is_empty() {
                advanced |= self.run_local();
            }
        }
        if !advanced {
            self.observer.idle();
        }
        Ok(advanced)
    }

    fn run_local(&mut self) -> bool {
        let mut advanced = false;
        while let Some(step) = self.workspace.ready.pop() {
            let op = &self.program.ops[step as usize];
            let binding = self.binding(op);
            self.observer.polled(step);
            match op.kind {
                OpKind::Copy | OpKind::Reduce => compute(binding, op),
                OpKind::Encode | OpKind::Decode | OpKind::DecodeReduce => packing::repack(binding, op),
                OpKind::Send | OpKind::Recv | OpKind::RecvReduce => unreachable!("messages are not local"),
            }
            self.observer.local(self.program, binding, step);
            self.workspace.complete(self.program, step);
            advanced = true;
        }
        advanced
    }

    fn poll_sends(&mut self, at: usize) -> Result<bool, TransportError> {
        let stream = &self.program.streams[at];
        let mut cursor = self.workspace.cursors[at];
        let mut advanced = false;
        while cursor.next < stream.end {
            let step = self.program.order[cursor.next as usize];
            let waits_for = self.workspace.waits_for[step as usize];
            if waits_for != 0 {
                // It may wait for a receive that it follows.
                if waits_for == 1 && !self.program.followed.is_empty() {
                    advanced |= self.poll_following(stream, step, cursor.next > stream.first)?;
                }
                break;
            }
            let op = &self.program.ops[step as usize];
            let binding = self.binding(op);
            let src = binding.source(&op.a);
            self.observer.polled(step);
            let link = link(self.links, stream);
            let (slab, protocols, program) = (self.slab, &self.protocols, self.program);
            let state = self.workspace.sends[step as usize].get_or_insert_with(|| {
                begun((program, binding), slab, protocols, link.as_ref(), (src, op.a.buffer))
            });
            match link.poll_send(state, src)? {
                SendProgress::Idle => break,
                SendProgress::Advanced => {
                    advanced = true;
                    break;
                }
                SendProgress::Posted => {
                    advanced = true;
                    cursor.next += 1;
                }
                SendProgress::Complete => {
                    self.workspace.sends[step as usize] = None;
                    cursor.next += 1;
                }
            }
        }
        // Sends of a stream complete in order, as the verifier assumes: a step after a later one may write to
        // the memory of an earlier one.
        while cursor.done < cursor.next {
            let step = self.program.order[cursor.done as usize];
            let op = &self.program.ops[step as usize];
            let binding = self.binding(op);
            if let Some(state) = &mut self.workspace.sends[step as usize] {
                let src = binding.source(&op.a);
                if link(self.links, stream).poll_send(state, src)? != SendProgress::Complete {
                    break;
                }
                self.workspace.sends[step as usize] = None;
            }
            self.observer.message(self.program, binding, at, cursor.done);
            self.workspace.complete(self.program, step);
            advanced = true;
            cursor.done += 1;
        }
        self.workspace.cursors[at] = cursor;
        Ok(advanced)
    }

    fn poll_recvs(&mut self, at: usize) -> Result<bool, TransportError> {
        let stream = &self.program.streams[at];
        let mut advanced = false;
        loop {
            let next = self.workspace.cursors[at].next;
            if next == stream.end {
                break;
            }
            let step = self.program.order[next as usize];
            if self.workspace.waits_for[step as usize] != 0 {
                break;
            }
            if ANNOUNCES && self.workspace.cursors[at].announced == next {
                self.announce(at, 1)?;
            }
            let op = &self.program.ops[step as usize];
            let binding = self.binding(op);
            let dst = binding.target(&op.dst);
            let known =
                if ANNOUNCES { self.workspace.recv_state(at) } else { self.workspace.cursors[at].recv };
            let mut state = match known {
                Some(state) => state,
                None => self.fresh(binding, dst.len()),
            };
            self.observer.polled(step);
            let progress = receive(link(self.links, stream).as_mut(), binding, op, &mut state)?;
            match progress {
                RecvProgress::Idle => self.observer.waits(step),
                RecvProgress::Advanced => self.observer.advanced(step),
                RecvProgress::Complete => self.observer.message(self.program, binding, at, next),
            }
            match progress {
                RecvProgress::Idle if !ANNOUNCES => break,
                RecvProgress::Idle | RecvProgress::Advanced => {
                    self.workspace.keep_recv_state(at, state);
                    advanced |= progress == RecvProgress::Advanced;
                    break;
                }
                RecvProgress::Complete => {
                    self.workspace.received(at);
                    self.workspace.complete(self.program, step);
                    advanced = true;
                }
            }
        }
        if ANNOUNCES && self.workspace.cursors[at].next < stream.end {
            self.announce(at, u32::MAX)?;
        }
        Ok(advanced)
    }

    #[inline]
    fn fresh(&self, binding: &Binding<'_>, len: usize) -> RecvState {
        RecvState::new(binding.digest, len).with_size(binding.constants.size_of(&self.protocols, len))
    }
}

#[inline]
fn link<'l>(links: &'l mut Links, stream: &Stream) -> &'l mut Box<dyn Link> {
    links.at(stream.link as usize)
}

/// Returns how a step combines; `None` if it combines nothing. `last`: its result is complete.
#[inline(always)]
fn combine(constants: &CallConstants, last: bool) -> Option<Combine<'_>> {
    constants.reducer.as_ref().map(|reducer| Combine {
        reducer,
        elem_bytes: constants.elem_bytes,
        threads: constants.threads,
        last: last.then_some(constants.ranks),
    })
}
