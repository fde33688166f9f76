//! One device of this rank: its completion queues, its keys to the slab, and whether its port is up.

use super::memory::DeviceKeys;
use crate::{
    TransportError,
    verbs::{Channel, CompletionQueue, Context, DeviceCapabilities, Domain, POLL_BATCH, PortState},
};
use std::time::{Duration, Instant};

/// Time between looks at a port.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A device that is in use, and its port.
#[derive(Debug)]
pub(super) struct Port {
    /// Before the queue's, since it is dropped first.
    pub(super) keys: DeviceKeys,
    /// Completions of sends; apart from those of receives, so that neither waits behind the other.
    pub(super) sends: CompletionQueue,
    pub(super) receives: CompletionQueue,
    /// Announces completions, if that is wanted.
    pub(super) channel: Option<Channel>,
    pub(super) domain: Domain,
    pub(super) context: Context,
    pub(super) capabilities: DeviceCapabilities,
    pub(super) gid_index: u8,
    pub(super) is_active: bool,
    /// Reason why the device can't be used any more.
    pub(super) failure: Option<String>,
    /// Time of the next look at the port.
    next_look: Instant,
    /// Number of asynchronous events.
    pub(super) events: u64,
    /// Completions polled since a poll last found less than a full batch.
    due: u64,
    /// The highest number of these.
    pub(super) depth_high_water: u64,
}

impl Port {
    pub(super) fn new(
        (context, domain, keys, capabilities): (Context, Domain, DeviceKeys, DeviceCapabilities),
        (sends, receives, channel): (CompletionQueue, CompletionQueue, Option<Channel>),
        gid_index: u8,
    ) -> Port {
        Port {
            keys,
            sends,
            receives,
            channel,
            domain,
            context,
            capabilities,
            gid_index,
            is_active: true,
            failure: None,
            next_look: Instant::now(),
            events: 0,
            due: 0,
            depth_high_water: 0,
        }
    }

    pub(super) fn name(&self) -> &str {
        self.context.name()
    }

    /// Counts the completions of a poll. Those of full batches in a row were due together.
    #[inline]
    pub(super) fn found(&mut self, completions: usize) {
        self.due += completions as u64;
        self.depth_high_water = self.depth_high_water.max(self.due);
        if completions < POLL_BATCH {
            self.due = 0;
        }
    }

    /// Looks at the port if it is time to; returns whether its state has changed. Devices without events are
    /// asked as well.
    pub(super) fn look(&mut self, now: Instant) -> Result<bool, TransportError> {
        if now < self.next_look {
            return Ok(false);
        }
        self.next_look = now + LOOK_EVERY;
        while self.context.next_event().is_some() {
            self.events += 1;
        }
        let active = self.context.port()?.state == PortState::ACTIVE;
        let changed = active != self.is_active;
        self.is_active = active;
        Ok(changed)
    }
}
