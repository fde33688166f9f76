//! Exchanges: every rank gives bytes, and when all have given, everyone gets all of it.
//!
//! One is under way at a time. Who leaves without giving ends it for those who wait in it.

use super::{
    super::wire::{FromServer, MAX_EXCHANGE_BYTES, frame_of},
    job::{Fault, Gone, Job, Seat},
};
use std::{sync::Arc, time::Instant};

impl Job {
    /// Takes what a rank gives to everyone; when all have given, everyone gets all of it.
    pub(super) fn give(&mut self, rank: u32, bytes: Vec<u8>, now: Instant) -> Result<(), Fault> {
        if let Some(why) = self.refused.clone().or_else(|| self.left_early()) {
            self.turn_away(rank, &why);
            return Ok(());
        }
        let seat = &mut self.seats[rank as usize];
        if seat.given.is_some() || bytes.len() > MAX_EXCHANGE_BYTES as usize {
            return Err(format!("rank {rank} gave to an exchange out of turn"));
        }
        seat.given = Some(bytes.into());
        seat.until = Some(now + seat.patience);
        self.gave += 1;
        if self.gave == self.ranks {
            self.pass_round();
        }
        Ok(())
    }

    fn pass_round(&mut self) {
        self.gave = 0;
        self.seats.iter_mut().for_each(|seat| seat.until = None);
        let parts: Vec<_> = self.seats.iter_mut().filter_map(|seat| seat.given.take()).collect();
        let lengths = parts.iter().map(|part| part.len() as u32).collect();
        let mut all = frame_of(&FromServer::Exchanged { bytes: lengths });
        parts.iter().for_each(|part| all.extend_from_slice(part));
        let all: Arc<[u8]> = all.into();
        for rank in self.present() {
            self.post(rank, Arc::clone(&all));
        }
    }

    /// Who has gone without giving to the exchange that is under way, as a sentence.
    fn left_early(&self) -> Option<String> {
        if self.gone == 0 {
            return None;
        }
        let gone = |seat: &Seat| seat.given.is_none() && matches!(seat.gone, Gone::Goodbye | Gone::Died);
        let rank = self.seats.iter().position(gone)?;
        Some(format!("rank {} ended while the job was starting", self.title(rank as u32)))
    }

    /// An exchange that someone has left is over for those who wait in it.
    pub(super) fn tell_waiting_of_leavers(&mut self) {
        if self.gave == 0 {
            return;
        }
        let Some(why) = self.left_early() else { return };
        for rank in self.present() {
            if self.seats[rank as usize].given.is_some() {
                self.turn_away(rank, &why);
            }
        }
    }

    /// Whom an exchange waits for in vain, and a sentence about them.
    pub(super) fn not_given(&self) -> (Vec<u32>, String) {
        let who = self.those(|seat| seat.given.is_none());
        let why = format!(
            "these ranks have joined, but not told in time how they are reached: {}; allow more time with TBCCL_TIMEOUT",
            self.names(&who)
        );
        (who, why)
    }
}
