//! Places of repeated messages.
//!
//! A message that is sent again may still be sent by its earlier request, which the device has not executed:
//! the cable is slow, or the timeout was short. The device reads the message when it executes the request. A
//! changed header would then arrive torn, and another message in the same place would arrive before requests
//! that it follows, as the checksum of a piece must not. So a repeat takes a place of its own unless its
//! earlier request is known to have left the queue.
//!
//! Invariant: the bytes of a message do not change while a request for them may be queued.

use super::Peer;
use crate::driver::verbs::{env::Env, rail::Request, slots::Kept, wire::Header};

impl Peer {
    /// Whether a device may still execute a request.
    fn may_be_queued(&self, request: &Request) -> bool {
        self.rails[usize::from(request.rail)].may_hold(request)
    }

    /// Prepares to send a message again after the request `earlier`. Returns its place, which is another one
    /// if that request may be queued; `None` when no place is free.
    #[cold]
    pub(super) fn place_of_repeat(
        &mut self,
        env: &Env<'_>,
        number: u32,
        kept: &Kept,
        earlier: &Request,
    ) -> Option<Kept> {
        let mut place = *kept;
        if self.may_be_queued(earlier) {
            self.free_lingering();
            place = self.store.take_again(kept)?;
            let payload = env.memory.span(kept.at + size_of::<Header>(), kept.bytes - size_of::<Header>());
            env.memory.put(place.at + size_of::<Header>(), payload);
            self.lingering.push((*kept, *earlier));
        }
        let outbound = self.sequence.message_mut(number)?;
        (outbound.kept, outbound.request, outbound.is_repeated) = (place, None, true);
        Some(place)
    }

    /// Frees the places whose requests have left their queues.
    #[cold]
    pub(super) fn free_lingering(&mut self) {
        let mut index = 0;
        while let Some((kept, request)) = self.lingering.get(index).copied() {
            if self.may_be_queued(&request) {
                index += 1;
            } else {
                self.store.give_back(&kept);
                self.lingering.swap_remove(index);
            }
        }
    }
}
