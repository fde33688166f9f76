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
pub(super) const PROOF: Duration = Duration::from_millis(900);

/// How long a connection may take to say which rank it is, once it is known to belong to the job.
pub(super) const GREETING: Duration = Duration::from_secs(10);

/// After so long a connection may be sent away in favour of another.
const TURN: Duration = Duration::from_millis(100);

/// Places for those who have not proved that they belong to the job.
const PLACES: usize = 256;

/// Those who have not proved that they belong to the job, the oldest first.
#[derive(Debug)]
pub(super) struct Entrance {
    waiting: BTreeSet<(Instant, Token)>,
    places: usize,
}

impl Entrance {
    /// As many places as there are, and as the limit on open files allows beside so many ranks.
    pub(super) fn new(ranks: u32) -> Entrance {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(u64::from(ranks)));
        let places = usize::try_from(left / 4).unwrap_or(PLACES).clamp(16, PLACES);
        Entrance { waiting: BTreeSet::new(), places }
    }

    pub(super) fn enter(&mut self, token: Token, now: Instant) {
        self.waiting.insert((now, token));
    }

    /// It has proved that it belongs to the job, or has gone.
    pub(super) fn leave(&mut self, token: Token, since: Instant) {
        self.waiting.remove(&(since, token));
    }

    /// Is there a place for one more?
    pub(super) fn has_place(&self) -> bool {
        self.waiting.len() < self.places
    }

    /// Who has to go so that another may come: none while all are too new for that.
    pub(super) fn crowded_out(&self, now: Instant) -> Option<Token> {
        self.waiting.first().filter(|(since, _)| *since + TURN <= now).map(|(_, token)| *token)
    }

    /// When the next one can be crowded out.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.waiting.first().map(|(since, _)| *since + TURN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_all_places_are_taken_but_not_before_its_turn() {
        let start = Instant::now();
        let mut entrance = Entrance { waiting: BTreeSet::new(), places: 2 };
        assert!(entrance.has_place() && entrance.crowded_out(start).is_none());
        entrance.enter(Token(7), start);
        entrance.enter(Token(3), start + TURN / 2);
        assert!(!entrance.has_place());
        assert_eq!(entrance.crowded_out(start + TURN / 2), None);
        assert_eq!(entrance.next_turn(), Some(start + TURN));
        assert_eq!(entrance.crowded_out(start + TURN), Some(Token(7)));
        entrance.leave(Token(7), start);
        assert!(entrance.has_place());
        assert_eq!(entrance.crowded_out(start + TURN), None);
    }

    #[test]
    fn there_are_places_even_where_descriptors_are_scarce() {
        assert!((16..=PLACES).contains(&Entrance::new(u32::MAX).places));
    }
}
