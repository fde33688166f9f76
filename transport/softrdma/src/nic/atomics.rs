//! Compare-and-swap and fetch-and-add on memory of the peer.
//!
//! On shared pages they are the processor's own, so they are atomic with every access. On other memory of
//! another process they are a read and a write under a lock of that process: atomic with other requests,
//! which is the promise of adapters.
//!
//! # Safety
//! The location was found by [`Regions::locate`](super::region::Regions::locate) for 8 bytes, is aligned, and
//! is marked as in use meanwhile.

use super::{
    copy::{Location, TransferError, copy},
    member::Member,
    qp::QpRef,
};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum AtomicOp {
    /// Stores `swap` if the value is `compare`.
    CompareSwap { compare: u64, swap: u64 },
    /// Adds a number, modulo 2^64.
    FetchAdd(u64),
}

impl AtomicOp {
    /// Executes the operation on memory of `peer`'s process. Returns the value before it.
    pub(super) fn execute(
        self,
        member: &Member,
        peer: QpRef<'_>,
        location: Location,
    ) -> Result<u64, TransferError> {
        let _guard = member.lock(&peer.view.header().atomics);
        match location {
            Location::Mapped(address) => {
                // SAFETY: 8 bytes of mapped memory, aligned, checked by the caller.
                let word = unsafe { AtomicU64::from_ptr(address.cast()) };
                Ok(match self {
                    AtomicOp::CompareSwap { compare, swap } => {
                        word.compare_exchange(compare, swap, AcqRel, Acquire).unwrap_or_else(|v| v)
                    }
                    AtomicOp::FetchAdd(addend) => word.fetch_add(addend, AcqRel),
                })
            }
            Location::Remote { .. } => {
                let mut word = 0u64;
                copy(Location::Mapped((&raw mut word).cast()), location, 8)?;
                let mut after = match self {
                    AtomicOp::CompareSwap { compare, swap } if compare == word => swap,
                    AtomicOp::CompareSwap { .. } => word,
                    AtomicOp::FetchAdd(addend) => word.wrapping_add(addend),
                };
                copy(location, Location::Mapped((&raw mut after).cast()), 8)?;
                Ok(word)
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::member, *};

    #[test]
    fn both_kinds_of_memory_behave_alike() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = member(&folder);
        let peer = member.own_qp(1).expect("a record");
        for is_mapped in [true, false] {
            let mut word = 5u64;
            let address = &raw mut word;
            let location = if is_mapped {
                Location::Mapped(address.cast())
            } else {
                Location::Remote { pid: std::process::id(), address: address as u64 }
            };
            let ops = [
                (AtomicOp::CompareSwap { compare: 4, swap: 9 }, 5),
                (AtomicOp::CompareSwap { compare: 5, swap: u64::MAX }, 5),
                (AtomicOp::FetchAdd(3), u64::MAX),
                (AtomicOp::FetchAdd(0), 2),
            ];
            for (op, before) in ops {
                assert_eq!(op.execute(&member, peer, location), Ok(before), "{op:?}");
            }
        }
    }
}
