//! Values of a communicator that only metrics show: waits, the state of the endpoint, registered memory.
//!
//! Waits are counted where a long wait is looked at, and the state of the endpoint is published on request.
//! So a call that neither waits nor is asked pays nothing.

use super::Communicator;
use crate::sync::locked;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use transport::{
    driver::{Endpoint, RailInfo},
    memory::Slab,
};

/// Interval at which the state of the endpoint is published where calls are counted. To read it takes system
/// calls on some transports.
const ENDPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// State of an endpoint and of its memory at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct EndpointState {
    /// Rails by peer, and by number.
    pub(super) rails: Vec<(u32, Vec<RailInfo>)>,
    /// Address of the slab, and bytes in use.
    pub(super) slab: (usize, u64),
}

impl EndpointState {
    /// Returns the state of a rank's endpoint.
    pub(super) fn of(endpoint: Option<&dyn Endpoint>, slab: &Slab, size: u32) -> EndpointState {
        let rails = |endpoint: &dyn Endpoint| {
            let of_peers = (0..size).map(|peer| (peer, endpoint.rails(peer)));
            of_peers.filter(|(_, rails)| !rails.is_empty()).collect()
        };
        EndpointState {
            rails: endpoint.map(rails).unwrap_or_default(),
            slab: (slab.address(), slab.used_bytes()),
        }
    }
}

/// Values that only metrics show.
#[derive(Debug)]
pub(super) struct Gauges {
    /// Number of waits of milliseconds and longer, and nanoseconds in them. Written by the thread that makes
    /// the calls only.
    waits: AtomicU64,
    waited: AtomicU64,
    lent_bytes: Arc<AtomicU64>,
    endpoint: Mutex<(Option<Instant>, EndpointState)>,
}

impl Gauges {
    pub(super) fn new(lent_bytes: Arc<AtomicU64>) -> Gauges {
        Gauges { waits: AtomicU64::new(0), waited: AtomicU64::new(0), lent_bytes, endpoint: Mutex::default() }
    }

    /// Counts a wait that has lasted for `waited`, of which `before` is counted; it is another wait if it is
    /// shorter.
    pub(super) fn count_wait(&self, before: Duration, waited: Duration) {
        let is_new = before.is_zero() || waited < before;
        let more = if is_new { waited } else { waited - before };
        if is_new && !waited.is_zero() {
            self.waits.store(self.waits.load(Relaxed) + 1, Relaxed);
        }
        self.waited.store(self.waited.load(Relaxed) + more.as_nanos() as u64, Relaxed);
    }

    /// Returns the number of waits, and the time in them.
    pub(super) fn waits(&self) -> (u64, Duration) {
        (self.waits.load(Relaxed), Duration::from_nanos(self.waited.load(Relaxed)))
    }

    /// Returns the number of bytes that the program has registered.
    pub(super) fn lent_bytes(&self) -> u64 {
        self.lent_bytes.load(Relaxed)
    }

    pub(super) fn set_endpoint(&self, state: EndpointState) {
        *locked(&self.endpoint) = (Some(Instant::now()), state);
    }

    /// Returns the state of the endpoint that was published last.
    pub(super) fn endpoint(&self) -> EndpointState {
        locked(&self.endpoint).1.clone()
    }

    /// Whether the state of the endpoint was published long ago.
    pub(super) fn is_endpoint_due(&self) -> bool {
        locked(&self.endpoint).0.is_none_or(|at| at.elapsed() >= ENDPOINT_INTERVAL)
    }
}

impl Communicator {
    /// Publishes the state of the endpoint.
    pub(super) fn publish_endpoint(&self) {
        let state = EndpointState::of(self.endpoint.as_deref(), &self.slab, self.size());
        self.peers.control.gauges.set_endpoint(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_counts_once_however_often_it_is_looked_at() {
        let gauges = Gauges::new(Arc::default());
        let mut before = Duration::ZERO;
        for millis in [5, 9, 0, 4, 7, 2] {
            let waited = Duration::from_millis(millis);
            gauges.count_wait(before, waited);
            before = waited;
        }
        assert_eq!(gauges.waits(), (3, Duration::from_millis(9 + 7 + 2)));
    }
}
