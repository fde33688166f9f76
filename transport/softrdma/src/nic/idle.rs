//! Connections that stop working when no message has passed for a long time.
//!
//! Nobody is told: what is posted is accepted and held, and polls find nothing. A connection that has stopped has, in
//! the record of its end, a destination that no queue pair can have, so neither end finds the other; nothing has
//! to be asked for that on the way of a message. Resetting the queue pair and connecting it anew mends it.

use super::{At, Nic, carry::Errand};
use crate::log;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::Ordering::Relaxed;

/// No queue pair has a number with this bit: they have 24.
const NOWHERE: u32 = 1 << 31;

/// Nanoseconds of a clock that costs next to nothing and is some milliseconds late.
fn coarse_now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl At<'_> {
    /// A message passes, or the queue pair becomes ready to.
    pub(crate) fn note_use(&self) {
        self.qp.send.last_used.store(coarse_now(), Relaxed);
    }
}

impl Errand<'_> {
    /// A message passes.
    pub(super) fn note_use(&self) {
        self.at.note_use();
        self.peer.note_use();
    }
}

impl Nic {
    /// Puts a queue pair to sleep on which nothing has happened for so long.
    pub(super) fn check_idleness(&self, at: At<'_>, limit: u64) {
        let last = at.qp.send.last_used.load(Relaxed);
        if last != 0 && coarse_now().saturating_sub(last) > limit {
            self.put_to_sleep(at);
        }
    }

    /// The connection works no more, and nobody is told but who reads the device's log.
    #[cold]
    pub(super) fn put_to_sleep(&self, at: At<'_>) {
        if at.qp.fixed.dest_qpn.fetch_or(NOWHERE, Relaxed) & NOWHERE == 0 {
            let (qpn, device) = (at.qpn(), self.world.device(at.qp.fixed.port.load(Relaxed)));
            log::warn(format_args!(
                "{}: queue pair {qpn} was idle for too long and has stopped",
                device.name
            ));
        }
    }
}
