//! A request's way over its cable: when it arrives, and what happens there only then.
//!
//! What a send brings is seen when its completion is, so it is put into its receive at once, with a completion that
//! is due later. A write is seen by whoever looks at the memory, and a read or an atomic operation shows what the
//! memory is when it arrives. So these stay at the head of their queue until they are there. Their bytes are read
//! then too: no completion has told the sender that it may change them.
//!
//! Invariants: a request crosses its cable once, whoever carries it out and however often it is looked at. It leaves
//! when it was posted, or when what its queue waited for has come, also if it is looked at later; so what is behind
//! a request that is on its way loses no time. A request on its way of a process that is killed is lost.

use super::{At, Nic, now};
use crate::{
    link_model::{Delivery, Transmission},
    shm::{Flight, SendSlot},
    world::{Way, Wire},
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use verbs_sys::{QpType, WrOpcode};

/// When the two ends learn of a message, and whether it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    pub(super) sender_due: u64,
    pub(super) receiver_due: u64,
    pub(super) delivery: Delivery,
}

impl Default for Trip {
    fn default() -> Trip {
        Trip { sender_due: 0, receiver_due: 0, delivery: Delivery::Intact }
    }
}

impl Flight {
    /// Is the request with that number on its way?
    pub(super) fn has_begun(&self, number: u64) -> bool {
        self.number.load(Acquire) == number + 1
    }

    /// The trip of the request with that number, if it has begun.
    fn trip(&self, number: u64) -> Option<Trip> {
        self.has_begun(number).then(|| Trip {
            sender_due: self.sender_due.load(Relaxed),
            receiver_due: self.arrives.load(Relaxed),
            delivery: match self.delivery.load(Relaxed) {
                0 => Delivery::Intact,
                1 => Delivery::Lost,
                bit => Delivery::Corrupted(bit),
            },
        })
    }

    fn begin(&self, number: u64, trip: &Trip) {
        self.sender_due.store(trip.sender_due, Relaxed);
        self.arrives.store(trip.receiver_due, Relaxed);
        let delivery = match trip.delivery {
            Delivery::Intact => 0,
            Delivery::Lost => 1,
            Delivery::Corrupted(bit) => bit.max(2),
        };
        self.delivery.store(delivery, Relaxed);
        self.number.store(number + 1, Release);
    }
}

/// Does it touch memory that the other end may look at at any time?
pub(super) fn is_one_sided(opcode: WrOpcode) -> bool {
    !matches!(opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM)
}

impl Nic {
    /// Sends the request at the head of a queue over the cable, if it is not on its way already. A reliable
    /// connection repeats what is lost; `None` when it gives up.
    #[inline]
    pub(super) fn travel(
        &self,
        at: At<'_>,
        kind: QpType,
        wire: &Wire<'_>,
        request: &SendSlot,
    ) -> Option<Trip> {
        match wire.cable {
            None => Some(Trip::default()),
            Some(cable) if cable.count_if_ideal(carried(request)) => Some(Trip::default()),
            Some(_) => self.cross(at, kind, wire, request),
        }
    }

    fn cross(&self, at: At<'_>, kind: QpType, wire: &Wire<'_>, request: &SendSlot) -> Option<Trip> {
        let cable = wire.cable?;
        let (flight, head) = (&at.qp.flight, at.qp.send.head.load(Relaxed));
        if let Some(trip) = flight.trip(head) {
            return Some(trip);
        }
        let Passed { transmission, late } = pass(at, kind, &cable, carried(request), leaves(at, request))?;
        let arrives = transmission.arrives + late;
        let is_timed = cable.model.is_timed() || late > 0;
        let sender_due =
            if kind == QpType::RC { arrives + cable.model.latency_ns } else { transmission.departs };
        let trip = Trip {
            sender_due: if is_timed { sender_due } else { 0 },
            receiver_due: if is_timed { arrives } else { 0 },
            delivery: transmission.delivery,
        };
        flight.begin(head, &trip);
        Some(trip)
    }

    /// Sends so many bytes back that a read has asked for, and returns when they are there. `None` when the connection
    /// gives up.
    #[inline]
    pub(super) fn answer(&self, at: At<'_>, wire: &Wire<'_>, bytes: u32, asked: u64) -> Option<u64> {
        let Some(cable) = wire.cable.map(Way::back) else { return Some(0) };
        if cable.count_if_ideal(bytes) {
            return Some(0);
        }
        let leaves = if asked == 0 { now() } else { asked };
        let Passed { transmission, late } = pass(at, QpType::RC, &cable, bytes, leaves)?;
        let is_timed = cable.model.is_timed() || late > 0;
        Some(if is_timed { transmission.arrives + late } else { 0 })
    }

    /// Is a request still on its way? Sees to it that it is looked at when it arrives.
    #[inline]
    pub(super) fn is_on_its_way(&self, at: At<'_>, trip: &Trip) -> bool {
        if trip.receiver_due == 0 || trip.receiver_due <= now() {
            return false;
        }
        self.remind(at, trip.receiver_due);
        true
    }
}

/// When the request at the head leaves.
fn leaves(at: At<'_>, request: &SendSlot) -> u64 {
    let not_before = &at.qp.flight.not_before;
    if at.qp.send.waits_since.load(Relaxed) != 0 || request.posted_at == 0 {
        not_before.store(now(), Relaxed);
    }
    request.posted_at.max(not_before.load(Relaxed))
}

/// What a message has gone through, and how much later it was for having been repeated.
#[derive(Clone, Copy, Debug)]
struct Passed {
    transmission: Transmission,
    late: u64,
}

/// Sends a message in one direction of a cable. A reliable connection repeats what is lost or damaged; `None` when it
/// gives up.
fn pass(at: At<'_>, kind: QpType, way: &Way<'_>, bytes: u32, leaves: u64) -> Option<Passed> {
    let once = || way.model.transmit(way.lane, way.direction, u64::from(bytes), leaves);
    let (mut transmission, mut late) = (once(), 0);
    if kind == QpType::RC {
        let mut tries = at.qp.signals.retry_count.load(Relaxed);
        while transmission.delivery != Delivery::Intact {
            tries = tries.checked_sub(1)?;
            late += ack_timeout(at).unwrap_or(1_000_000);
            transmission = once();
        }
    }
    Some(Passed { transmission, late })
}

/// Bytes that a request takes along. Those of a read come back with the answer.
fn carried(request: &SendSlot) -> u32 {
    if request.opcode == WrOpcode::RDMA_READ.0 { 0 } else { request.bytes }
}

impl At<'_> {
    /// When a completion may be seen: those of a queue pair come in the order of its requests, those of failed ones
    /// too.
    #[inline]
    pub(super) fn in_order(&self, due: u64) -> u64 {
        let last = &self.qp.send.last_due;
        if due > last.load(Relaxed) {
            last.store(due, Relaxed);
        }
        last.load(Relaxed)
    }
}

/// How long a sender waits for an acknowledgement; `None` for ever.
pub(super) fn ack_timeout(at: At<'_>) -> Option<u64> {
    match at.qp.signals.timeout.load(Relaxed) & 31 {
        0 => None,
        exponent => Some(4096 << exponent),
    }
}
