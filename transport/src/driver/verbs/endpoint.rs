//! Endpoint of a rank: set-up from the library's name to connected queue pairs, links, and the end.
//!
//! ```text
//! open        devices, memory        ->  "devices"  ->  everyone's
//! exchange    who reaches whom       ->  "reach"    ->  everyone's     (not tried where a matrix says it)
//! exchange    queue pairs            ->  "rails"    ->  everyone's
//! exchange    connects them, posts receives  ->  "ready"  ->  everyone's: from now on anyone may send
//! ```
//!
//! The messages travel over the job's rendezvous, which is the runtime's business. `descriptions` has their
//! contents, `setup` the work of each round. Every error names the rank, the device and the remedy.
//!
//! # Safety
//! The only unsafe function records memory that the caller registers. The caller keeps the promise of
//! [`Endpoint::register`], which [`super::memory`] relies on.

use super::{
    VerbsConfig,
    descriptions::{Devices, decode_all, encode},
    devices::{OpenDevice, open_devices},
    engine::{Engine, lock},
    host_map::HostMap,
    keep_alive::KeepAliveThread,
    link::VerbsLink,
    memory::{LINE, Memory},
    preference,
    registration_guard::VerbsRegistrationGuard,
    rules::Rules,
    signals,
    sleeper::DeviceSleeper,
    slots::Queues,
    wire::{LONG_BYTES, STREAMS},
};
use crate::{
    Link, Sleeper, TransportError,
    driver::{Endpoint, HostMemory, ProgressHandle, RailInfo, RegistrationGuard},
    memory::{Mapping, Registered, Slab, Span},
    verbs::Library,
};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Progress of the set-up.
#[derive(Debug)]
enum Stage {
    Opened(Vec<OpenDevice>),
    Introduced,
    Probed(Vec<Devices>),
    Connecting,
    Waiting,
    Ready,
}

/// One rank's end of the verbs transport.
#[derive(Debug)]
pub struct VerbsEndpoint {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) hosts: HostMap,
    pub(super) config: VerbsConfig,
    stage: Stage,
    pub(super) engine: Arc<Mutex<Engine>>,
    pub(super) slab: Slab,
    keep_alive: Option<KeepAliveThread>,
    /// Whether two ranks reach each other, by rank and peer; known after the second round.
    pub(super) connected: Vec<Vec<bool>>,
    /// Slots and staging places, which live as long as the endpoint.
    pub(super) places: Vec<Registered>,
}

/// Handle that drives the engine for callers that wait for something else.
#[derive(Debug)]
struct Driven(Arc<Mutex<Engine>>);

impl ProgressHandle for Driven {
    fn progress(&self) -> Result<(), TransportError> {
        lock(&self.0).progress().map(drop)
    }
}

impl VerbsEndpoint {
    /// Opens the devices and allocates the memory. Calls `on_wait` with a message while it waits for a
    /// device.
    ///
    /// # Errors
    /// [`TransportError::Verbs`] or [`TransportError::Wiring`] without a library or a usable device, and the
    /// errors of allocation.
    pub fn open(
        config: &VerbsConfig,
        rank: u32,
        size: u32,
        on_wait: &mut dyn FnMut(&str),
    ) -> Result<VerbsEndpoint, TransportError> {
        let memory = |bytes: u64| {
            let mapping = Arc::new(Mapping::private_for_device(bytes as usize, LINE as u64)?);
            let len = mapping.len();
            Ok(Slab::over(mapping, 0..len, Some(LINE as u64)))
        };
        VerbsEndpoint::open_with(config, rank, (0..size).collect(), memory, on_wait)
    }

    /// Opens an endpoint of a rank that reaches the ranks of its own host by shared memory.
    ///
    /// It makes no rails to them. The memory that devices know lies where those ranks have it mapped.
    ///
    /// # Errors
    /// As for [`VerbsEndpoint::open`].
    pub fn open_at(
        config: &VerbsConfig,
        rank: u32,
        home: &mut HostMemory,
        on_wait: &mut dyn FnMut(&str),
    ) -> Result<VerbsEndpoint, TransportError> {
        let hosts = home.hosts().to_vec();
        VerbsEndpoint::open_with(config, rank, hosts, |bytes| home.slab(bytes, LINE as u64), on_wait)
    }

    fn open_with(
        config: &VerbsConfig,
        rank: u32,
        hosts: Vec<u32>,
        memory: impl FnOnce(u64) -> Result<Slab, TransportError>,
        on_wait: &mut dyn FnMut(&str),
    ) -> Result<VerbsEndpoint, TransportError> {
        let size = hosts.len() as u32;
        let hosts = HostMap::new(hosts, rank);
        let library = Library::load(config.library.as_deref())?;
        let opened = open_devices(&library, config, &hosts, on_wait)?;
        let late = opened.iter().all(|device| device.capabilities.late_registration);
        let slab_bytes =
            config.slab_bytes.unwrap_or(if late { VerbsConfig::SLAB_LATE } else { VerbsConfig::SLAB_EARLY });
        let slab = memory(slab_bytes)?;
        let memory =
            Memory::new(&slab, config.segment_bytes as usize, (config.piece_bytes as usize).max(LONG_BYTES));
        let rules = Rules {
            piece_bytes: config.piece_bytes as usize,
            window: config.window as usize,
            checksum: false,
            reliable: false,
            one_sided: false,
            has_placed: false,
            queues: Queues::Short,
            cable_wait: config.cable_wait,
        };
        let engine = Engine::new((0..size).map(|_| None).collect(), Vec::new(), memory, rules, config);
        let engine = Arc::new(Mutex::new(engine));
        signals::watch(&engine);
        Ok(VerbsEndpoint {
            rank,
            size,
            hosts,
            config: config.clone(),
            stage: Stage::Opened(opened),
            engine,
            slab,
            keep_alive: None,
            connected: Vec::new(),
            places: Vec::new(),
        })
    }

    /// Whether pieces are written into peers' memory; they are sent into receives otherwise.
    #[must_use]
    pub fn is_one_sided(&self) -> bool {
        lock(&self.engine).rules.one_sided
    }

    /// Number of this rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Drives the engine until `is_done` holds or a connection fails. Returns false at the deadline.
    fn progress_until(&self, until: Instant, is_done: impl Fn(&Engine) -> bool) -> bool {
        while Instant::now() < until {
            let mut engine = lock(&self.engine);
            let failed = engine.progress().is_err() || engine.tick().is_err();
            if failed || is_done(&engine) {
                return true;
            }
            drop(engine);
            std::thread::yield_now();
        }
        false
    }
}

impl Endpoint for VerbsEndpoint {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn exchange(&mut self, received: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Ready) {
            Stage::Opened(opened) => {
                let word = self.introduce(opened)?;
                self.stage = Stage::Introduced;
                Ok(Some(encode("devices", word)))
            }
            Stage::Introduced => {
                let devices: Vec<Devices> = decode_all("devices", received)?;
                self.agree(&devices);
                let word = self.probe(&devices)?;
                self.stage = Stage::Probed(devices);
                Ok(Some(encode("reach", word)))
            }
            Stage::Probed(devices) => {
                let reach = decode_all("reach", received)?;
                let word = self.make_rails(&devices, &reach)?;
                self.stage = Stage::Connecting;
                Ok(Some(encode("rails", word)))
            }
            Stage::Connecting => {
                let rails = decode_all("rails", received)?;
                self.connect(&rails)?;
                self.stage = Stage::Waiting;
                Ok(Some(encode("ready", ())))
            }
            Stage::Waiting => {
                decode_all::<()>("ready", received)?;
                self.keep_alive = Some(KeepAliveThread::start(&self.engine, self.config.keep_alive));
                Ok(None)
            }
            Stage::Ready => Ok(None),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        self.connected[a as usize][b as usize]
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        assert!(self.connects(self.rank, peer) && usize::from(lane) < STREAMS, "a link to a peer on a lane");
        Box::new(VerbsLink::new(Arc::clone(&self.engine), peer, lane))
    }

    fn slab(&self) -> &Slab {
        &self.slab
    }

    unsafe fn register(
        &mut self,
        start: *mut u8,
        len: usize,
    ) -> Result<Option<Box<dyn RegistrationGuard>>, TransportError> {
        let mut engine = lock(&self.engine);
        if !engine.ports.iter().all(|port| port.capabilities.late_registration) {
            return Ok(None);
        }
        if !engine.registration_cache.add(start as usize, len) {
            return Err(TransportError::AlreadyRegistered { rank: self.rank });
        }
        Ok(Some(Box::new(VerbsRegistrationGuard {
            engine: Arc::downgrade(&self.engine),
            start: start as usize,
        })))
    }

    fn begin_use(&mut self, memory: Span<'_>) {
        let engine = &mut *lock(&self.engine);
        engine.registration_cache.begin_use(memory.as_ptr() as usize, memory.len(), &mut engine.ports);
    }

    fn end_use(&mut self, memory: Span<'_>) {
        lock(&self.engine).registration_cache.end_use(memory.as_ptr() as usize, memory.len());
    }

    fn progress_handle(&self) -> Option<Arc<dyn ProgressHandle>> {
        Some(Arc::new(Driven(Arc::clone(&self.engine))))
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        Some(Arc::new(DeviceSleeper::new(&self.engine)?))
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        preference::rails(&lock(&self.engine), peer)
    }

    fn prefer_rail(&mut self, peer: u32, rail: Option<usize>) {
        preference::prefer(&mut lock(&self.engine), peer, rail);
    }

    fn flush(&mut self, within: Duration, _: &dyn Fn(u32) -> bool) -> bool {
        self.progress_until(Instant::now() + within, Engine::is_drained)
    }

    fn close(&mut self, timeout: Duration) {
        let until = Instant::now() + timeout;
        self.progress_until(until, Engine::is_drained);
        lock(&self.engine).send_goodbye();
        self.progress_until(until, Engine::has_sent_all);
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        drop(self.keep_alive.take());
        signals::forget(&self.engine);
        // Links hold the engine too. Their later calls must not reach memory that is about to be unmapped.
        let mut engine = lock(&self.engine);
        for rank in 0..engine.peers.len() {
            engine.abort(rank);
        }
    }
}
