//! Driver for several hosts with several ranks each: shared memory within a host, another driver between
//! hosts.
//!
//! Each rank announces its host, network namespace and user. Ranks that announce the same exchange their
//! arenas over Unix sockets (`meeting`). They use the rings of the `shm` driver, and read registered memory
//! in place, since it lies in the arena. All other links belong to the inter-host driver, which must be able
//! to send from any memory. That driver is opened once the shared memory groups are known, and only if there
//! are several hosts. A driver whose device must register memory takes its slab from the arena ([`HostMemory`]), so
//! both drivers reach registered memory.
//!
//! Invariants: all ranks compute the same shared memory groups, from messages that all of them have received.
//! Set-up of the inter-host driver follows the exchange within hosts. A rank that waits for a peer of its
//! host also makes progress on the inter-host driver, since a remote rank may wait for its answer.
//!
//! Not done here: boards. Ranks that share memory mirror each other's boards like all others, so their links
//! confirm matched messages (`link`).
//!
//! # Safety
//! The only unsafe function passes lent memory on to the inter-host driver, under the caller's promise.

mod link;
mod meeting;
mod place;

use super::{
    Endpoint, HostMemory, ProgressHandle, RailInfo, RegistrationGuard, ring_link::RingLink, verbs::LINE,
};
use crate::{
    Board, Link, TransportError,
    memory::{Arena, ArenaLayout, Slab, Span},
};
use link::ConfirmingLink;
use meeting::Meeting;
use place::Place;
use rustix::fd::OwnedFd;
use std::{
    fmt::{self, Debug, Formatter},
    sync::Arc,
    time::Duration,
};

/// Opens the driver between hosts, which is told who shares memory, and may take its slab from the arena.
pub type OpenInterHost = Box<dyn FnOnce(&mut HostMemory) -> Result<Box<dyn Endpoint>, TransportError> + Send>;

/// How far the conversation has come.
enum Stage {
    Begun(OpenInterHost, OwnedFd),
    Introduced(OpenInterHost, OwnedFd, Meeting),
    Met(HostMemory),
    /// All ranks share memory; one empty round is left.
    Alone(HostMemory),
    Over,
}

impl Debug for Stage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Begun(..) => "Begun",
            Stage::Introduced(..) => "Introduced",
            Stage::Met(_) => "Met",
            Stage::Alone(_) => "Alone",
            Stage::Over => "Over",
        })
    }
}

/// One rank's part of both drivers.
#[derive(Debug)]
pub struct Mixed {
    rank: u32,
    /// The driver between hosts, where there are several.
    between: Option<Box<dyn Endpoint>>,
    /// Progress handle of the inter-host driver, called while a shared memory link waits.
    progress_handle: Option<Arc<dyn ProgressHandle>>,
    ours: Arena,
    /// Settled with the conversation.
    slab: Option<Slab>,
    /// By rank: a number of its host. Known once all have said where they are.
    hosts: Vec<u32>,
    /// By rank: the arenas of those on our host.
    arenas: Vec<Option<Arena>>,
    /// Host name given by the user.
    host: String,
    timeout: Duration,
    stage: Stage,
}

impl Mixed {
    /// Opens the endpoint of a rank; `between` opens the driver for other hosts.
    ///
    /// `layout` covers all ranks of the job on any host; unused rings cost address space only. Ranks with
    /// different `host` names share no memory. Ranks with equal or empty names share memory if they can.
    ///
    /// # Errors
    /// [`TransportError::Memory`] if the arena can't be allocated.
    pub fn open(
        between: OpenInterHost,
        layout: ArenaLayout,
        rank: u32,
        host: &str,
        timeout: Duration,
    ) -> Result<Mixed, TransportError> {
        assert!(layout.ranks as usize * usize::from(layout.lanes) <= Board::WORDS, "a word per ring");
        let (ours, object) = Arena::shared_for_device(layout, LINE as u64)?;
        Ok(Mixed {
            rank,
            between: None,
            progress_handle: None,
            ours,
            slab: None,
            hosts: Vec::new(),
            arenas: vec![None; layout.ranks as usize],
            host: host.to_owned(),
            timeout,
            stage: Stage::Begun(between, object),
        })
    }

    /// Shares memory with the others of our host, and opens the driver between hosts if there are several.
    fn meet(
        &mut self,
        between: OpenInterHost,
        object: OwnedFd,
        meeting: &Meeting,
        messages: &[Vec<u8>],
    ) -> Result<Option<Vec<u8>>, TransportError> {
        let places = (0..).zip(messages).map(|(rank, word)| Place::heard(rank, word));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let hosts = place::hosts(&places);
        let is_near = |peer: &u32| hosts[*peer as usize] == hosts[self.rank as usize];
        let neighbours: Vec<u32> = (0..hosts.len() as u32).filter(is_near).collect();
        let layout = *self.ours.layout();
        let met = meeting.exchange(self.rank, &neighbours, &places, &object, self.timeout);
        for (peer, object) in met.map_err(|error| place::unmet(self.rank, &error))? {
            self.arenas[peer as usize] = Some(Arena::of_peer(layout, object)?);
        }
        self.hosts.clone_from(&hosts);
        let mut home = HostMemory::new(hosts, self.ours.clone(), object);
        if !home.has_others() {
            self.stage = Stage::Alone(home);
            return Ok(Some(Vec::new()));
        }
        self.between = Some(between(&mut home)?);
        self.ask(home, &[])
    }

    /// Lets the other driver hear and speak; when it has said all, it is settled where registered memory is.
    fn ask(&mut self, home: HostMemory, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        let between = self.between.as_mut().expect("there are several hosts");
        let word = between.exchange(messages)?;
        if word.is_some() {
            self.stage = Stage::Met(home);
            return Ok(word);
        }
        self.progress_handle = between.progress_handle();
        self.settle(home)
    }

    fn settle(&mut self, mut home: HostMemory) -> Result<Option<Vec<u8>>, TransportError> {
        self.slab = Some(home.choose_slab(self.between.as_deref().map(Endpoint::slab))?);
        Ok(None)
    }

    /// The driver that reaches a peer of another host.
    fn between(&mut self, peer: u32) -> &mut dyn Endpoint {
        let between = self.between.as_deref_mut();
        between.unwrap_or_else(|| panic!("rank {peer} is of another host"))
    }
}

impl Endpoint for Mixed {
    fn name(&self) -> &'static str {
        match self.between.as_ref().map(|between| between.name()) {
            Some("verbs") => "shm+verbs",
            Some(_) => "shm+tcp",
            None => "shm",
        }
    }

    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Begun(between, object) => {
                let meeting = Meeting::prepare().map_err(|error| place::unmet(self.rank, &error))?;
                let word = Place::of_this_process(meeting.socket(), meeting.token(), &self.host).word();
                self.stage = Stage::Introduced(between, object, meeting);
                Ok(Some(word))
            }
            Stage::Introduced(between, object, meeting) => self.meet(between, object, &meeting, messages),
            Stage::Met(home) => self.ask(home, messages),
            Stage::Alone(home) => self.settle(home),
            Stage::Over => Ok(None),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        self.hosts[a as usize] == self.hosts[b as usize]
            || self.between.as_ref().is_some_and(|between| between.connects(a, b))
    }

    fn hosts(&self) -> Option<&[u32]> {
        Some(&self.hosts)
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        let Some(theirs) = &self.arenas[peer as usize] else { return self.between(peer).link(peer, lane) };
        let word = |sender: u32| sender as usize * usize::from(self.ours.layout().lanes) + usize::from(lane);
        let ring = RingLink::new("shm", (self.rank, &self.ours), (peer, theirs), lane, None);
        Box::new(ConfirmingLink::new(
            ring,
            (self.ours.board(), word(peer)),
            (theirs.board(), word(self.rank)),
            self.progress_handle.clone(),
        ))
    }

    fn slab(&self) -> &Slab {
        self.slab.as_ref().expect("settled with the conversation")
    }

    unsafe fn register(
        &mut self,
        start: *mut u8,
        len: usize,
    ) -> Result<Option<Box<dyn RegistrationGuard>>, TransportError> {
        let Some(between) = &mut self.between else { return Ok(None) };
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { between.register(start, len) }
    }

    fn begin_use(&mut self, memory: Span<'_>) {
        if let Some(between) = &mut self.between {
            between.begin_use(memory);
        }
    }

    fn end_use(&mut self, memory: Span<'_>) {
        if let Some(between) = &mut self.between {
            between.end_use(memory);
        }
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        match &self.between {
            Some(between) if self.arenas[peer as usize].is_none() => between.rails(peer),
            _ => Vec::new(),
        }
    }

    fn prefer_rail(&mut self, peer: u32, rail: Option<usize>) {
        if self.arenas[peer as usize].is_none()
            && let Some(between) = &mut self.between
        {
            between.prefer_rail(peer, rail);
        }
    }

    fn flush(&mut self, within: Duration, is_gone: &dyn Fn(u32) -> bool) -> bool {
        self.between.as_mut().is_none_or(|between| between.flush(within, is_gone))
    }

    fn close(&mut self, timeout: Duration) {
        if let Some(between) = &mut self.between {
            between.close(timeout);
        }
    }
}
