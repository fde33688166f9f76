//! Messages between two ranks: `send` and `recv`.
//!
//! A message is polled on its link ([`Message`]). Traced messages and those in groups are programs of one
//! step. Messages with tags are not calls; see [`crate::p2p`].

use super::{
    Communicator,
    execute::{PlannedWork, Work},
    request::{Request, RequestKind},
    variant::{Prepared, Variant},
    watch::CallWatch,
};
use crate::{
    agreement::Agreement,
    call::{CallKind, CallRecord, UnnumberedDigest, Words},
    error::{Error, Result},
    executor::{CallConstants, Done, Executor, Message, MessageMemory, Program, Sizing, Stop},
};
use collectives::{BlockLayout, DType};
use std::{slice, sync::Arc};
use topology::Rank;
use transport::{
    TransportError,
    memory::{Span, SpanMut},
};

/// Numbers and digest of the latest messages with a peer.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerMessages {
    sent: u64,
    received: u64,
    /// Elements, their type and the digest of the latest message. Most have the same as the one before.
    latest: Option<(u64, DType, UnnumberedDigest)>,
}

impl PeerMessages {
    /// Returns the digest of a message with the peer.
    #[inline]
    fn digest_of(&mut self, record: &CallRecord) -> u64 {
        let digest = match self.latest {
            Some((count, dtype, digest)) if (count, dtype) == (record.count, record.dtype) => digest,
            _ => record.unnumbered_digest(),
        };
        self.latest = Some((record.count, record.dtype, digest));
        digest.of_call(record.seq)
    }
}

/// A message, and the words of its record.
#[derive(Clone, Copy)]
struct Entered<'m> {
    message: &'m Message<'m>,
    words: &'m Words,
}

impl Work for Entered<'_> {
    #[inline]
    fn for_each_span(self, mut visit: impl FnMut(Span<'_>)) {
        visit(self.message.span());
    }

    #[inline]
    fn bytes(self, _call: usize) -> usize {
        self.message.span().len()
    }

    #[inline]
    fn with_words(self, _record: &CallRecord, visit: impl FnOnce(&Words)) {
        visit(self.words);
    }

    #[inline]
    fn enter(self, agreement: &Agreement) {
        agreement.enter_message(self.words);
    }

    #[inline(always)]
    fn run_brief(self, executor: &mut Executor, meanwhile: impl FnOnce()) -> Option<Done> {
        executor.run_brief_message(self.message, meanwhile)
    }

    #[inline]
    fn run(
        self,
        executor: &mut Executor,
        _records: &[CallRecord],
        _done: Done,
        watch: &mut CallWatch<'_>,
    ) -> Result<(), Stop> {
        executor.run_message(self.message, watch)
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
            let prepared = self.prepare_message(kind, dtype, peer, input, output)?;
            let mut record = prepared.variant.record;
            self.enter_message(&mut record);
            let (program, bindings) =
                (&prepared.program, &[prepared.binding(record.digest(), SpanMut::empty())]);
            let work = PlannedWork { program, bindings, confirms: false };
            self.carry_out(work, &[record])?;
        } else {
            let mut record = self.record_of_message(kind, dtype, peer, input.len().max(output.len()))?;
            let words = self.number_message(&mut record);
            let memory = match kind {
                CallKind::Send => MessageMemory::Send(input),
                _ => MessageMemory::Recv(output),
            };
            let link = peer.index() * usize::from(Communicator::LANES);
            let digest = self.peer_messages[peer.index()].digest_of(&record);
            let message = Message { peer, link, digest, memory };
            let entered = Entered { message: &message, words: &words };
            self.carry_out(entered, slice::from_ref(&record))?;
        }
        self.peers.agreement.finish_message();
        Ok(())
    }

    /// Returns the record of a message of `bytes` bytes with another rank, which gets its number when it is
    /// entered.
    // Always inlined, as `number_message`: what is known of the record there makes its encoding short.
    #[inline(always)]
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
        // A shift, since a division takes as long as ten other instructions.
        let count = bytes as u64 >> dtype.size().trailing_zeros();
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
        let constants = CallConstants {
            layout,
            uneven: None,
            packed: None,
            elem_bytes: dtype.size(),
            reducer: None,
            ranks: self.size(),
            threads: self.plans.execution().threads,
            results: self.executor.protocols().writes_of(output.len()),
            sizing: Sizing::ByCall(self.executor.protocols().size_class(bytes as u64)),
            gathers: false,
            segments: 1,
        };
        let variant = Variant { constants, record, scratch_bytes: 0 };
        Ok(Prepared { program, variant, input, output, confirmed: false })
    }

    /// Gives a message its number, and enters it on this rank's board.
    pub(super) fn enter_message(&mut self, record: &mut CallRecord) {
        let words = self.number_message(record);
        self.peers.agreement.enter_message(&words);
    }

    /// Gives a message its number. Returns the words of its record.
    // Always inlined, as `record_of_message`.
    #[inline(always)]
    fn number_message(&mut self, record: &mut CallRecord) -> Words {
        let messages = &mut self.peer_messages[record.root.index()];
        let seq = if record.kind == CallKind::Send { &mut messages.sent } else { &mut messages.received };
        *seq += 1;
        record.seq = *seq;
        record.encode()
    }

    fn message_program(&mut self, peer: Rank, sends: bool) -> Arc<Program> {
        let lanes = Communicator::LANES;
        let slot = &mut self.message_programs[peer.index() * 2 + usize::from(sends)];
        Arc::clone(slot.get_or_insert_with(|| Arc::new(Program::message(peer, sends, lanes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_digest_whatever_the_message_before_it() {
        let (mut messages, nothing) = (PeerMessages::default(), CallRecord::nothing(0));
        let of = |seq, kind, count, dtype| CallRecord { seq, kind, count, dtype, root: Rank(1), ..nothing };
        for (seq, kind, count, dtype) in [
            (1, CallKind::Send, 8, DType::F32),
            (2, CallKind::Send, 8, DType::F32),
            (1, CallKind::Recv, 8, DType::F32),
            (2, CallKind::Recv, 9, DType::F32),
            (3, CallKind::Send, 9, DType::I32),
            (4, CallKind::Send, 9, DType::F32),
        ] {
            let record = of(seq, kind, count, dtype);
            assert_eq!(messages.digest_of(&record), record.digest(), "{record}");
        }
    }
}
