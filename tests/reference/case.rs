//! All cases of a number of ranks.

use collectives::plan::ALGORITHMS;
use tbccl::Collective;
use tbccl_cli::reference::{Call, Case, mix};

/// The longest count, which every protocol splits.
pub(crate) const LONG: usize = 65_537;

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
