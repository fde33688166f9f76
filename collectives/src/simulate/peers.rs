//! The algorithms of other libraries as schedules, to be priced under the same model as this library's.
//!
//! They follow public descriptions of MLX's sources at commit 846d176 (mlx/distributed/jaccl/lib/jaccl/):
//! which rank sends what to which rank, in which order. Copies, buffers and frames are not in the schedule
//! but in [`Costs::jaccl`](super::Costs::jaccl). No send follows a receive, since JACCL waits for whole
//! buffers. The plans are always out of place, also if the [`Spec`] says otherwise; in place they differ by a
//! copy.

use crate::{
    PlanError, Spec,
    builder::Builder,
    pass::unfuse,
    schedule::{ChunkRange, InPlace, Schedule},
};
use topology::Rank;

/// Plans `all_sum` of JACCL's mesh (`mesh_impl.h`) above 32 KiB on more than two ranks.
///
/// It is a reduce-scatter over all links at once, then an all-gather. A rank owns one chunk, adds the
/// contributions of all other ranks in rank order, from the buffers in which they arrive, and sends the sum.
/// If the plan is cut into segments, as buffers cut messages, the gather begins when the scatter is complete.
///
/// # Errors
/// [`PlanError::TooLarge`] with too many segments.
pub fn jaccl_mesh(spec: &Spec) -> Result<Schedule, PlanError> {
    let spec = &spec.with_in_place(InPlace::No);
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "jaccl_mesh", n, 0);
    for rank in (0..n).map(Rank) {
        let (own, result) = (ChunkRange::input(rank.0), ChunkRange::output(rank.0));
        let others = || (0..n).map(Rank).filter(|peer| *peer != rank);
        builder.stage(0);
        for peer in (1..n).map(|distance| rank.ahead(distance, n)) {
            builder.send(rank, peer, ChunkRange::input(peer.0), 0);
        }
        if n == 1 {
            builder.copy(rank, own, result);
        }
        for (number, peer) in others().enumerate() {
            builder.recv_reduce(rank, peer, if number == 0 { own } else { result }, result, 0);
        }
        // The gather comes behind all segments of the scatter.
        builder.stage(spec.segments());
        for peer in (1..n).map(|distance| rank.ahead(distance, n)) {
            builder.send(rank, peer, result, 0);
        }
        for peer in others() {
            builder.recv(rank, peer, ChunkRange::output(peer.0), 0);
        }
    }
    Ok(unfuse(builder.finish()?.marked()))
}

/// Plans `all_sum` of JACCL's mesh up to 32 KiB, or on two ranks.
///
/// Every rank sends its whole input to every other rank, and adds in rank order from the buffers in which the
/// inputs arrive; rank 0's is copied first.
///
/// # Errors
/// [`PlanError::TooLarge`] with too many segments.
pub fn jaccl_mesh_small(spec: &Spec) -> Result<Schedule, PlanError> {
    let spec = &spec.with_in_place(InPlace::No);
    let n = spec.ranks();
    let (own, result) = (ChunkRange::input(0), ChunkRange::output(0));
    let mut builder = Builder::new(spec, "jaccl_mesh_small", 1, 0);
    for rank in (0..n).map(Rank) {
        for peer in (0..n).map(Rank).filter(|peer| *peer != rank) {
            builder.send(rank, peer, own, 0);
        }
        let mut sum = own;
        for peer in (0..n).map(Rank) {
            match (peer == rank, peer) {
                (true, Rank(0)) if n == 1 => builder.copy(rank, own, result),
                (true, Rank(0)) => continue,
                (true, _) => builder.reduce(rank, sum, own, result),
                (false, Rank(0)) => builder.recv(rank, peer, result, 0),
                (false, _) => builder.recv_reduce(rank, peer, sum, result, 0),
            }
            sum = result;
        }
    }
    Ok(unfuse(builder.finish()?.marked()))
}

/// Plans `all_sum` of MLX's rings: JACCL's (`ring_impl.h`), and the one over TCP
/// (mlx/distributed/ring/ring.cpp).
///
/// Both directions are used at once, each with half of the data, chunk after chunk as in
/// `bidirectional_ring`.
///
/// # Errors
/// [`PlanError::TooManyRanks`] above that algorithm's limit of ranks.
pub fn mlx_ring(spec: &Spec) -> Result<Schedule, PlanError> {
    let schedule = crate::plan::plan(spec, "bidirectional_ring")?;
    Ok(Schedule { algorithm: "mlx_ring".to_owned(), ..schedule })
}
