//! Ends of processes that the rendezvous of a communicator reports, for a rank that waits for others at the
//! rendezvous of a later one.
//!
//! A rank that dies before it comes to the later rendezvous is unknown there. This module only looks: the
//! notices remain for the calls of the earlier communicator.

use super::channel::Channel;
use crate::connect::{Deaths, RendezvousHost};
use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

/// The means to learn which members of a later communicator have died.
#[derive(Clone, Debug)]
pub struct DeathWatch {
    channel: Weak<Mutex<Channel>>,
    /// Ranks of the members in the earlier communicator, by their ranks in the later one.
    members: Arc<[u32]>,
}

impl DeathWatch {
    pub(super) fn new(channel: &Arc<Mutex<Channel>>, members: Arc<[u32]>) -> DeathWatch {
        DeathWatch { channel: Arc::downgrade(channel), members }
    }

    /// Returns the description of the later communicator's rendezvous with these means.
    #[must_use]
    pub fn added_to(self, rendezvous: RendezvousHost) -> RendezvousHost {
        rendezvous.with_deaths(Arc::new(self))
    }
}

impl Deaths for DeathWatch {
    fn first(&self) -> Option<(u32, String)> {
        let channel = self.channel.upgrade()?;
        // Another thread that holds the connection returns it soon, and this is asked again.
        let mut channel = channel.try_lock().ok()?;
        channel.read_ahead(Duration::ZERO);
        if let Some(requests) = channel.take_requests() {
            requests.answer().iter().for_each(|answer| channel.post(answer));
        }
        channel.deaths().iter().find_map(|(rank, how)| {
            let member = self.members.iter().position(|member| member == rank)?;
            Some((member as u32, how.clone()))
        })
    }
}
