//! Barrier by dissemination.
//!
//! Chunks: 1. In round `k`, every rank tells the rank 2^k places ahead that it has come so far, and waits to
//! hear the same from the rank 2^k places behind. After ⌈log2 n⌉ rounds it has heard of everyone, of some
//! more than once.
//!
//! What is heard is written down as a reduction of tokens, so that the verifier can see that everyone is in
//! it: block `k` of scratch is the token before round `k`. Block 0 is defined from the start ("this rank has
//! entered"), which is true of scratch in barriers only. The element count is 0, so the messages are empty
//! and nothing is computed.
//!
//! Stages: ⌈log2 n⌉. Bytes: none. Cost: ⌈log2 n⌉α. It has no competitor here.
//!
//! D. Hensgen, R. Finkel, U. Manber: "Two algorithms for barrier synchronization", International Journal of
//! Parallel Programming 17(1), 1988.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a barrier.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let rounds = n.next_power_of_two().ilog2();
    let mut builder = Builder::new(spec, "dissemination", 1, rounds + 1);
    for rank in spec.planned_ranks() {
        for round in 0..rounds {
            let (before, after) = (ChunkRange::scratch(round), ChunkRange::scratch(round + 1));
            builder.stage(round);
            builder.send(rank, rank.ahead(1 << round, n), before, 0);
            builder.recv_reduce(rank, rank.behind(1 << round, n), before, after, 0);
        }
    }
    builder.finish()
}
