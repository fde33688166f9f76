//! All peers of a rank, and the completions that drive them.
//!
//! Polling any link polls the completions of all devices, and hands each to its peer. Every few polls it also
//! checks the clock, the ports and the deadlines. No thread of the driver lies on the path of a message.
//!
//! Invariant: completions of an earlier life of a queue pair are dropped.

use super::{
    Notify, VerbsConfig,
    env::Env,
    memory::Memory,
    peer::Peer,
    port::Port,
    queue::Id,
    rail::Rail,
    registration_cache::{Budget, RegistrationCache},
    rules::Rules,
};
use crate::{
    PollCounters, TransportError,
    verbs::{Completion, POLL_BATCH},
};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Polls between checks of the clock.
const CLOCK_EVERY: u32 = 8;
/// Polls after which completions of sends are taken even if receives complete all the time; a power of two.
const SENDS_EVERY: u64 = 8;
/// Time between checks of deadlines.
const TICK: Duration = Duration::from_micros(200);

/// Resources of one rank.
#[derive(Debug)]
pub(super) struct Engine {
    /// Peers by rank; none for this rank. They come before the ports, since queue pairs are destroyed before
    /// their devices.
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) ports: Vec<Port>,
    pub(super) memory: Memory,
    pub(super) registration_cache: RegistrationCache,
    pub(super) rules: Rules,
    pub(super) polls: PollCounters,
    polls_made: u32,
    last_tick: Instant,
    /// Completions polled at a time.
    batch: usize,
    /// Completions since a poll last returned none.
    in_a_row: u64,
    /// Completions in a row above which the rank does not sleep.
    pub(super) awake_above: u64,
    /// Time at which a message last came, or connections were kept alive.
    last_sign: Instant,
    notify: Notify,
}

/// Locks an engine. A panic of another thread in a call leaves it usable.
#[inline]
pub(super) fn lock(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
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
            registration_cache: RegistrationCache::new(budget, config.segment_bytes as usize),
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

    /// Returns a peer, and the resources that its methods work with.
    #[inline]
    pub(super) fn peer(&mut self, rank: usize) -> (&mut Peer, Env<'_>) {
        let peer = self.peers[rank].as_mut().expect("links are made to peers only");
        let (memory, registration_cache, ports) =
            (&self.memory, &self.registration_cache, &mut self.ports[..]);
        (peer, Env { rules: self.rules, memory, registration_cache, ports, notify: &self.notify.0 })
    }

    /// Polls all completion queues; returns whether there were completions.
    #[inline]
    pub(super) fn progress(&mut self) -> Result<bool, TransportError> {
        let mut any = false;
        for port in 0..self.ports.len() {
            if self.ports[port].failure.is_some() {
                continue;
            }
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
        // The check must not depend on idleness: a rank that sleeps between polls may find a completion every
        // time, if only of a peer's questions.
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

    /// Gives up a device whose completion queue has failed, with all of its rails.
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
            let id = Id::unpack(completion.id);
            let rank = usize::from(id.peer);
            if self.peers.get(rank).is_some_and(Option::is_some) {
                let (peer, mut env) = self.peer(rank);
                peer.take_completion(&mut env, id, completion)?;
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

    /// Checks ports, rails and deadlines, at most once in [`TICK`].
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
            if self.peers[rank].as_ref().is_none_or(Peer::is_broken) {
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
            if self.peers[rank].as_ref().is_some_and(|peer| !peer.is_broken()) {
                let (peer, mut env) = self.peer(rank);
                peer.look_at_rails(&mut env, now)?;
            }
        }
        Ok(())
    }

    /// Returns the statistics of all completion queues together.
    pub(super) fn poll_counters(&self) -> PollCounters {
        let depths = self.ports.iter().map(|port| port.depth_high_water);
        PollCounters {
            depth_high_water: depths.max().unwrap_or_default(),
            async_events: self.polls.async_events + self.ports.iter().map(|port| port.events).sum::<u64>(),
            ..self.polls
        }
    }

    /// Makes all queue pairs of a peer dead: devices do nothing with memory on their behalf any more.
    pub(super) fn abort(&mut self, rank: usize) {
        if let Some(peer) = self.peers.get_mut(rank).and_then(Option::as_mut) {
            peer.abort();
        }
    }

    /// Prepares to sleep until a device has an event. Returns false if there are completions already, or were
    /// many in a row.
    pub(super) fn may_sleep(&mut self) -> bool {
        if self.in_a_row > self.awake_above {
            return false;
        }
        let mut ports = self.ports.iter().filter(|port| port.failure.is_none());
        let is_armed = ports.all(|port| port.receives.arm().is_ok() && port.sends.arm().is_ok());
        is_armed && matches!(self.progress(), Ok(false))
    }

    /// Ends a sleep; `is_woken` tells whether an event of a device has ended it.
    pub(super) fn has_slept(&mut self, is_woken: bool) {
        self.polls.wake_ups += u64::from(is_woken);
        for port in &self.ports {
            if let Some(channel) = &port.channel {
                channel.drain();
            }
        }
    }

    /// Serves all connections between calls; returns whether it must be called again soon.
    ///
    /// The next call finds failures again.
    #[cold]
    pub(super) fn serve_idle(&mut self, keep_alive: Duration) -> bool {
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
            let is_unacknowledged = !env.rules.reliable && !peer.is_acknowledged();
            is_busy |= peer.is_open() && (is_unacknowledged || !peer.is_reachable());
        }
        is_busy
    }

    /// Destroys all connections, and then the devices. Nothing works afterwards.
    pub(super) fn end(&mut self) {
        self.peers.iter_mut().for_each(|peer| *peer = None);
        self.ports.clear();
    }

    /// Tells all peers that this rank closes, as far as they can be reached.
    pub(super) fn send_goodbye(&mut self) {
        for rank in 0..self.peers.len() {
            if self.peers[rank].is_none() {
                continue;
            }
            let (peer, mut env) = self.peer(rank);
            peer.send_goodbye(&mut env);
        }
    }

    /// Whether devices have sent all requests, after the goodbyes. On reliable connections they have arrived
    /// then.
    pub(super) fn has_sent_all(&self) -> bool {
        self.peers.iter().flatten().all(|peer| {
            let mut up = peer.rails().iter().filter(|rail| rail.is_up());
            !peer.is_open() || up.all(Rail::has_sent_all)
        })
    }

    /// Whether all messages are known to have arrived, or cannot be known to.
    pub(super) fn is_drained(&self) -> bool {
        self.peers.iter().flatten().all(|peer| {
            let is_sent = peer.are_pieces_sent() && (self.rules.reliable || peer.is_acknowledged());
            !peer.is_open() || is_sent
        })
    }
}
