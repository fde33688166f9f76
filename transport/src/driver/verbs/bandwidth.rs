//! Bandwidth estimate of rails.
//!
//! A piece is granted on the rail on which it is expected to arrive first. A cable that is three times as
//! fast then carries three times as many bytes, and no cable delays the others. The expected time follows
//! from the bytes in flight on a rail and from its bandwidth. The *sender* measures the bandwidth, since only
//! the sender knows how long a rail had something to carry. The bandwidth is the bytes sent, divided by the
//! time in which bytes were posted. Every message reports it to the receiver.
//!
//! Invariant: every rail is granted a piece now and then, however slow it was, so that a rail that has become
//! faster is noticed.

use std::time::Instant;

/// Interval, in pieces, at which a piece goes to the next rail in turn.
const ROUND_ROBIN_INTERVAL: u64 = 128;
/// Measured bytes above which a measurement is halved, so that older bytes count for less.
const HALVE_ABOVE_BYTES: u64 = 1 << 20;
/// Minimum bytes measured before an estimate is reported.
const MIN_MEASURED_BYTES: u64 = 512 << 10;
/// Cost of a rail whose bandwidth is not known.
pub(super) const UNKNOWN_COST: u32 = 0;
/// Bits of the cost in a report. The rail's index is in the bits above them.
const COST_BITS: u32 = 28;

/// Bandwidth measurement of a rail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bandwidth {
    /// Bytes that are posted and not yet sent.
    posted: u64,
    /// When bytes were first posted after none were, or when bytes were last sent.
    interval_start: Option<Instant>,
    /// Bytes sent in the time measured.
    bytes: u64,
    /// Time measured, in nanoseconds.
    nanos: u64,
}

impl Bandwidth {
    pub(super) fn posted(&mut self, bytes: u64, now: Instant) {
        if self.posted == 0 {
            self.interval_start = Some(now);
        }
        self.posted += bytes;
    }

    /// Records that bytes were sent.
    ///
    /// Bytes of small messages count only while pieces are posted, since alone they say nothing about
    /// bandwidth.
    pub(super) fn left(&mut self, bytes: u64, now: Instant) {
        if self.posted == 0 {
            return;
        }
        self.posted = self.posted.saturating_sub(bytes);
        let Some(start) = self.interval_start.replace(now) else { return };
        self.bytes += bytes;
        self.nanos += now.saturating_duration_since(start).as_nanos() as u64;
        if self.bytes > HALVE_ABOVE_BYTES {
            self.bytes /= 2;
            self.nanos /= 2;
        }
    }

    /// Bytes that are posted and not yet sent.
    pub(super) fn in_flight(&self) -> u64 {
        self.posted
    }

    /// Nanoseconds per MiB; [`UNKNOWN_COST`] until enough has been measured.
    pub(super) fn cost(&self) -> u32 {
        if self.bytes < MIN_MEASURED_BYTES {
            return UNKNOWN_COST;
        }
        ((self.nanos << 20) / self.bytes).clamp(1, (1 << COST_BITS) - 1) as u32
    }

    /// Encodes a report for the peer: the rail, and its cost. 0 while the cost is unknown.
    pub(super) fn encode(&self, rail: usize) -> u32 {
        match self.cost() {
            UNKNOWN_COST => 0,
            cost => (rail as u32) << COST_BITS | cost,
        }
    }
}

/// Decodes a peer's report: the rail, and its cost in nanoseconds per MiB.
pub(super) fn decode(report: u32) -> Option<(usize, u64)> {
    let cost = report & ((1 << COST_BITS) - 1);
    (cost != 0).then_some(((report >> COST_BITS) as usize, cost.into()))
}

/// Rail that can be selected for a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) rail: usize,
    /// Bytes in flight on the rail.
    pub(super) in_flight: u64,
    /// Nanoseconds per MiB, if known.
    pub(super) cost: Option<u64>,
}

/// Selects the rail on which `bytes` bytes are expected to arrive first. `piece` is the number of the piece.
///
/// While the cost of any rail is unknown, all rails count as equally fast. So do rails whose costs differ by
/// less than half, which is within the error of measurement. Rails that are equally good take turns.
pub(super) fn select_rail(
    candidates: impl Iterator<Item = Candidate> + Clone,
    bytes: u64,
    piece: u64,
) -> Option<usize> {
    let count = candidates.clone().count().max(1) as u64;
    let turn = |number: u64| candidates.clone().nth((number % count) as usize);
    if piece.is_multiple_of(ROUND_ROBIN_INTERVAL) {
        return turn(piece / ROUND_ROBIN_INTERVAL).map(|candidate| candidate.rail);
    }
    let lowest = candidates.clone().filter_map(|candidate| candidate.cost).min().unwrap_or(1);
    let all_known = candidates.clone().all(|candidate| candidate.cost.is_some());
    let expected_time = |candidate: &Candidate| {
        let cost = candidate.cost.filter(|cost| all_known && *cost > lowest + lowest / 2).unwrap_or(lowest);
        (candidate.in_flight + bytes).saturating_mul(cost)
    };
    // The rail whose turn it is comes first, and the first of equal ones is taken.
    let skipped = (piece % count) as usize;
    let in_turn = candidates.clone().skip(skipped).chain(candidates.take(skipped));
    in_turn.min_by_key(expected_time).map(|candidate| candidate.rail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PIECE: u64 = 128 << 10;

    /// Two simulated cables with their nanoseconds per piece, and the measurements of both.
    struct Cables {
        nanos: [u64; 2],
        bandwidths: [Bandwidth; 2],
    }

    impl Cables {
        fn new(nanos: [u64; 2]) -> Cables {
            Cables { nanos, bandwidths: Default::default() }
        }

        /// Grants a window of pieces over and over, and returns the number of pieces per cable.
        fn shares(&mut self, pieces: u32) -> [u32; 2] {
            let began = Instant::now();
            let at = |nanos| began + Duration::from_nanos(nanos);
            let (mut shares, mut free, mut now) = ([0; 2], [0; 2], 0);
            // Arrival time and cable of the pieces in flight.
            let mut in_flight: Vec<(u64, usize)> = Vec::new();
            for piece in 0..pieces {
                if in_flight.len() == 8 {
                    let next = (0..8).min_by_key(|k| in_flight[*k]).expect("eight");
                    let (arrival, cable) = in_flight.swap_remove(next);
                    now = arrival;
                    self.bandwidths[cable].left(PIECE, at(now));
                }
                let candidates = (0..2).map(|rail| Candidate {
                    rail,
                    in_flight: PIECE * in_flight.iter().filter(|(_, cable)| *cable == rail).count() as u64,
                    cost: decode(self.bandwidths[rail].encode(rail)).map(|(reported, cost)| {
                        assert_eq!(reported, rail);
                        cost
                    }),
                });
                let cable = select_rail(candidates, PIECE, piece.into()).expect("a cable");
                self.bandwidths[cable].posted(PIECE, at(now));
                free[cable] = now.max(free[cable]) + self.nanos[cable];
                in_flight.push((free[cable], cable));
                shares[cable] += 1;
            }
            self.bandwidths.iter_mut().for_each(|bandwidth| bandwidth.posted = 0);
            shares
        }
    }

    #[test]
    fn bytes_go_by_rails_in_proportion_to_their_pace() {
        let shares = Cables::new([100_000, 300_000]).shares(1000);
        assert!((700..800).contains(&shares[0]), "{shares:?}");
    }

    #[test]
    fn equal_rails_share_equally() {
        let shares = Cables::new([100_000, 100_000]).shares(1000);
        assert!((450..550).contains(&shares[0]), "{shares:?}");
    }

    #[test]
    fn a_rail_that_was_slow_and_is_not_any_more_is_noticed() {
        let mut cables = Cables::new([100_000, 5_000_000]);
        let slow = cables.shares(1000);
        assert!((3..200).contains(&slow[1]), "{slow:?}");
        cables.nanos[1] = 100_000;
        cables.shares(6000);
        let equal = cables.shares(1000);
        assert!(equal[1] > 400, "{equal:?}");
    }

    #[test]
    fn time_in_which_there_was_nothing_to_carry_does_not_count() {
        let (mut bandwidth, mut now) = (Bandwidth::default(), Instant::now());
        for _ in 0..20 {
            bandwidth.posted(PIECE, now);
            now += Duration::from_nanos(PIECE);
            bandwidth.left(PIECE, now);
            now += Duration::from_secs(1);
            bandwidth.left(60, now);
        }
        assert_eq!(decode(bandwidth.encode(1)), Some((1, 1 << 20)));
    }

    #[test]
    fn nothing_is_told_that_is_not_known() {
        let mut bandwidth = Bandwidth::default();
        assert_eq!(decode(bandwidth.encode(3)), None);
        let now = Instant::now();
        bandwidth.posted(2 << 20, now);
        bandwidth.left(2 << 20, now + Duration::from_nanos(600));
        assert_eq!(decode(bandwidth.encode(3)), Some((3, 300)));
    }
}
