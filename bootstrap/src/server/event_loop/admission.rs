//! Limits on unauthenticated connections: their number, and their time.
//!
//! Any program that reaches the port can connect. Until a connection has proved that it belongs to the job,
//! it occupies one of a bounded number of slots for one second at most, and none of its bytes is parsed as a
//! message. When all slots are occupied, the oldest connection is closed if it has had enough time: ranks
//! need only a moment. Ranks that are evicted connect again.

use mio::Token;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Timeout of the handshake of a TCP connection.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(900);

/// Timeout of the hello of an authenticated connection.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum time before a connection may be evicted.
const MIN_STAY: Duration = Duration::from_millis(100);

/// Maximum number of unauthenticated connections.
const MAX_PENDING: usize = 256;

/// Unauthenticated connections, the oldest first.
#[derive(Debug)]
pub(super) struct Admission {
    pending: BTreeSet<(Instant, Token)>,
    limit: usize,
}

impl Admission {
    /// Creates the limits for a job of `ranks`, whose connections also count against the limit on open files.
    pub(super) fn new(ranks: u32) -> Admission {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(u64::from(ranks)));
        let limit = usize::try_from(left / 4).unwrap_or(MAX_PENDING).clamp(16, MAX_PENDING);
        Admission { pending: BTreeSet::new(), limit }
    }

    pub(super) fn add(&mut self, token: Token, now: Instant) {
        self.pending.insert((now, token));
    }

    /// Removes a connection that is authenticated or closed.
    pub(super) fn remove(&mut self, token: Token, since: Instant) {
        self.pending.remove(&(since, token));
    }

    /// Whether another connection is within the limit.
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < self.limit
    }

    /// Returns the connection to evict; `None` while all are too recent.
    pub(super) fn evictable(&self, now: Instant) -> Option<Token> {
        self.pending.first().filter(|(since, _)| *since + MIN_STAY <= now).map(|(_, token)| *token)
    }

    /// Returns the time of the next possible eviction.
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
