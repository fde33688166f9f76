//! Connections that stop working when no message has passed for a long time.
//!
//! No error is reported: posted requests are accepted and held, and polls find nothing. The record of a
//! stopped end has a destination that no queue pair can have, so neither end finds the other, and messages
//! need no check of their own. Resetting the queue pair and connecting it again repairs the connection.

use super::qp::QpRef;
use crate::{clock::coarse_now, fabric::Device, log};
use std::sync::atomic::Ordering::Relaxed;

/// A bit that no queue pair number has: numbers have 24 bits.
const NOWHERE: u32 = 1 << 31;

/// Stops a connection of `device` that was idle for longer than the device permits.
pub(super) fn check(qp: QpRef<'_>, device: &Device) {
    let last = qp.record.send.last_used.load(Relaxed);
    if last != 0 && coarse_now().saturating_sub(last) > device.idle_ns {
        stop(qp, device);
    }
}

/// Stops a connection. Only the device's log says so.
#[cold]
pub(super) fn stop(qp: QpRef<'_>, device: &Device) {
    if qp.record.fixed.dest_qpn.fetch_or(NOWHERE, Relaxed) & NOWHERE == 0 {
        let qpn = qp.qpn();
        log::warn(format_args!("{}: queue pair {qpn} was idle for too long and has stopped", device.name));
    }
}
