//! Random calls: collectives, element types, operations, sizes, places and algorithms.

use crate::reference::{Call, Case, Kind, Random, Way};
use tbccl::Collective;

/// Counts of elements per block: mostly short, some that every protocol splits.
const COUNTS: [usize; 14] = [0, 1, 2, 3, 5, 7, 64, 129, 1000, 1031, 4096, 20_011, 65_537, 200_003];

/// Limits of calls.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands::chaos) struct Sizes {
    /// Ranks of the group.
    pub(in crate::commands::chaos) ranks: u32,
    /// Maximum bytes of the largest buffer of a rank.
    pub(in crate::commands::chaos) max_bytes: usize,
    /// Whether algorithms may be named. Not all of them keep the order of reproducible numerics.
    pub(in crate::commands::chaos) names_algorithms: bool,
}

/// Returns a random call.
pub(in crate::commands::chaos) fn call(sizes: Sizes, random: &mut Random) -> Case {
    let calls = Call::all();
    // A rank alone sends messages only to itself, and only in a group of calls.
    let calls: Vec<Call> =
        calls.into_iter().filter(|call| sizes.ranks > 1 || *call != Call::Messages).collect();
    // Reductions are as frequent as in programs.
    let call = match random.below(4) {
        0 => Call::Even(Collective::AllReduce),
        _ => random.pick(&calls),
    };
    of(call, sizes, random)
}

/// Returns a random call of a kind.
pub(in crate::commands::chaos) fn of(call: Call, sizes: Sizes, random: &mut Random) -> Case {
    let (dtype, op) = random.pick(call.pairs());
    let in_place = random.pick(call.places());
    let ways = call.ways();
    let named = sizes.names_algorithms && random.happens(1, 3);
    let way = if named { random.pick(&ways) } else { Way::Chosen };
    let ranks = sizes.ranks as usize;
    // The largest buffer has a block of each rank, or of each pair, up to three elements longer.
    let fits = |count: &usize| (count + 3) * ranks * dtype.size() <= sizes.max_bytes;
    let counts: Vec<usize> = COUNTS.into_iter().chain([ranks - 1, ranks, ranks + 1]).filter(fits).collect();
    Case { kind: Kind { call, way, in_place, dtype, op }, count: random.pick(&counts), seed: random.bits() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_call_type_and_operation_is_made() {
        let mut random = Random(3);
        let sizes = Sizes { ranks: 3, max_bytes: 4 << 20, names_algorithms: true };
        let cases: Vec<Case> = (0..60_000).map(|_| call(sizes, &mut random)).collect();
        let made: HashSet<_> =
            cases.iter().map(|case| (case.kind.call, case.kind.dtype, case.kind.op)).collect();
        for call in Call::all() {
            for (dtype, op) in call.pairs() {
                assert!(made.contains(&(call, *dtype, *op)), "{call:?} of {dtype} by {op}");
            }
        }
    }

    #[test]
    fn buffers_stay_within_the_limit() {
        let mut random = Random(4);
        let sizes = Sizes { ranks: 5, max_bytes: 1 << 20, names_algorithms: false };
        for _ in 0..5000 {
            let case = call(sizes, &mut random);
            assert!(case.count * 5 * case.kind.dtype.size() <= 1 << 20);
            assert_eq!(case.kind.way, Way::Chosen);
        }
        let alone = Sizes { ranks: 1, ..sizes };
        assert!((0..2000).all(|_| call(alone, &mut random).kind.call != Call::Messages));
    }
}
