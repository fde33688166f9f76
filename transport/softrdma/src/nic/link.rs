//! Passes requests over their cables: decides when a message arrives, and whether it does.
//!
//! A send is put into its receive at once, with a completion that is due later: the receiver sees the bytes
//! only once it sees the completion. A write is seen by anyone who looks at the memory, and a read or an
//! atomic operation returns the memory's content at its arrival. So these stay at the head of their queue
//! until they arrive. Their bytes are read then, too: no completion has told the sender that it may change
//! them.
//!
//! Invariants: a request passes its cable once, however often and by whichever process it is looked at. It
//! departs when it was posted, or when the event that its queue waited for has come, even if it is looked at
//! later. So requests behind one in flight lose no time. A request in flight is lost when its process is
//! killed.

use super::qp::QpRef;
use crate::{
    clock::now,
    fabric_view::{Way, Wire},
    link_model::{Delivery, Transmission},
    shm::{Flight, SendSlot},
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use verbs_sys::{QpType, WrOpcode};

/// The outcome of a message's passage: when each end learns of the message, and whether it arrives.
///
/// Zero stands for a time that has passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transit {
    pub(super) sender_due: u64,
    pub(super) receiver_due: u64,
    pub(super) delivery: Delivery,
}

impl Default for Transit {
    fn default() -> Transit {
        Transit { sender_due: 0, receiver_due: 0, delivery: Delivery::Intact }
    }
}

/// Whether request `number` of a queue is in flight.
pub(super) fn is_in_flight(flight: &Flight, number: u64) -> bool {
    flight.number.load(Acquire) == number + 1
}

/// Returns the transit of request `number` if the request is in flight.
fn load(flight: &Flight, number: u64) -> Option<Transit> {
    is_in_flight(flight, number).then(|| Transit {
        sender_due: flight.sender_due.load(Relaxed),
        receiver_due: flight.arrives.load(Relaxed),
        delivery: match flight.delivery.load(Relaxed) {
            0 => Delivery::Intact,
            1 => Delivery::Lost,
            bit => Delivery::Corrupted(bit),
        },
    })
}

/// Records that request `number` is in flight.
fn store(flight: &Flight, number: u64, transit: &Transit) {
    flight.sender_due.store(transit.sender_due, Relaxed);
    flight.arrives.store(transit.receiver_due, Relaxed);
    let delivery = match transit.delivery {
        Delivery::Intact => 0,
        Delivery::Lost => 1,
        Delivery::Corrupted(bit) => bit.max(2),
    };
    flight.delivery.store(delivery, Relaxed);
    flight.number.store(number + 1, Release);
}

/// Whether an operation touches memory that the other end may look at at any time.
pub(super) fn is_one_sided(opcode: WrOpcode) -> bool {
    !matches!(opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM)
}

/// Sends the request at the head of a queue over the cable, unless it is in flight already.
///
/// A reliable connection repeats lost messages; `None` when it gives up.
#[inline]
pub(super) fn transmit(qp: QpRef<'_>, kind: QpType, wire: &Wire<'_>, request: &SendSlot) -> Option<Transit> {
    match wire.cable {
        None => Some(Transit::default()),
        Some(cable) if cable.count_if_ideal(request_bytes(request)) => Some(Transit::default()),
        Some(cable) => pass_once(qp, kind, &cable, request),
    }
}

fn pass_once(qp: QpRef<'_>, kind: QpType, cable: &Way<'_>, request: &SendSlot) -> Option<Transit> {
    let (flight, head) = (&qp.record.flight, qp.record.send.head.load(Relaxed));
    if let Some(transit) = load(flight, head) {
        return Some(transit);
    }
    let departure = departure_time(qp, request);
    let Passage { transmission, delay } = pass(qp, kind, cable, request_bytes(request), departure)?;
    let arrives = transmission.arrives + delay;
    let is_timed = cable.model.is_timed() || delay > 0;
    let sender_due = if kind == QpType::RC { arrives + cable.model.latency_ns } else { transmission.departs };
    let transit = Transit {
        sender_due: if is_timed { sender_due } else { 0 },
        receiver_due: if is_timed { arrives } else { 0 },
        delivery: transmission.delivery,
    };
    store(flight, head, &transit);
    Some(transit)
}

/// Sends the response of a read that was asked for at `asked`; zero stands for now.
///
/// Returns the time at which the response arrives, zero for at once; `None` when the connection gives up.
#[inline]
pub(super) fn respond(qp: QpRef<'_>, wire: &Wire<'_>, bytes: u32, asked: u64) -> Option<u64> {
    let Some(cable) = wire.cable.map(Way::back) else { return Some(0) };
    if cable.count_if_ideal(bytes) {
        return Some(0);
    }
    let departure = if asked == 0 { now() } else { asked };
    let Passage { transmission, delay } = pass(qp, QpType::RC, &cable, bytes, departure)?;
    let is_timed = cable.model.is_timed() || delay > 0;
    Some(if is_timed { transmission.arrives + delay } else { 0 })
}

/// Returns the time at which the request at the head departs.
fn departure_time(qp: QpRef<'_>, request: &SendSlot) -> u64 {
    let not_before = &qp.record.flight.not_before;
    if qp.record.send.waits_since.load(Relaxed) != 0 || request.posted_at == 0 {
        not_before.store(now(), Relaxed);
    }
    request.posted_at.max(not_before.load(Relaxed))
}

/// The passage of a message: its last transmission, and the delay by the repetitions before.
#[derive(Clone, Copy, Debug)]
struct Passage {
    transmission: Transmission,
    delay: u64,
}

/// Sends a message in one direction of a cable.
///
/// A reliable connection repeats lost and damaged messages; `None` when it gives up.
fn pass(qp: QpRef<'_>, kind: QpType, way: &Way<'_>, bytes: u32, departure: u64) -> Option<Passage> {
    let transmit = || way.model.transmit(way.lane, way.direction, u64::from(bytes), departure);
    let (mut transmission, mut delay) = (transmit(), 0);
    if kind == QpType::RC {
        let mut retries = qp.record.signals.retry_count.load(Relaxed);
        while transmission.delivery != Delivery::Intact {
            retries = retries.checked_sub(1)?;
            delay += qp.ack_timeout().unwrap_or(1_000_000);
            transmission = transmit();
        }
    }
    Some(Passage { transmission, delay })
}

/// Returns the bytes that a request carries. The bytes of a read come back with the response.
fn request_bytes(request: &SendSlot) -> u32 {
    if request.opcode == WrOpcode::RDMA_READ.0 { 0 } else { request.bytes }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_flight_keeps_its_transit() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = super::super::member::tests::member(&folder);
        let flight = &member.own_qp(1).expect("a record").record.flight;
        assert!(load(flight, 0).is_none());
        for delivery in [Delivery::Intact, Delivery::Lost, Delivery::Corrupted(77)] {
            store(flight, 4, &Transit { sender_due: 9, receiver_due: 8, delivery });
            let found = load(flight, 4).expect("in flight");
            assert_eq!((found.sender_due, found.receiver_due, found.delivery), (9, 8, delivery));
            assert!(load(flight, 5).is_none());
        }
    }
}
