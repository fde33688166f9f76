//! Sequenced messages: their places, the choice of their rails, and posting.
//!
//! Invariant: messages are posted in the order of their numbers.

use super::Peer;
use crate::{
    TransportError,
    driver::verbs::{
        attempts::Retry,
        bandwidth,
        env::Env,
        port::Port,
        rail::{Rail, Request},
        sequence::{Route, WINDOW},
        slots::{Kept, Queues},
        wire::Header,
    },
    memory::Span,
};
use std::time::Instant;

/// Bytes of a message from which it counts for the bandwidth estimate of its rail.
const MEASURED_BYTES: usize = 4096;

/// A sequenced message that is not acknowledged. It lies in its place with its header.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) kept: Kept,
    /// Latest request that sends it from its place, once there is one.
    pub(super) request: Option<Request>,
    /// Whether it has been sent before that request.
    pub(super) is_repeated: bool,
}

impl Peer {
    /// Sends a sequenced message; false when there is no room for it.
    #[inline]
    pub(super) fn send(
        &mut self,
        env: &mut Env<'_>,
        header: &mut Header,
        payload: Span<'_>,
        is_control: bool,
        pinned: Option<u8>,
    ) -> Result<bool, TransportError> {
        if self.sequence.len() == WINDOW {
            return Ok(false);
        }
        if !self.lingering.is_empty() {
            self.free_lingering();
        }
        let Some(kept) = self.store.take(payload.len(), is_control) else { return Ok(false) };
        let kept = Kept { pinned, ..kept };
        header.len = payload.len() as u16;
        let is_first = !self.sequence.may_have_unsent();
        let number = self.sequence.push(Outbound { kept, request: None, is_repeated: false });
        if is_first && let Some(route) = self.route_with_room(&kept, env.rules.queues) {
            self.complete(header, number, route);
            env.write_message(kept.at, header, payload);
            let wire_bytes = env.rules.queues.wire_bytes(kept.class, kept.bytes);
            self.post(env, number, (kept.at, wire_bytes), header.stream, route, false)?;
        } else {
            env.memory.put_message(kept.at, header.words(), payload);
            self.post_unsent(env)?;
        }
        Ok(true)
    }

    /// The rail, of several, that a message is sent by.
    fn rail_of_several(&self, is_small: bool, bytes: usize, pinned: Option<u8>) -> Option<usize> {
        match pinned {
            Some(rail) if self.rails[usize::from(rail)].is_up() => Some(usize::from(rail)),
            _ if is_small || bytes < MEASURED_BYTES => self.active(),
            _ => self.fastest(bytes),
        }
    }

    /// Selects the rail by which a message leaves first.
    fn fastest(&self, bytes: usize) -> Option<usize> {
        let up = self.rails.iter().enumerate().filter(|(_, rail)| rail.is_up());
        let any_chosen = up.clone().any(|(_, rail)| rail.is_chosen);
        let candidate = |(index, rail): (usize, &Rail)| rail.outgoing(index);
        let used = up.filter(|(_, rail)| rail.is_chosen || !any_chosen);
        bandwidth::select_rail(used.map(candidate), bytes as u64, self.turns)
    }

    /// The rail and the queue pair that a message is sent by, if that has room for it.
    #[inline(always)]
    fn route_with_room(&self, kept: &Kept, queues: Queues) -> Option<Route> {
        let &Kept { bytes, class, pinned, .. } = kept;
        let queue = queues.queue(class);
        let rail = match &self.rails[..] {
            [_] => 0,
            _ => self.rail_of_several(queue == 0 && queues == Queues::Both, bytes, pinned)?,
        };
        let has_room = self.rails[rail].has_room(queue, queues.wire_bytes(class, bytes));
        has_room.then_some(Route { rail: rail as u8, queue: queue as u8 })
    }

    /// Completes the header of a message that is sent now: with its number, lives and the latest counters.
    #[inline]
    fn complete(&mut self, header: &mut Header, number: u32, route: Route) {
        let rail = &self.rails[usize::from(route.rail)];
        header.seq = number;
        header.previous = rail.last_sequenced(usize::from(route.queue)).unwrap_or(number) as u16;
        rail.stamp(header);
        self.count(header);
    }

    /// Posts unsent messages in order, as far as queue pairs have room.
    #[inline]
    pub(super) fn post_unsent(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        while let Some((number, outbound)) = self.sequence.unsent() {
            let (mut kept, earlier) = (outbound.kept, outbound.request);
            let is_repeat = outbound.is_repeated || earlier.is_some();
            let Some(route) = self.route_with_room(&kept, env.rules.queues) else {
                env.ports.iter_mut().for_each(Port::found_full);
                break;
            };
            let mut header = env.memory.read::<Header>(kept.at);
            if let Some(request) = earlier {
                match self.place_of_repeat(env, number, &kept, &request) {
                    Some(place) => kept = place,
                    None => break,
                }
            }
            self.complete(&mut header, number, route);
            env.write_header(kept.at, &header, kept.bytes);
            let wire_bytes = env.rules.queues.wire_bytes(kept.class, kept.bytes);
            if !self.post(env, number, (kept.at, wire_bytes), header.stream, route, is_repeat)? {
                break;
            }
        }
        Ok(())
    }

    /// Posts a message whose header is complete, from its place, with the bytes that are sent for it; returns
    /// whether the queue pair has taken it.
    #[inline]
    fn post(
        &mut self,
        env: &mut Env<'_>,
        number: u32,
        (at, wire_bytes): (usize, usize),
        stream: u32,
        route: Route,
        is_repeat: bool,
    ) -> Result<bool, TransportError> {
        let (index, queue) = (usize::from(route.rail), usize::from(route.queue));
        // The bandwidth of rails follows from completions. It counts only where there is a choice.
        let is_measured = self.rails.len() > 1 && wire_bytes >= MEASURED_BYTES;
        let rail = &mut self.rails[index];
        let run = env.ports[rail.port()].keys.run(at, wire_bytes)?;
        let request = rail.next_request(route.rail, queue);
        // The place of a repeated message is free again only once its completion is known.
        match rail.slot_queues[queue].0.send(run, is_measured || is_repeat) {
            Ok(true) => {
                rail.sent_bytes += wire_bytes as u64;
                rail.sent_sequenced(queue, number);
                if let Some(outbound) = self.sequence.sent(number, route) {
                    outbound.request = Some(request);
                }
                self.counted(stream);
                if is_measured {
                    self.turns += 1;
                    self.rails[index].bandwidth.posted(wire_bytes as u64, Instant::now());
                }
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => self.take_down(env, index, &error.to_string()).map(|()| false),
        }
    }

    /// Takes in an acknowledgement.
    #[inline]
    pub(super) fn acknowledge(&mut self, ack: u32) {
        let (store, lingering) = (&mut self.store, &mut self.lingering);
        let free = |outbound: Outbound| match outbound.request {
            // An earlier request may be the one that has arrived.
            Some(request) if outbound.is_repeated => lingering.push((outbound.kept, request)),
            _ => store.give_back(&outbound.kept),
        };
        if self.sequence.acknowledge(ack, free) {
            self.acknowledgement = Retry::NEW;
        }
    }
}
