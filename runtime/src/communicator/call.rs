//! One blocking call, from its arguments to its result.

use super::{
    Communicator, dumps,
    plans::{CallShape, Fit, Fitted},
    stopped::{confirm, explain},
    watch::CallWatch,
};
use crate::{
    agreement::Failure,
    call::{CallKind, CallRecord},
    error::{Error, Place, Result},
    executor::{Binding, Packed, Program, Sizing},
    kernels::{Reducer, quantize::Packer},
    recorder::Outcome,
};
use collectives::{
    BlockLayout, Codec, Collective, DType, PackedLayout, ReduceOp,
    schedule::{Buffer, InPlace},
    uneven::UnevenLayout,
};
use std::{slice, sync::Arc, time::Duration};
use topology::Rank;
use transport::{
    TransportError,
    memory::{Span, SpanMut},
};

/// A collective call, by value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) op: Option<ReduceOp>,
    /// Elements per block; where blocks differ, their mean.
    pub(crate) count: u64,
    pub(crate) root: Rank,
    pub(crate) in_place: InPlace,
    /// How messages are packed, if they are.
    pub(crate) codec: Option<Codec>,
}

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

impl Call {
    /// How its elements are combined, if they are.
    #[inline]
    pub(super) fn reducer(&self) -> Result<Option<Reducer>> {
        if self.op == Some(ReduceOp::Avg) && !self.collective.averages() {
            let what = format!("{} has no average; choose another operation, e.g. sum", self.collective);
            return Err(Error::InvalidArgument(what));
        }
        // Spelt out: through `map` and `transpose` it is stored in parts and loaded as a whole, for which a processor waits.
        let Some(op) = self.op else { return Ok(None) };
        match Reducer::new(self.dtype, op) {
            Ok(reducer) => Ok(Some(reducer)),
            Err(illegal) => Err(illegal.into()),
        }
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
    pub(crate) fn collective(
        &mut self,
        call: &Call,
        blocks: Blocks<'_>,
        input: Span<'_>,
        output: SpanMut<'_>,
    ) -> Result<()> {
        self.check_alive()?;
        let reducer = call.reducer()?;
        let (place, fitted) = self.plans.borrow(&self.shape_of(call, blocks))?;
        let Fitted { program, fit } = fitted;
        let mut scratch_bytes = fit.scratch_bytes;
        let mut record = record_of(call, blocks, &program);
        // Made here and changed where it lies: moving it about costs a small call more than all else that is done to it.
        let mut binding = self.binding(call, &program, &fit, (input, output));
        binding.reducer = reducer;
        if call.codec.is_some() || record.uneven {
            self.bind_otherwise(blocks, &program, &mut binding, &mut record, &mut scratch_bytes)?;
        }
        // The others are about to enter, so that this failure is theirs too.
        if let Err(error) = self.grow_scratch(scratch_bytes) {
            return self.fail(error);
        }
        self.enter(&mut record);
        binding.digest = record.digest();
        let mut memory = self.scratch.take();
        binding.scratch = memory.as_mut().map_or(SpanMut::empty(), |memory| memory.span_mut());
        let done = self.carry_out(&program, slice::from_ref(&binding), slice::from_ref(&record));
        drop(binding);
        self.scratch = memory;
        self.plans.give_back(place, program);
        done?;
        self.peers.agreement.finish(record.seq);
        Ok(())
    }

    /// What decides which plan a call takes.
    #[inline]
    pub(super) fn shape_of(&self, call: &Call, blocks: Blocks<'_>) -> CallShape {
        CallShape {
            collective: call.collective,
            count: call.count,
            elem_bytes: call.dtype.size() as u32,
            root: call.root,
            in_place: call.in_place,
            uneven: matches!(blocks, Blocks::Uneven { .. }),
            numerics: self.numerics,
            codec: call.codec,
        }
    }

    /// Finds the plan of a call, and binds it. Nothing is entered yet.
    pub(super) fn prepare<'m>(
        &mut self,
        call: &Call,
        blocks: Blocks<'_>,
        input: Span<'m>,
        output: SpanMut<'m>,
    ) -> Result<Prepared<'m>> {
        let reducer = call.reducer()?;
        let Fitted { program, fit } = self.plans.get(&self.shape_of(call, blocks))?;
        let mut scratch_bytes = fit.scratch_bytes;
        let mut record = record_of(call, blocks, &program);
        let mut binding = self.binding(call, &program, &fit, (input, output));
        binding.reducer = reducer;
        self.bind_otherwise(blocks, &program, &mut binding, &mut record, &mut scratch_bytes)?;
        Ok(Prepared { program, binding, record, scratch_bytes })
    }

    /// The memory of a call whose blocks are alike and whose messages travel as they are.
    // Always: it is large, and is made where it is used.
    #[inline(always)]
    fn binding<'m>(
        &self,
        call: &Call,
        program: &Program,
        fit: &Fit,
        (input, output): (Span<'m>, SpanMut<'m>),
    ) -> Binding<'m> {
        Binding {
            digest: 0,
            input,
            output,
            scratch: SpanMut::empty(),
            layout: fit.layout,
            uneven: None,
            packed: None,
            elem_bytes: call.dtype.size(),
            reducer: None,
            ranks: self.size(),
            threads: self.threads,
            sizing: Sizing::ByCall(self.executor.protocols().size(fit.bytes)),
            confirmed: !program.unheard.is_empty() && !self.peers.agreement.is_mapped(),
        }
    }

    /// What is otherwise where blocks have lengths of their own, or messages travel packed.
    #[cold]
    fn bind_otherwise(
        &self,
        blocks: Blocks<'_>,
        program: &Program,
        binding: &mut Binding<'_>,
        record: &mut CallRecord,
        scratch_bytes: &mut usize,
    ) -> Result<()> {
        if record.codec.is_some() {
            return give_packed_chunks(program, binding, scratch_bytes);
        }
        let Blocks::Uneven { input, output, all } = blocks else { return Ok(()) };
        let elem_bytes = binding.elem_bytes;
        let layout = UnevenLayout::new(program.chunks, program.scratch_blocks, input, output, elem_bytes)
            .map_err(|error| Error::InvalidArgument(error.to_string()))?;
        *scratch_bytes = layout.len(Buffer::Scratch) as usize * elem_bytes;
        let bytes = all.map(|all| all.iter().map(|count| count.saturating_mul(elem_bytes as u64)).sum());
        binding.sizing =
            bytes.map_or(Sizing::ByMessage, |bytes| Sizing::ByCall(self.executor.protocols().size(bytes)));
        // Ranks that differ in any block are in different calls.
        let bytes_of = |count: &u64| count.to_le_bytes();
        let lengths: Vec<u8> = all.unwrap_or(&[]).iter().flat_map(bytes_of).collect();
        record.plan ^= xxhash_rust::xxh3::xxh3_64(&lengths);
        binding.uneven = Some(Arc::new(layout));
        Ok(())
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
            self.scratch = Some(Box::new(self.slab.allocate(bytes)?));
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
            has_looked: false,
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
                    let brief = !watch.has_looked;
                    self.peers.control.recorder.end(records.len(), Outcome::Done, brief);
                    return Ok(());
                }
                Some(error) => error,
            },
            Err(stop) => explain(stop, &mut watch),
        };
        self.peers.control.recorder.end(records.len(), Outcome::Failed, false);
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
        dumps::write_if_wanted(&self.peers.control);
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

/// What others see of a call; its number it gets when it is entered.
#[inline]
fn record_of(call: &Call, blocks: Blocks<'_>, program: &Program) -> CallRecord {
    CallRecord {
        seq: 0,
        kind: CallKind::Collective(call.collective),
        dtype: call.dtype,
        op: call.op,
        count: call.count,
        root: call.root,
        plan: program.id,
        uneven: matches!(blocks, Blocks::Uneven { .. }),
        codec: call.codec,
    }
}

/// Gives a call memory for its packed chunks, behind its scratch.
#[cold]
fn give_packed_chunks(program: &Program, binding: &mut Binding<'_>, scratch_bytes: &mut usize) -> Result<()> {
    let Some(packing) = program.packing else { return Ok(()) };
    let layout = PackedLayout::new(packing, &binding.layout);
    let start = scratch_bytes.next_multiple_of(super::ALIGNMENT);
    let Some(bytes) = layout.bytes().and_then(|bytes| start.checked_add(bytes as usize)) else {
        let what = format!("{} elements are more than can be packed", binding.layout.count());
        return Err(Error::InvalidArgument(what));
    };
    binding.packed = Some(Packed { packer: Packer::new(packing.codec), layout, start });
    *scratch_bytes = bytes;
    Ok(())
}
