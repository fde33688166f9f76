//! What other libraries do, as schedules: so that their algorithms can be priced under the same model as ours.
//!
//! They are written down from public descriptions of MLX's sources at commit 846d176 (mlx/distributed/jaccl/lib/jaccl/): which
//! rank sends what to whom, in what order. Their copies, buffers and frames are not in the schedule but in
//! [`Costs::jaccl`](super::Costs::jaccl). They are plans out of place, whatever the [`Spec`] says: in place they differ by a copy.

use crate::{
    PlanError, Spec,
    schedule::{Builder, ChunkRange, InPlace, Schedule},
};
use topology::Rank;

/// `all_sum` of JACCL's mesh (`mesh_impl.h`) above 32 KiB on more than two ranks: a reduce-scatter over all links at once, then
/// an all-gather. The gather begins when the scatter is complete: a rank owns one chunk, sums what all others send of it in the
/// order of ranks, and sends the sum when all of it is there.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn jaccl_mesh(spec: &Spec) -> Result<Schedule, PlanError> {
    let spec = &spec.with_in_place(InPlace::No);
    let n = spec.ranks();
    // Scratch: a block for what comes from each rank, of which the chunk is used that is reduced here.
    let mut builder = Builder::new(spec, "jaccl_mesh", n, n);
    if n == 1 {
        builder.copy(Rank(0), ChunkRange::input(0), ChunkRange::output(0));
        return Ok(builder.finish());
    }
    for rank in spec.all_ranks() {
        for distance in 1..n {
            let peer = rank.ahead(distance, n);
            builder.send(rank, peer, ChunkRange::input(peer.0), 0);
        }
        for peer in spec.all_ranks().filter(|peer| *peer != rank) {
            builder.recv(rank, peer, ChunkRange::scratch(peer.0 * n + rank.0), 0);
        }
        let terms = spec.all_ranks().map(|peer| {
            if peer == rank { ChunkRange::input(rank.0) } else { ChunkRange::scratch(peer.0 * n + rank.0) }
        });
        let own = ChunkRange::output(rank.0);
        let mut sum: Option<ChunkRange> = None;
        for term in terms {
            match sum {
                None => sum = Some(term),
                Some(before) => {
                    builder.reduce(rank, before, term, own);
                    sum = Some(own);
                }
            }
        }
        for distance in 1..n {
            builder.send(rank, rank.ahead(distance, n), own, 0);
        }
        for peer in spec.all_ranks().filter(|peer| *peer != rank) {
            builder.recv(rank, peer, ChunkRange::output(peer.0), 0);
        }
    }
    Ok(builder.finish())
}

/// `all_sum` of JACCL's mesh up to 32 KiB, or on two ranks: everyone sends everything to everyone, and adds in the order of
/// ranks.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn jaccl_mesh_small(spec: &Spec) -> Result<Schedule, PlanError> {
    let spec = &spec.with_in_place(InPlace::No);
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "jaccl_mesh_small", 1, n);
    if n == 1 {
        builder.copy(Rank(0), ChunkRange::input(0), ChunkRange::output(0));
        return Ok(builder.finish());
    }
    let whole = ChunkRange::input(0);
    for rank in spec.all_ranks() {
        let others = || spec.all_ranks().filter(|peer| *peer != rank);
        others().for_each(|peer| builder.send(rank, peer, whole, 0));
        others().for_each(|peer| builder.recv(rank, peer, ChunkRange::scratch(peer.0), 0));
        let mut terms =
            spec.all_ranks().map(|peer| if peer == rank { whole } else { ChunkRange::scratch(peer.0) });
        let mut sum = terms.next().unwrap_or(whole);
        for term in terms {
            builder.reduce(rank, sum, term, ChunkRange::output(0));
            sum = ChunkRange::output(0);
        }
    }
    Ok(builder.finish())
}

/// `all_sum` of MLX's rings: JACCL's (`ring_impl.h`), and the one over TCP (mlx/distributed/ring/ring.cpp): both directions at
/// once, each with half of the data, chunk after chunk as our `bidirectional_ring`.
///
/// # Errors
/// [`PlanError::TooManyRanks`].
pub fn mlx_ring(spec: &Spec) -> Result<Schedule, PlanError> {
    let schedule = crate::plan::plan(spec, "bidirectional_ring")?;
    Ok(Schedule { algorithm: "mlx_ring".to_owned(), ..schedule })
}
