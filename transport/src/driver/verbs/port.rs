//! One device of this rank: its completion queues, its keys to memory, and the state of its port.

use super::{VerbsConfig, memory::DeviceKeys};
use crate::{
    TransportError,
    verbs::{
        Channel, CompletionQueue, Context, DeviceCapabilities, Domain, Gid, POLL_BATCH, PacketClass,
        PortState,
    },
};
use std::time::{Duration, Instant};

/// Polls of the receives that find nothing, for one poll of a queue of sends that was empty the last time.
/// Most sends ask for no completion, and a poll of an empty queue delays the next message by half its time.
const IDLE_SENDS_EVERY: u32 = 4;

/// Time between queries of a port.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Device in use, and its port.
#[derive(Debug)]
pub(super) struct Port {
    /// Keys to memory. They come before the domain, since regions are dropped first.
    pub(super) keys: DeviceKeys,
    /// Completion queue of sends, apart from that of receives, so that neither delays the other.
    pub(super) sends: CompletionQueue,
    pub(super) receives: CompletionQueue,
    /// Channel of completion events, if they are used.
    pub(super) channel: Option<Channel>,
    pub(super) domain: Domain,
    pub(super) context: Context,
    pub(super) capabilities: DeviceCapabilities,
    /// The source address of connections, and its index when the device was opened.
    gid: (u8, Gid),
    /// Whether the user has named the index, so that no other counts.
    is_gid_index_fixed: bool,
    /// Class of the packets of connections.
    pub(super) class: PacketClass,
    pub(super) is_active: bool,
    /// Reason why the device can't be used any more.
    pub(super) failure: Option<String>,
    /// Time of the next query.
    next_look: Instant,
    /// Number of asynchronous events.
    pub(super) events: u64,
    /// Completions polled since a poll last returned less than a full batch.
    due: u64,
    /// Maximum of `due`.
    pub(super) depth_high_water: u64,
    /// Polls of the receives that may still find nothing before the sends are polled.
    skipped_sends: u32,
    /// Whether a send has found no room in its queue since the sends were last polled for that.
    has_full_queue: bool,
}

impl Port {
    pub(super) fn new(
        (context, domain, keys, capabilities): (Context, Domain, DeviceKeys, DeviceCapabilities),
        (sends, receives, channel): (CompletionQueue, CompletionQueue, Option<Channel>),
        gid: (u8, Gid),
        config: &VerbsConfig,
    ) -> Port {
        Port {
            keys,
            sends,
            receives,
            channel,
            domain,
            context,
            capabilities,
            gid,
            is_gid_index_fixed: config.gid_index.is_some(),
            class: config.class,
            is_active: true,
            failure: None,
            next_look: Instant::now(),
            events: 0,
            due: 0,
            depth_high_water: 0,
            skipped_sends: 0,
            has_full_queue: false,
        }
    }

    /// Whether to poll the sends after a poll of the receives that found nothing.
    #[inline]
    pub(super) fn are_sends_due(&mut self) -> bool {
        let is_due = self.skipped_sends == 0;
        self.skipped_sends = self.skipped_sends.saturating_sub(1);
        is_due
    }

    /// Notes whether a poll of the sends has found any.
    #[inline]
    pub(super) fn found_sends(&mut self, any: bool) {
        self.skipped_sends = if any { 0 } else { IDLE_SENDS_EVERY - 1 };
    }

    /// Notes that a queue pair of this device has no room for a send.
    #[inline]
    pub(super) fn found_full(&mut self) {
        self.has_full_queue = true;
    }

    /// Whether a send had no room since the last call.
    #[inline]
    pub(super) fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.has_full_queue)
    }

    /// Lets the sends be polled next time in any case.
    pub(super) fn expect_sends(&mut self) {
        self.skipped_sends = 0;
    }

    /// Returns the index of the source address. The system may have moved it since the device was opened.
    pub(super) fn gid_index(&self) -> u8 {
        if self.is_gid_index_fixed { self.gid.0 } else { self.context.gid_index(self.gid) }
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

    /// Queries the port if it is time to; returns whether its state has changed. Devices without events are
    /// queried as well.
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
