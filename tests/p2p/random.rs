//! Random traffic, checked against MPI's matching rules.

use tbccl::P2p;
use tbccl_cli::reference::{
    parcel::TIMEOUT,
    traffic::{Traffic, TrafficError},
};

/// Sends and receives `messages` messages among all ranks, in an order derived from the seed. Rounds that may
/// overlap have different numbers, and therefore different contexts.
pub(crate) fn traffic(p2p: &P2p, seed: u64, round: u32, messages: u32) {
    match (Traffic { seed, round, messages, limit: TIMEOUT }).run(p2p) {
        Ok(()) => {}
        Err(TrafficError::Failed(error)) => panic!("{error}"),
        Err(TrafficError::Wrong(wrong)) => panic!("{wrong}"),
    }
}
