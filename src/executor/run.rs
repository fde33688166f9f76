//! Running a program: polls its streams until every step is complete.

use super::{
    binding::{Binding, Protocols},
    program::{Op, OpKind, Program},
    sink::{Combine, CopySink, EmptySink, ReduceSink},
};
use crate::error::Error;
use std::time::Duration;
use topology::Rank;
use transport::{
    Counters, Link, RecvProgress, RecvState, SendProgress, SendState, TransportError, WaitPolicy, Waiter,
    memory::Arena,
};

/// Why a run ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A link failed.
    Link { step: String, peer: Rank, error: TransportError },
    /// The watch said so.
    Watch(Error),
}

/// What a run is waiting for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting<'a> {
    program: &'a Program,
    at: Option<(u32, Rank)>,
    /// How long nothing has moved.
    pub(crate) waited: Duration,
}

impl Waiting<'_> {
    /// The step that is next, for people.
    pub(crate) fn step(&self) -> Option<String> {
        self.at.map(|(step, peer)| self.program.describe(step, peer))
    }
}

/// Decides, when a wait gets long, whether it may go on.
pub(crate) trait Watch {
    fn look(&mut self, waiting: &Waiting<'_>) -> Result<(), Error>;
}

/// The progress of one stream.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// The first message that is not complete, as an index into the program's order.
    done: u32,
    /// The first message that is not begun and posted.
    next: u32,
    /// The message being received.
    recv: Option<RecvState>,
}

/// What a run keeps track of; reused, so that running allocates nothing.
#[derive(Debug, Default)]
struct Workspace {
    /// Per step: how many steps it still waits for.
    waits_for: Vec<u32>,
    /// Per step: the message being sent; `None` before it is begun and after it is complete.
    sends: Vec<Option<SendState>>,
    cursors: Vec<Cursor>,
    /// Local steps that may run.
    ready: Vec<u32>,
    remaining: usize,
}

impl Workspace {
    fn begin(&mut self, program: &Program) {
        self.waits_for.clear();
        self.waits_for.extend_from_slice(&program.waits_for);
        self.sends.clear();
        self.sends.resize(program.ops.len(), None);
        self.cursors.clear();
        self.cursors.extend(program.streams.iter().map(|s| Cursor {
            done: s.first,
            next: s.first,
            recv: None,
        }));
        self.ready.clear();
        self.ready.extend_from_slice(&program.first_local);
        self.remaining = program.ops.len();
    }

    /// Ticks a step off, and makes ready what waited for it alone.
    #[inline]
    fn complete(&mut self, program: &Program, step: u32) {
        self.remaining -= 1;
        let (first, end) = program.ops[step as usize].dependents;
        for &dependent in &program.dependents[first as usize..end as usize] {
            let waits = &mut self.waits_for[dependent as usize];
            *waits -= 1;
            if *waits == 0 && matches!(program.ops[dependent as usize].kind, OpKind::Copy | OpKind::Reduce) {
                self.ready.push(dependent);
            }
        }
    }
}

/// Runs programs over the links of one rank.
#[derive(Debug)]
pub(crate) struct Executor {
    /// By peer and lane; `None` for this rank itself.
    links: Vec<Option<Box<dyn Link>>>,
    arena: Arena,
    wait: WaitPolicy,
    protocols: Protocols,
    workspace: Workspace,
}

impl Executor {
    pub(crate) fn new(
        links: Vec<Option<Box<dyn Link>>>,
        arena: Arena,
        wait: WaitPolicy,
        protocols: Protocols,
    ) -> Executor {
        Executor { links, arena, wait, protocols, workspace: Workspace::default() }
    }

    /// The sum of what all links have done.
    pub(crate) fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.links.iter().flatten().for_each(|link| sum += link.counters());
        sum
    }

    /// Carries out `program` on the memory of `binding`.
    pub(crate) fn run(
        &mut self,
        program: &Program,
        binding: &Binding<'_>,
        digest: u64,
        watch: &mut dyn Watch,
    ) -> Result<(), Stop> {
        self.workspace.begin(program);
        let mut run = Run {
            program,
            binding,
            digest,
            links: &mut self.links,
            arena: &self.arena,
            protocols: self.protocols,
            workspace: &mut self.workspace,
        };
        let mut waiter = Waiter::new(self.wait);
        loop {
            let advanced = run.poll()?;
            if run.workspace.remaining == 0 {
                return Ok(());
            }
            if advanced {
                waiter.reset();
            } else if waiter.idle()
                && let Err(error) = watch.look(&run.waiting(waiter.waited()))
            {
                // What a peer sent before it left may have come since we last looked.
                if !run.poll()? {
                    return Err(Stop::Watch(error));
                }
                if run.workspace.remaining == 0 {
                    return Ok(());
                }
            }
        }
    }

    /// Waits until `done`, asking the watch when it gets long.
    pub(crate) fn wait_until(
        &self,
        program: &Program,
        watch: &mut dyn Watch,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), Stop> {
        let mut waiter = Waiter::new(self.wait);
        while !done() {
            if waiter.idle() {
                let waiting = Waiting { program, at: None, waited: waiter.waited() };
                watch.look(&waiting).map_err(Stop::Watch)?;
            }
        }
        Ok(())
    }
}

/// One run under way.
struct Run<'r, 'm> {
    program: &'r Program,
    binding: &'r Binding<'m>,
    digest: u64,
    links: &'r mut [Option<Box<dyn Link>>],
    arena: &'r Arena,
    protocols: Protocols,
    workspace: &'r mut Workspace,
}

impl Run<'_, '_> {
    /// Goes once round everything that might move. True when anything did.
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
        Ok(advanced)
    }

    fn run_local(&mut self) -> bool {
        let mut advanced = false;
        while let Some(step) = self.workspace.ready.pop() {
            let op = &self.program.ops[step as usize];
            let dst = self.binding.target(&op.dst);
            match op.kind {
                OpKind::Copy => dst.copy_from(self.binding.source(&op.a)),
                OpKind::Reduce => {
                    if let Some(combine) = combine(self.binding, op) {
                        combine.apply(dst, self.binding.source(&op.a), self.binding.source(&op.b));
                    }
                }
                OpKind::Send | OpKind::Recv | OpKind::RecvReduce => unreachable!("messages are not local"),
            }
            self.workspace.complete(self.program, step);
            advanced = true;
        }
        advanced
    }

    fn poll_sends(&mut self, at: usize) -> Result<bool, TransportError> {
        let stream = &self.program.streams[at];
        let mut cursor = self.workspace.cursors[at];
        let link = self.links[stream.link as usize].as_mut().expect("a link to every peer");
        let mut advanced = false;
        while cursor.next < stream.end {
            let step = self.program.order[cursor.next as usize];
            if self.workspace.waits_for[step as usize] != 0 {
                break;
            }
            let src = self.binding.source(&self.program.ops[step as usize].a);
            let state = self.workspace.sends[step as usize].get_or_insert_with(|| {
                let registered = || self.arena.locate(src.as_ptr(), src.len()).is_some();
                let bytes = self.binding.operation_bytes;
                SendState::new(
                    self.digest,
                    self.protocols.choose(link.capabilities(), bytes, src.len(), registered),
                )
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
                    self.workspace.complete(self.program, step);
                    advanced = true;
                    cursor.next += 1;
                }
            }
        }
        while cursor.done < cursor.next {
            let step = self.program.order[cursor.done as usize];
            if let Some(state) = &mut self.workspace.sends[step as usize] {
                let src = self.binding.source(&self.program.ops[step as usize].a);
                if link.poll_send(state, src)? != SendProgress::Complete {
                    break;
                }
                self.workspace.sends[step as usize] = None;
                self.workspace.complete(self.program, step);
                advanced = true;
            }
            cursor.done += 1;
        }
        self.workspace.cursors[at] = cursor;
        Ok(advanced)
    }

    fn poll_recvs(&mut self, at: usize) -> Result<bool, TransportError> {
        let stream = &self.program.streams[at];
        let mut advanced = false;
        loop {
            let cursor = &mut self.workspace.cursors[at];
            if cursor.next == stream.end {
                break;
            }
            let step = self.program.order[cursor.next as usize];
            if self.workspace.waits_for[step as usize] != 0 {
                break;
            }
            let op = &self.program.ops[step as usize];
            let dst = self.binding.target(&op.dst);
            let mut state = cursor.recv.unwrap_or_else(|| RecvState::new(self.digest, dst.len()));
            let combine = if op.kind == OpKind::RecvReduce { combine(self.binding, op) } else { None };
            let link = self.links[stream.link as usize].as_mut().expect("a link to every peer");
            let progress = match (op.kind, combine) {
                (OpKind::Recv, _) => link.poll_recv(&mut state, &mut CopySink(dst))?,
                (_, Some(combine)) => {
                    let local = self.binding.source(&op.a);
                    link.poll_recv(&mut state, &mut ReduceSink { combine, local, dst })?
                }
                (_, None) => link.poll_recv(&mut state, &mut EmptySink)?,
            };
            let cursor = &mut self.workspace.cursors[at];
            match progress {
                RecvProgress::Idle => break,
                RecvProgress::Advanced => {
                    cursor.recv = Some(state);
                    advanced = true;
                    break;
                }
                RecvProgress::Complete => {
                    cursor.recv = None;
                    cursor.next += 1;
                    cursor.done = cursor.next;
                    self.workspace.complete(self.program, step);
                    advanced = true;
                }
            }
        }
        Ok(advanced)
    }

    fn failed(&self, at: usize, error: TransportError) -> Stop {
        let stream = &self.program.streams[at];
        let cursor = &self.workspace.cursors[at];
        let step = self.program.order[cursor.done.min(stream.end - 1) as usize];
        Stop::Link { step: self.program.describe(step, stream.peer), peer: stream.peer, error }
    }

    /// The step that a message is next expected for: a receive if there is one, since sends follow from those.
    fn waiting(&self, waited: Duration) -> Waiting<'_> {
        let pending = |sends: bool| {
            let streams = self.program.streams.iter().zip(&self.workspace.cursors);
            streams.filter(move |(s, c)| s.sends == sends && c.done < s.end).find_map(|(s, c)| {
                let step = self.program.order[c.done as usize];
                (self.workspace.waits_for[step as usize] == 0).then_some((step, s.peer))
            })
        };
        Waiting { program: self.program, at: pending(false).or_else(|| pending(true)), waited }
    }
}

/// How a step combines, if there is anything to combine.
fn combine<'b>(binding: &'b Binding<'_>, op: &Op) -> Option<Combine<'b>> {
    binding.reducer.as_ref().map(|reducer| Combine {
        reducer,
        elem_bytes: binding.elem_bytes,
        threads: binding.threads,
        last: op.last.then_some(binding.ranks),
    })
}
