//! One blocking call, from its arguments to its result.

use super::{Communicator, plans::CallShape, watch::CallWatch};
use crate::{
    agreement::Failure,
    call::{CallKind, CallRecord},
    error::{Error, Place, Result},
    executor::{Binding, Packed, Program, Sizing, Stop},
    kernels::{Reducer, quantise::Packer},
    recorder::Outcome,
};
use collectives::{
    BlockLayout, Codec, Collective, DType, PackedLayout, ReduceOp, TooLarge,
    schedule::{Buffer, InPlace},
    uneven::UnevenLayout,
};
use std::{sync::Arc, time::Duration};
use topology::Rank;
use transport::{
    TransportError,
    memory::{Registered, Span, SpanMut},
};

/// A collective call, by value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'c> {
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) op: Option<ReduceOp>,
    /// Elements per block; where blocks differ, their mean.
    pub(crate) count: u64,
    pub(crate) root: Rank,
    pub(crate) in_place: InPlace,
    pub(crate) blocks: Blocks<'c>,
    /// How messages are packed, if they are.
    pub(crate) codec: Option<Codec>,
}

/// Packed chunks begin at a multiple of so many bytes.
const ALIGNMENT: usize = 64;

/// The lengths of a call's blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blocks<'c> {
    /// All have the call's count.
    Even,
    /// Each has its own.
    Uneven {
        /// Elements of each block of this rank's input.
        input: &'c [u64],
        /// Elements of each block of this rank's output.
        output: &'c [u64],
        /// The elements of every block, where all ranks know them.
        all: Option<&'c [u64]>,
    },
}

impl Call<'_> {
    /// How its elements are combined, if they are.
    #[inline]
    pub(super) fn reducer(&self) -> Result<Option<Reducer>> {
        if self.op == Some(ReduceOp::Avg) && !self.collective.averages() {
            let what = format!("{} has no average; choose another operation, e.g. sum", self.collective);
            return Err(Error::InvalidArgument(what));
        }
        Ok(self.op.map(|op| Reducer::new(self.dtype, op)).transpose()?)
    }
}

/// A call with its plan and its memory, about to be entered.
pub(super) struct Prepared<'m> {
    pub(super) program: Arc<Program>,
    pub(super) binding: Binding<'m>,
    pub(super) record: CallRecord,
    pub(super) scratch_bytes: usize,
}

impl Communicator {
    /// Carries out a collective. `input` and `output` hold the blocks of the collective; in place, they overlap as
    /// [`InPlace`] says.
    pub(crate) fn collective(&mut self, call: &Call<'_>, input: Span<'_>, output: SpanMut<'_>) -> Result<()> {
        self.check_alive()?;
        let Prepared { program, binding, mut record, scratch_bytes } = self.prepare(call, input, output)?;
        // The others are about to enter, so that this failure is theirs too.
        if let Err(error) = self.grow_scratch(scratch_bytes) {
            return self.fail(error);
        }
        self.enter(&mut record);
        let mut memory = self.scratch.take();
        let scratch = memory.as_mut().map_or(SpanMut::empty(), Registered::span_mut);
        let binding = Binding { digest: record.digest(), scratch, ..binding };
        let done = self.carry_out(&program, &[binding], &[record]);
        self.scratch = memory;
        done?;
        self.peers.agreement.finish(record.seq);
        Ok(())
    }

    /// What decides which plan a call takes.
    #[inline]
    pub(super) fn shape_of(&self, call: &Call<'_>) -> CallShape {
        CallShape {
            collective: call.collective,
            count: call.count,
            elem_bytes: call.dtype.size() as u32,
            root: call.root,
            in_place: call.in_place,
            uneven: matches!(call.blocks, Blocks::Uneven { .. }),
            numerics: self.numerics,
            codec: call.codec,
        }
    }

    /// Finds the plan of a call, and what it binds to it. Nothing is entered yet.
    #[inline]
    pub(super) fn prepare<'m>(
        &mut self,
        call: &Call<'_>,
        input: Span<'m>,
        output: SpanMut<'m>,
    ) -> Result<Prepared<'m>> {
        let reducer = call.reducer()?;
        let elem_bytes = call.dtype.size();
        let shape = self.shape_of(call);
        let program = self.plans.get(&shape)?;
        let blocks =
            call.collective.input_blocks(self.size()).max(call.collective.output_blocks(self.size()));
        let invalid = |error: TooLarge| Error::InvalidArgument(error.to_string());
        let count = if shape.uneven { 0 } else { call.count };
        let layout = BlockLayout::new(count, elem_bytes, program.chunks, blocks.max(program.scratch_blocks))
            .map_err(invalid)?;
        let record = CallRecord {
            seq: 0,
            kind: CallKind::Collective(call.collective),
            dtype: call.dtype,
            op: call.op,
            count: call.count,
            root: call.root,
            plan: program.id,
            uneven: shape.uneven,
            codec: shape.codec,
        };
        // The same on all ranks: local buffers are not asked, since only a root may have one. The layout fits memory.
        let bytes = count * elem_bytes as u64 * u64::from(blocks);
        let scratch_bytes = (u64::from(program.scratch_blocks) * count) as usize * elem_bytes;
        let binding = Binding {
            digest: 0,
            input,
            output,
            scratch: SpanMut::empty(),
            layout,
            uneven: None,
            packed: None,
            elem_bytes,
            reducer,
            ranks: self.size(),
            threads: self.threads,
            sizing: Sizing::ByCall(self.executor.protocols().size(bytes)),
            confirmed: !program.unheard.is_empty() && !self.peers.agreement.is_mapped(),
        };
        let prepared = Prepared { program, binding, record, scratch_bytes };
        match call.codec {
            None if shape.uneven => self.with_uneven_blocks(prepared, call),
            None => Ok(prepared),
            Some(_) => with_packed_chunks(prepared),
        }
    }

    #[cold]
    fn with_uneven_blocks<'m>(&self, prepared: Prepared<'m>, call: &Call<'_>) -> Result<Prepared<'m>> {
        let Blocks::Uneven { input, output, all } = call.blocks else { return Ok(prepared) };
        let Prepared { program, binding, record, .. } = prepared;
        let elem_bytes = binding.elem_bytes;
        let layout = UnevenLayout::new(program.chunks, program.scratch_blocks, input, output, elem_bytes)
            .map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let scratch_bytes = layout.len(Buffer::Scratch) as usize * elem_bytes;
        let bytes = all.map(|all| all.iter().map(|count| count.saturating_mul(elem_bytes as u64)).sum());
        let sizing =
            bytes.map_or(Sizing::ByMessage, |bytes| Sizing::ByCall(self.executor.protocols().size(bytes)));
        // Ranks that differ in any block are in different calls.
        let bytes_of = |count: &u64| count.to_le_bytes();
        let lengths: Vec<u8> = all.unwrap_or(&[]).iter().flat_map(bytes_of).collect();
        let record = CallRecord { plan: record.plan ^ xxhash_rust::xxh3::xxh3_64(&lengths), ..record };
        let binding = Binding { uneven: Some(Arc::new(layout)), sizing, ..binding };
        Ok(Prepared { program, binding, record, scratch_bytes })
    }

    /// Numbers a collective, and says on our board that we are in it.
    #[inline]
    pub(super) fn enter(&mut self, record: &mut CallRecord) {
        self.seq += 1;
        record.seq = self.seq;
        self.peers.agreement.enter(record);
    }

    /// Sends to, or receives from, one rank.
    pub(crate) fn message(
        &mut self,
        kind: CallKind,
        dtype: DType,
        peer: Rank,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        self.check_alive()?;
        let Prepared { program, binding, mut record, .. } =
            self.prepare_message(kind, dtype, peer, input, output)?;
        self.enter_message(&mut record);
        let binding = Binding { digest: record.digest(), ..binding };
        self.carry_out(&program, &[binding], &[record])?;
        self.peers.agreement.finish_message();
        Ok(())
    }

    pub(super) fn prepare_message<'m>(
        &mut self,
        kind: CallKind,
        dtype: DType,
        peer: Rank,
        input: Span<'m>,
        output: SpanMut<'m>,
    ) -> Result<Prepared<'m>> {
        if peer == self.rank() {
            return Err(Error::InvalidArgument(format!(
                "rank {peer} would wait for itself; a message to oneself is sent and received in one group"
            )));
        }
        if !self.plans.reaches(peer) {
            let what = format!(
                "no cable connects it with {}; pass the message on through ranks in between, or connect them",
                self.peers.names[peer.index()]
            );
            return Err(TransportError::Wiring { rank: self.rank().0, what }.into());
        }
        let sends = kind == CallKind::Send;
        let bytes = input.len().max(output.len());
        let count = (bytes / dtype.size()) as u64;
        let record = CallRecord {
            seq: 0,
            kind,
            dtype,
            op: None,
            count,
            root: peer,
            plan: 0,
            uneven: false,
            codec: None,
        };
        let program = self.message_program(peer, sends);
        let layout =
            BlockLayout::new(count, dtype.size(), 1, 1).map_err(|e| Error::InvalidArgument(e.to_string()))?;
        let binding = Binding {
            digest: 0,
            input,
            output,
            scratch: SpanMut::empty(),
            layout,
            uneven: None,
            packed: None,
            elem_bytes: dtype.size(),
            reducer: None,
            ranks: self.size(),
            threads: self.threads,
            sizing: Sizing::ByCall(self.executor.protocols().size(bytes as u64)),
            confirmed: false,
        };
        Ok(Prepared { program, binding, record, scratch_bytes: 0 })
    }

    /// Numbers a message, and says on our board that we are in it.
    pub(super) fn enter_message(&mut self, record: &mut CallRecord) {
        let seqs = &mut self.message_seqs[record.root.index()];
        let seq = if record.kind == CallKind::Send { &mut seqs.0 } else { &mut seqs.1 };
        *seq += 1;
        record.seq = *seq;
        self.peers.agreement.enter_message(record);
    }

    fn message_program(&mut self, peer: Rank, sends: bool) -> Arc<Program> {
        let lanes = Communicator::LANES;
        let slot = &mut self.message_programs[peer.index() * 2 + usize::from(sends)];
        Arc::clone(slot.get_or_insert_with(|| Arc::new(Program::message(peer, sends, lanes))))
    }

    /// A communicator that has failed stays failed; a job that has failed fails this rank's next call.
    #[inline]
    pub(super) fn check_alive(&mut self) -> Result<()> {
        if self.failed.is_none() && !self.peers.agreement.has_failure() && !self.peers.control.is_aborted() {
            return Ok(());
        }
        self.first_failure()
    }

    #[cold]
    fn first_failure(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let place = self.place_between_calls();
        if self.peers.control.is_aborted() {
            return self.fail(Error::Aborted { place: Box::new(place) });
        }
        let Some(failure) = self.peers.agreement.failure() else { return Ok(()) };
        let error = self.peers.error_of(failure, place);
        self.fail(error)
    }

    fn place_between_calls(&self) -> Place {
        let call = self.peers.agreement.call(self.rank(), self.seq);
        let call = call.unwrap_or(CallRecord::nothing(self.seq));
        Place { rank: self.rank(), call, step: Some("before the next call".into()), waited: Duration::ZERO }
    }

    pub(super) fn grow_scratch(&mut self, bytes: usize) -> Result<()> {
        if bytes > 0 && self.scratch.as_ref().is_none_or(|scratch| scratch.len() < bytes) {
            self.scratch = None;
            self.scratch = Some(self.slab.allocate(bytes)?);
        }
        Ok(())
    }

    /// Runs calls that have been entered; `bindings` and `records` are theirs, in order.
    pub(super) fn carry_out(
        &mut self,
        program: &Program,
        bindings: &[Binding<'_>],
        records: &[CallRecord],
    ) -> Result<()> {
        for (record, binding) in records.iter().zip(bindings) {
            self.peers.control.recorder.begin(record, binding.input.len().max(binding.output.len()));
        }
        let mut watch = CallWatch {
            peers: &mut self.peers,
            calls: records,
            timeout: self.timeout,
            waited: Duration::ZERO,
        };
        let memory = || bindings.iter().flat_map(|binding| [binding.input, binding.output.as_span()]);
        let lent = self.endpoint.as_mut().filter(|_| Arc::strong_count(&self.lending) > 1);
        if let Some(endpoint) = lent {
            memory().for_each(|span| endpoint.begin_use(span));
        }
        let mut ran = self.executor.run(program, bindings, &mut watch);
        let lent = self.endpoint.as_mut().filter(|_| Arc::strong_count(&self.lending) > 1);
        if let Some(endpoint) = lent {
            memory().for_each(|span| endpoint.end_use(span));
        }
        if ran.is_ok() && !program.unheard.is_empty() && !bindings.iter().any(|binding| binding.confirmed) {
            ran = records.iter().try_for_each(|record| confirm(&self.executor, program, record, &mut watch));
        }
        let error = match ran {
            Ok(()) => match watch.failure_meanwhile(|| "after its last step".into()) {
                None => {
                    self.peers.control.recorder.end(records.len(), Outcome::Done);
                    return Ok(());
                }
                Some(error) => error,
            },
            Err(stop) => explain(stop, &mut watch),
        };
        self.peers.control.recorder.end(records.len(), Outcome::Failed);
        self.fail(error)
    }

    /// Makes an error the communicator's, and the job's if it is the first one.
    pub(super) fn fail(&mut self, error: Error) -> Result<()> {
        if !matches!(error, Error::Remote { .. } | Error::Mismatch { .. } | Error::PeerDied { .. }) {
            let message = error.to_string();
            self.peers.raise(Failure::Failed { rank: self.rank(), message });
        }
        self.failed = Some(error.clone());
        self.peers.control.set_failed(&error);
        self.peers.control.tell_now(self.stats());
        self.peers.control.dump_if_wanted();
        Err(error)
    }

    /// Takes note of what has made the communicator fail, if anything has, and tells the others of an abort.
    pub(crate) fn notice_failure(&mut self) {
        // What it gives is kept, and given again to the next call.
        let _ = self.check_alive();
    }

    /// What has made the communicator fail, or will make the next call fail, as far as it can be told without waiting.
    pub(crate) fn news_of_failure(&mut self) -> Option<Error> {
        if self.failed.is_none() {
            self.peers.keep_in_touch();
            let dead = self.peers.died.iter().position(Option::is_some);
            if let Some(rank) = dead.filter(|_| !self.peers.agreement.has_failure()) {
                let how = self.peers.died[rank].clone().unwrap_or_default();
                let place = self.place_between_calls();
                return Some(self.peers.error_of(Failure::Died { rank: Rank(rank as u32), how }, place));
            }
        }
        self.check_alive().err()
    }
}

/// Gives a call memory for its packed chunks, behind its scratch.
#[cold]
fn with_packed_chunks(prepared: Prepared<'_>) -> Result<Prepared<'_>> {
    let Prepared { program, binding, record, scratch_bytes } = prepared;
    let Some(packing) = program.packing else {
        return Ok(Prepared { program, binding, record, scratch_bytes });
    };
    let layout = PackedLayout::new(packing, &binding.layout);
    let start = scratch_bytes.next_multiple_of(ALIGNMENT);
    let Some(bytes) = layout.bytes().and_then(|bytes| start.checked_add(bytes as usize)) else {
        let what = format!("{} elements are more than can be packed", binding.layout.count());
        return Err(Error::InvalidArgument(what));
    };
    let packed = Some(Packed { packer: Packer::new(packing.codec), layout, start });
    Ok(Prepared { program, binding: Binding { packed, ..binding }, record, scratch_bytes: bytes })
}

/// A rank that has only sent waits until those it sent to have entered the same call: nothing else would tell it
/// that they are in another one.
fn confirm(
    executor: &crate::executor::Executor,
    program: &Program,
    record: &CallRecord,
    watch: &mut CallWatch<'_>,
) -> Result<(), Stop> {
    if !matches!(record.kind, CallKind::Collective(_)) {
        return Ok(());
    }
    for peer in &program.unheard {
        let entered = |watch: &CallWatch<'_>| watch.peers.agreement.entered(*peer) >= record.seq;
        if !entered(watch) {
            let boards = watch.peers.agreement.clone();
            executor.wait_until(program, watch, || boards.entered(*peer) >= record.seq)?;
        }
        if let Some(theirs) = watch.peers.agreement.call(*peer, record.seq)
            && theirs.digest() != record.digest()
        {
            return Err(Stop::Watch(watch.mismatch(*peer, record.digest(), theirs)));
        }
    }
    Ok(())
}

/// Turns the reason why a run ended into an error for people.
fn explain(stop: Stop, watch: &mut CallWatch<'_>) -> Error {
    let (step, peer, error) = match stop {
        Stop::Watch(error) => return error,
        Stop::Link { step, peer, error } => (step, error.peer().map_or(peer, Rank), error),
    };
    let cause = match error {
        TransportError::Mismatch { found, expected } => match watch.find(peer, found) {
            Some(theirs) => Some(watch.mismatch(peer, expected, theirs)),
            None => watch.failure_meanwhile(|| step.clone()),
        },
        // A process that cannot be read or reached has most likely just ended; the launcher will say so in a moment.
        TransportError::Unreadable { .. }
        | TransportError::Unplugged { .. }
        | TransportError::Unreachable { .. }
        | TransportError::Lost { .. }
        | TransportError::Protocol { .. } => failure_soon(watch, peer, &step),
        _ => None,
    };
    cause.unwrap_or_else(|| Error::Link {
        peer: watch.peers.names[peer.index()].clone(),
        error: Arc::new(error),
        place: Box::new(place(watch, step)),
    })
}

fn place(watch: &CallWatch<'_>, step: String) -> Place {
    Place { rank: watch.peers.rank, call: watch.call(), step: Some(step), waited: watch.waited }
}

/// Waits a moment for news of what has happened to the peer: it has died, it has failed, or it is in another call and
/// has failed for that; or it has closed its part of the communicator, and its connections with it.
fn failure_soon(watch: &mut CallWatch<'_>, peer: Rank, step: &str) -> Option<Error> {
    let others: Vec<Rank> = watch.peers.others().collect();
    for round in 0..100 {
        watch.peers.keep_in_touch();
        if let Some(error) = watch.failure_meanwhile(|| step.to_owned()) {
            return Some(error);
        }
        if let Some(how) = watch.peers.death_of(peer) {
            let failure = watch.peers.raise(Failure::Died { rank: peer, how });
            return Some(watch.peers.error_of(failure, place(watch, step.to_owned())));
        }
        if let Err(error) = watch.look_for_mismatch(&others) {
            return Some(error);
        }
        // What made it leave may be on its way.
        if round >= LEAVING_ROUNDS && watch.has_left(peer) {
            let peer = watch.peers.names[peer.index()].clone();
            return Some(Error::PeerLeft { peer, place: Box::new(place(watch, step.to_owned())) });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// Looks for news before a peer that has left is taken to have left of its own accord.
const LEAVING_ROUNDS: u32 = 20;
