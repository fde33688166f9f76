//! Messages between two ranks: `send` and `recv`.
//!
//! A message is polled on its link ([`Message`]). Traced messages and those in groups are programs of one
//! step. Messages with tags are not calls; see [`crate::p2p`].

use super::{
    Communicator,
    execute::{PlannedWork, Prepared, Work},
    request::{Request, RequestKind},
    watch::CallWatch,
};
use crate::{
    call::{CallKind, CallRecord},
    error::{Error, Result},
    executor::{Binding, Executor, Message, MessageMemory, Program, Sizing, Stop},
};
use collectives::{BlockLayout, DType};
use std::{slice, sync::Arc};
use topology::Rank;
use transport::{
    TransportError,
    memory::{Span, SpanMut},
};

impl Work for &Message<'_> {
    #[inline]
    fn for_each_span(self, mut visit: impl FnMut(Span<'_>)) {
        visit(self.span());
    }

    #[inline]
    fn bytes(self, _call: usize) -> usize {
        self.span().len()
    }

    #[inline]
    fn run(
        self,
        executor: &mut Executor,
        _records: &[CallRecord],
        watch: &mut CallWatch<'_>,
    ) -> Result<(), Stop> {
        executor.run_message(self, watch)
    }
}

impl Communicator {
    /// Sends to, or receives from, one rank.
    pub(super) fn message(&mut self, request: &Request<'_>) -> Result<()> {
        self.check_alive()?;
        let RequestKind::Message { kind, dtype, peer } = request.kind else {
            unreachable!("collectives are no messages");
        };
        let (input, output) = (request.input, request.output);
        if self.executor.is_traced() {
            let Prepared { program, binding, mut record, .. } =
                self.prepare_message(kind, dtype, peer, input, output)?;
            self.enter_message(&mut record);
            let binding = Binding { digest: record.digest(), ..binding };
            self.carry_out(PlannedWork { program: &program, bindings: &[binding] }, &[record])?;
        } else {
            let mut record = self.record_of_message(kind, dtype, peer, input.len().max(output.len()))?;
            self.enter_message(&mut record);
            let memory = match kind {
                CallKind::Send => MessageMemory::Send(input),
                _ => MessageMemory::Recv(output),
            };
            let link = peer.index() * usize::from(Communicator::LANES);
            let message = Message { peer, link, digest: record.digest(), memory };
            self.carry_out(&message, slice::from_ref(&record))?;
        }
        self.peers.agreement.finish_message();
        Ok(())
    }

    /// Returns the record of a message of `bytes` bytes with another rank, which gets its number when it is
    /// entered.
    #[inline]
    fn record_of_message(
        &self,
        kind: CallKind,
        dtype: DType,
        peer: Rank,
        bytes: usize,
    ) -> Result<CallRecord> {
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
        let count = (bytes / dtype.size()) as u64;
        Ok(CallRecord {
            seq: 0,
            kind,
            dtype,
            op: None,
            count,
            root: peer,
            plan: 0,
            uneven: false,
            codec: None,
        })
    }

    /// Binds the program of a message. Nothing is entered yet.
    pub(super) fn prepare_message<'m>(
        &mut self,
        kind: CallKind,
        dtype: DType,
        peer: Rank,
        input: Span<'m>,
        output: SpanMut<'m>,
    ) -> Result<Prepared<'m>> {
        let bytes = input.len().max(output.len());
        let record = self.record_of_message(kind, dtype, peer, bytes)?;
        let program = self.message_program(peer, kind == CallKind::Send);
        let layout = BlockLayout::new(record.count, dtype.size(), 1, 1)
            .map_err(|e| Error::InvalidArgument(e.to_string()))?;
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
            sizing: Sizing::ByCall(self.executor.protocols().size_class(bytes as u64)),
            gathers: false,
            confirmed: false,
        };
        Ok(Prepared { program, binding, record, scratch_bytes: 0 })
    }

    /// Gives a message its number, and enters it on this rank's board.
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
}
