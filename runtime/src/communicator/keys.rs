//! Keys of calls: the parameters that decide the plan of a call, and those that decide what is kept of it.

use super::call::{Blocks, Call};
use collectives::{Codec, Collective, Numerics, schedule::InPlace};
use topology::Rank;

/// Values that decide which plan a call takes. All except `in_place` are equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlanKey {
    pub(super) collective: Collective,
    /// Elements per block.
    pub(super) count: u64,
    pub(super) elem_bytes: u32,
    pub(super) root: Rank,
    pub(super) in_place: InPlace,
    /// Whether blocks have lengths of their own; `count` is their mean then.
    pub(super) uneven: bool,
    pub(super) numerics: Numerics,
    /// Codec of packed messages, if they are packed.
    pub(super) codec: Option<Codec>,
}

impl PlanKey {
    pub(super) fn new(call: &Call, blocks: Blocks<'_>, numerics: Numerics) -> PlanKey {
        PlanKey {
            collective: call.collective,
            count: call.count,
            elem_bytes: call.dtype.size() as u32,
            root: call.root,
            in_place: call.in_place,
            uneven: matches!(blocks, Blocks::Uneven { .. }),
            numerics,
            codec: call.codec,
        }
    }
}

/// The parameters of a call in two words, which are compared faster than fields: the count, and all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallKey([u64; 2]);

impl CallKey {
    #[inline]
    pub(super) fn new(call: &Call, blocks: Blocks<'_>, numerics: Numerics) -> CallKey {
        let flags = u64::from(call.in_place == InPlace::Yes)
            | u64::from(matches!(blocks, Blocks::Uneven { .. })) << 1
            | (numerics as u64) << 2;
        let others = call.collective as u64
            | (call.dtype as u64) << 6
            | call.op.map_or(0, |op| op as u64 + 1) << 12
            | call.codec.map_or(0, |codec| u64::from(codec.code())) << 16
            | flags << 24
            | u64::from(call.root.0) << 32;
        CallKey([call.count, others])
    }

    /// Returns a hash of 8 bits.
    #[inline]
    pub(super) fn hash(self) -> usize {
        let [count, others] = self.0;
        let mixed = (count ^ others.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 56) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectives::{DType, ReduceOp};
    use std::collections::HashSet;

    #[test]
    fn calls_that_differ_in_any_parameter_have_different_keys() {
        let call = |collective, dtype, op, in_place, codec| Call {
            collective,
            dtype,
            op,
            count: 8,
            root: Rank(3),
            in_place,
            codec,
        };
        let ops = || ReduceOp::ALL.into_iter().map(Some).chain([None]);
        let codecs = || Codec::ALL.into_iter().map(Some).chain([None]);
        let uneven = Blocks::Uneven { input: &[], output: &[], all: None };
        let mut calls = Vec::new();
        for collective in Collective::ALL {
            for (dtype, op) in DType::ALL.into_iter().flat_map(|dtype| ops().map(move |op| (dtype, op))) {
                for (in_place, codec) in [InPlace::No, InPlace::Yes]
                    .into_iter()
                    .flat_map(|place| codecs().map(move |c| (place, c)))
                {
                    calls.push(call(collective, dtype, op, in_place, codec));
                }
            }
        }
        let mut keys = HashSet::new();
        for call in calls {
            let variants = [
                call,
                Call { count: 9, ..call },
                Call { root: Rank(u32::MAX), ..call },
                Call { count: 1 << 62, root: Rank(0), ..call },
            ];
            for (call, blocks) in variants.into_iter().flat_map(|call| [(call, Blocks::Even), (call, uneven)])
            {
                for numerics in Numerics::ALL {
                    let CallKey(words) = CallKey::new(&call, blocks, numerics);
                    assert!(keys.insert(words), "{call:?}, {blocks:?}, {numerics:?}");
                }
            }
        }
    }
}
