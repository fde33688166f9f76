//! Compare-and-swap and fetch-and-add on memory of the peer.
//!
//! On shared pages they are the processor's own, so they are atomic with everybody. On other memory of
//! another process they are a read and a write under a lock of that process: atomic with other requests,
//! which is what adapters promise.
//!
//! # Safety
//! The address was found by [`Nic::locate`] for 8 bytes, is aligned, and is marked meanwhile.

use super::{
    At, Nic,
    copy::{self, Fault},
    region::Place,
};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};

/// What is done to the 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// They become the second if they are the first.
    Swap(u64, u64),
    /// This is added.
    Add(u64),
}

impl Nic {
    /// Carries it out, and returns what was there before.
    pub(super) fn change(&self, peer: At<'_>, place: Place, change: Change) -> Result<u64, Fault> {
        let held = self.hold(&peer.view.header().atomics);
        let before = match place {
            Place::Here(address) => {
                // SAFETY: 8 bytes of mapped memory, aligned, checked by the caller.
                let word = unsafe { AtomicU64::from_ptr(address.cast()) };
                match change {
                    Change::Swap(from, to) => {
                        word.compare_exchange(from, to, AcqRel, Acquire).unwrap_or_else(|v| v)
                    }
                    Change::Add(more) => word.fetch_add(more, AcqRel),
                }
            }
            Place::There { .. } => {
                let mut word = 0u64;
                let local = Place::Here((&raw mut word).cast());
                copy::copy(local, place, 8)?;
                let mut after = match change {
                    Change::Swap(from, to) if from == word => to,
                    Change::Swap(..) => word,
                    Change::Add(more) => word.wrapping_add(more),
                };
                copy::copy(place, Place::Here((&raw mut after).cast()), 8)?;
                word
            }
        };
        drop(held);
        Ok(before)
    }
}
