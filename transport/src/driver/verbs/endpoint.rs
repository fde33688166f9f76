//! From a library's name to connected queue pairs.
//!
//! ```text
//! open        devices, memory        ->  "devices"  ->  everyone's
//! converse    who reaches whom       ->  "reach"    ->  everyone's     (not tried where a matrix says it)
//! converse    queue pairs            ->  "rails"    ->  everyone's
//! converse    connects them, posts receives  ->  "ready"  ->  everyone's: from now on anyone may send
//! ```
//!
//! The words travel over the job's rendezvous; how is the runtime's business. Every failure names the rank, the device
//! and the remedy.
//!
//! # Safety
//! The only unsafe function takes note of memory that is lent; its caller keeps the promise of [`Endpoint::lend`], by
//! which [`super::memory`] goes.

use super::{
    VerbsConfig, choice,
    engine::Engine,
    incoming::Incoming,
    introduction::{Device, Devices, End, Rails, Reach, gid_of, pack, unpack},
    lease::VerbsLease,
    link::VerbsLink,
    memory::{Keys, LINE, Memory},
    opening::{Opened, open_devices},
    outgoing::Outgoing,
    peer::{EAGER_CREDITS, Peer, RX_SLOTS, Rules, TX_SLOTS},
    port::Port,
    queue::{Id, Queue, What},
    rail::{Far, Places, Rail},
    sharing::Sharing,
    signals,
    sleeper::DeviceSleeper,
    tender::Tender,
    wire::{LANES, SLOT_BYTES},
    wiring::{Cable, check_matrices, connects, digest, found, given},
};
use crate::{
    Link, Sleeper, TransportError,
    driver::{Drive, Endpoint, Home, Lease, RailInfo},
    memory::{Mapping, Registered, Slab, Span},
    verbs::{
        Access, Channel, CompletionQueue, Context, Library, LocalAddress, Mtu, QpType, QueuePairSpec,
        RemoteAddress,
    },
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Room for sends in a control queue.
const CONTROL_DEPTH: u32 = 256;
/// Completions that one rail may have waiting, for each direction: of its control queue, and of its data queues.
const SENDS_PER_RAIL: u32 = CONTROL_DEPTH + 128;
const RECEIVES_PER_RAIL: u32 = RX_SLOTS + 128;
/// Staging places of a lane, in each direction.
const STAGING: u32 = 8;
/// Bytes that are taken when work is posted, where the device can; more is slower than reading them.
const INLINE_BYTES: u32 = 256;

/// What has been said so far.
#[derive(Debug)]
enum Stage {
    Opened(Vec<Opened>),
    Introduced,
    Probed(Vec<Devices>),
    Connecting,
    Waiting,
    Ready,
}

/// One rank's end of the verbs transport.
#[derive(Debug)]
pub struct VerbsEndpoint {
    rank: u32,
    size: u32,
    sharing: Sharing,
    config: VerbsConfig,
    stage: Stage,
    engine: Arc<Mutex<Engine>>,
    slab: Slab,
    tender: Option<Tender>,
    /// Which ranks reach each other, by rank and peer; known once all have said.
    connected: Vec<Vec<bool>>,
    /// Slots and staging places, which live as long as the endpoint.
    _places: Vec<Registered>,
}

/// The engine, for those who wait for something else.
#[derive(Debug)]
struct Driven(Arc<Mutex<Engine>>);

impl Drive for Driven {
    fn drive(&self) -> Result<(), TransportError> {
        lock(&self.0).progress().map(drop)
    }
}

pub(super) fn lock(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VerbsEndpoint {
    /// Opens the devices and gets the memory. `say` is told what is being waited for.
    ///
    /// # Errors
    /// No library, no device that can be used, or no memory; with the remedy.
    pub fn open(
        config: &VerbsConfig,
        rank: u32,
        size: u32,
        say: &mut dyn FnMut(&str),
    ) -> Result<VerbsEndpoint, TransportError> {
        let memory = |bytes: u64| {
            let mapping = Arc::new(Mapping::between_lines(bytes as usize, LINE as u64)?);
            let len = mapping.len();
            Ok(Slab::over(mapping, 0..len, Some(LINE as u64)))
        };
        VerbsEndpoint::open_with(config, rank, (0..size).collect(), memory, say)
    }

    /// The same for a rank that reaches those of its own host by shared memory: it makes no rails to them, and the memory
    /// that devices know lies where they have it mapped.
    ///
    /// # Errors
    /// As for [`VerbsEndpoint::open`].
    pub fn open_at(
        config: &VerbsConfig,
        rank: u32,
        home: &mut Home,
        say: &mut dyn FnMut(&str),
    ) -> Result<VerbsEndpoint, TransportError> {
        let hosts = home.hosts().to_vec();
        VerbsEndpoint::open_with(config, rank, hosts, |bytes| home.slab(bytes), say)
    }

    fn open_with(
        config: &VerbsConfig,
        rank: u32,
        hosts: Vec<u32>,
        memory: impl FnOnce(u64) -> Result<Slab, TransportError>,
        say: &mut dyn FnMut(&str),
    ) -> Result<VerbsEndpoint, TransportError> {
        let size = hosts.len() as u32;
        let sharing = Sharing::new(hosts, rank);
        let library = Library::load(config.library.as_deref())?;
        let opened = open_devices(&library, config, &sharing, say)?;
        let late = opened.iter().all(|device| device.abilities.late_registration);
        let slab_bytes =
            config.slab_bytes.unwrap_or(if late { VerbsConfig::SLAB_LATE } else { VerbsConfig::SLAB_EARLY });
        let slab = memory(slab_bytes)?;
        let memory = Memory::new(&slab, config.segment_bytes as usize, config.piece_bytes as usize);
        let rules = Rules {
            piece_bytes: config.piece_bytes as usize,
            window: config.window as usize,
            checksum: false,
            reliable: false,
            one_sided: false,
        };
        let engine = Engine::new((0..size).map(|_| None).collect(), Vec::new(), memory, rules, config);
        let engine = Arc::new(Mutex::new(engine));
        signals::watch(&engine);
        Ok(VerbsEndpoint {
            rank,
            size,
            sharing,
            config: config.clone(),
            stage: Stage::Opened(opened),
            engine,
            slab,
            tender: None,
            connected: Vec::new(),
            _places: Vec::new(),
        })
    }

    /// Are pieces written into peers' memory? Otherwise they are sent into receives.
    #[must_use]
    pub fn is_one_sided(&self) -> bool {
        lock(&self.engine).rules.one_sided
    }

    /// Whose endpoint it is.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Goes on until something is so, a connection fails, or the time is over.
    fn progress_until(&self, until: Instant, is_so: impl Fn(&Engine) -> bool) {
        while Instant::now() < until {
            let mut engine = lock(&self.engine);
            let failed = engine.progress().is_err() || engine.tick().is_err();
            if failed || is_so(&engine) {
                return;
            }
            drop(engine);
            std::thread::yield_now();
        }
    }

    fn introduce(&mut self, opened: Vec<Opened>) -> Result<Vec<u8>, TransportError> {
        let mut engine = lock(&self.engine);
        let memory = engine.memory.clone();
        let mut cards = Vec::new();
        for device in opened {
            let Opened { context, domain, abilities, card, gid_index } = device;
            let access = if abilities.one_sided { Access::Remote } else { Access::Local };
            let mut keys = Keys::new(domain.clone(), access, memory.clone());
            if !abilities.late_registration {
                let regions =
                    context.attributes().map_or(u64::MAX, |attributes| attributes.max_mr.max(0) as u64);
                let matrix = self.config.matrix.as_ref();
                self.sharing.check_regions(&card.name, matrix, memory.segments() as u64, regions)?;
                keys.register_all()?;
            }
            let channel = self.channel(&context, abilities.events)?;
            let sends = self.completion_queue(&context, SENDS_PER_RAIL, channel.as_ref())?;
            let receives = self.completion_queue(&context, RECEIVES_PER_RAIL, channel.as_ref())?;
            let full = u64::from(receives.depth()) * u64::from(self.config.event_percent) / 100;
            engine.awake_above = engine.awake_above.min(full);
            engine.ports.push(Port::new(
                (context, domain, keys, abilities),
                (sends, receives, channel),
                gid_index,
            ));
            cards.push(card);
        }
        drop(engine);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let word = Devices { host, devices: cards };
        self.stage = Stage::Introduced;
        Ok(pack("devices", word))
    }

    /// A channel for announcements of completions, if they are wanted and the device has them.
    fn channel(&self, context: &Context, has_events: bool) -> Result<Option<Channel>, TransportError> {
        match self.config.events {
            Some(false) => Ok(None),
            Some(true) => Ok(Some(context.channel()?)),
            None => Ok(has_events.then(|| context.channel()).transpose()?),
        }
    }

    fn completion_queue(
        &self,
        context: &Context,
        per_rail: u32,
        channel: Option<&Channel>,
    ) -> Result<CompletionQueue, TransportError> {
        let most = context.attributes().map_or(4096, |attributes| attributes.max_cqe.max(1) as u32);
        let wanted = per_rail.saturating_mul(self.size.max(2) - 1);
        Ok(context.completion_queue(wanted.min(most), channel)?)
    }

    /// The rules for all: what the least able device can do.
    fn agree(&self, devices: &[Devices]) {
        let all = || devices.iter().flat_map(|devices| &devices.devices);
        let rules = &mut lock(&self.engine).rules;
        rules.reliable = all().all(|device| device.reliable) && self.config.reliable != Some(false);
        rules.one_sided = all().all(|device| device.one_sided);
        rules.checksum = self.config.checksum.unwrap_or(!rules.reliable);
        let most = all().map(|device| device.max_message_bytes).min().unwrap_or(u64::MAX);
        rules.piece_bytes = rules.piece_bytes.min(usize::try_from(most).unwrap_or(usize::MAX));
        // A piece takes its frames, and its trailer one.
        let frames = rules.piece_bytes.div_ceil(SLOT_BYTES) as u64 + 1;
        let depth = all().filter_map(|device| device.frame_depth).min();
        let fitting = depth.map_or(usize::MAX, |depth| (u64::from(depth) / frames) as usize);
        rules.window = rules.window.min(fitting).max(1);
    }

    fn service(&self) -> QpType {
        if lock(&self.engine).rules.reliable { QpType::RC } else { QpType::UC }
    }

    /// Tries which of our devices reach which of the others'. With a matrix there is nothing to try.
    fn probe(&self, devices: &[Devices]) -> Result<Reach, TransportError> {
        let mut reach = Reach::default();
        if let Some(matrix) = &self.config.matrix {
            reach.matrix = Some(digest(matrix));
            return Ok(reach);
        }
        let service = self.service();
        let engine = lock(&self.engine);
        for (ours, port) in engine.ports.iter().enumerate() {
            self.sharing.check_probing(port.name(), port.abilities.max_queue_pairs)?;
            let spec = QueuePairSpec { service, send_depth: 1, recv_depth: 1, inline_bytes: 0 };
            let pair = port.domain.queue_pair(&spec, &port.receives)?;
            for (peer, devices) in devices.iter().enumerate().filter(|(peer, _)| self.sharing.is_far(*peer)) {
                for (theirs, device) in devices.devices.iter().enumerate() {
                    let far = remote(device, pair.number(), 0, peer as u32)?;
                    pair.initialise(Access::Local)?;
                    if pair.connect(&near(port, device, 0), &far).is_ok() {
                        reach.pairs.push((peer as u32, ours, theirs));
                    }
                }
            }
        }
        Ok(reach)
    }

    fn cables(&self, peer: u32, devices: &[Devices], reach: &[Reach]) -> Result<Vec<Cable>, TransportError> {
        match &self.config.matrix {
            Some(matrix) => given(self.rank, peer, matrix, devices),
            None => Ok(found(self.rank, peer, reach)),
        }
    }

    /// Notes which ranks reach each other. Not all need to; but a host that reaches no other can't take part.
    fn note_reach(&mut self, devices: &[Devices], reach: &[Reach]) -> Result<(), TransportError> {
        check_matrices(reach)?;
        let matrix = self.config.matrix.as_ref();
        let reaches = |a: u32, b: u32| self.sharing.are_apart(a, b) && connects(a, b, matrix, reach);
        self.connected = (0..self.size).map(|a| (0..self.size).map(|b| reaches(a, b)).collect()).collect();
        self.sharing.check_hosts(&self.connected, devices)
    }

    /// Makes the queue pairs of all rails, and the places for their messages.
    fn make_rails(&mut self, devices: &[Devices], reach: &[Reach]) -> Result<Rails, TransportError> {
        let mut word = Rails::default();
        let rank = self.rank;
        self.note_reach(devices, reach)?;
        let peers = (0..self.size).filter(|peer| self.connects(rank, *peer));
        let peers: Vec<u32> = peers.collect();
        let cables: Vec<Vec<Cable>> =
            peers.iter().map(|peer| self.cables(*peer, devices, reach)).collect::<Result<_, _>>()?;
        self.check_queue_pairs(devices, reach)?;
        for (peer, cables) in peers.into_iter().zip(&cables) {
            let mut rails = Vec::new();
            for (index, cable) in cables.iter().enumerate() {
                let (rail, end) = self.make_rail(peer, index, *cable, devices)?;
                rails.push(rail);
                word.rails.push(end);
            }
            let piece_bytes = lock(&self.engine).rules.piece_bytes;
            let staging = STAGING as usize * piece_bytes;
            let slots = self.place(TX_SLOTS as usize * SLOT_BYTES + 2 * LANES * staging)?;
            let base = slots + TX_SLOTS as usize * SLOT_BYTES;
            let out =
                std::array::from_fn(|lane| Outgoing::new(EAGER_CREDITS, base + lane * staging, STAGING));
            let incoming =
                std::array::from_fn(|lane| Incoming::new(base + (LANES + lane) * staging, STAGING));
            lock(&self.engine).peers[peer as usize] = Some(Peer::new(peer, rails, slots, out, incoming));
        }
        Ok(word)
    }

    /// Has every device of ours queue pairs for the rails of all ranks of our host that use it?
    fn check_queue_pairs(&self, devices: &[Devices], reach: &[Reach]) -> Result<(), TransportError> {
        let mut rails = Vec::new();
        for (rank, peer) in self.sharing.pairs_of_host().filter(|(a, b)| self.connects(*a, *b)) {
            let cables = match &self.config.matrix {
                Some(matrix) => given(rank, peer, matrix, devices)?,
                None => found(rank, peer, reach),
            };
            let names = cables.iter().map(|cable| &devices[rank as usize].devices[cable.ours].name);
            rails.extend(names.map(|name| (rank, name.as_str())));
        }
        let engine = lock(&self.engine);
        let per_rail = if engine.rules.one_sided { 1 } else { 1 + LANES as u32 };
        let devices = engine.ports.iter().map(|port| (port.name(), port.abilities.max_queue_pairs));
        self.sharing.check_queue_pairs(&rails, per_rail, &devices.collect::<Vec<_>>())
    }

    fn make_rail(
        &mut self,
        peer: u32,
        index: usize,
        cable: Cable,
        devices: &[Devices],
    ) -> Result<(Rail, End), TransportError> {
        let places = Places::new(self.place(Places::BYTES)?);
        let service = self.service();
        let engine = lock(&self.engine);
        let (rules, port) = (engine.rules, &engine.ports[cable.ours]);
        let card = &devices[peer as usize].devices[cable.theirs];
        let psn = 0x00b1_0000 | (self.rank & 0xff) << 8 | index as u32;
        let queue = |wire: u8, send_depth: u32, recv_depth: u32| {
            let inline_bytes = INLINE_BYTES.min(port.abilities.max_inline);
            let spec = QueuePairSpec { service, send_depth, recv_depth, inline_bytes };
            let pair = port.domain.queue_pair_on(&spec, &port.sends, &port.receives)?;
            let id = Id { what: What::Sent, peer: peer as u16, rail: index as u8, life: 0, wire, value: 0 };
            Ok::<Queue, TransportError>(Queue::new(pair, id, send_depth))
        };
        let control = queue(0, CONTROL_DEPTH, RX_SLOTS)?;
        let data_depth = rules.window as u32 * (rules.piece_bytes.div_ceil(SLOT_BYTES) as u32 + 1);
        let data = match rules.one_sided {
            true => None,
            false => Some([queue(1, data_depth, data_depth)?, queue(2, data_depth, data_depth)?]),
        };
        let numbers = data.iter().flatten().map(Queue::number).collect();
        let end = End { peer, rail: index, psn, control: control.number(), data: numbers };
        let name = format!("{} of rank {} to {} of rank {peer}", port.name(), self.rank, card.name);
        let theirs = card.name.clone();
        // Filled in when the peer has said its numbers.
        let far = Far { control: remote(card, 0, 0, peer)?, data: Vec::new() };
        let rail = Rail::new(
            (cable.ours, name, theirs, self.rank < peer),
            control,
            data,
            (near(port, card, psn), far),
            places,
        );
        Ok((rail, end))
    }

    /// Bytes of the slab that stay ours; returns their offset.
    fn place(&mut self, bytes: usize) -> Result<usize, TransportError> {
        let place = self.slab.allocate(bytes)?;
        let offset = lock(&self.engine).memory.locate(place.as_ptr(), bytes).expect("a part of the slab");
        self._places.push(place);
        Ok(offset)
    }

    /// Connects all queue pairs and posts their receives.
    fn connect(&self, words: &[Rails]) -> Result<(), TransportError> {
        let mut engine = lock(&self.engine);
        for peer in (0..self.size).filter(|peer| *peer != self.rank) {
            let ends: Vec<&End> =
                words[peer as usize].rails.iter().filter(|end| end.peer == self.rank).collect();
            if engine.peers[peer as usize].is_none() {
                continue;
            }
            let (them, mut env) = engine.peer(peer as usize);
            let lanes = if env.rules.one_sided { 0 } else { LANES };
            let fits = |(index, end): (usize, &&End)| end.rail == index && end.data.len() == lanes;
            if ends.len() != them.rails.len() || !ends.iter().enumerate().all(fits) {
                let what = format!(
                    "it has {} rails to rank {}, which has {}",
                    ends.len(),
                    self.rank,
                    them.rails.len()
                );
                return Err(TransportError::Introduction { peer, what });
            }
            for (rail, end) in them.rails.iter_mut().zip(&ends) {
                let there = |qp: u32| RemoteAddress { qp, psn: end.psn, ..rail.far.control };
                rail.far =
                    Far { control: there(end.control), data: end.data.iter().map(|qp| there(*qp)).collect() };
            }
            for rail in 0..them.rails.len() {
                them.start_rail(&mut env, rail)?;
            }
        }
        Ok(())
    }
}

impl Endpoint for VerbsEndpoint {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn converse(&mut self, heard: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Ready) {
            Stage::Opened(opened) => self.introduce(opened).map(Some),
            Stage::Introduced => {
                let devices: Vec<Devices> = unpack("devices", heard)?;
                self.agree(&devices);
                let word = self.probe(&devices)?;
                self.stage = Stage::Probed(devices);
                Ok(Some(pack("reach", word)))
            }
            Stage::Probed(devices) => {
                let reach = unpack("reach", heard)?;
                let word = self.make_rails(&devices, &reach)?;
                self.stage = Stage::Connecting;
                Ok(Some(pack("rails", word)))
            }
            Stage::Connecting => {
                let rails = unpack("rails", heard)?;
                self.connect(&rails)?;
                self.stage = Stage::Waiting;
                Ok(Some(pack("ready", ())))
            }
            Stage::Waiting => {
                unpack::<()>("ready", heard)?;
                self.tender = Some(Tender::start(&self.engine, self.config.keep_alive));
                Ok(None)
            }
            Stage::Ready => Ok(None),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        self.connected[a as usize][b as usize]
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        assert!(self.connects(self.rank, peer) && usize::from(lane) < LANES, "a link to a peer on a lane");
        Box::new(VerbsLink::new(Arc::clone(&self.engine), peer, lane))
    }

    fn slab(&self) -> &Slab {
        &self.slab
    }

    unsafe fn lend(&mut self, start: *mut u8, len: usize) -> Result<Option<Box<dyn Lease>>, TransportError> {
        let mut engine = lock(&self.engine);
        if !engine.ports.iter().all(|port| port.abilities.late_registration) {
            return Ok(None);
        }
        if !engine.lent.lend(start as usize, len) {
            return Err(TransportError::Lent { rank: self.rank });
        }
        Ok(Some(Box::new(VerbsLease { engine: Arc::downgrade(&self.engine), start: start as usize })))
    }

    fn begin_use(&mut self, memory: Span<'_>) {
        let engine = &mut *lock(&self.engine);
        engine.lent.begin_use(memory.as_ptr() as usize, memory.len(), &mut engine.ports);
    }

    fn end_use(&mut self, memory: Span<'_>) {
        lock(&self.engine).lent.end_use(memory.as_ptr() as usize, memory.len());
    }

    fn driven(&self) -> Option<Arc<dyn Drive>> {
        Some(Arc::new(Driven(Arc::clone(&self.engine))))
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        Some(Arc::new(DeviceSleeper::new(&self.engine)?))
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        choice::rails(&lock(&self.engine), peer)
    }

    fn prefer_rail(&mut self, peer: u32, rail: Option<usize>) {
        choice::prefer(&mut lock(&self.engine), peer, rail);
    }

    fn close(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        self.progress_until(until, Engine::is_drained);
        lock(&self.engine).say_goodbye();
        self.progress_until(until, Engine::has_sent_all);
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        drop(self.tender.take());
        signals::forget(&self.engine);
        // Links hold the engine too: what they could still do must not reach memory that is going.
        let mut engine = lock(&self.engine);
        for rank in 0..engine.peers.len() {
            engine.abort(rank);
        }
    }
}

fn near(port: &Port, card: &Device, psn: u32) -> LocalAddress {
    let mtu = port.context.port().map_or(Mtu::B1024, |attributes| attributes.active_mtu);
    LocalAddress { gid_index: port.gid_index, mtu: Mtu(mtu.0.min(card.mtu)), psn }
}

fn remote(card: &Device, qp: u32, psn: u32, peer: u32) -> Result<RemoteAddress, TransportError> {
    let gid = gid_of(&card.gid).ok_or_else(|| TransportError::Introduction {
        peer,
        what: format!("its device {} has the address `{}`", card.name, card.gid),
    })?;
    Ok(RemoteAddress { qp, gid, lid: card.lid, psn })
}
