//! All-reduce over direct links: a reduce-scatter, then an all-gather.
//!
//! Chunks: n; rank `r` owns chunk `r`. It sends every other chunk of its input to the owner, the next rank
//! first, and adds up what the others send for its own, the previous rank first, so that at any time no two
//! ranks send to the same one. Then it sends the result to everyone, and receives the other chunks.
//!
//! Stages: 2. Bytes sent per rank: 2(n-1)/n of the block, which is the least possible, in messages of 1/n.
//! Cost: 2α + 2(n-1)/n·Bβ + (n-1)/n·Bγ, with one send overhead per message.
//!
//! Wins for medium and large blocks where every pair of ranks has a link of its own: a full mesh of cables,
//! or a switch. Only the owner reduces a chunk, so every rank gets the same bits.
//!
//! R. Rabenseifner: "Optimization of collective reduction operations", ICCS 2004, for the two halves; with
//! direct exchange in both, the "two-shot" all-reduce of GPU libraries.

use crate::schedule::{Builder, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-reduce over direct links.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "rsag_mesh", n, 0);
    if n == 1 {
        builder.copy(Rank(0), ChunkRange::input(0), ChunkRange::output(0));
    }
    for rank in spec.all_ranks() {
        let own = ChunkRange::output(rank.0);
        for distance in 1..n {
            let owner = rank.ahead(distance, n);
            builder.send(rank, owner, ChunkRange::input(owner.0), 0);
        }
        for distance in 1..n {
            let partial = if distance == 1 { ChunkRange::input(rank.0) } else { own };
            builder.recv_reduce(rank, rank.behind(distance, n), partial, own, 0);
        }
        for distance in 1..n {
            builder.send(rank, rank.ahead(distance, n), own, 0);
        }
        for distance in 1..n {
            let owner = rank.behind(distance, n);
            builder.recv(rank, owner, ChunkRange::output(owner.0), 0);
        }
    }
    Ok(builder.finish())
}
