//! Network of a process: its devices, and its connections to other processes.
//!
//! The first communicator of some processes makes a network. Later communicators of the same processes, or of
//! some of them, use it: they open streams of their own, and no device, no queue pair and no connection.
//! `endpoint` decides which of the two happens; `setup` has the set-up rounds.
//!
//! Members of a network have numbers: the ranks of the communicator that has made it. A stream has a number
//! that no other stream of the network ever has: it consists of the member that is rank 0 of its
//! communicator, of a serial number which that member gives once, and of the lane.
//!
//! Devices have few queue pairs and regions. A network all of whose communicators have failed gives them back
//! when another network is made; its memory stays until those communicators are closed.
//!
//! Invariants: a network lives as long as an endpoint uses it; its end kills all queue pairs before memory is
//! unmapped; a forked child neither uses nor ends its parent's network.

use super::{
    VerbsConfig,
    descriptions::Offer,
    devices::{DeviceWait, OpenDevice, OpenedDevices, is_any_up, open_devices},
    engine::Engine,
    host_map::HostMap,
    keep_alive::KeepAliveThread,
    memory::Memory,
    rail,
    rules::Rules,
    shared_engine::SharedEngine,
    signals,
    slots::Queues,
    wire::{LANES, SHARED_BYTES},
};
use crate::{
    TransportError,
    forks::Origin,
    memory::{Registered, Slab},
    verbs::Library,
};
use std::{
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

/// Serial numbers that a member can give.
const SERIALS: u32 = 1 << 20;
/// Maximum time that the goodbyes at the end of a network may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(100);

/// Returns the number of the stream on a lane of the communicator whose rank 0 is `member` and has given
/// `serial`.
pub(super) fn stream_number(member: u32, serial: u32, lane: usize) -> u32 {
    (member * SERIALS + serial) * LANES as u32 + lane as u32
}

const _: () = assert!(1 << 10 <= u32::MAX / SERIALS / LANES as u32, "every rank has its own numbers");

/// Networks of a process, for its later communicators.
#[derive(Clone, Debug)]
pub struct Networks(Arc<Mutex<Vec<Weak<Network>>>>);

impl Networks {
    /// Returns a list of its own, for a rank that is not the only one of its process.
    #[must_use]
    pub fn separate() -> Networks {
        Networks(Arc::default())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Network>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a network whose connections are up, if it is new.
    pub(super) fn add(&self, network: &Arc<Network>) {
        let mut list = self.lock();
        let network = Arc::downgrade(network);
        list.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&network));
        list.push(network);
    }

    /// Returns the networks that a communicator with this configuration can use. Those of which this process
    /// has several members are left out: a name would not say which one is meant.
    pub(super) fn usable(&self, config: &VerbsConfig) -> Vec<OfferedNetwork> {
        let list = self.lock();
        let all: Vec<Arc<Network>> = list.iter().filter_map(Weak::upgrade).collect();
        let is_alone =
            |network: &&Arc<Network>| all.iter().filter(|other| other.name == network.name).count() == 1;
        let usable = all.iter().filter(is_alone).filter(|network| network.suits(config));
        usable.map(OfferedNetwork::new).collect()
    }

    /// Gives back the devices of networks that no communicator uses any more: their streams have all ended
    /// here.
    pub(super) fn retire_unused(&self) {
        let list = self.lock();
        let all = list.iter().filter_map(Weak::upgrade).filter(|network| network.is_ours());
        let unused: Vec<Arc<Network>> = all.filter(|network| network.close_if_unused()).collect();
        drop(list);
        unused.iter().for_each(|network| network.retire());
    }
}

impl Default for Networks {
    /// Returns the list of the process.
    fn default() -> Networks {
        static OF_PROCESS: LazyLock<Networks> = LazyLock::new(Networks::separate);
        OF_PROCESS.clone()
    }
}

impl PartialEq for Networks {
    /// All lists count as equal: they change nothing that ranks agree on.
    fn eq(&self, _: &Networks) -> bool {
        true
    }
}

impl Eq for Networks {}

/// A network that a communicator in set-up may join.
#[derive(Debug)]
pub(super) struct OfferedNetwork(Arc<Network>);

impl OfferedNetwork {
    fn new(network: &Arc<Network>) -> OfferedNetwork {
        network.offered.fetch_add(1, Relaxed);
        OfferedNetwork(Arc::clone(network))
    }

    pub(super) fn network(&self) -> &Arc<Network> {
        &self.0
    }
}

impl Drop for OfferedNetwork {
    fn drop(&mut self) {
        self.0.offered.fetch_sub(1, Release);
    }
}

/// Devices and connections of a process.
#[derive(Debug)]
pub(super) struct Network {
    /// Random number, equal on all members.
    pub(super) name: u64,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) hosts: HostMap,
    pub(super) config: VerbsConfig,
    pub(super) engine: Arc<SharedEngine>,
    pub(super) slab: Slab,
    keep_alive: Option<KeepAliveThread>,
    /// Whether two members reach each other, by member and peer; known after the round of reach.
    pub(super) connected: Vec<Vec<bool>>,
    /// Devices that were left out because their ports were down.
    down: Vec<String>,
    /// Slots and staging places, which live as long as the network.
    pub(super) places: Vec<Registered>,
    /// The next serial number.
    serial: AtomicU32,
    /// Number of communicators in set-up that may join the network.
    offered: AtomicU32,
    has_said_goodbye: AtomicBool,
    /// The process that has made it.
    origin: Origin,
}

impl Network {
    /// Opens the devices, and allocates the memory with `slab` from its size in bytes. Returns `None` after a
    /// part of the wait for an address.
    pub(super) fn open(
        name: u64,
        config: &VerbsConfig,
        hosts: HostMap,
        slab: impl FnOnce(u64) -> Result<Slab, TransportError>,
        wait: &mut DeviceWait,
        on_wait: &mut dyn FnMut(&str),
    ) -> Result<Option<(Network, Vec<OpenDevice>)>, TransportError> {
        let library = Library::load(config.library.as_deref())?;
        let opened = open_devices(&library, config, &hosts, wait, on_wait)?;
        let Some(OpenedDevices { opened, down }) = opened else { return Ok(None) };
        let late = opened.iter().all(|device| device.capabilities.late_registration);
        let default = if late { VerbsConfig::SLAB_LATE } else { VerbsConfig::SLAB_EARLY };
        let slab = slab(config.slab_bytes.unwrap_or(default))?;
        let overlap = (config.piece_bytes as usize).max(SHARED_BYTES);
        let memory = Memory::new(&slab, config.segment_bytes as usize, overlap);
        let rules = Rules {
            piece_bytes: config.piece_bytes as usize,
            window: (config.window as usize).clamp(1, rail::MAX_WINDOW),
            checksum: false,
            reliable: false,
            one_sided: false,
            has_placed: false,
            queues: Queues::Short,
            cable_wait: config.cable_wait,
        };
        let (rank, size) = (hosts.rank(), hosts.size());
        let engine = Engine::new((0..size).map(|_| None).collect(), Vec::new(), memory, rules, config);
        let engine = Arc::new(SharedEngine::new(engine));
        signals::watch(&engine);
        let network = Network {
            name,
            rank,
            size,
            hosts,
            config: config.clone(),
            engine,
            slab,
            keep_alive: None,
            connected: Vec::new(),
            down,
            places: Vec::new(),
            serial: AtomicU32::new(1),
            offered: AtomicU32::new(0),
            has_said_goodbye: AtomicBool::new(false),
            origin: Origin::here(),
        };
        Ok(Some((network, opened)))
    }

    /// Whether it is a network of this process, and not of one that has forked it.
    pub(super) fn is_ours(&self) -> bool {
        self.origin.is_here()
    }

    /// Starts to look after connections between calls.
    pub(super) fn keep_alive(&mut self) {
        self.keep_alive = Some(KeepAliveThread::start(&self.engine, self.config.keep_alive));
    }

    /// Whether two members reach each other.
    pub(super) fn connects(&self, a: u32, b: u32) -> bool {
        self.connected[a as usize][b as usize]
    }

    /// Whether a communicator with this configuration can use the network. Device matrices may differ: that
    /// of the network describes its members.
    fn suits(&self, config: &VerbsConfig) -> bool {
        let (matrix, slab_bytes) = (self.config.matrix.clone(), self.config.slab_bytes);
        let VerbsConfig { address_timeout, accepts_link_local, .. } = self.config;
        let is_open = self.is_ours() && !self.has_said_goodbye.load(Relaxed);
        is_open
            && self.config
                == VerbsConfig { matrix, slab_bytes, address_timeout, accepts_link_local, ..config.clone() }
    }

    /// Returns what another communicator needs to know of the network, with a new serial number; `None` if
    /// none is left.
    pub(super) fn offer(&self) -> Option<Offer> {
        let serial = self.serial.fetch_add(1, Relaxed);
        let mut engine = self.engine.lock();
        // A device may have failed since the last call.
        engine.progress();
        let mut unreachable = engine.unreachable_peers();
        drop(engine);
        unreachable.extend(self.newly_reachable());
        (serial < SERIALS).then_some(Offer { name: self.name, member: self.rank, serial, unreachable })
    }

    /// Returns the members that this one does not reach by the network, and may reach by another one: a port
    /// that was down when the network was made is up.
    fn newly_reachable(&self) -> Vec<u32> {
        let (me, hosts) = (self.rank, &self.hosts);
        let is_cut_off = |member: &u32| hosts.are_apart(me, *member) && !self.connects(me, *member);
        let cut_off: Vec<u32> = (0..self.size).filter(is_cut_off).collect();
        let may_reach = || {
            let library = Library::load(self.config.library.as_deref());
            library.is_ok_and(|library| is_any_up(&library, &self.down))
        };
        if cut_off.is_empty() || self.down.is_empty() || !may_reach() { Vec::new() } else { cut_off }
    }

    /// Admits no more communicators if none uses the network, and none in set-up may join it. Returns whether
    /// that is so. The caller holds the lock of the list, under which networks are offered.
    fn close_if_unused(&self) -> bool {
        let is_unused = self.offered.load(Acquire) == 0 && !self.engine.lock().is_in_use();
        is_unused && !self.has_said_goodbye.swap(true, Relaxed)
    }

    /// Gives back the devices, after a farewell to the other members.
    fn retire(&self) {
        self.say_goodbye(Instant::now() + GOODBYE_TIMEOUT);
        self.engine.lock().retire();
    }

    /// Takes in that a member can't reach this one.
    pub(super) fn give_up(&self, member: u32) {
        let what = "its connections to this rank have failed".to_owned();
        self.engine.lock().give_up(member as usize, &TransportError::Lost { peer: member, what });
    }

    /// Whether ranks that are these members share hosts as `hosts` tells.
    pub(super) fn has_hosts(&self, members: &[u32], hosts: &HostMap) -> bool {
        let is_equal = |a: usize, b: usize| {
            hosts.are_apart(a as u32, b as u32) == self.hosts.are_apart(members[a], members[b])
        };
        (0..members.len()).all(|a| (0..a).all(|b| is_equal(a, b)))
    }

    /// Tells all members that this one leaves, and waits until the devices have sent everything.
    pub(super) fn say_goodbye(&self, until: Instant) {
        self.has_said_goodbye.store(true, Relaxed);
        self.engine.lock().send_goodbye();
        self.progress_until(until, Engine::has_sent_all);
    }

    /// Drives the engine until `is_done` holds. Returns false at the deadline.
    pub(super) fn progress_until(&self, until: Instant, is_done: impl Fn(&Engine) -> bool) -> bool {
        while Instant::now() < until {
            let mut engine = self.engine.lock();
            engine.progress();
            engine.tick();
            if is_done(&engine) {
                return true;
            }
            drop(engine);
            std::thread::yield_now();
        }
        false
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let keep_alive = self.keep_alive.take();
        if !self.is_ours() {
            // The thread runs in the parent only.
            return std::mem::forget(keep_alive);
        }
        drop(keep_alive);
        signals::forget(&self.engine);
        if !*self.has_said_goodbye.get_mut() {
            self.say_goodbye(Instant::now() + GOODBYE_TIMEOUT);
        }
        // Links hold the engine too. Their later calls must not reach memory that is about to be unmapped.
        self.engine.lock().give_up_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_different_communicators_have_different_numbers() {
        let mut numbers = Vec::new();
        for (member, serial) in [(0, 0), (0, 1), (1, 0), (1023, SERIALS - 1)] {
            numbers.extend((0..LANES).map(|lane| stream_number(member, serial, lane)));
        }
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
