//! All peers of a rank, and the completions that drive them.
//!
//! Polling any link takes the completions of all devices and hands each to the peer that it belongs to. Now and
//! then it also looks at the clock, at ports, and at what is overdue. No thread of the driver lies on the path of
//! a message.
//!
//! Invariant: completions of an earlier life of a queue pair are dropped.

use super::{
    Notify, VerbsConfig,
    lent::{Budget, Lent},
    memory::Memory,
    peer::{Env, Peer, Rules},
    port::Port,
    queue::{Id, What},
    rail::PLACED,
    wire::{Kind, piece_of},
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
/// Time between looks at what is overdue.
const TICK: Duration = Duration::from_micros(200);

/// The resources of one rank.
#[derive(Debug)]
pub(super) struct Engine {
    /// By rank; none for this rank. Before the ports, since queue pairs end before their devices.
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) ports: Vec<Port>,
    pub(super) memory: Memory,
    pub(super) lent: Lent,
    pub(super) rules: Rules,
    pub(super) polls: PollCounters,
    polls_made: u32,
    last_tick: Instant,
    /// Completions polled at a time.
    batch: usize,
    /// Completions since a poll last found none.
    in_a_row: u64,
    /// Completions in a row above which the rank does not sleep.
    pub(super) awake_above: u64,
    /// Time at which anything last came, or was kept alive.
    last_sign: Instant,
    notify: Notify,
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
            notify: config.notify,
        }
    }

    /// A peer, and the resources that its methods work with.
    #[inline]
    pub(super) fn peer(&mut self, rank: usize) -> (&mut Peer, Env<'_>) {
        let peer = self.peers[rank].as_mut().expect("links are made to peers only");
        let (memory, lent, ports) = (&self.memory, &self.lent, &mut self.ports[..]);
        (peer, Env { rules: self.rules, memory, lent, ports, say: &self.notify.0 })
    }

    /// Takes the completions that have come; returns whether there were any.
    #[inline]
    pub(super) fn progress(&mut self) -> Result<bool, TransportError> {
        let mut any = false;
        for port in 0..self.ports.len() {
            let mut batch = [Completion::default(); POLL_BATCH];
            let came = match self.ports[port].receives.poll_up_to(self.batch, &mut batch) {
                Ok(came) => came,
                Err(error) => {
                    self.lose_port(port, &error.into())?;
                    continue;
                }
            };
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
            if self.polls.polls.is_multiple_of(SENDS_EVERY) {
                self.take_sends(port)?;
            }
        }
        // Busy or not: a rank that sleeps between polls may find something every time, if only questions.
        self.polls_made = self.polls_made.wrapping_add(1);
        if self.polls_made.is_multiple_of(CLOCK_EVERY) {
            self.tick()?;
        }
        Ok(any)
    }

    #[inline]
    fn take_sends(&mut self, port: usize) -> Result<bool, TransportError> {
        let mut batch = [Completion::default(); POLL_BATCH];
        let came = match self.ports[port].sends.poll_up_to(self.batch, &mut batch) {
            Ok(came) => came,
            Err(error) => return self.lose_port(port, &error.into()).map(|()| false),
        };
        if came.is_empty() {
            return Ok(false);
        }
        self.take_all(came).map(|()| true)
    }

    /// A completion queue has failed: its device is lost, with all of its rails.
    #[cold]
    fn lose_port(&mut self, port: usize, error: &TransportError) -> Result<(), TransportError> {
        if self.ports[port].failure.is_none() {
            self.ports[port].failure = Some(error.to_string());
            self.look_at_rails(Instant::now())?;
        }
        Ok(())
    }

    #[inline]
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

    /// Does what is due.
    #[cold]
    pub(super) fn tick(&mut self) -> Result<(), TransportError> {
        let now = Instant::now();
        if now.saturating_duration_since(self.last_tick) < TICK {
            return Ok(());
        }
        self.last_tick = now;
        for port in self.ports.iter_mut().filter(|port| port.failure.is_none()) {
            if let Err(error) = port.look(now) {
                port.failure = Some(error.to_string());
            }
        }
        self.look_at_rails(now)?;
        for rank in 0..self.peers.len() {
            if self.peers[rank].as_ref().is_none_or(|peer| peer.broken.is_some()) {
                continue;
            }
            let (peer, mut env) = self.peer(rank);
            peer.check_pulses(&mut env, now)?;
            peer.retry(&mut env, now)?;
            if !env.rules.reliable {
                peer.probe_placed(&mut env, now)?;
            }
            peer.flush(&mut env)?;
        }
        Ok(())
    }

    fn look_at_rails(&mut self, now: Instant) -> Result<(), TransportError> {
        for rank in 0..self.peers.len() {
            if self.peers[rank].as_ref().is_some_and(|peer| peer.broken.is_none()) {
                let (peer, mut env) = self.peer(rank);
                peer.look_at_rails(&mut env, now)?;
            }
        }
        Ok(())
    }

    /// Statistics of all completion queues together.
    pub(super) fn poll_counters(&self) -> PollCounters {
        let depths = self.ports.iter().map(|port| port.depth_high_water);
        PollCounters {
            depth_high_water: depths.max().unwrap_or_default(),
            async_events: self.polls.async_events + self.ports.iter().map(|port| port.events).sum::<u64>(),
            ..self.polls
        }
    }

    /// Hands a completion to its peer.
    #[inline]
    fn take(&mut self, rank: usize, completion: &Completion) -> Result<(), TransportError> {
        let id = Id::unpack(completion.id);
        let (peer, mut env) = self.peer(rank);
        // The memory of its pieces may have been given back.
        if peer.broken.is_some() {
            return Ok(());
        }
        let (env, index, several) = (&mut env, usize::from(id.rail), peer.rails.len() > 1);
        let Some(rail) = peer.rails.get_mut(index).filter(|rail| rail.is_current(id.wire, id.life)) else {
            return Ok(());
        };
        let is_alive = rail.handshake.is_alive() && (id.wire != PLACED || rail.placed_is_new);
        if completion.status != WcStatus::SUCCESS {
            if !is_alive {
                return Ok(());
            }
            let cause = explain(completion.status).0;
            return match id.wire {
                PLACED => peer.begin_epoch(env, cause),
                _ => peer.take_down(env, index, cause),
            };
        }
        match id.what {
            What::Sent => {
                let granted = &mut peer.granted;
                let Some(queue) = rail.queue_mut(id.wire) else { return Ok(()) };
                let left =
                    queue.complete(id.value, |stream, piece| granted[stream].send.arrived(piece, index));
                if several {
                    rail.pace.left(left, Instant::now());
                }
                Ok(())
            }
            What::Slot if completion.opcode == WcOpcode::RECV_RDMA_WITH_IMM => {
                peer.put_back(env, index, id.wire, id.value)?;
                // A piece that came before its rail fell has been granted again. Its sender tells that it has
                // arrived, or sends it again.
                if !peer.rails[index].is_up() {
                    return Ok(());
                }
                peer.rails[index].pulse.beat();
                let near = |stream: usize| peer.granted.get(stream).map_or(0, |granted| granted.recv.done());
                let piece = piece_of(completion.imm.unwrap_or_default(), near);
                let piece = piece.ok_or_else(|| peer.protocol("a number of no piece"))?;
                peer.written(env, index, piece)
            }
            What::Slot => peer.receive(env, (index, id.wire, id.value), completion.bytes as usize),
            What::Piece | What::Trailer if !is_alive => Ok(()),
            What::Piece => peer.piece_came(env, (id.value, completion.bytes)),
            What::Trailer => peer.trailer_came(env, index, (id.value, completion.bytes)),
        }
    }

    /// Makes all queue pairs of a peer dead: devices do nothing with memory on their behalf any more.
    pub(super) fn abort(&mut self, rank: usize) {
        if let Some(peer) = self.peers.get_mut(rank).and_then(Option::as_mut) {
            peer.broken.get_or_insert_with(|| "this communicator has failed".to_owned());
            for queue in peer.queues() {
                // A queue pair that can't be made dead belongs to a device that is gone.
                let _ = queue.fail();
            }
        }
    }

    /// Prepares to sleep until a device has something; false when there is something already, or too much.
    pub(super) fn may_sleep(&mut self) -> bool {
        if self.in_a_row > self.awake_above {
            return false;
        }
        let mut ports = self.ports.iter().filter(|port| port.failure.is_none());
        let is_armed = ports.all(|port| port.receives.arm().is_ok() && port.sends.arm().is_ok());
        is_armed && matches!(self.progress(), Ok(false))
    }

    /// Ends a sleep; `is_woken` tells whether a device has ended it.
    pub(super) fn has_slept(&mut self, is_woken: bool) {
        self.polls.wake_ups += u64::from(is_woken);
        for port in &self.ports {
            if let Some(channel) = &port.channel {
                channel.drain();
            }
        }
    }

    /// Looks after all connections between calls; returns whether something is to be done soon. Failures are
    /// found again by the next call.
    #[cold]
    pub(super) fn tend(&mut self, keep_alive: Duration) -> bool {
        let came = self.progress().unwrap_or(false);
        let now = Instant::now();
        let _ = self.tick();
        if came {
            self.last_sign = now;
        }
        let is_silent = now.saturating_duration_since(self.last_sign) >= keep_alive;
        if is_silent {
            self.last_sign = now;
        }
        let mut is_busy = came;
        for rank in 0..self.peers.len() {
            if self.peers[rank].is_none() {
                continue;
            }
            let (peer, mut env) = self.peer(rank);
            let _ = peer.look_after(&mut env, is_silent);
            let is_open = !peer.is_gone && peer.broken.is_none();
            is_busy |=
                is_open && (!env.rules.reliable && !peer.sequence.is_empty() || peer.active().is_none());
        }
        is_busy
    }

    /// Ends all connections, and then the devices. Nothing works afterwards.
    pub(super) fn end(&mut self) {
        self.peers.iter_mut().for_each(|peer| *peer = None);
        self.ports.clear();
    }

    /// Tells all peers that this rank closes, as far as they can be reached.
    pub(super) fn say_goodbye(&mut self) {
        for rank in 0..self.peers.len() {
            if self.peers[rank].is_none() {
                continue;
            }
            let (peer, mut env) = self.peer(rank);
            for rail in 0..peer.rails.len() {
                if peer.rails[rail].is_up() && !peer.is_gone {
                    // A peer that misses it finds out by other means.
                    let _ = peer.say(&mut env, rail, Kind::Goodbye, &[]);
                }
            }
        }
    }

    /// After the goodbyes: whether devices have sent all that they were given. On reliable connections it has
    /// arrived then.
    pub(super) fn has_sent_all(&self) -> bool {
        self.peers.iter().flatten().all(|peer| {
            let mut up = peer.rails.iter().filter(|rail| rail.is_up());
            peer.is_gone || peer.broken.is_some() || up.all(|rail| rail.slot_queues[0].0.is_empty())
        })
    }

    /// Whether all that was sent is known to have arrived, or nothing more can be learned.
    pub(super) fn is_drained(&self) -> bool {
        self.peers.iter().flatten().all(|peer| {
            let is_sent = peer.are_pieces_sent() && (self.rules.reliable || peer.sequence.is_empty());
            peer.is_gone || peer.broken.is_some() || is_sent
        })
    }
}
