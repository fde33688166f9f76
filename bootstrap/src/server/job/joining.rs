//! Joining: the admission of ranks, until all have mapped each other's memory and started.

use super::{
    super::super::{
        frame_stream::Payload,
        wire::{FromServer, Hello, MAGIC},
    },
    Job, Outgoing, ProtocolError, RankState,
    messages::{option_mismatch, sanitize},
};
use rustix::fd::OwnedFd;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use topology::MAX_RANKS;

/// Maximum timeout. Longer timeouts of ranks are cut to it.
const MAX_TIMEOUT: Duration = Duration::from_secs(366 * 24 * 3600);

/// Shortest time in which other ranks may join after one that has waited for this rendezvous.
const LATE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum length of a host name in bytes.
const MAX_HOST_NAME_BYTES: usize = 255;

/// Maximum length of a rank's list of reconnect addresses in bytes.
const MAX_ADDRESSES_BYTES: usize = 2000;

/// Reason why a rank is not admitted.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum NotAdmitted {
    /// The rank cannot join, for this reason.
    Refused(String),
    /// The rank belongs to another job, which may use this rendezvous later.
    OtherJob,
}

impl Job {
    /// Admits a rank, or returns the reason why not.
    pub(in super::super) fn admit(
        &mut self,
        hello: Hello,
        arena: Option<OwnedFd>,
        now: Instant,
    ) -> Result<u32, NotAdmitted> {
        let rank = hello.member.rank;
        if hello.magic == MAGIC && hello.job != self.name {
            return Err(NotAdmitted::OtherJob);
        }
        self.check(&hello).map_err(NotAdmitted::Refused)?;
        let timeout = Duration::from_millis(hello.timeout_ms).min(MAX_TIMEOUT);
        let waited = Duration::from_millis(hello.waited_ms);
        let left = timeout.saturating_sub(waited).max(LATE_TIMEOUT.min(timeout));
        let state = &mut self.rank_states[rank as usize];
        state.member = Some(hello.member);
        state.arena = arena.map(Arc::new);
        (state.timeout, state.deadline) = (timeout, Some(now + left));
        self.options.get_or_insert((rank, hello.options));
        self.joined += 1;
        if self.is_complete() {
            self.welcome();
        }
        Ok(rank)
    }

    fn check(&mut self, hello: &Hello) -> Result<(), String> {
        let rank = hello.member.rank;
        if hello.magic != MAGIC {
            return Err("this is not a tbccl rank".into());
        }
        if let Some(reason) = &self.refused {
            return Err(reason.clone());
        }
        if self.ranks == 0 && (1..=MAX_RANKS).contains(&hello.size) {
            self.ranks = hello.size;
            self.rank_states = (0..hello.size).map(|_| RankState::default()).collect();
        }
        if hello.size != self.ranks || rank >= self.ranks {
            let reason = format!("rank {rank} of {} cannot join a job of {} ranks", hello.size, self.ranks);
            self.refuse_unless_complete(&reason);
            return Err(reason);
        }
        if hello.member.host.len() > MAX_HOST_NAME_BYTES || hello.member.host.contains(char::is_control) {
            return Err(format!("rank {rank} has an invalid host name"));
        }
        if hello.member.reconnect_addresses.len() > MAX_ADDRESSES_BYTES
            || hello.member.reconnect_addresses.contains(char::is_control)
        {
            return Err(format!("rank {rank} has invalid reconnect addresses"));
        }
        if let Some(taken) = &self.rank_states[rank as usize].member {
            return Err(format!(
                "rank {rank} has already joined (process {} on {}); start each rank once",
                taken.pid, taken.host
            ));
        }
        if let Some((first, options)) = &self.options
            && let Some(reason) = option_mismatch(*first, options, rank, &hello.options)
        {
            self.refuse(&reason);
            return Err(reason);
        }
        Ok(())
    }

    /// Sends the list of members and all arenas to all ranks, since all have joined.
    fn welcome(&mut self) {
        let members = self.rank_states.iter().filter_map(|state| state.member.clone()).collect();
        self.send_to_all(&FromServer::Welcome { members });
        let arenas: Vec<Arc<OwnedFd>> =
            self.rank_states.iter().filter_map(|state| state.arena.clone()).collect();
        for rank in 0..self.ranks {
            let payloads = arenas.iter().map(|arena| Payload::Descriptor(Arc::clone(arena)));
            self.outgoing.extend(payloads.map(|payload| Outgoing::Payload(rank, payload)));
        }
    }

    pub(super) fn probed(&mut self, rank: u32, obstacle: Option<String>) -> Result<(), ProtocolError> {
        let state = &mut self.rank_states[rank as usize];
        if state.probed.is_some() {
            return Err(format!("rank {rank} reported out of turn"));
        }
        state.probed = Some(obstacle.map(|text| sanitize(&text)));
        self.probed += 1;
        if self.has_started() {
            // All ranks have mapped all arenas. The memory has to end with the ranks, so the server drops its
            // descriptors.
            for state in &mut self.rank_states {
                state.arena = None;
                // Those that have contributed wait for the exchange.
                if state.contribution.is_none() {
                    state.deadline = None;
                }
            }
            let obstacle = self.rank_states.iter().find_map(|state| state.probed.clone().flatten());
            self.send_to_all(&FromServer::Go { obstacle });
        }
        Ok(())
    }

    /// Returns the ranks that all others waited for, and a sentence about them.
    pub(super) fn late_ranks(&self) -> (Vec<u32>, String) {
        let (absent_ranks, what) = if self.is_complete() {
            (self.ranks_where(|state| state.probed.is_none()), "joined, but have not started")
        } else {
            (self.ranks_where(|state| state.member.is_none()), "not joined")
        };
        let names = self.list_ranks(&absent_ranks);
        let reason = format!(
            "these ranks have {what} in time: {names}; start them, or allow more time with TBCCL_TIMEOUT"
        );
        (absent_ranks, reason)
    }
}
