//! All peers of a rank, and the completions that drive them.
//!
//! Whoever polls a link takes the completions of all devices and hands each to the peer it belongs to. Now and then it
//! also looks at the clock, at ports, and at what is overdue. There is no thread of its own on the way of a message.
//!
//! Invariant: completions of an earlier life of a rail are thrown away, whatever they say.

use super::{
    VerbsConfig,
    lent::{Budget, Lent},
    memory::Memory,
    peer::{Env, Peer, Rules},
    port::Port,
    queue::{Id, What},
    rail::State,
    wire::piece_of,
};
use crate::{
    PollCounters, TransportError,
    verbs::{Completion, POLL_BATCH, WcOpcode, WcStatus, explain},
};
use std::time::{Duration, Instant};

/// Polls between looks at the clock.
const CLOCK_EVERY: u32 = 8;
/// Polls after which completions of sends are taken even if there is always something to receive; a power of two.
const SENDS_EVERY: u64 = 8;
/// The least time between looks at what is overdue.
const TICK: Duration = Duration::from_micros(200);

/// What one rank has.
#[derive(Debug)]
pub(super) struct Engine {
    /// By rank; none for ourselves. Before the ports, since queue pairs end before what they were made from.
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) ports: Vec<Port>,
    pub(super) memory: Memory,
    pub(super) lent: Lent,
    pub(super) rules: Rules,
    pub(super) polls: PollCounters,
    polls_made: u32,
    last_tick: Instant,
    /// Completions taken at a time.
    batch: usize,
    /// Completions in a row, since a poll last found none.
    in_a_row: u64,
    /// A queue with more than so many is not slept on.
    pub(super) awake_above: u64,
    /// When anything last came or was kept alive.
    last_sign: Instant,
}

impl Engine {
    pub(super) fn new(
        peers: Vec<Option<Peer>>,
        ports: Vec<Port>,
        memory: Memory,
        rules: Rules,
        config: &VerbsConfig,
    ) -> Engine {
        let now = Instant::now();
        let budget = Budget { regions: config.cache_regions as usize, bytes: config.cache_bytes };
        Engine {
            peers,
            ports,
            memory,
            lent: Lent::new(budget, config.segment_bytes as usize),
            rules,
            polls: PollCounters::default(),
            polls_made: 0,
            last_tick: now,
            batch: config.poll_batch.clamp(1, POLL_BATCH),
            in_a_row: 0,
            awake_above: u64::MAX,
            last_sign: now,
        }
    }

    /// A peer, and what its methods work with.
    #[inline]
    pub(super) fn peer(&mut self, rank: usize) -> (&mut Peer, Env<'_>) {
        let peer = self.peers[rank].as_mut().expect("links are made to peers only");
        (peer, Env { rules: self.rules, memory: &self.memory, lent: &self.lent, ports: &mut self.ports })
    }

    /// Takes the completions that have come. True when there were any.
    #[inline]
    pub(super) fn progress(&mut self) -> Result<bool, TransportError> {
        let mut any = false;
        for port in 0..self.ports.len() {
            let mut batch = [Completion::default(); POLL_BATCH];
            let came = self.ports[port].receives.poll_up_to(self.batch, &mut batch)?;
            self.polls.polled(came.len());
            self.ports[port].found(came.len());
            if came.is_empty() {
                self.in_a_row = 0;
                any |= self.take_sends(port)?;
                continue;
            }
            self.in_a_row += came.len() as u64;
            self.take_all(came)?;
            any = true;
            // Now and then also when there is always something to receive.
            if self.polls.polls.is_multiple_of(SENDS_EVERY) {
                self.take_sends(port)?;
            }
        }
        // Busy or not: a rank that naps between polls may find something every time, if only questions.
        self.polls_made = self.polls_made.wrapping_add(1);
        if self.polls_made.is_multiple_of(CLOCK_EVERY) {
            self.tick()?;
        }
        Ok(any)
    }

    #[inline]
    fn take_sends(&mut self, port: usize) -> Result<bool, TransportError> {
        let mut batch = [Completion::default(); POLL_BATCH];
        let came = self.ports[port].sends.poll_up_to(self.batch, &mut batch)?;
        if came.is_empty() {
            return Ok(false);
        }
        self.take_all(came).map(|()| true)
    }

    fn take_all(&mut self, came: &[Completion]) -> Result<(), TransportError> {
        let mut touched = [false; 64];
        for completion in came {
            let rank = usize::from(Id::unpack(completion.id).peer);
            if self.peers.get(rank).is_some_and(Option::is_some) {
                self.take(rank, completion)?;
                touched[rank % 64] = true;
            }
        }
        for rank in (0..self.peers.len()).filter(|rank| touched[rank % 64]) {
            if self.peers[rank].is_some() {
                let (peer, mut env) = self.peer(rank);
                peer.flush(&mut env)?;
            }
        }
        Ok(())
    }

    /// Does what time asks for.
    #[cold]
    pub(super) fn tick(&mut self) -> Result<(), TransportError> {
        let now = Instant::now();
        if now.saturating_duration_since(self.last_tick) < TICK {
            return Ok(());
        }
        self.last_tick = now;
        for port in &mut self.ports {
            port.look(now)?;
        }
        for rank in 0..self.peers.len() {
            if self.peers[rank].is_none() {
                continue;
            }
            let (peer, mut env) = self.peer(rank);
            if peer.broken.is_some() {
                continue;
            }
            peer.look_at_ports(&mut env)?;
            if !env.rules.completions_confirm() {
                peer.tick(&mut env, now)?;
            }
            if !env.rules.reliable {
                peer.ask_after_pieces(&mut env, now)?;
            }
            peer.flush(&mut env)?;
        }
        Ok(())
    }

    /// How completions were found on all ports together.
    pub(super) fn poll_counters(&self) -> PollCounters {
        let depths = self.ports.iter().map(|port| port.depth_high_water);
        PollCounters {
            depth_high_water: depths.max().unwrap_or_default(),
            async_events: self.polls.async_events + self.ports.iter().map(|port| port.events).sum::<u64>(),
            ..self.polls
        }
    }

    /// Hands a completion to its peer.
    fn take(&mut self, rank: usize, completion: &Completion) -> Result<(), TransportError> {
        let id = Id::unpack(completion.id);
        let (peer, mut env) = self.peer(rank);
        // What its pieces lay in may have been given back to its owner.
        if peer.broken.is_some() {
            return Ok(());
        }
        let (env, index, several) = (&mut env, usize::from(id.rail), peer.rails.len() > 1);
        let Some(rail) = peer.rails.get_mut(index).filter(|rail| rail.is_alive(id.wire, id.life)) else {
            return Ok(());
        };
        let is_data = id.wire > 0;
        let state = if is_data { rail.data_state } else { rail.control_state };
        if completion.status != WcStatus::SUCCESS {
            if state != State::Up {
                return Ok(());
            }
            let cause = explain(completion.status).0.to_owned();
            return peer.take_down(env, index, is_data, &cause);
        }
        match id.what {
            What::Sent => {
                let out = &mut peer.out;
                let queue = match (id.wire, &mut rail.data) {
                    (0, _) => &mut rail.control,
                    (wire, Some(data)) => &mut data[usize::from(wire) - 1],
                    (_, None) => return Ok(()),
                };
                let left = queue.complete(id.value, |lane, piece| out[lane].arrived(piece, index));
                if several {
                    rail.pace.left(left, Instant::now());
                }
                Ok(())
            }
            What::Slot => {
                let kept = match completion.opcode {
                    // It came before the rail went down, and has been granted anew since: its sender says in another way
                    // that it has arrived, or sends it again.
                    WcOpcode::RECV_RDMA_WITH_IMM if state != State::Up => false,
                    WcOpcode::RECV_RDMA_WITH_IMM => {
                        let near = |lane: usize| peer.incoming[lane].done;
                        let piece = piece_of(completion.imm.unwrap_or_default(), near);
                        let piece = piece.ok_or_else(|| peer.protocol("a number of no piece"))?;
                        peer.piece_came(env, index, piece)?;
                        false
                    }
                    _ => peer.receive(env, index, id.value, completion.bytes as usize)?,
                };
                if kept { peer.refill(env, index) } else { peer.release_slot(env, index, id.value) }
            }
            What::Piece | What::Trailer if state != State::Up => Ok(()),
            What::Piece => peer.data_came(env, index, usize::from(id.wire) - 1, (id.value, completion.bytes)),
            What::Trailer => {
                peer.trailer_came(env, index, usize::from(id.wire) - 1, (id.value, completion.bytes))
            }
        }
    }

    /// Makes all queue pairs of a peer dead: the device does nothing with memory on their behalf from now on.
    pub(super) fn abort(&mut self, rank: usize) {
        if let Some(peer) = self.peers.get_mut(rank).and_then(Option::as_mut) {
            peer.broken.get_or_insert_with(|| "this communicator has failed".to_owned());
            for queue in peer.queues() {
                // A queue pair that can't be made dead belongs to a device that is gone.
                let _ = queue.fail();
            }
        }
    }

    /// Gets ready to sleep until a device has something; false when there is something already, or too much of it.
    pub(super) fn may_sleep(&mut self) -> bool {
        if self.in_a_row > self.awake_above {
            return false;
        }
        let armed = self.ports.iter().all(|port| port.receives.arm().is_ok() && port.sends.arm().is_ok());
        armed && matches!(self.progress(), Ok(false))
    }

    /// After a sleep that a device has ended, or that has ended by itself.
    pub(super) fn has_slept(&mut self, woken: bool) {
        self.polls.wake_ups += u64::from(woken);
        for port in &self.ports {
            if let Some(channel) = &port.channel {
                channel.drain();
            }
        }
    }

    /// Looks after all connections, between calls. True when something is still to be done soon. Failures are for those
    /// who make calls: they meet them again.
    #[cold]
    pub(super) fn tend(&mut self, keep_alive: Duration) -> bool {
        let came = self.progress().unwrap_or(false);
        let now = Instant::now();
        let _ = self.tick();
        if came {
            self.last_sign = now;
        }
        let silent = now.saturating_duration_since(self.last_sign) >= keep_alive;
        if silent {
            self.last_sign = now;
        }
        let mut busy = came;
        for rank in 0..self.peers.len() {
            if self.peers[rank].is_none() {
                continue;
            }
            let (peer, mut env) = self.peer(rank);
            let _ = peer.look_after(&mut env, silent);
            busy |= !env.rules.reliable && peer.unacknowledged() > 0 && !peer.gone && peer.broken.is_none();
        }
        busy
    }

    /// Ends all connections, and then what they stood on. Nothing works afterwards.
    pub(super) fn end(&mut self) {
        self.peers.iter_mut().for_each(|peer| *peer = None);
        self.ports.clear();
    }

    /// Tells all peers that we are closing, as far as they can be reached.
    pub(super) fn say_goodbye(&mut self) {
        for rank in 0..self.peers.len() {
            if self.peers[rank].is_none() {
                continue;
            }
            let (peer, mut env) = self.peer(rank);
            for rail in 0..peer.rails.len() {
                if peer.rails[rail].is_up() && !peer.gone {
                    // Whoever misses it finds out by itself.
                    let _ = peer.say(&mut env, rail, super::wire::Kind::Goodbye, None);
                }
            }
        }
    }

    /// After the goodbyes: have the devices sent all that they were given? On reliable connections it has arrived then.
    pub(super) fn has_sent_all(&self) -> bool {
        self.peers.iter().flatten().all(|peer| {
            let mut up = peer.rails.iter().filter(|rail| rail.is_up());
            peer.gone || peer.broken.is_some() || up.all(|rail| rail.control.is_empty())
        })
    }

    /// Is all that was sent known to have arrived, or will nobody ever say so?
    pub(super) fn is_drained(&self) -> bool {
        let reliable = self.rules.reliable;
        self.peers.iter().flatten().all(|peer| {
            let idle = peer.out.iter().all(super::outgoing::Outgoing::is_idle);
            peer.gone || peer.broken.is_some() || idle && (reliable || peer.unacknowledged() == 0)
        })
    }
}
