//! How fast rails are.
//!
//! Pieces are granted on the rail by which they are expected to arrive first, so that a cable that is three times as fast
//! carries three times as much and none keeps the others waiting. What is expected follows from the bytes under way on a
//! rail and from its pace. The *sender* measures that, since only it knows how long a rail had something to carry: bytes
//! that have left, by the time in which there were any. It tells the receiver with every message it sends.
//!
//! Invariant: every rail is given something now and then, however slow it was, so that one that has become faster is
//! noticed.

use std::time::Instant;

/// Every so many pieces one goes by a rail whose turn it is.
const TURN_EVERY: u64 = 128;
/// Older bytes count for half.
const REMEMBERED_BYTES: u64 = 1 << 20;
/// Before that many bytes have left nothing is said about a pace.
const KNOWN_BYTES: u64 = 512 << 10;
/// Bits of a cost as it is told; the number of its rail is above them.
const COST_BITS: u32 = 28;

/// What a rail carries away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Bytes posted that have not left.
    posted: u64,
    /// Since when there have been any, or when some last left.
    since: Option<Instant>,
    bytes: u64,
    nanos: u64,
}

impl Pace {
    pub(super) fn posted(&mut self, bytes: u64, now: Instant) {
        if self.posted == 0 {
            self.since = Some(now);
        }
        self.posted += bytes;
    }

    /// Bytes have left; those of small messages among them, which alone say nothing of a pace.
    pub(super) fn left(&mut self, bytes: u64, now: Instant) {
        if self.posted == 0 {
            return;
        }
        self.posted = self.posted.saturating_sub(bytes);
        let Some(since) = self.since.replace(now) else { return };
        self.bytes += bytes;
        self.nanos += now.saturating_duration_since(since).as_nanos() as u64;
        if self.bytes > REMEMBERED_BYTES {
            self.bytes /= 2;
            self.nanos /= 2;
        }
    }

    /// As the peer is told: the rail, and nanoseconds for a MiB; 0 while that is not known.
    pub(super) fn told(&self, rail: usize) -> u32 {
        if self.bytes < KNOWN_BYTES {
            return 0;
        }
        let cost = ((self.nanos << 20) / self.bytes).clamp(1, (1 << COST_BITS) - 1);
        (rail as u32) << COST_BITS | cost as u32
    }
}

/// What a peer has told: which rail, and nanoseconds for a MiB by it.
pub(super) fn heard(word: u32) -> Option<(usize, u64)> {
    let cost = word & ((1 << COST_BITS) - 1);
    (cost != 0).then_some(((word >> COST_BITS) as usize, cost.into()))
}

/// A rail that could be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) rail: usize,
    /// Bytes on their way by it.
    pub(super) under_way: u64,
    /// Nanoseconds for a MiB, where that is known.
    pub(super) cost: Option<u64>,
}

/// The rail by which that many bytes are expected to arrive first, for the piece of that number. While not all paces are
/// known they are taken for equal.
pub(super) fn first(
    candidates: impl Iterator<Item = Candidate> + Clone,
    bytes: u64,
    piece: u64,
) -> Option<usize> {
    if piece.is_multiple_of(TURN_EVERY) {
        let turn = (piece / TURN_EVERY) as usize % candidates.clone().count().max(1);
        return candidates.clone().nth(turn).map(|candidate| candidate.rail);
    }
    let mut costs = candidates.clone().map(|candidate| candidate.cost);
    let least = costs.clone().flatten().min().unwrap_or(1);
    let all_known = costs.all(|cost| cost.is_some());
    let expected = |candidate: &Candidate| {
        let cost = candidate.cost.filter(|_| all_known).unwrap_or(least);
        (candidate.under_way + bytes).saturating_mul(cost)
    };
    candidates.min_by_key(expected).map(|candidate| candidate.rail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PIECE: u64 = 128 << 10;

    /// Two cables that take so many nanoseconds for a piece, and what is known of them.
    struct Cables {
        nanos: [u64; 2],
        paces: [Pace; 2],
    }

    impl Cables {
        fn new(nanos: [u64; 2]) -> Cables {
            Cables { nanos, paces: Default::default() }
        }

        /// Grants a window of pieces over and over; how many go by each cable.
        fn shares(&mut self, pieces: u32) -> [u32; 2] {
            let began = Instant::now();
            let at = |nanos| began + Duration::from_nanos(nanos);
            let (mut shares, mut free, mut now) = ([0; 2], [0; 2], 0);
            // When pieces under way come, and by which cable.
            let mut under_way: Vec<(u64, usize)> = Vec::new();
            for piece in 0..pieces {
                if under_way.len() == 8 {
                    let next = (0..8).min_by_key(|k| under_way[*k]).expect("eight");
                    let (came, cable) = under_way.swap_remove(next);
                    now = came;
                    self.paces[cable].left(PIECE, at(now));
                }
                let candidates = (0..2).map(|rail| Candidate {
                    rail,
                    under_way: PIECE * under_way.iter().filter(|(_, cable)| *cable == rail).count() as u64,
                    cost: heard(self.paces[rail].told(rail)).map(|(told, cost)| {
                        assert_eq!(told, rail);
                        cost
                    }),
                });
                let cable = first(candidates, PIECE, piece.into()).expect("a cable");
                self.paces[cable].posted(PIECE, at(now));
                free[cable] = now.max(free[cable]) + self.nanos[cable];
                under_way.push((free[cable], cable));
                shares[cable] += 1;
            }
            self.paces.iter_mut().for_each(|pace| pace.posted = 0);
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
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for _ in 0..20 {
            pace.posted(PIECE, now);
            now += Duration::from_nanos(PIECE);
            pace.left(PIECE, now);
            now += Duration::from_secs(1);
            pace.left(60, now);
        }
        assert_eq!(heard(pace.told(1)), Some((1, 1 << 20)));
    }

    #[test]
    fn nothing_is_told_that_is_not_known() {
        let mut pace = Pace::default();
        assert_eq!(heard(pace.told(3)), None);
        let now = Instant::now();
        pace.posted(2 << 20, now);
        pace.left(2 << 20, now + Duration::from_nanos(600));
        assert_eq!(heard(pace.told(3)), Some((3, 300)));
    }
}
