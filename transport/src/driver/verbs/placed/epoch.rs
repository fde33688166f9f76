//! The epoch of the placed queues, by which both ends know that the queues of both are new.
//!
//! A message that is lost between sends and receives that match by their order makes all later ones match
//! wrongly. So does a rail that fails or comes back, since both ends derive a piece's rail from its number.
//! The remedy is the same: both ends reset all placed queues, which begins an *epoch*, and tell each other by
//! sequenced messages. The receiver names the first piece that it lacks, and pieces are sent again from
//! there.
//!
//! A piece of an earlier epoch may still be in flight on a slow cable. So an end tells the peer by each rail
//! that its queue there is new. Cables keep their order, so that message arrives behind all earlier pieces.
//! No receive is posted before.
//!
//! An end that notices a problem begins the next epoch. Ends that do so at the same time begin the same one.
//!
//! This module is pure.

use crate::driver::verbs::{
    bandwidth::UNKNOWN_COST,
    wire::{MAX_RAILS, Ready},
};

/// Pieces after which the rails of pieces repeat.
const PATTERN: usize = 32;

/// State of the placed queues.
#[derive(Clone, Debug, Hash)]
pub(in crate::driver::verbs) struct Epoch {
    number: u32,
    /// Report to the peer about this end's new queues.
    ours: Option<Ready>,
    /// Report of the peer about its new queues, and the rails by which it has come.
    theirs: Option<Ready>,
    reported: u32,
    incoming: Pattern,
    outgoing: Pattern,
}

impl Epoch {
    /// Begins the first epoch, in which all queues of that many rails are new at both ends.
    pub(in crate::driver::verbs) fn new(rails: usize) -> Epoch {
        let all = Ready { rails: (1 << rails) - 1, ..Ready::default() };
        let pattern = Pattern::new(all.rails, &all.costs);
        let (incoming, outgoing) = (pattern.clone(), pattern);
        Epoch { number: 0, ours: Some(all), theirs: Some(all), reported: all.rails, incoming, outgoing }
    }

    pub(in crate::driver::verbs) fn number(&self) -> u32 {
        self.number
    }

    /// Whether pieces can travel.
    #[inline]
    pub(in crate::driver::verbs) fn is_up(&self) -> bool {
        self.ours.is_some() && self.has_all_reported() && !self.incoming.rails.is_empty()
    }

    /// Whether the report of the peer has come by each of its rails.
    fn has_all_reported(&self) -> bool {
        self.theirs.as_ref().is_some_and(|ready| ready.rails & !self.reported == 0)
    }

    /// Whether this end's queues are dead and must be made new.
    pub(in crate::driver::verbs) fn needs_renewal(&self) -> bool {
        self.ours.is_none()
    }

    /// Begins the next epoch, in which this end's queues are dead.
    pub(in crate::driver::verbs) fn begin(&mut self) {
        self.begin_number(self.number.wrapping_add(1));
    }

    fn begin_number(&mut self, number: u32) {
        self.number = number;
        self.ours = None;
        self.theirs = None;
        self.reported = 0;
    }

    /// Notes that the peer has begun an epoch; returns whether that ends the present one.
    pub(in crate::driver::verbs) fn peer_began(&mut self, number: u32) -> bool {
        let is_later = (number.wrapping_sub(self.number) as i32) > 0;
        if is_later {
            self.begin_number(number);
        }
        is_later
    }

    /// Notes that this end's queues are new.
    pub(in crate::driver::verbs) fn renewed(&mut self, ready: Ready) {
        self.ours = Some(ready);
        self.derive();
    }

    /// Takes in the peer's report, which came by a rail, that its queues are new; returns whether that ends
    /// an earlier epoch at this end.
    pub(in crate::driver::verbs) fn peer_renewed(&mut self, ready: Ready, by_rail: usize) -> bool {
        let began = self.peer_began(ready.epoch);
        if ready.epoch == self.number {
            if ready.via == by_rail as u32 {
                self.reported |= 1 << by_rail;
            }
            self.theirs = Some(ready);
            self.derive();
        }
        began
    }

    /// The first piece that the peer lacked when this epoch began.
    pub(in crate::driver::verbs) fn first_outgoing(&self) -> Option<u32> {
        self.theirs.as_ref().map(|ready| ready.first)
    }

    fn derive(&mut self) {
        if let (Some(ours), Some(theirs)) = (&self.ours, &self.theirs) {
            let rails = ours.rails & theirs.rails;
            self.incoming = Pattern::new(rails, &theirs.costs);
            self.outgoing = Pattern::new(rails, &ours.costs);
        }
    }

    /// The rail of an incoming piece.
    #[inline]
    pub(in crate::driver::verbs) fn incoming_rail(&self, piece: u32) -> usize {
        self.incoming.rail(piece)
    }

    /// The rail of an outgoing piece.
    #[inline]
    pub(in crate::driver::verbs) fn outgoing_rail(&self, piece: u32) -> usize {
        self.outgoing.rail(piece)
    }

    /// Whether this end has offered a rail for this epoch.
    pub(in crate::driver::verbs) fn offers(&self, rail: usize) -> bool {
        self.ours.as_ref().is_some_and(|ready| ready.rails >> rail & 1 == 1)
    }

    /// Whether these costs would distribute pieces quite differently from the costs of this epoch.
    pub(in crate::driver::verbs) fn is_outdated(&self, costs: &[u32; MAX_RAILS]) -> bool {
        let (Some(ours), Some(theirs)) = (&self.ours, &self.theirs) else { return false };
        let next = Pattern::new(ours.rails & theirs.rails, costs);
        (0..MAX_RAILS as u8).any(|rail| {
            let count = |pattern: &Pattern| pattern.rails.iter().filter(|other| **other == rail).count();
            count(&next).abs_diff(count(&self.outgoing)) > PATTERN / 8
        })
    }
}

/// The rails of pieces, in turn.
#[derive(Clone, Debug, Hash)]
struct Pattern {
    rails: Vec<u8>,
}

impl Pattern {
    /// Distributes pieces over the rails of a mask, in proportion to their bandwidth: each piece goes to the
    /// rail that would be done with it first. Costs count if all are known.
    fn new(mask: u32, costs: &[u32; MAX_RAILS]) -> Pattern {
        let rails: Vec<usize> = (0..MAX_RAILS).filter(|rail| mask >> rail & 1 == 1).collect();
        let all_known = rails.iter().all(|rail| costs[*rail] != UNKNOWN_COST);
        let cost = |rail: usize| if all_known { u64::from(costs[rail]) } else { 1 };
        if rails.len() < 2 {
            return Pattern { rails: rails.iter().map(|rail| *rail as u8).collect() };
        }
        // Every rail gets a piece, so that its bandwidth stays known.
        let mut pattern: Vec<u8> = rails.iter().map(|rail| *rail as u8).collect();
        let mut load: Vec<u64> = rails.iter().map(|rail| cost(*rail)).collect();
        while pattern.len() < PATTERN {
            let next = (0..rails.len()).min_by_key(|index| load[*index] + cost(rails[*index])).unwrap_or(0);
            load[next] += cost(rails[next]);
            pattern.push(rails[next] as u8);
        }
        Pattern { rails: pattern }
    }

    #[inline]
    fn rail(&self, piece: u32) -> usize {
        usize::from(self.rails[piece as usize % self.rails.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(mask: u32, costs: [u32; 2]) -> [usize; 2] {
        let mut all = [UNKNOWN_COST; MAX_RAILS];
        all[..2].copy_from_slice(&costs);
        let pattern = Pattern::new(mask, &all);
        [0, 1].map(|rail| (0..32).filter(|piece| pattern.rail(*piece) == rail).count())
    }

    #[test]
    fn rails_get_pieces_in_proportion_to_their_speed() {
        assert_eq!(shares(0b11, [0, 0]), [16, 16], "nothing is known");
        assert_eq!(shares(0b11, [100, 0]), [16, 16], "not all is known");
        assert_eq!(shares(0b11, [100, 300]), [24, 8]);
        assert_eq!(shares(0b11, [100, 1_000_000]), [31, 1], "every rail gets something");
        assert_eq!(shares(0b10, [100, 300]), [0, 32]);
    }

    fn ready(epoch: u32, first: u32, rails: u32) -> Ready {
        Ready { epoch, first, rails, ..Ready::default() }
    }

    /// Delivers the peer's report by every rail that it offers.
    fn peer_renewed(end: &mut Epoch, ready: Ready) -> bool {
        let mut began = false;
        for via in 0..2 {
            if ready.rails >> via & 1 == 1 {
                began |= end.peer_renewed(Ready { via, ..ready }, via as usize);
            }
        }
        began
    }

    #[test]
    fn pieces_travel_once_both_ends_are_new_in_the_same_epoch() {
        let mut end = Epoch::new(2);
        assert!(end.is_up());
        end.begin();
        assert!(!end.is_up() && end.needs_renewal());
        assert!(!end.peer_began(1), "at the same time");
        end.renewed(ready(1, 0, 0b11));
        assert!(!end.is_up());
        assert!(!peer_renewed(&mut end, ready(0, 9, 0b11)) && !end.is_up(), "old news");
        assert!(!peer_renewed(&mut end, ready(1, 7, 0b10)));
        assert!(end.is_up() && end.offers(0));
        assert_eq!((end.first_outgoing(), end.outgoing_rail(4), end.incoming_rail(5)), (Some(7), 1, 1));
        assert!(peer_renewed(&mut end, ready(3, 8, 0b11)), "a later epoch");
        assert!(!end.is_up() && end.needs_renewal());
        end.renewed(ready(3, 0, 0b11));
        assert!(end.is_up());
    }

    #[test]
    fn no_piece_travels_before_each_rail_has_brought_word() {
        let mut end = Epoch::new(2);
        end.begin();
        end.renewed(ready(1, 0, 0b11));
        end.peer_renewed(Ready { via: 0, ..ready(1, 0, 0b11) }, 0);
        assert!(!end.is_up(), "pieces may be in flight on rail 1");
        end.peer_renewed(Ready { via: 1, ..ready(1, 0, 0b11) }, 0);
        assert!(!end.is_up(), "by another rail it proves nothing");
        end.peer_renewed(Ready { via: 1, ..ready(1, 0, 0b11) }, 1);
        assert!(end.is_up());
    }

    #[test]
    fn without_a_rail_in_common_nothing_travels() {
        let mut end = Epoch::new(2);
        end.begin();
        end.renewed(ready(1, 0, 0b01));
        peer_renewed(&mut end, ready(1, 0, 0b10));
        assert!(!end.is_up());
    }

    #[test]
    fn costs_that_differ_much_are_a_reason_for_a_new_epoch() {
        let mut end = Epoch::new(2);
        let mut costs = [UNKNOWN_COST; MAX_RAILS];
        (costs[0], costs[1]) = (100, 110);
        assert!(!end.is_outdated(&costs));
        costs[1] = 400;
        assert!(end.is_outdated(&costs));
        end.begin();
        end.renewed(Ready { costs, ..ready(1, 0, 0b11) });
        peer_renewed(&mut end, ready(1, 0, 0b11));
        assert!(!end.is_outdated(&costs));
    }
}
