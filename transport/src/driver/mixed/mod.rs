//! Driver for several hosts with several ranks each: shared memory within a host, another driver between
//! hosts.
//!
//! Each rank announces its host, network namespace and user (`location`). Ranks that announce the same
//! exchange their arenas over Unix sockets (`descriptor_exchange`). They use the rings of the `shm` driver,
//! and read registered memory in place, since it lies in the arena. All other links belong to the inter-host
//! driver, which must be able to send from any memory. That driver is opened once the shared memory groups
//! are known, and only if there are several hosts. A driver whose device must register memory takes its slab
//! from the arena ([`HostMemory`]), so both drivers reach registered memory.
//!
//! Invariants: all ranks compute the same shared memory groups, from messages that all of them have received.
//! Set-up of the inter-host driver follows the exchange within hosts. A rank that waits for a peer of its
//! host also makes progress on the inter-host driver, since a remote rank may wait for its answer.
//!
//! Not done here: boards. Ranks that share memory mirror each other's boards like all others, so their links
//! acknowledge matched messages (`link`).
//!
//! # Safety
//! The only unsafe function passes registered memory on to the inter-host driver, under the caller's promise.

mod descriptor_exchange;
mod link;
mod location;
#[cfg(all(test, loom))]
mod models;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use location::feed_locations;

use super::{
    Endpoint, HostMemory, ProgressHandle, RailInfo, RegistrationGuard, SharedMemory, ring_link::RingLink,
    verbs::LINE,
};
use crate::{
    Board, Link, TransportError,
    memory::{Arena, ArenaLayout, Slab, Span},
};
use descriptor_exchange::DescriptorExchange;
use link::MatchAckLink;
use location::Location;
use rustix::fd::OwnedFd;
use std::{
    fmt::{self, Debug, Formatter},
    sync::Arc,
    time::Duration,
};

/// Opens the inter-host driver, which may take its slab from the arena.
pub type OpenInterHost = Box<dyn FnOnce(&mut HostMemory) -> Result<Box<dyn Endpoint>, TransportError> + Send>;

/// Progress of set-up.
enum Stage {
    Opened(OpenInterHost, OwnedFd),
    LocationSent(OpenInterHost, OwnedFd, DescriptorExchange),
    InterHost(HostMemory),
    /// All ranks share memory; one empty round is left.
    OneHost(HostMemory),
    Done,
}

impl Debug for Stage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Opened(..) => "Opened",
            Stage::LocationSent(..) => "LocationSent",
            Stage::InterHost(_) => "InterHost",
            Stage::OneHost(_) => "OneHost",
            Stage::Done => "Done",
        })
    }
}

/// One rank's endpoint of both drivers.
#[derive(Debug)]
pub struct Mixed {
    rank: u32,
    /// The inter-host driver, if there are several hosts.
    inter_host: Option<Box<dyn Endpoint>>,
    /// Progress handle of the inter-host driver, called while a shared memory link waits.
    progress_handle: Option<Arc<dyn ProgressHandle>>,
    ours: Arena,
    /// Allocator of registered memory; present after set-up.
    slab: Option<Slab>,
    /// Host number of each rank; empty before all locations are known.
    hosts: Vec<u32>,
    /// Arenas by rank; present for ranks of this host.
    arenas: Vec<Option<Arena>>,
    /// Host name given by the user.
    host: String,
    timeout: Duration,
    stage: Stage,
}

impl Mixed {
    /// Opens the endpoint of a rank; `open_inter_host` opens the driver for other hosts.
    ///
    /// `layout` covers all ranks of the job on any host; unused rings cost address space only. Ranks with
    /// different `host` names share no memory. Ranks with equal or empty names share memory if they can.
    /// `timeout` bounds the exchange of descriptors.
    ///
    /// # Errors
    /// [`TransportError::Memory`] if the arena can't be allocated.
    pub fn open(
        open_inter_host: OpenInterHost,
        layout: ArenaLayout,
        rank: u32,
        host: &str,
        timeout: Duration,
    ) -> Result<Mixed, TransportError> {
        assert!(layout.ranks as usize * usize::from(layout.lanes) <= Board::WORDS, "a board word per ring");
        let (ours, object) = Arena::shared_for_device(layout, LINE as u64)?;
        Ok(Mixed {
            rank,
            inter_host: None,
            progress_handle: None,
            ours,
            slab: None,
            hosts: Vec::new(),
            arenas: vec![None; layout.ranks as usize],
            host: host.to_owned(),
            timeout,
            stage: Stage::Opened(open_inter_host, object),
        })
    }

    /// Maps the arenas of the local ranks, and opens the inter-host driver if there are several hosts.
    fn share_memory(
        &mut self,
        open_inter_host: OpenInterHost,
        object: OwnedFd,
        descriptors: &DescriptorExchange,
        messages: &[Vec<u8>],
    ) -> Result<Option<Vec<u8>>, TransportError> {
        let locations = (0..).zip(messages).map(|(rank, message)| Location::decode(rank, message));
        let locations = locations.collect::<Result<Vec<_>, _>>()?;
        let hosts = location::hosts(&locations);
        let is_local = |peer: &u32| hosts[*peer as usize] == hosts[self.rank as usize];
        let local_ranks: Vec<u32> = (0..hosts.len() as u32).filter(is_local).collect();
        let layout = *self.ours.layout();
        let received = descriptors.exchange(self.rank, &local_ranks, &locations, &object, self.timeout);
        for (peer, object) in received.map_err(|error| location::sharing_failed(self.rank, &error))? {
            self.arenas[peer as usize] = Some(Arena::of_peer(layout, object)?);
        }
        self.hosts.clone_from(&hosts);
        let mut host_memory = HostMemory::new(hosts, self.ours.clone(), object);
        if !host_memory.spans_hosts() {
            self.stage = Stage::OneHost(host_memory);
            return Ok(Some(Vec::new()));
        }
        self.inter_host = Some(open_inter_host(&mut host_memory)?);
        self.exchange_inter_host(host_memory, &[])
    }

    /// Passes the messages of all ranks to the inter-host driver, and returns its next message.
    ///
    /// Chooses the allocator of registered memory once that driver has finished set-up.
    fn exchange_inter_host(
        &mut self,
        host_memory: HostMemory,
        messages: &[Vec<u8>],
    ) -> Result<Option<Vec<u8>>, TransportError> {
        let inter_host = self.inter_host.as_mut().expect("there are several hosts");
        let message = inter_host.exchange(messages)?;
        if message.is_some() {
            self.stage = Stage::InterHost(host_memory);
            return Ok(message);
        }
        self.progress_handle = inter_host.progress_handle();
        self.finish(&host_memory)
    }

    fn finish(&mut self, host_memory: &HostMemory) -> Result<Option<Vec<u8>>, TransportError> {
        self.slab = Some(host_memory.choose_slab(self.inter_host.as_deref().map(Endpoint::slab))?);
        Ok(None)
    }

    /// Returns the inter-host driver, for a peer of another host.
    ///
    /// # Panics
    /// If all ranks share memory.
    fn inter_host_driver(&mut self, peer: u32) -> &mut dyn Endpoint {
        let inter_host = self.inter_host.as_deref_mut();
        inter_host.unwrap_or_else(|| panic!("no inter-host driver for rank {peer}"))
    }
}

impl Endpoint for Mixed {
    fn name(&self) -> &'static str {
        match self.inter_host.as_ref().map(|inter_host| inter_host.name()) {
            Some("verbs") => "shm+verbs",
            Some(_) => "shm+tcp",
            None => "shm",
        }
    }

    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Opened(open_inter_host, object) => {
                let descriptors = DescriptorExchange::open()
                    .map_err(|error| location::sharing_failed(self.rank, &error))?;
                let message =
                    Location::of_this_process(descriptors.socket(), descriptors.token(), &self.host).encode();
                self.stage = Stage::LocationSent(open_inter_host, object, descriptors);
                Ok(Some(message))
            }
            Stage::LocationSent(open_inter_host, object, descriptors) => {
                self.share_memory(open_inter_host, object, &descriptors, messages)
            }
            Stage::InterHost(host_memory) => self.exchange_inter_host(host_memory, messages),
            Stage::OneHost(host_memory) => self.finish(&host_memory),
            Stage::Done => Ok(None),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        self.hosts[a as usize] == self.hosts[b as usize]
            || self.inter_host.as_ref().is_some_and(|inter_host| inter_host.connects(a, b))
    }

    fn is_for_schedules(&self, a: u32, b: u32) -> bool {
        self.hosts[a as usize] == self.hosts[b as usize]
            || self.inter_host.as_ref().is_some_and(|inter_host| inter_host.is_for_schedules(a, b))
    }

    fn hosts(&self) -> Option<&[u32]> {
        Some(&self.hosts)
    }

    fn take_shared_memory(&mut self) -> Option<SharedMemory> {
        if self.inter_host.is_some() {
            return None;
        }
        let (ours, slab) = (self.rank as usize, self.slab.take()?);
        self.arenas[ours] = Some(self.ours.clone());
        let arenas = std::mem::take(&mut self.arenas).into_iter();
        Some(SharedMemory { arenas: arenas.collect::<Option<Vec<_>>>().expect("all are of this host"), slab })
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        let Some(theirs) = &self.arenas[peer as usize] else {
            return self.inter_host_driver(peer).link(peer, lane);
        };
        let word = |sender: u32| sender as usize * usize::from(self.ours.layout().lanes) + usize::from(lane);
        let ring = RingLink::new("shm", (self.rank, &self.ours), (peer, theirs), lane, None);
        Box::new(MatchAckLink::new(
            ring,
            (self.ours.board(), word(peer)),
            (theirs.board(), word(self.rank)),
            self.progress_handle.clone(),
        ))
    }

    fn slab(&self) -> &Slab {
        self.slab.as_ref().expect("set-up is complete")
    }

    unsafe fn register(
        &mut self,
        start: *mut u8,
        len: usize,
    ) -> Result<Option<Box<dyn RegistrationGuard>>, TransportError> {
        let Some(inter_host) = &mut self.inter_host else { return Ok(None) };
        // SAFETY: the caller keeps the same promise that `register` asks for.
        unsafe { inter_host.register(start, len) }
    }

    fn begin_use(&mut self, memory: Span<'_>) {
        if let Some(inter_host) = &mut self.inter_host {
            inter_host.begin_use(memory);
        }
    }

    fn end_use(&mut self, memory: Span<'_>) {
        if let Some(inter_host) = &mut self.inter_host {
            inter_host.end_use(memory);
        }
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        match &self.inter_host {
            Some(inter_host) if self.arenas[peer as usize].is_none() => inter_host.rails(peer),
            _ => Vec::new(),
        }
    }

    fn prefer_rail(&mut self, peer: u32, rail: Option<usize>) {
        if self.arenas[peer as usize].is_none()
            && let Some(inter_host) = &mut self.inter_host
        {
            inter_host.prefer_rail(peer, rail);
        }
    }

    fn flush(&mut self, within: Duration, is_gone: &dyn Fn(u32) -> bool) -> bool {
        self.inter_host.as_mut().is_none_or(|inter_host| inter_host.flush(within, is_gone))
    }

    fn close(&mut self, timeout: Duration) {
        if let Some(inter_host) = &mut self.inter_host {
            inter_host.close(timeout);
        }
    }
}
