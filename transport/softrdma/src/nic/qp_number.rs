//! Queue pair numbers: the slot of the owning process, a generation, and the index in that process's table.

use crate::shm::QPS;

const INDEX_BITS: u32 = QPS.trailing_zeros();
const GENERATION_BITS: u32 = 16 - INDEX_BITS;

/// Composes a queue pair number. Of `generation`, the low bits count.
pub(crate) fn compose(slot: u32, generation: u32, index: u32) -> u32 {
    slot << 16 | (generation & ((1 << GENERATION_BITS) - 1)) << INDEX_BITS | index
}

/// Returns the slot of the process that owns a queue pair.
pub(crate) fn slot(qpn: u32) -> u32 {
    qpn >> 16 & 0xff
}

/// Returns the index of a queue pair in its process's table.
pub(crate) fn index(qpn: u32) -> u32 {
    qpn & (QPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_its_slot_and_index() {
        for generation in [0, 1, 77, u32::MAX] {
            let qpn = compose(255, generation, QPS - 1);
            assert_eq!((slot(qpn), index(qpn)), (255, QPS - 1));
            assert!(qpn < 1 << 24);
        }
        assert_ne!(compose(1, 1, 1), compose(1, 2, 1));
    }
}
