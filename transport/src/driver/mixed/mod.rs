//! Ranks of several hosts, with several ranks on a host: shared memory within a host, another driver between hosts.
//!
//! Each rank says where it is: on which host, in which network namespace, as which user. Those that say the same hand each
//! other their arenas over Unix sockets (`meeting`); their links are the rings of the `shm` driver, and registered memory,
//! which lies in the arena, is read in place there. All other links are the other driver's, which must be able to send
//! from any memory.
//!
//! Invariants: who shares memory is the same for all, since it follows from words that all have heard. The other driver's
//! conversation comes after ours.
//!
//! What is not here: boards. Ranks that share memory mirror each other's like all others, so their links confirm that a
//! message was matched (`link`).
//!
//! # Safety
//! The only unsafe function passes memory that is lent on to the other driver, with the caller's promise.

mod link;
mod meeting;
mod place;

use super::{Endpoint, Lease, RailInfo, ring_link::RingLink};
use crate::{
    Board, Link, TransportError,
    memory::{Arena, ArenaLayout, Slab, Span},
};
use link::ConfirmingLink;
use meeting::Meeting;
use place::Place;
use rustix::fd::OwnedFd;
use std::time::Duration;

/// How far the conversation has come.
#[derive(Debug)]
enum Stage {
    Begun,
    Introduced(Meeting),
    Met,
}

/// One rank's part of both drivers.
#[derive(Debug)]
pub struct Mixed {
    rank: u32,
    between: Box<dyn Endpoint>,
    ours: Arena,
    object: OwnedFd,
    slab: Slab,
    /// By rank: the arenas of those on our host.
    arenas: Vec<Option<Arena>>,
    patience: Duration,
    stage: Stage,
}

impl Mixed {
    /// The endpoint of a rank, with `between` for the ranks of other hosts. `layout` is for all ranks of the job, wherever
    /// they are: rings that nobody uses cost address space only.
    ///
    /// # Errors
    /// When the memory is not to be had.
    pub fn open(
        between: Box<dyn Endpoint>,
        layout: ArenaLayout,
        rank: u32,
        patience: Duration,
    ) -> Result<Mixed, TransportError> {
        assert!(layout.ranks as usize * usize::from(layout.lanes) <= Board::WORDS, "a word per ring");
        let (ours, object) = Arena::shared(layout)?;
        let kept = object.try_clone().map_err(|source| TransportError::Memory {
            what: "a second descriptor of shared memory".into(),
            source,
            remedy: "raise the limit of open files (ulimit -n)".into(),
        })?;
        let slab = Slab::new(&ours, Some(kept));
        let arenas = vec![None; layout.ranks as usize];
        Ok(Mixed { rank, between, ours, object, slab, arenas, patience, stage: Stage::Begun })
    }

    /// Who is on our host, by what all have said; ourselves among them.
    fn neighbours(&self, places: &[Place]) -> Vec<u32> {
        let ours = &places[self.rank as usize];
        (0..).zip(places).filter(|(_, place)| place.shares_memory_with(ours)).map(|(rank, _)| rank).collect()
    }
}

impl Endpoint for Mixed {
    fn converse(&mut self, heard: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Met) {
            Stage::Begun => {
                let meeting = Meeting::prepare().map_err(|error| place::unmet(self.rank, &error))?;
                let word = Place::of_this_process(&meeting).word();
                self.stage = Stage::Introduced(meeting);
                Ok(Some(word))
            }
            Stage::Introduced(meeting) => {
                let places = (0..).zip(heard).map(|(rank, word)| Place::heard(rank, word)).collect::<Result<
                    Vec<_>,
                    _,
                >>(
                )?;
                let neighbours = self.neighbours(&places);
                let layout = *self.ours.layout();
                let met = meeting.exchange(self.rank, &neighbours, &places, &self.object, self.patience);
                for (peer, object) in met.map_err(|error| place::unmet(self.rank, &error))? {
                    self.arenas[peer as usize] = Some(Arena::of_peer(layout, object)?);
                }
                self.between.converse(&[])
            }
            Stage::Met => self.between.converse(heard),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        let is_near = |rank: u32| rank == self.rank || self.arenas[rank as usize].is_some();
        is_near(a) && is_near(b) || self.between.connects(a, b)
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        let Some(theirs) = &self.arenas[peer as usize] else { return self.between.link(peer, lane) };
        let word = |sender: u32| sender as usize * usize::from(self.ours.layout().lanes) + usize::from(lane);
        let ring = RingLink::new("shm", (self.rank, &self.ours), (peer, theirs), lane, None);
        Box::new(ConfirmingLink::new(
            ring,
            (self.ours.board(), word(peer)),
            (theirs.board(), word(self.rank)),
        ))
    }

    fn slab(&self) -> &Slab {
        &self.slab
    }

    unsafe fn lend(&mut self, start: *mut u8, len: usize) -> Result<Option<Box<dyn Lease>>, TransportError> {
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { self.between.lend(start, len) }
    }

    fn begin_use(&mut self, memory: Span<'_>) {
        self.between.begin_use(memory);
    }

    fn end_use(&mut self, memory: Span<'_>) {
        self.between.end_use(memory);
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        if self.arenas[peer as usize].is_some() { Vec::new() } else { self.between.rails(peer) }
    }

    fn prefer_rail(&mut self, peer: u32, rail: Option<usize>) {
        if self.arenas[peer as usize].is_none() {
            self.between.prefer_rail(peer, rail);
        }
    }

    fn close(&mut self, patience: Duration) {
        self.between.close(patience);
    }
}
