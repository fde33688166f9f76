//! Of registered memory.

use super::enums;

enums! {
    /// `enum ibv_access_flags`: what may be done to registered memory.
    flags AccessFlags(u32) = "IBV_ACCESS_" {
        /// The device may write it.
        LOCAL_WRITE = 1,
        /// Peers may write it.
        REMOTE_WRITE = 1 << 1,
        /// Peers may read it.
        REMOTE_READ = 1 << 2,
        /// Peers may use atomics on it.
        REMOTE_ATOMIC = 1 << 3,
        /// Windows may be bound to it.
        MW_BIND = 1 << 4,
        /// Its addresses begin at 0.
        ZERO_BASED = 1 << 5,
        /// It is paged in as needed.
        ON_DEMAND = 1 << 6,
        /// It is made of huge pages.
        HUGETLB = 1 << 7,
        /// Its writes may become visible out of order.
        RELAXED_ORDERING = 1 << 20,
    }

    /// `enum ibv_mw_type`: the kind of a memory window.
    plain MwType(u32) = "IBV_MW_" {
        /// Bound by a call.
        TYPE_1 = 1,
        /// Bound by a work request.
        TYPE_2 = 2,
    }

    /// `enum ibv_rereg_mr_flags`: what of a registration is changed.
    flags ReregMrFlags(u32) = "IBV_REREG_MR_" {
        /// Its memory.
        CHANGE_TRANSLATION = 1,
        /// Its protection domain.
        CHANGE_PD = 1 << 1,
        /// What may be done to it.
        CHANGE_ACCESS = 1 << 2,
    }
}
