//! Use of a network by one communicator: its streams to the peers, and their memory.
//!
//! `endpoint` opens the streams when the communicator joins. Dropping the value closes them; the network
//! lives on as long as another communicator uses it.

use super::{
    granted::Granted,
    link::Members,
    network::Network,
    wire::{LANES, MAX_STREAMS},
};
use crate::{TransportError, memory::Registered};
use std::{collections::BTreeSet, sync::Arc};

/// Use of a network by one communicator.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) members: Arc<Members>,
    /// Streams by rank and lane, with their indices; none for ranks without a rail.
    pub(super) streams: Vec<Option<[usize; LANES]>>,
    /// Ranks that have died or left, as of the latest flush: they receive nothing any more.
    pub(super) gone: BTreeSet<u32>,
    /// Staging places of the streams.
    pub(super) places: Vec<Registered>,
    pub(super) network: Arc<Network>,
}

impl Joined {
    /// Opens a stream to a member on each lane; returns their indices. If one can't be opened, none is left.
    pub(super) fn open_lanes(
        &mut self,
        member: usize,
        number: impl Fn(usize) -> u32,
    ) -> Result<[usize; LANES], TransportError> {
        let mut opened = [0; LANES];
        for lane in 0..LANES {
            match self.open_stream(member, number(lane)) {
                Ok(index) => opened[lane] = index,
                Err(error) => {
                    opened[..lane].iter().for_each(|stream| self.close_stream(member, *stream));
                    return Err(error);
                }
            }
        }
        Ok(opened)
    }

    fn close_stream(&self, member: usize, stream: usize) {
        self.network.engine.lock().drive(member, |peer, env| peer.close_stream(env, stream));
    }

    /// Opens a stream to a member; returns its index.
    fn open_stream(&mut self, member: usize, number: u32) -> Result<usize, TransportError> {
        let network = &self.network;
        let rules = network.engine.lock().rules;
        let granted = if rules.one_sided {
            let place = network.slab.allocate(Granted::staging_bytes(&rules))?;
            let at = network.engine.lock().memory.locate(place.as_ptr(), place.len());
            self.places.push(place);
            Granted::new(at.expect("a part of the slab"), &rules)
        } else {
            Granted::unused()
        };
        let mut engine = network.engine.lock();
        let index = engine.peer(member)?.0.open_stream(number, granted)?;
        drop(engine);
        if index < MAX_STREAMS {
            return Ok(index);
        }
        self.close_stream(member, index);
        let what = format!("rank {member} of the first communicator has {MAX_STREAMS} streams to it already");
        Err(TransportError::Wiring { rank: network.rank, what })
    }

    /// All streams, by member and index.
    fn streams(&self) -> Vec<(u32, usize)> {
        self.streams_of(|_| true)
    }

    /// Streams to some ranks.
    pub(super) fn streams_of(&self, is_meant: impl Fn(u32) -> bool) -> Vec<(u32, usize)> {
        let by_rank = (0..).zip(self.streams.iter().zip(self.members.all()));
        by_rank
            .filter(|(rank, _)| is_meant(*rank))
            .flat_map(|(_, (streams, member))| streams.iter().flatten().map(|stream| (*member, *stream)))
            .collect()
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if !self.network.is_ours() {
            return;
        }
        for (member, stream) in self.streams() {
            self.close_stream(member as usize, stream);
        }
    }
}
