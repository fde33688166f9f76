//! Groups: calls that are issued together and progress together.
//!
//! A group's calls are collected, and nothing moves until [`Group::run`]. Then they run as one: their messages are under
//! way at the same time, so messages in both directions between two ranks do not deadlock, and latencies overlap. All
//! ranks issue the same collectives of a group in the same order; messages, as far as they are about them.
//!
//! Several small `all_reduce` of one element type and operation in a row are fused into one, by way of a buffer: their
//! latency is then that of one. Which ones follows from their lengths, which all ranks agree on.
//!
//! # Safety
//! Slices become spans, whose borrows the group holds until it is run or dropped.

use super::{
    Communicator,
    call::{Call, Prepared},
    typed::{call, lengths, span_mut},
};
use crate::{
    Element,
    call::{CallKind, CallRecord},
    element::{bytes_of, settle},
    error::{Error, Result},
    executor::{Binding, Program},
};
use collectives::{Collective, DType, ReduceOp, schedule::InPlace};
use topology::Rank;
use transport::memory::{Registered, Span, SpanMut};

/// Together, fused calls have at most so many bytes: about as much as two messages' latency is worth.
const FUSED_BYTES: usize = 32 << 10;

/// The calls that a group can have.
const MOST_CALLS: usize = u16::MAX as usize;

/// Memory of scratch starts at multiples of so many bytes.
const ALIGNMENT: usize = 64;

/// Calls that are to run together.
#[derive(Debug)]
pub struct Group<'c, 'm> {
    comm: &'c mut Communicator,
    calls: Vec<Queued<'m>>,
}

/// One call of a group.
#[derive(Debug)]
struct Queued<'m> {
    what: What,
    input: Span<'m>,
    output: SpanMut<'m>,
    /// Makes elements of the bytes that the call wrote.
    settle: fn(SpanMut<'_>),
}

#[derive(Clone, Copy, Debug)]
enum What {
    Collective(Call<'static>),
    Message { kind: CallKind, dtype: DType, peer: Rank },
}

impl Communicator {
    /// Starts a group of calls.
    ///
    /// ```
    /// # use tbccl::{Communicator, Config, ReduceOp};
    /// # let mut comm = Communicator::local(1, &Config::default())?.remove(0);
    /// let (a, b) = ([1.0f32; 4], [2u8; 9]);
    /// let (mut sum, mut all) = ([0.0; 4], [0; 9]);
    /// let mut group = comm.group();
    /// group.all_reduce(&a, &mut sum, ReduceOp::Sum)?;
    /// group.all_gather(&b, &mut all)?;
    /// group.run()?;
    /// # assert_eq!((sum, all), (a, b));
    /// # Ok::<(), tbccl::Error>(())
    /// ```
    pub fn group<'m>(&mut self) -> Group<'_, 'm> {
        Group { comm: self, calls: Vec::new() }
    }
}

impl<'m> Group<'_, 'm> {
    /// As [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn all_reduce<T: Element>(&mut self, send: &'m [T], recv: &'m mut [T], op: ReduceOp) -> Result<()> {
        lengths("recv", recv.len(), send.len())?;
        let call = call::<T>(Collective::AllReduce, send.len(), InPlace::No).with_op(op);
        self.collective(call, Span::from(bytes_of(send)), recv)
    }

    /// As [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn all_reduce_in_place<T: Element>(&mut self, data: &'m mut [T], op: ReduceOp) -> Result<()> {
        let call = call::<T>(Collective::AllReduce, data.len(), InPlace::Yes).with_op(op);
        let output = span_mut(data);
        self.push::<T>(What::Collective(call), output.as_span(), output)
    }

    /// As [`Communicator::all_gather`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn all_gather<T: Element>(&mut self, send: &'m [T], recv: &'m mut [T]) -> Result<()> {
        lengths("recv", recv.len(), self.comm.times_size(send.len())?)?;
        self.collective(
            call::<T>(Collective::AllGather, send.len(), InPlace::No),
            Span::from(bytes_of(send)),
            recv,
        )
    }

    /// As [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        send: &'m [T],
        recv: &'m mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        lengths("send", send.len(), self.comm.times_size(recv.len())?)?;
        let call = call::<T>(Collective::ReduceScatter, recv.len(), InPlace::No).with_op(op);
        self.collective(call, Span::from(bytes_of(send)), recv)
    }

    /// As [`Communicator::broadcast`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn broadcast<T: Element>(&mut self, data: &'m mut [T], root: Rank) -> Result<()> {
        self.comm.check_rank("root", root)?;
        let call = Call { root, ..call::<T>(Collective::Broadcast, data.len(), InPlace::Yes) };
        let output = span_mut(data);
        self.push::<T>(What::Collective(call), output.as_span(), output)
    }

    /// As [`Communicator::reduce`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn reduce<T: Element>(
        &mut self,
        send: &'m [T],
        recv: &'m mut [T],
        op: ReduceOp,
        root: Rank,
    ) -> Result<()> {
        self.comm.check_rank("root", root)?;
        if self.comm.rank() == root {
            lengths("recv", recv.len(), send.len())?;
        }
        let call = call::<T>(Collective::Reduce, send.len(), InPlace::No).with_op(op);
        self.collective(Call { root, ..call }, Span::from(bytes_of(send)), recv)
    }

    /// As [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn all_to_all<T: Element>(&mut self, send: &'m [T], recv: &'m mut [T]) -> Result<()> {
        lengths("recv", recv.len(), send.len())?;
        let count = self.comm.block_of(send.len())?;
        self.collective(call::<T>(Collective::AllToAll, count, InPlace::No), Span::from(bytes_of(send)), recv)
    }

    /// As [`Communicator::send`]; but rank `to` may send to us in the same group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn send<T: Element>(&mut self, data: &'m [T], to: Rank) -> Result<()> {
        self.comm.check_rank("to", to)?;
        let what = What::Message { kind: CallKind::Send, dtype: T::DTYPE, peer: to };
        self.push::<T>(what, Span::from(bytes_of(data)), SpanMut::empty())
    }

    /// As [`Communicator::recv`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; the group then is as it was.
    pub fn recv<T: Element>(&mut self, data: &'m mut [T], from: Rank) -> Result<()> {
        self.comm.check_rank("from", from)?;
        let what = What::Message { kind: CallKind::Recv, dtype: T::DTYPE, peer: from };
        self.push::<T>(what, Span::empty(), span_mut(data))
    }

    fn collective<T: Element>(
        &mut self,
        call: Call<'static>,
        input: Span<'m>,
        recv: &'m mut [T],
    ) -> Result<()> {
        self.push::<T>(What::Collective(call), input, span_mut(recv))
    }

    fn push<T: Element>(&mut self, what: What, input: Span<'m>, output: SpanMut<'m>) -> Result<()> {
        if self.calls.len() == MOST_CALLS {
            return Err(Error::InvalidArgument(format!(
                "a group has {MOST_CALLS} calls at most; run it first"
            )));
        }
        self.calls.push(Queued { what, input, output, settle: settle_span::<T> });
        Ok(())
    }

    /// Carries out all of them. Nothing has moved when the error is about arguments.
    ///
    /// # Errors
    /// See [`Error`]; the first one, and none of the results can be relied on then.
    pub fn run(self) -> Result<()> {
        let Group { comm, calls } = self;
        if calls.is_empty() {
            return Ok(());
        }
        comm.check_alive()?;
        let done = comm.run_group(&calls);
        for call in &calls {
            (call.settle)(call.output);
        }
        done
    }
}

fn settle_span<T: Element>(span: SpanMut<'_>) {
    if span.is_empty() {
        return;
    }
    let bytes = std::ptr::slice_from_raw_parts_mut(span.as_mut_ptr(), span.len());
    // SAFETY: the span is that of a slice of these elements, whose exclusive borrow the group holds.
    unsafe { settle::<T>(bytes) };
}

/// A run of calls that become one.
struct Fused {
    /// How many calls.
    calls: usize,
    /// Their bytes together.
    bytes: usize,
}

/// How many of the first calls can be fused; fewer than two are not worth it.
fn fusable(calls: &[Queued<'_>]) -> Option<Fused> {
    let kind = |call: &Queued<'_>| match call.what {
        What::Collective(call) if call.collective == Collective::AllReduce => {
            Some((call.dtype, call.op, call.codec))
        }
        _ => None,
    };
    let first = kind(calls.first()?)?;
    let (mut count, mut bytes) = (0, 0);
    for call in calls.iter().take_while(|call| kind(call) == Some(first)) {
        if bytes + call.output.len() > FUSED_BYTES {
            break;
        }
        bytes += call.output.len();
        count += 1;
    }
    (count > 1).then_some(Fused { calls: count, bytes })
}

impl Communicator {
    fn run_group(&mut self, calls: &[Queued<'_>]) -> Result<()> {
        let mut fused = Vec::new();
        let mut at = 0;
        while at < calls.len() {
            let run = fusable(&calls[at..]).unwrap_or(Fused { calls: 1, bytes: 0 });
            at += run.calls;
            fused.push(run);
        }
        let together = fused.iter().map(|run| run.bytes).sum();
        let mut memory = self.slab.allocate(together)?;
        let mut rest = memory.span_mut();
        let mut prepared = Vec::with_capacity(fused.len());
        let (mut at, mut buffers) = (0, Vec::with_capacity(fused.len()));
        for run in &fused {
            let part = &calls[at..at + run.calls];
            at += run.calls;
            let buffer = rest.sub(0, run.bytes);
            rest = rest.sub(run.bytes, rest.len() - run.bytes);
            if run.calls > 1 {
                gather(part, buffer);
            }
            prepared.push(self.prepare_run(part, buffer)?);
            buffers.push((part, buffer));
        }
        self.carry_out_together(&prepared)?;
        buffers
            .into_iter()
            .filter(|(part, _)| part.len() > 1)
            .for_each(|(part, buffer)| spread(part, buffer));
        Ok(())
    }

    /// One call, or several in a buffer.
    fn prepare_run<'m>(&mut self, run: &[Queued<'m>], buffer: SpanMut<'m>) -> Result<Prepared<'m>> {
        let (memory, first) = (run, &run[0]);
        match first.what {
            What::Collective(call) if memory.len() > 1 => {
                let count = (buffer.len() / call.dtype.size()) as u64;
                self.prepare(&Call { count, in_place: InPlace::Yes, ..call }, buffer.as_span(), buffer)
            }
            What::Collective(call) => self.prepare(&call, first.input, first.output),
            What::Message { kind, dtype, peer } => {
                self.prepare_message(kind, dtype, peer, first.input, first.output)
            }
        }
    }

    pub(super) fn carry_out_together(&mut self, prepared: &[Prepared<'_>]) -> Result<()> {
        let padded = |bytes: usize| bytes.next_multiple_of(ALIGNMENT);
        let scratch_bytes = prepared.iter().map(|call| padded(call.scratch_bytes)).sum();
        if let Err(error) = self.grow_scratch(scratch_bytes) {
            return self.fail(error);
        }
        let mut memory = self.scratch.take();
        let mut rest = memory.as_mut().map_or(SpanMut::empty(), Registered::span_mut);
        let programs: Vec<&Program> = prepared.iter().map(|call| &*call.program).collect();
        let program = Program::concat(&programs);
        let mut records: Vec<CallRecord> = Vec::with_capacity(prepared.len());
        let mut bindings: Vec<Binding<'_>> = Vec::with_capacity(prepared.len());
        for call in prepared {
            let mut record = call.record;
            match record.kind {
                CallKind::Collective(_) => self.enter(&mut record),
                CallKind::Send | CallKind::Recv => self.enter_message(&mut record),
            }
            let scratch = rest.sub(0, call.scratch_bytes);
            let used = padded(call.scratch_bytes);
            rest = rest.sub(used, rest.len() - used);
            bindings.push(Binding { digest: record.digest(), scratch, ..call.binding.clone() });
            records.push(record);
        }
        let done = self.carry_out(&program, &bindings, &records);
        drop(bindings);
        self.scratch = memory;
        done?;
        if records.iter().any(|record| matches!(record.kind, CallKind::Collective(_))) {
            self.peers.agreement.finish(self.seq);
        }
        if records.iter().any(|record| !matches!(record.kind, CallKind::Collective(_))) {
            self.peers.agreement.finish_message();
        }
        Ok(())
    }
}

/// Copies the inputs of calls side by side.
fn gather(calls: &[Queued<'_>], buffer: SpanMut<'_>) {
    let mut at = 0;
    for call in calls {
        buffer.sub(at, call.input.len()).copy_from(call.input);
        at += call.input.len();
    }
}

/// Copies the results to where they belong.
fn spread(calls: &[Queued<'_>], buffer: SpanMut<'_>) {
    let mut at = 0;
    for call in calls {
        call.output.copy_from(buffer.as_span().sub(at, call.output.len()));
        at += call.output.len();
    }
}
