//! One of our devices: its queue of completions, its keys to the slab, and whether its port is up.

use super::memory::Keys;
use crate::{
    TransportError,
    verbs::{Channel, CompletionQueue, Context, DeviceCapabilities, Domain, POLL_BATCH, PortState},
};
use std::time::{Duration, Instant};

/// How often a port is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A device that is in use, and its port.
#[derive(Debug)]
pub(super) struct Port {
    /// Before the queue's, since it is dropped first.
    pub(super) keys: Keys,
    /// Of sends, and of receives: what has arrived is not to wait behind what is not yet acknowledged.
    pub(super) sends: CompletionQueue,
    pub(super) receives: CompletionQueue,
    /// Announces completions, when that is wanted.
    pub(super) channel: Option<Channel>,
    pub(super) domain: Domain,
    pub(super) context: Context,
    pub(super) abilities: DeviceCapabilities,
    pub(super) gid_index: u8,
    pub(super) is_active: bool,
    /// When it is looked at next.
    next_look: Instant,
    /// Asynchronous events so far.
    pub(super) events: u64,
    /// Completions taken since a poll last found less than a full batch.
    due: u64,
    /// The most of these.
    pub(super) depth_high_water: u64,
}

impl Port {
    pub(super) fn new(
        (context, domain, keys, abilities): (Context, Domain, Keys, DeviceCapabilities),
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
            abilities,
            gid_index,
            is_active: true,
            next_look: Instant::now(),
            events: 0,
            due: 0,
            depth_high_water: 0,
        }
    }

    pub(super) fn name(&self) -> &str {
        self.context.name()
    }

    /// Takes note of how many completions a poll has found: full batches one after the other were due together.
    #[inline]
    pub(super) fn found(&mut self, completions: usize) {
        self.due += completions as u64;
        self.depth_high_water = self.depth_high_water.max(self.due);
        if completions < POLL_BATCH {
            self.due = 0;
        }
    }

    /// Looks at the port if it is time to; true when something has changed. A device without events is asked, too.
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
