//! Barrier by dissemination.
//!
//! Chunks: 1. In round `k`, every rank sends a message to the rank 2^k ahead, and waits for the message of
//! the rank 2^k behind. After ⌈log2 n⌉ rounds it has heard from all ranks, directly or indirectly, from some
//! more than once.
//!
//! A reduction of tokens records which ranks have entered, so that the verifier can check that all have:
//! block `k` of scratch is the token before round `k`. Block 0 is defined from the start ("this rank has
//! entered"); scratch is defined at the start in barriers only. The element count is 0, so the messages are
//! empty and nothing is computed.
//!
//! Stages: ⌈log2 n⌉. Bytes: none. Cost: ⌈log2 n⌉α.
//!
//! Wins on direct links for every n. `recursive_doubling` has as many rounds if n is a power of two,
//! `binomial` sends fewer messages, and `ring` needs cables between neighbors only.
//!
//! D. Hensgen, R. Finkel, U. Manber: "Two algorithms for barrier synchronization", International Journal of
//! Parallel Programming 17(1), 1988.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a barrier.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
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
