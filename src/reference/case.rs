//! Cases: one call each, described by value.

use collectives::{
    plan::{ALGORITHMS, Algorithm},
    uneven::has_vector_form,
};
use std::sync::LazyLock;
use tbccl::{Collective, DType, ReduceOp};

/// A call of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Blocks of equal lengths.
    Even(Collective),
    /// Blocks of unequal lengths.
    Vector(Collective),
    /// A message to another rank, and one from another.
    Messages,
}

/// The algorithm of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The algorithm that the library chooses.
    Chosen,
    /// A named algorithm with a number of segments.
    By(&'static str, u32),
}

/// All properties of a case except its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// The call.
    pub call: Call,
    /// Its algorithm.
    pub way: Way,
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// The type of its elements.
    pub dtype: DType,
    /// The operation; `sum` if the call does not reduce.
    pub op: ReduceOp,
}

/// A call of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// Its properties.
    pub kind: Kind,
    /// Elements per block; for vector forms, the basis of the lengths.
    pub count: usize,
    /// Determines inputs, roots and lengths, and whether buffers are registered.
    pub seed: u64,
}

impl Call {
    /// Returns every call except the barrier, which has no elements.
    #[must_use]
    pub fn all() -> Vec<Call> {
        let collectives = || Collective::ALL.into_iter().filter(|c| *c != Collective::Barrier);
        let vector = collectives().filter(|c| has_vector_form(*c)).map(Call::Vector);
        collectives().map(Call::Even).chain(vector).chain([Call::Messages]).collect()
    }

    /// Returns the collective, unless the call is of messages.
    #[must_use]
    pub fn collective(self) -> Option<Collective> {
        match self {
            Call::Even(collective) | Call::Vector(collective) => Some(collective),
            Call::Messages => None,
        }
    }

    /// Whether the call combines elements of several ranks.
    #[must_use]
    pub fn reduces(self) -> bool {
        self.collective().is_some_and(Collective::reduces)
    }

    /// Returns whether the call runs in place: false, and true if it has such a form.
    #[must_use]
    pub fn places(self) -> &'static [bool] {
        match self {
            Call::Even(Collective::AllToAll | Collective::SendRecv) | Call::Vector(_) | Call::Messages => {
                &[false]
            }
            Call::Even(_) => &[false, true],
        }
    }

    /// Returns the algorithms that can do the call.
    pub fn algorithms(self) -> impl Iterator<Item = &'static Algorithm> {
        let fits = move |algorithm: &&Algorithm| match self {
            Call::Even(collective) => algorithm.collective == collective,
            Call::Vector(collective) => algorithm.collective == collective && algorithm.takes_uneven_blocks(),
            Call::Messages => false,
        };
        ALGORITHMS.iter().filter(fits)
    }

    /// Returns every algorithm with one and with three segments, and the library's choice.
    #[must_use]
    pub fn ways(self) -> Vec<Way> {
        let by_name = self.algorithms().flat_map(|a| [1, 3].map(|segments| Way::By(a.name, segments)));
        [Way::Chosen].into_iter().chain(by_name).collect()
    }

    /// Returns every element type with every legal operation; with one operation if the call does not reduce.
    #[must_use]
    pub fn pairs(self) -> &'static [(DType, ReduceOp)] {
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

    /// Returns the call in every way and place, on every type with every operation.
    #[must_use]
    pub fn kinds(self) -> Vec<Kind> {
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
