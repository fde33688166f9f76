//! Connections that have not said who they are: how many there may be, and for how long.
//!
//! Whoever can reach the port can connect. Until a connection has proved that it belongs to the job, it may hold one
//! of a bounded number of places, for a second at most, and nothing that it says is understood. When all places are
//! taken the one who has been here longest has to go, if it has had time enough: ranks need less than a moment. Ranks
//! that are crowded out try again.

use mio::Token;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// How long a connection over TCP may take to prove that it belongs to the job.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(900);

/// How long a connection may take to say which rank it is, once it is known to belong to the job.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// After so long a connection may be sent away in favour of another.
const MIN_STAY: Duration = Duration::from_millis(100);

/// Places for those who have not proved that they belong to the job.
const MAX_PENDING: usize = 256;

/// Those who have not proved that they belong to the job, the oldest first.
#[derive(Debug)]
pub(super) struct Admission {
    pending: BTreeSet<(Instant, Token)>,
    limit: usize,
}

impl Admission {
    /// As many places as there are, and as the limit on open files allows beside so many ranks.
    pub(super) fn new(ranks: u32) -> Admission {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(u64::from(ranks)));
        let limit = usize::try_from(left / 4).unwrap_or(MAX_PENDING).clamp(16, MAX_PENDING);
        Admission { pending: BTreeSet::new(), limit }
    }

    pub(super) fn add(&mut self, token: Token, now: Instant) {
        self.pending.insert((now, token));
    }

    /// It has proved that it belongs to the job, or has gone.
    pub(super) fn remove(&mut self, token: Token, since: Instant) {
        self.pending.remove(&(since, token));
    }

    /// Is there a place for one more?
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < self.limit
    }

    /// Who has to go so that another may come: none while all are too new for that.
    pub(super) fn evictable(&self, now: Instant) -> Option<Token> {
        self.pending.first().filter(|(since, _)| *since + MIN_STAY <= now).map(|(_, token)| *token)
    }

    /// When the next one can be crowded out.
    pub(super) fn next_eviction(&self) -> Option<Instant> {
        self.pending.first().map(|(since, _)| *since + MIN_STAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_all_places_are_taken_but_not_before_its_turn() {
        let start = Instant::now();
        let mut admission = Admission { pending: BTreeSet::new(), limit: 2 };
        assert!(admission.has_room() && admission.evictable(start).is_none());
        admission.add(Token(7), start);
        admission.add(Token(3), start + MIN_STAY / 2);
        assert!(!admission.has_room());
        assert_eq!(admission.evictable(start + MIN_STAY / 2), None);
        assert_eq!(admission.next_eviction(), Some(start + MIN_STAY));
        assert_eq!(admission.evictable(start + MIN_STAY), Some(Token(7)));
        admission.remove(Token(7), start);
        assert!(admission.has_room());
        assert_eq!(admission.evictable(start + MIN_STAY), None);
    }

    #[test]
    fn there_are_places_even_where_descriptors_are_scarce() {
        assert!((16..=MAX_PENDING).contains(&Admission::new(u32::MAX).limit));
    }
}
