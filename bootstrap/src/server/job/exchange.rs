//! Exchanges: each rank contributes bytes, and all ranks receive all contributions.
//!
//! One exchange is in progress at a time; the first may begin before all ranks have started. A rank that
//! departs before contributing aborts the exchange for the ranks that wait.

use super::{
    super::super::wire::{FromServer, MAX_EXCHANGE_BYTES, encode},
    Departure, Job, ProtocolError, RankState,
};
use std::{sync::Arc, time::Instant};

impl Job {
    /// Takes a rank's contribution. The last one completes the exchange.
    pub(super) fn contribute(
        &mut self,
        rank: u32,
        bytes: Vec<u8>,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        if let Some(reason) = self.refused.clone().or_else(|| self.departed_before_contributing()) {
            self.reject(rank, &reason);
            return Ok(());
        }
        let state = &mut self.rank_states[rank as usize];
        if state.contribution.is_some() || bytes.len() > MAX_EXCHANGE_BYTES as usize {
            return Err(format!("rank {rank} contributed to an exchange out of turn"));
        }
        state.contribution = Some(bytes.into());
        // Before the start the rank has a deadline already, for the other ranks to join.
        state.deadline.get_or_insert(now + state.timeout);
        self.contributed += 1;
        if self.contributed == self.ranks {
            self.complete_exchange();
        }
        Ok(())
    }

    fn complete_exchange(&mut self) {
        self.contributed = 0;
        self.rank_states.iter_mut().for_each(|state| state.deadline = None);
        let parts: Vec<_> =
            self.rank_states.iter_mut().filter_map(|state| state.contribution.take()).collect();
        let lengths = parts.iter().map(|part| part.len() as u32).collect();
        let mut all = encode(&FromServer::Exchanged { bytes: lengths });
        parts.iter().for_each(|part| all.extend_from_slice(part));
        let all: Arc<[u8]> = all.into();
        for rank in self.present() {
            self.send(rank, Arc::clone(&all));
        }
    }

    /// Returns a sentence about a rank that departed without contributing, if there is one.
    fn departed_before_contributing(&self) -> Option<String> {
        if self.gone == 0 {
            return None;
        }
        let gone = |state: &RankState| {
            state.contribution.is_none() && matches!(state.gone, Departure::Goodbye | Departure::Died)
        };
        let rank = self.rank_states.iter().position(gone)?;
        Some(format!("rank {} ended while the job was starting", self.label(rank as u32)))
    }

    /// Rejects the ranks that wait in an exchange which cannot complete.
    pub(super) fn abort_exchange_if_departed(&mut self) {
        if self.contributed == 0 {
            return;
        }
        let Some(reason) = self.departed_before_contributing() else { return };
        for rank in self.present() {
            if self.rank_states[rank as usize].contribution.is_some() {
                self.reject(rank, &reason);
            }
        }
    }

    /// Returns the ranks that have not contributed, and a sentence about them.
    pub(super) fn missing_contributors(&self) -> (Vec<u32>, String) {
        let absent_ranks = self.ranks_where(|state| state.contribution.is_none());
        let reason = format!(
            "these ranks have joined, but not sent their addresses in time: {}; allow more time \
             with TBCCL_TIMEOUT",
            self.list_ranks(&absent_ranks)
        );
        (absent_ranks, reason)
    }
}
