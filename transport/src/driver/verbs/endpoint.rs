//! Endpoint of a rank: a network of its process, streams to its peers, and links over them.
//!
//! ```text
//! exchange    networks of the process   ->  "networks"  ->  everyone's
//!   all have one in common:             they open streams
//!   otherwise:
//!     open        devices, memory        ->  "devices"  ->  everyone's    (again while a rank waits for an
//!                                                                          address, and none has failed)
//!     exchange    who reaches whom       ->  "reach"    ->  everyone's    (not tried where a matrix says it)
//!     exchange    queue pairs            ->  "rails"    ->  everyone's
//!     exchange    connects them, posts receives
//! exchange                               ->  "ready"  ->  everyone's: from now on anyone may send
//! ```
//!
//! The messages travel over the job's rendezvous, which is the runtime's business. `descriptions` has their
//! contents, `setup` the work of the rounds that make a network. Every error names the rank, the device and
//! the remedy.
//!
//! # Safety
//! The only unsafe function records memory that the caller registers. The caller keeps the promise of
//! [`Endpoint::register`], which [`super::memory`] relies on.

use super::{
    VerbsConfig,
    descriptions::{Devices, Offer, Offers, Rails, decode_all, encode},
    devices::DeviceWait,
    host_map::HostMap,
    joined::Joined,
    link::{Members, VerbsLink},
    memory::LINE,
    network::{Network, OfferedNetwork, stream_number},
    preference,
    registration_guard::VerbsRegistrationGuard,
    shared_engine::SharedEngine,
    sleeper::DeviceSleeper,
};
use crate::{
    Link, Sleeper, TransportError,
    driver::{Endpoint, HostMemory, ProgressHandle, RailInfo, RegistrationGuard, SlabSource},
    memory::{Mapping, Slab, Span},
};
use std::{
    collections::BTreeSet,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Calls a function with a message while it waits for a device.
type OnWait = Box<dyn FnMut(&str) + Send>;

/// Interval at which rails are marked anew while messages are in flight.
const MARK_EVERY: Duration = Duration::from_millis(50);

/// Progress of the set-up.
#[derive(Debug)]
enum Stage {
    New,
    /// This rank has offered these networks.
    Offered(Vec<OfferedNetwork>),
    /// A device of this rank has no address yet. The number names the network that is to be made.
    Awaiting(u64, DeviceWait),
    Introduced(Network, Devices),
    Probed(Network, Vec<Devices>),
    Connecting(Network),
    Waiting(Arc<Network>),
    Ready,
}

/// One rank's end of the verbs transport.
pub struct VerbsEndpoint {
    rank: u32,
    hosts: HostMap,
    config: VerbsConfig,
    /// Memory that local ranks map, if they do.
    home: Option<SlabSource>,
    on_wait: OnWait,
    stage: Stage,
    joined: Option<Joined>,
}

impl fmt::Debug for VerbsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsEndpoint")
            .field("rank", &self.rank)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

/// Handle that drives the engine for callers that wait for something else.
#[derive(Debug)]
struct Driven(Arc<SharedEngine>, Arc<Members>);

impl ProgressHandle for Driven {
    fn progress(&self) -> Result<(), TransportError> {
        let mut engine = self.0.lock();
        engine.progress();
        self.1.check(&engine)
    }
}

impl VerbsEndpoint {
    /// Creates the endpoint of a rank that shares no memory with others. Its devices are opened in set-up;
    /// `on_wait` is called with a message while that waits for one.
    #[must_use]
    pub fn new(config: &VerbsConfig, rank: u32, size: u32, on_wait: OnWait) -> VerbsEndpoint {
        VerbsEndpoint::with(config, HostMap::new((0..size).collect(), rank), None, on_wait)
    }

    /// Creates the endpoint of a rank that reaches the ranks of its own host by shared memory.
    ///
    /// It makes no rails to them. The memory that devices know lies where those ranks have it mapped.
    #[must_use]
    pub fn new_at(config: &VerbsConfig, rank: u32, home: &HostMemory, on_wait: OnWait) -> VerbsEndpoint {
        let hosts = HostMap::new(home.hosts().to_vec(), rank);
        VerbsEndpoint::with(config, hosts, Some(home.slab_source()), on_wait)
    }

    fn with(
        config: &VerbsConfig,
        hosts: HostMap,
        home: Option<SlabSource>,
        on_wait: OnWait,
    ) -> VerbsEndpoint {
        let (rank, config, stage) = (hosts.rank(), config.clone(), Stage::New);
        VerbsEndpoint { rank, hosts, config, home, on_wait, stage, joined: None }
    }

    /// Whether pieces are written into peers' memory; they are sent into receives otherwise.
    ///
    /// # Panics
    /// Before set-up has ended.
    #[must_use]
    pub fn is_one_sided(&self) -> bool {
        self.joined().network.engine.lock().rules.one_sided
    }

    /// Number of this rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Whether the endpoint uses the same connections as another one of this process.
    ///
    /// # Panics
    /// Before set-up of both has ended.
    #[must_use]
    pub fn shares_network_with(&self, other: &VerbsEndpoint) -> bool {
        Arc::ptr_eq(&self.joined().network, &other.joined().network)
    }

    fn joined(&self) -> &Joined {
        self.joined.as_ref().expect("set-up has ended")
    }

    /// Offers the networks of this process.
    fn offer(&self) -> Result<(Offers, Vec<OfferedNetwork>), TransportError> {
        let mut name = [0; 8];
        getrandom::fill(&mut name).map_err(|error| TransportError::Wiring {
            rank: self.rank,
            what: format!("the system gives no random number: {error}"),
        })?;
        let usable = self.config.networks.usable(&self.config);
        let networks = usable.iter().filter_map(|offered| offered.network().offer()).collect();
        Ok((Offers { name: u64::from_le_bytes(name), networks }, usable))
    }

    /// Selects a network that all ranks have offered, with the offers in rank order.
    ///
    /// All ranks select the same, from the same messages.
    fn common<'o>(
        &self,
        offers: &'o [Offers],
        ours: &[OfferedNetwork],
    ) -> Option<(Arc<Network>, Vec<&'o Offer>)> {
        offers[0].networks.iter().find_map(|first| {
            let of_rank = |offers: &'o Offers| offers.networks.iter().find(|offer| offer.name == first.name);
            let found: Vec<&Offer> = offers.iter().map(of_rank).collect::<Option<_>>()?;
            let members: Vec<u32> = found.iter().map(|offer| offer.member).collect();
            let is_once = |member: &u32| members.iter().filter(|other| *other == member).count() == 1;
            let reaches = |offer: &&Offer| !offer.unreachable.iter().any(|rank| members.contains(rank));
            if !members.iter().all(is_once) || !found.iter().all(reaches) {
                return None;
            }
            let network =
                ours.iter().map(OfferedNetwork::network).find(|network| network.name == first.name)?;
            network.has_hosts(&members, &self.hosts).then(|| (Arc::clone(network), found))
        })
    }

    /// Opens the devices of a new network. Returns `None` after a part of the wait for an address.
    fn open_network(
        &mut self,
        name: u64,
        wait: &mut DeviceWait,
    ) -> Result<Option<(Network, Devices)>, TransportError> {
        let home = self.home.as_ref();
        let slab = |bytes: u64| match home {
            Some(home) => home.slab(bytes, LINE as u64),
            None => {
                let mapping = Arc::new(Mapping::private_for_device(bytes as usize, LINE as u64)?);
                let len = mapping.len();
                Ok(Slab::over(mapping, 0..len, Some(LINE as u64)))
            }
        };
        let opened = Network::open(name, &self.config, self.hosts.clone(), slab, wait, &mut *self.on_wait)?;
        let Some((network, opened)) = opened else { return Ok(None) };
        let devices = network.introduce(opened)?;
        Ok(Some((network, devices)))
    }

    /// Begins a new network, or goes on waiting for an address.
    fn begin(&mut self, name: u64, mut wait: DeviceWait) -> Result<Vec<u8>, TransportError> {
        let devices = match self.open_network(name, &mut wait)? {
            Some((network, devices)) => {
                self.stage = Stage::Introduced(network, devices.clone());
                devices
            }
            None => {
                self.stage = Stage::Awaiting(name, wait);
                Devices::awaiting_address()
            }
        };
        Ok(encode("devices", devices))
    }

    /// Answers the devices of all ranks: tries which of them reach each other, unless a rank still waits for
    /// an address.
    fn meet(
        &mut self,
        network: Network,
        own: Devices,
        devices: Vec<Devices>,
    ) -> Result<Vec<u8>, TransportError> {
        if devices.iter().any(|devices| devices.awaits_address) {
            self.stage = Stage::Introduced(network, own.clone());
            return Ok(encode("devices", own));
        }
        network.agree(&devices);
        let reach = network.probe(&devices)?;
        self.stage = Stage::Probed(network, devices);
        Ok(encode("reach", reach))
    }

    /// Opens a stream on each lane to each rank that the network connects with this one. `members` are the
    /// ranks, and `serial` is what rank 0 has given.
    fn join(&mut self, network: &Arc<Network>, members: &[u32], serial: u32) -> Result<(), TransportError> {
        let mut joined = Joined {
            members: Arc::new(Members::new(self.rank, members.to_vec())),
            streams: vec![None; members.len()],
            gone: BTreeSet::new(),
            places: Vec::new(),
            network: Arc::clone(network),
        };
        for (rank, member) in members.iter().enumerate() {
            if network.connects(network.rank, *member) {
                let number = |lane| stream_number(members[0], serial, lane);
                joined.streams[rank] = Some(joined.open_lanes(*member as usize, number)?);
            }
        }
        self.joined = Some(joined);
        Ok(())
    }

    /// Takes in which ranks of the networks of this process can't reach it. Their connections would otherwise
    /// be given up later, and devices be kept until then.
    fn hear_of_failures(&self, ours: &[OfferedNetwork], offers: &[Offers]) {
        for network in ours.iter().map(OfferedNetwork::network) {
            let offers = offers.iter().flat_map(|offers| &offers.networks);
            let has_failed =
                |offer: &&Offer| offer.name == network.name && offer.unreachable.contains(&network.rank);
            for offer in offers.filter(has_failed).filter(|offer| offer.member < network.size) {
                // Without a connection there is none to give up.
                if network.connects(network.rank, offer.member) {
                    network.give_up(offer.member);
                }
            }
        }
    }

    /// Answers the offers of all ranks: joins a network that exists, or begins a new one.
    fn choose(&mut self, ours: Vec<OfferedNetwork>, offers: &[Offers]) -> Result<Vec<u8>, TransportError> {
        if let Some((network, found)) = self.common(offers, &ours) {
            let members: Vec<u32> = found.iter().map(|offer| offer.member).collect();
            self.join(&network, &members, found[0].serial)?;
            self.stage = Stage::Waiting(network);
            return Ok(encode("ready", ()));
        }
        self.hear_of_failures(&ours, offers);
        drop(ours);
        self.config.networks.retire_unused();
        let wait = DeviceWait::new(&self.config);
        self.begin(offers[0].name, wait)
    }

    /// Connects the queue pairs of a new network, and joins it as its first communicator.
    fn connect(&mut self, mut network: Network, rails: &[Rails]) -> Result<Vec<u8>, TransportError> {
        network.connect(rails)?;
        network.keep_alive();
        let network = Arc::new(network);
        self.join(&network, &(0..network.size).collect::<Vec<u32>>(), 0)?;
        self.stage = Stage::Waiting(network);
        Ok(encode("ready", ()))
    }

    /// Waits until the messages of all streams have arrived, but for those to ranks that are gone.
    fn drain(&mut self, within: Duration) -> bool {
        let Some(joined) = &self.joined else { return true };
        let (streams, network) = (joined.streams_of(|rank| !joined.gone.contains(&rank)), &joined.network);
        let (until, latest) = (Instant::now() + within, network.engine.lock().latest());
        loop {
            // Marked again from time to time, since a mark ends with a rail that falls.
            network.engine.lock().mark_sent(&streams);
            let next = until.min(Instant::now() + MARK_EVERY);
            if network.progress_until(next, |engine| engine.is_drained(&streams, &latest)) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }
}

impl Endpoint for VerbsEndpoint {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn exchange(&mut self, received: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Ready) {
            Stage::New => {
                let (offers, ours) = self.offer()?;
                self.stage = Stage::Offered(ours);
                Ok(Some(encode("networks", offers)))
            }
            Stage::Offered(ours) => self.choose(ours, &decode_all("networks", received)?).map(Some),
            Stage::Awaiting(name, wait) => {
                decode_all::<Devices>("devices", received)?;
                self.begin(name, wait).map(Some)
            }
            Stage::Introduced(network, own) => {
                self.meet(network, own, decode_all("devices", received)?).map(Some)
            }
            Stage::Probed(mut network, devices) => {
                let reach = decode_all("reach", received)?;
                let rails = network.make_rails(&devices, &reach)?;
                self.stage = Stage::Connecting(network);
                Ok(Some(encode("rails", rails)))
            }
            Stage::Connecting(network) => self.connect(network, &decode_all("rails", received)?).map(Some),
            Stage::Waiting(network) => {
                decode_all::<()>("ready", received)?;
                self.config.networks.add(&network);
                Ok(None)
            }
            Stage::Ready => Ok(None),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        let Joined { members, network, .. } = self.joined();
        network.connects(members.all()[a as usize], members.all()[b as usize])
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        let Joined { members, network, streams, .. } = self.joined();
        let stream = streams[peer as usize].expect("a link to a rank that is connected")[usize::from(lane)];
        let is_first = lane == 0 && streams.iter().position(Option::is_some) == Some(peer as usize);
        Box::new(VerbsLink::new(&network.engine, members, (peer, stream), (lane == 0, is_first)))
    }

    fn slab(&self) -> &Slab {
        &self.joined().network.slab
    }

    unsafe fn register(
        &mut self,
        start: *mut u8,
        len: usize,
    ) -> Result<Option<Box<dyn RegistrationGuard>>, TransportError> {
        let Joined { members, network, .. } = self.joined();
        let mut engine = network.engine.lock();
        if !engine.ports.iter().all(|port| port.capabilities.late_registration) {
            return Ok(None);
        }
        let owner = Arc::as_ptr(members) as usize;
        let Some(range) = engine.registration_cache.add(owner, start as usize, len) else {
            return Err(TransportError::AlreadyRegistered { rank: self.rank });
        };
        Ok(Some(Box::new(VerbsRegistrationGuard { engine: Arc::downgrade(&network.engine), range })))
    }

    fn begin_use(&mut self, memory: Span<'_>) {
        let engine = &mut *self.joined().network.engine.lock();
        engine.registration_cache.begin_use(memory.as_ptr() as usize, memory.len(), &mut engine.ports);
    }

    fn end_use(&mut self, memory: Span<'_>) {
        let mut engine = self.joined().network.engine.lock();
        engine.registration_cache.end_use(memory.as_ptr() as usize, memory.len());
    }

    fn progress_handle(&self) -> Option<Arc<dyn ProgressHandle>> {
        let Joined { members, network, .. } = self.joined();
        Some(Arc::new(Driven(Arc::clone(&network.engine), Arc::clone(members))))
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        Some(Arc::new(DeviceSleeper::new(&self.joined().network.engine)?))
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        let Joined { members, network, .. } = self.joined();
        preference::rails(&network.engine.lock(), members.all()[peer as usize])
    }

    fn prefer_rail(&mut self, peer: u32, rail: Option<usize>) {
        let Joined { members, network, .. } = self.joined();
        preference::prefer(&mut network.engine.lock(), members.all()[peer as usize], rail);
    }

    fn flush(&mut self, within: Duration, is_gone: &dyn Fn(u32) -> bool) -> bool {
        if let Some(joined) = &mut self.joined {
            joined.gone = (0..joined.streams.len() as u32).filter(|rank| is_gone(*rank)).collect();
        }
        self.drain(within)
    }

    fn close(&mut self, timeout: Duration) {
        let until = Instant::now() + timeout;
        self.drain(timeout);
        if let Some(Joined { network, .. }) = &self.joined
            && Arc::strong_count(network) == 1
        {
            network.say_goodbye(until);
        }
    }
}
