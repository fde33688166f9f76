//! All peers of a rank, and the completions that drive them.
//!
//! Polling any link polls the completions of all devices, and hands each to its peer. Every few polls it also
//! checks the clock, the ports and the deadlines. No thread of the driver lies on the path of a message.
//!
//! Invariants: completions of an earlier life of a queue pair are dropped; the error of one peer does not
//! concern the others.

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
    wire::communicator_of,
};
use crate::{
    PollCounters, RecvState, TransportError,
    verbs::{CompletionBatch, POLL_BATCH},
};
use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
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
    /// Batches of completions taken in.
    arrivals: u64,
    /// Whether receives may have to be posted for free slots.
    has_free_slots: bool,
    /// Threads that sleep until a device has an event.
    sleepers: u32,
    /// Whether a peer can't be reached any more.
    has_broken_peer: bool,
    /// Why peers could not be reached when the devices were given back to the system, by rank; empty before.
    retired: Vec<String>,
    /// Latest time at which calls were made, or connections were kept alive.
    kept_alive: Instant,
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
            registration_cache: RegistrationCache::new(budget, config.segment_bytes as usize),
            rules,
            polls: PollCounters::default(),
            polls_made: 0,
            last_tick: now,
            batch: config.poll_batch.clamp(1, POLL_BATCH),
            in_a_row: 0,
            awake_above: u64::MAX,
            arrivals: 0,
            has_free_slots: false,
            sleepers: 0,
            has_broken_peer: false,
            retired: Vec::new(),
            kept_alive: now,
            notify: config.notify,
        }
    }

    /// Returns a peer, and the resources that its methods work with.
    ///
    /// # Errors
    /// [`TransportError::Lost`] once the engine has ended.
    #[inline]
    pub(super) fn peer(&mut self, rank: usize) -> Result<(&mut Peer, Env<'_>), TransportError> {
        let Some(peer) = self.peers[rank].as_mut() else { return Err(retired(rank, &self.retired)) };
        let (memory, registration_cache, ports) =
            (&self.memory, &self.registration_cache, &mut self.ports[..]);
        Ok((peer, Env { rules: &self.rules, memory, registration_cache, ports, notify: &self.notify.0 }))
    }

    /// Calls `step` with a peer and the resources that its methods work with.
    ///
    /// Unlike those of [`Engine::peer`] they are not moved. A vector load of words that were just stored one
    /// by one waits until these have left the core's store buffer.
    ///
    /// # Errors
    /// Those of `step`; [`TransportError::Lost`] once the engine has ended.
    #[inline(always)]
    pub(super) fn with_peer<P>(
        &mut self,
        rank: usize,
        step: impl FnOnce(&mut Peer, &mut Env<'_>) -> Result<P, TransportError>,
    ) -> Result<P, TransportError> {
        let Some(peer) = self.peers[rank].as_mut() else { return Err(retired(rank, &self.retired)) };
        let (memory, registration_cache) = (&self.memory, &self.registration_cache);
        let (ports, notify) = (&mut self.ports[..], &self.notify.0);
        step(peer, &mut Env { rules: &self.rules, memory, registration_cache, ports, notify })
    }

    /// Whether polling a receive of a peer may do anything; see [`Peer::may_receive`].
    #[inline]
    pub(super) fn may_receive(&mut self, rank: usize, stream: usize, state: &RecvState) -> bool {
        let peer = self.peers[rank].as_mut();
        peer.is_none_or(|peer| peer.may_receive(&self.rules, stream, state))
    }

    /// Polls all completion queues; returns whether there were completions.
    #[inline]
    pub(super) fn progress(&mut self) -> bool {
        let mut any = false;
        for port in 0..self.ports.len() {
            if self.ports[port].failure.is_some() {
                continue;
            }
            // A send that waits for room leaves before pieces are checked, which takes longer than a post.
            // Windows of messages and pieces bound what leaves before receives are polled again.
            if self.ports[port].take_full() && self.take_sends(port) {
                any = true;
                continue;
            }
            let mut came = CompletionBatch::default();
            if let Err(error) = self.ports[port].receives.poll_batch(self.batch, &mut came) {
                self.lose_port(port, &error.into());
                continue;
            }
            self.polls.polled(came.len());
            self.ports[port].found(came.len());
            if came.is_empty() {
                self.in_a_row = 0;
                any |= self.ports[port].are_sends_due() && self.take_sends(port);
                continue;
            }
            self.in_a_row += came.len() as u64;
            self.take_all(&came);
            self.has_free_slots = true;
            any = true;
            if self.polls.polls.is_multiple_of(SENDS_EVERY) {
                self.take_sends(port);
            }
        }
        // The check must not depend on idleness: a rank that sleeps between polls may find a completion every
        // time, if only of a peer's questions.
        self.polls_made = self.polls_made.wrapping_add(1);
        if !any && self.has_free_slots {
            self.refill_idle();
        }
        if self.polls_made.is_multiple_of(CLOCK_EVERY) {
            self.tick();
        }
        any
    }

    /// Posts some receives for slots that became free.
    fn refill_idle(&mut self) {
        self.has_free_slots = false;
        for rank in 0..self.peers.len() {
            if self.peers[rank].is_none() {
                continue;
            }
            let mut is_refilled = true;
            self.drive(rank, |peer, env| {
                is_refilled = peer.is_broken() || peer.refill_idle(env)?;
                Ok(())
            });
            self.has_free_slots |= !is_refilled;
        }
    }

    #[inline]
    fn take_sends(&mut self, port: usize) -> bool {
        let mut came = CompletionBatch::default();
        if let Err(error) = self.ports[port].sends.poll_batch(self.batch, &mut came) {
            self.lose_port(port, &error.into());
            return false;
        }
        self.ports[port].found_sends(!came.is_empty());
        self.take_all(&came);
        !came.is_empty()
    }

    /// Gives up a device whose completion queue has failed, with all of its rails.
    #[cold]
    fn lose_port(&mut self, port: usize, error: &TransportError) {
        if self.ports[port].failure.is_none() {
            self.ports[port].failure = Some(error.to_string());
            self.look_at_rails(Instant::now());
        }
    }

    #[inline]
    fn take_all(&mut self, came: &CompletionBatch) {
        self.arrivals += u64::from(!came.is_empty());
        let mut completions = came.iter().peekable();
        while let Some(completion) = completions.next() {
            let id = Id::unpack(completion.id);
            let rank = usize::from(id.peer);
            if rank >= self.peers.len() {
                continue;
            }
            // A peer sends what is pending after the last of its completions in a row.
            let is_last = completions.peek().is_none_or(|next| Id::unpack(next.id).peer != id.peer);
            self.drive(rank, |peer, env| {
                peer.take_completion(env, id, &completion)?;
                if is_last { peer.flush(env) } else { Ok(()) }
            });
        }
    }

    /// Makes a step of a peer. An error gives up that peer, and no other one.
    #[inline]
    pub(super) fn drive(
        &mut self,
        rank: usize,
        step: impl FnOnce(&mut Peer, &mut Env<'_>) -> Result<(), TransportError>,
    ) {
        if self.peers[rank].is_some()
            && let Err(error) = self.with_peer(rank, step)
        {
            self.give_up(rank, &error);
        }
    }

    /// Gives up a peer because of an error.
    #[cold]
    pub(super) fn give_up(&mut self, rank: usize, error: &TransportError) {
        self.has_broken_peer = true;
        if let Some(peer) = &mut self.peers[rank] {
            peer.give_up(error);
        }
    }

    /// Checks ports, rails and deadlines, at most once in [`TICK`].
    #[cold]
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.last_tick) < TICK {
            return;
        }
        self.last_tick = now;
        for port in self.ports.iter_mut().filter(|port| port.failure.is_none()) {
            if let Err(error) = port.look(now) {
                port.failure = Some(error.to_string());
            }
        }
        self.look_at_rails(now);
        for rank in 0..self.peers.len() {
            if self.peers[rank].as_ref().is_none_or(Peer::is_broken) {
                continue;
            }
            self.drive(rank, |peer, env| {
                peer.check_pulses(env, now)?;
                peer.retry(env, now)?;
                if !env.rules.reliable {
                    peer.probe_placed(env, now)?;
                }
                peer.flush(env)
            });
        }
    }

    fn look_at_rails(&mut self, now: Instant) {
        for rank in 0..self.peers.len() {
            if self.peers[rank].as_ref().is_some_and(|peer| !peer.is_broken()) {
                self.drive(rank, |peer, env| peer.look_at_rails(env, now));
            }
        }
    }

    /// Whether a peer can't be reached any more.
    #[inline]
    pub(super) fn has_broken_peer(&self) -> bool {
        self.has_broken_peer
    }

    /// Checks that a peer can still be reached.
    ///
    /// # Errors
    /// The reason why it can't.
    pub(super) fn check(&self, rank: usize) -> Result<(), TransportError> {
        match &self.peers[rank] {
            Some(peer) => peer.check(),
            None if !self.retired.is_empty() => Err(retired(rank, &self.retired)),
            None => Ok(()),
        }
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

    /// Peers that can't be reached any more: those that have left, those whose connections have failed, and
    /// those to which all devices have failed.
    pub(super) fn unreachable_peers(&self) -> Vec<u32> {
        let is_unreachable = |peer: &Peer| !peer.is_open() || self.has_failed(peer);
        let of_rank = |rank: &u32| self.peers[*rank as usize].as_ref().is_some_and(is_unreachable);
        (0..self.peers.len() as u32).filter(of_rank).collect()
    }

    /// Whether all connections to a peer have failed for good.
    fn has_failed(&self, peer: &Peer) -> bool {
        peer.is_broken() || peer.rails().iter().all(|rail| self.ports[rail.port()].failure.is_some())
    }

    /// Whether a communicator uses the engine: one of its streams has not ended here, and none of its streams
    /// leads to a peer whose connections have failed. A peer that has left may not be needed any more.
    pub(super) fn is_in_use(&self) -> bool {
        let (mut failed, mut open) = (HashSet::new(), HashSet::new());
        for peer in self.peers.iter().flatten() {
            let communicators = peer.open_streams().map(communicator_of);
            if self.has_failed(peer) { failed.extend(communicators) } else { open.extend(communicators) }
        }
        !open.is_subset(&failed)
    }

    /// Destroys all connections and devices of an engine that is not in use any more: other networks need the
    /// queue pairs and the regions. Later calls fail.
    pub(super) fn retire(&mut self) {
        let why = |rank| match self.check(rank) {
            Ok(()) => String::new(),
            Err(TransportError::Lost { what, .. }) => what,
            Err(error) => error.to_string(),
        };
        self.retired = (0..self.peers.len()).map(why).collect();
        self.has_broken_peer = true;
        self.end();
    }

    /// Gives up all peers: no call does anything any more, and no device accesses memory for them.
    pub(super) fn give_up_all(&mut self) {
        for rank in 0..self.peers.len() {
            let what = "this communicator is closed".to_owned();
            self.give_up(rank, &TransportError::Lost { peer: rank as u32, what });
        }
    }

    /// Prepares to sleep until a device has an event. Returns false if there are completions already, or were
    /// many in a row.
    ///
    /// `seen` is the number of arrivals at the caller's last attempt. A caller sleeps only if nothing has
    /// arrived since, because another thread may have taken in what the caller waits for.
    pub(super) fn may_sleep(&mut self, seen: &AtomicU64) -> bool {
        let is_new = seen.swap(self.arrivals, Relaxed) != self.arrivals;
        if is_new || self.in_a_row > self.awake_above {
            return false;
        }
        let mut ports = self.ports.iter().filter(|port| port.failure.is_none());
        let is_armed = ports.all(|port| port.receives.arm().is_ok() && port.sends.arm().is_ok());
        self.ports.iter_mut().for_each(Port::expect_sends);
        let may_sleep = is_armed && !self.progress();
        self.sleepers += u32::from(may_sleep);
        may_sleep
    }

    /// Ends a sleep; `is_woken` tells whether an event of a device has ended it. Events stay until all
    /// sleepers are awake.
    pub(super) fn has_slept(&mut self, is_woken: bool) {
        self.polls.wake_ups += u64::from(is_woken);
        self.sleepers -= 1;
        if self.sleepers > 0 {
            return;
        }
        for port in &self.ports {
            if let Some(channel) = &port.channel {
                channel.drain();
            }
        }
    }

    /// Notes that calls are made, which keep the connections alive.
    pub(super) fn note_calls(&mut self) {
        self.kept_alive = Instant::now();
    }

    /// Serves all connections between calls; returns whether it must be called again soon.
    ///
    /// The next call finds failures again.
    #[cold]
    pub(super) fn serve_idle(&mut self, keep_alive: Duration) -> bool {
        self.ports.iter_mut().for_each(Port::expect_sends);
        let came = self.progress();
        let now = Instant::now();
        self.tick();
        let is_silent = now.saturating_duration_since(self.kept_alive) >= keep_alive;
        if is_silent {
            self.kept_alive = now;
        }
        let mut is_busy = came;
        for rank in 0..self.peers.len() {
            self.drive(rank, |peer, env| peer.look_after(env, is_silent));
            let Ok((peer, env)) = self.peer(rank) else { continue };
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
            let Ok((peer, mut env)) = self.peer(rank) else { continue };
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

    /// Number of the latest sequenced message to each peer.
    pub(super) fn latest(&self) -> Vec<u32> {
        self.peers.iter().map(|peer| peer.as_ref().map_or(0, Peer::latest)).collect()
    }

    /// Sends a message on each rail to some peers whose completion shows that all earlier ones have arrived.
    /// Needed on reliable connections only.
    pub(super) fn mark_sent(&mut self, streams: &[(u32, usize)]) {
        if self.rules.reliable {
            for (rank, _) in streams {
                self.drive(*rank as usize, Peer::mark_sent);
            }
        }
    }

    /// Whether all messages of some streams, and all sequenced messages up to the `latest` ones, are known to
    /// have arrived, or cannot be known to. Streams are given by peer and index. On reliable connections,
    /// [`Engine::mark_sent`] comes before.
    pub(super) fn is_drained(&self, streams: &[(u32, usize)], latest: &[u32]) -> bool {
        streams.iter().all(|(rank, stream)| {
            let rank = *rank as usize;
            let Some(peer) = &self.peers[rank] else { return true };
            let is_sent = peer.is_stream_sent(*stream)
                && (peer.is_acknowledged_to(latest[rank]) || self.rules.reliable && peer.has_sent_marked());
            !peer.is_open() || is_sent
        })
    }
}

/// The error of a call on an engine whose devices were given back. `causes` has the failures of connections,
/// by rank. Without one of its own, a rank has lost its connection because of another rank's.
#[cold]
fn retired(rank: usize, causes: &[String]) -> TransportError {
    const RETIRED: &str = "this communicator had failed, and its devices serve another one by now";
    let failed = |cause: &&String| !cause.is_empty();
    let what = match causes.get(rank).filter(failed) {
        Some(cause) => cause.clone(),
        None => match (0..).zip(causes).find(|(_, cause)| failed(cause)) {
            Some((other, cause)) => format!("{RETIRED}: the connection to rank {other} was lost: {cause}"),
            None => RETIRED.to_owned(),
        },
    };
    TransportError::Lost { peer: rank as u32, what }
}
