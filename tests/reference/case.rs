//! Cases: one call each, described by value; and all cases of a number of ranks.

use collectives::{
    plan::{ALGORITHMS, Algorithm},
    uneven::has_vector_form,
};
use std::sync::LazyLock;
use tbccl::{Collective, DType, ReduceOp};

/// The longest count, which every protocol splits.
pub(crate) const LONG: usize = 65_537;

/// A call of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    /// Blocks of equal lengths.
    Even(Collective),
    /// Blocks of unequal lengths.
    Vector(Collective),
    /// A message to another rank, and one from another.
    Messages,
}

/// The algorithm of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// The algorithm that the library chooses.
    Chosen,
    /// A named algorithm with a number of segments.
    By(&'static str, u32),
}

/// All properties of a case except its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) call: Call,
    pub(crate) way: Way,
    pub(crate) in_place: bool,
    pub(crate) dtype: DType,
    /// `sum` if the call does not reduce.
    pub(crate) op: ReduceOp,
}

/// A call of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    /// Elements per block; for vector forms, the basis of the lengths.
    pub(crate) count: usize,
    /// Determines inputs, roots and lengths, and whether buffers are registered.
    pub(crate) seed: u64,
}

/// Returns a pseudo-random number of a seed and an index.
pub(crate) fn mix(seed: u64, index: usize) -> u64 {
    let mut x = seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Call {
    /// Returns every call except the barrier, which has no elements.
    pub(crate) fn all() -> Vec<Call> {
        let collectives = || Collective::ALL.into_iter().filter(|c| *c != Collective::Barrier);
        let vector = collectives().filter(|c| has_vector_form(*c)).map(Call::Vector);
        collectives().map(Call::Even).chain(vector).chain([Call::Messages]).collect()
    }

    pub(crate) fn collective(self) -> Option<Collective> {
        match self {
            Call::Even(collective) | Call::Vector(collective) => Some(collective),
            Call::Messages => None,
        }
    }

    pub(crate) fn reduces(self) -> bool {
        self.collective().is_some_and(Collective::reduces)
    }

    /// Returns whether the call runs in place: false, and true if it has such a form.
    pub(crate) fn places(self) -> &'static [bool] {
        match self {
            Call::Even(Collective::AllToAll | Collective::SendRecv) | Call::Vector(_) | Call::Messages => {
                &[false]
            }
            Call::Even(_) => &[false, true],
        }
    }

    pub(crate) fn algorithms(self) -> impl Iterator<Item = &'static Algorithm> {
        let fits = move |algorithm: &&Algorithm| match self {
            Call::Even(collective) => algorithm.collective == collective,
            Call::Vector(collective) => algorithm.collective == collective && algorithm.takes_uneven_blocks(),
            Call::Messages => false,
        };
        ALGORITHMS.iter().filter(fits)
    }

    pub(crate) fn ways(self) -> Vec<Way> {
        let by_name = self.algorithms().flat_map(|a| [1, 3].map(|segments| Way::By(a.name, segments)));
        [Way::Chosen].into_iter().chain(by_name).collect()
    }

    /// Returns every element type with every legal operation; with one operation if the call does not reduce.
    pub(crate) fn pairs(self) -> &'static [(DType, ReduceOp)] {
        static PAIRS: LazyLock<[Vec<(DType, ReduceOp)>; 3]> = LazyLock::new(|| {
            let such = |fits: fn(ReduceOp) -> bool| {
                let legal = |dtype: DType| {
                    let operations = ReduceOp::ALL.into_iter();
                    operations
                        .filter(move |op| fits(*op) && op.is_legal_for(dtype))
                        .map(move |op| (dtype, op))
                };
                DType::ALL.into_iter().flat_map(legal).collect()
            };
            [such(|op| op == ReduceOp::Sum), such(|op| op != ReduceOp::Avg), such(|_| true)]
        });
        match self.collective() {
            Some(collective) if collective.averages() => &PAIRS[2],
            Some(collective) if collective.reduces() => &PAIRS[1],
            _ => &PAIRS[0],
        }
    }

    pub(crate) fn kinds(self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for way in self.ways() {
            for in_place in self.places().iter().copied() {
                let kind = |(dtype, op)| Kind { call: self, way, in_place, dtype, op };
                kinds.extend(self.pairs().iter().copied().map(kind));
            }
        }
        kinds
    }
}

/// Returns the counts for a number of ranks, in ascending order.
pub(crate) fn counts(ranks: u32) -> Vec<usize> {
    let n = ranks as usize;
    let mut counts = vec![0, 1, n - 1, n, n + 1, 1000, LONG];
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Returns the whole product for a number of ranks, about 93 thousand cases.
pub(crate) fn product(ranks: u32) -> impl Iterator<Item = Case> {
    // A single rank has no other rank to send a message to.
    let calls = Call::all().into_iter().filter(move |call| ranks > 1 || *call != Call::Messages);
    let kinds = calls.flat_map(Call::kinds);
    kinds
        .flat_map(move |kind| counts(ranks).into_iter().map(move |count| (kind, count)))
        .enumerate()
        .map(move |(at, (kind, count))| Case { kind, count, seed: mix(u64::from(ranks) << 32, at) })
}

/// Returns the algorithms of the barrier, the only call without elements.
pub(crate) fn barriers() -> Vec<&'static str> {
    ALGORITHMS.iter().filter(|a| a.collective == Collective::Barrier).map(|a| a.name).collect()
}
