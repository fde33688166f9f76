//! Carrying out one request.
//!
//! # Safety
//! The slot lies in the mapped ring of its queue, whose lock is held, and was written before the tail that
//! covers it.

use super::{
    At, Nic,
    agenda::CHECKUP,
    copy::List,
    fail::Aftermath,
    now,
    peer::Peer,
    region::Need,
    travel::{Trip, ack_timeout, is_one_sided},
};
use crate::{
    link_model::Delivery,
    profile::UnmatchedSend,
    shm::{SEND_SGES, SendSlot},
};
use std::sync::atomic::Ordering::Relaxed;
use verbs_sys::{AccessFlags, QpType, SendFlags, WcOpcode, WcStatus, WrOpcode};

/// A request in its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(*mut SendSlot);

impl Slot {
    /// The request, without copying it.
    #[inline]
    pub(super) fn get(&self) -> &SendSlot {
        // SAFETY: see the module; nobody writes to a slot between its posting and its completion.
        unsafe { &*self.0 }
    }

    pub(super) fn is_signaled(&self) -> bool {
        SendFlags(self.get().flags).contains(SendFlags::SIGNALED)
    }

    pub(super) fn completion_opcode(&self) -> u8 {
        let opcode = match WrOpcode(self.get().opcode) {
            WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
            WrOpcode::RDMA_READ => WcOpcode::RDMA_READ,
            WrOpcode::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
            WrOpcode::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            _ => WcOpcode::SEND,
        };
        opcode.0 as u8
    }

    /// Where the bytes of the request are, or go to.
    pub(super) fn list<'a>(&self, at: At<'a>) -> List<'a> {
        let slot = self.get();
        let first = slot.pieces.as_ptr();
        if SendFlags(slot.flags).contains(SendFlags::INLINE) {
            return List::Plain { start: first.cast::<u8>().cast_mut(), len: slot.bytes as usize };
        }
        let writes = slot.opcode >= WrOpcode::RDMA_READ.0;
        let access = if writes { AccessFlags::LOCAL_WRITE } else { AccessFlags::NONE };
        let need = Need::of(at.view, &at.qp.fixed, access);
        List::Pieces { need, first, count: slot.sges.min(SEND_SGES as u32) }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) status: WcStatus,
    pub(super) bytes: u32,
    pub(super) due: u64,
}

impl Done {
    pub(super) fn with(status: WcStatus) -> Done {
        Done { status, bytes: 0, due: 0 }
    }

    pub(super) fn well(bytes: u32, due: u64) -> Outcome {
        Outcome::Done(Done { status: WcStatus::SUCCESS, bytes, due })
    }

    pub(super) fn badly(status: WcStatus) -> Outcome {
        Outcome::Done(Done::with(status))
    }
}

/// What came of carrying out a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Done(Done),
    /// It stays at the head of its queue until somebody tries again.
    Waits,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errand<'a> {
    pub(super) at: At<'a>,
    pub(super) peer: At<'a>,
    pub(super) slot: Slot,
    pub(super) kind: QpType,
    pub(super) trip: Trip,
}

impl Nic {
    pub(super) fn send_slot(&self, at: At<'_>, number: u64) -> Option<Slot> {
        let index = number & at.qp.send.mask.load(Relaxed);
        let offset = index.checked_mul(size_of::<SendSlot>() as u64)?;
        at.view.area().at::<SendSlot>(at.qp.fixed.ring.load(Relaxed).checked_add(offset)?).map(Slot)
    }

    /// Under the lock of the send queue.
    #[inline]
    pub(super) fn carry_out(&self, at: At<'_>, slot: Slot, aftermath: &mut Aftermath) -> Outcome {
        let kind = QpType(at.qp.fixed.kind.load(Relaxed));
        let request = slot.get();
        if slot.list(at).check().is_err() {
            return Done::badly(WcStatus::LOC_PROT_ERR);
        }
        let device = self.world.device(at.qp.fixed.port.load(Relaxed));
        let profile = device.profile;
        if request.bytes > profile.max_message_bytes {
            return Done::badly(WcStatus::LOC_LEN_ERR);
        }
        if device.idle_ns != 0 {
            self.check_idleness(at, device.idle_ns);
        }
        let found = if kind == QpType::UD { self.addressed(at, request) } else { self.connected(at) };
        let holds = kind == QpType::UC && profile.uc_unmatched_send == UnmatchedSend::Hold;
        if self.is_stalled(at.qp.fixed.port.load(Relaxed)) {
            self.waiting_for(at);
            return self.wait_for(at, None);
        }
        let (peer, wire) = match found {
            Peer::Ready(peer, wire) if !self.is_stalled(peer.qp.fixed.port.load(Relaxed)) => (peer, wire),
            Peer::Ready(..) if kind == QpType::RC => return self.unanswered(at),
            Peer::Ready(..) if !holds => return Done::well(request.bytes, 0),
            Peer::Ready(..) => return self.wait(at),
            Peer::Silent if kind == QpType::RC => return self.unanswered(at),
            Peer::Gone if kind == QpType::RC => return Done::badly(WcStatus::RETRY_EXC_ERR),
            Peer::Silent | Peer::Gone if holds => return self.wait(at),
            Peer::Silent | Peer::Gone => return Done::well(request.bytes, 0),
        };
        let mut errand = Errand { at, peer, slot, kind, trip: Trip::default() };
        let opcode = WrOpcode(request.opcode);
        let uses_receive = opcode == WrOpcode::RDMA_WRITE_WITH_IMM || !is_one_sided(opcode);
        let taken = match uses_receive {
            false => None,
            true if kind == QpType::RC || holds => self.take_receive_or_wait(peer),
            true => self.take_receive(peer),
        };
        if uses_receive && taken.is_none() && (kind == QpType::RC || holds) {
            return self.not_ready(errand, holds);
        }
        if device.idle_ns != 0 {
            errand.note_use();
        }
        match self.travel(at, kind, &wire, request) {
            Some(trip) => errand.trip = trip,
            None => return Done::badly(WcStatus::RETRY_EXC_ERR),
        }
        // Whether there is a receive for a message that found none when it left is seen when it arrives.
        let is_judged_there = is_one_sided(opcode) || taken.is_none();
        if errand.trip.delivery != Delivery::Lost && is_judged_there && self.is_on_its_way(at, &errand.trip) {
            return Outcome::Waits;
        }
        if errand.trip.delivery == Delivery::Lost || uses_receive && taken.is_none() {
            // Reliable connections have repeated what was lost, so this is an unreliable one.
            return Done::well(request.bytes, errand.trip.sender_due);
        }
        match (opcode, taken) {
            (WrOpcode::SEND | WrOpcode::SEND_WITH_IMM, Some(taken)) => {
                self.send(errand, &taken, profile, aftermath)
            }
            (WrOpcode::RDMA_WRITE_WITH_IMM, Some(taken)) => self.write_and_tell(errand, &taken, aftermath),
            (WrOpcode::RDMA_READ, _) => self.read(errand, &wire, aftermath),
            (opcode, _) => self.one_sided(errand, opcode, aftermath),
        }
    }

    /// Nothing to be done now; notes since when.
    fn wait(&self, at: At<'_>) -> Outcome {
        self.waiting_for(at);
        Outcome::Waits
    }

    /// As [`Nic::wait`], until the request fails so many nanoseconds after it began to wait. It is looked at now
    /// and then before, because nobody says that a peer has died or a node goes on.
    fn wait_for(&self, at: At<'_>, patience: Option<u64>) -> Outcome {
        let checkup = now() + CHECKUP;
        let end = patience.map(|patience| at.qp.send.waits_since.load(Relaxed).saturating_add(patience + 1));
        self.remind(at, end.map_or(checkup, |end| end.min(checkup)));
        Outcome::Waits
    }

    /// Returns for how long the request at the head has been waiting.
    fn waiting_for(&self, at: At<'_>) -> u64 {
        let now = now();
        at.view.header().waiting.store(1, Relaxed);
        let since = at.qp.send.waits_since.load(Relaxed);
        if since == 0 {
            at.qp.send.waits_since.store(now, Relaxed);
            return 0;
        }
        now.saturating_sub(since)
    }

    /// Nobody acknowledges.
    #[cold]
    fn unanswered(&self, at: At<'_>) -> Outcome {
        let tries = u64::from(at.qp.signals.retry_count.load(Relaxed)) + 1;
        let waited = self.waiting_for(at);
        let patience = ack_timeout(at).map(|timeout| timeout * tries);
        match patience {
            Some(patience) if waited > patience => Done::badly(WcStatus::RETRY_EXC_ERR),
            _ => self.wait_for(at, patience),
        }
    }

    /// The peer has no receive posted.
    #[cold]
    fn not_ready(&self, errand: Errand<'_>, holds: bool) -> Outcome {
        let Errand { at, peer, .. } = errand;
        if holds {
            return self.wait(at);
        }
        let retries = at.qp.signals.rnr_retry.load(Relaxed);
        let waited = self.waiting_for(at);
        let pause = rnr_pause(peer.qp.signals.min_rnr_timer.load(Relaxed));
        let patience = (retries < 7).then(|| pause * (u64::from(retries) + 1));
        if patience.is_some_and(|patience| waited > patience) {
            return Done::badly(WcStatus::RNR_RETRY_EXC_ERR);
        }
        self.wait_for(at, patience)
    }
}

/// How long a sender waits before it tries again, in nanoseconds, by the code of the receiver's timer. The
/// codes are those of the InfiniBand specification, in units of 10 microseconds.
fn rnr_pause(code: u32) -> u64 {
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    UNITS[code as usize & 31] * 10_000
}
