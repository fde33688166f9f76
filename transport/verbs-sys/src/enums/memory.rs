//! Enumerations that describe registered memory.

use super::enums;

enums! {
    /// `enum ibv_access_flags`: permitted access to registered memory.
    flags AccessFlags(u32) = "IBV_ACCESS_" {
        /// The local device may write.
        LOCAL_WRITE = 1,
        /// Remote writes are permitted.
        REMOTE_WRITE = 1 << 1,
        /// Remote reads are permitted.
        REMOTE_READ = 1 << 2,
        /// Remote atomic operations are permitted.
        REMOTE_ATOMIC = 1 << 3,
        /// Memory windows may be bound.
        MW_BIND = 1 << 4,
        /// Addresses within the region begin at 0.
        ZERO_BASED = 1 << 5,
        /// On-demand paging.
        ON_DEMAND = 1 << 6,
        /// The memory consists of huge pages.
        HUGETLB = 1 << 7,
        /// Writes may become visible out of order.
        RELAXED_ORDERING = 1 << 20,
    }

    /// `enum ibv_mw_type`: the type of a memory window.
    plain MwType(u32) = "IBV_MW_" {
        /// Bound by `ibv_bind_mw`.
        TYPE_1 = 1,
        /// Bound by a work request.
        TYPE_2 = 2,
    }

    /// `enum ibv_rereg_mr_flags`: the parts of a registration that `ibv_rereg_mr` changes.
    flags ReregMrFlags(u32) = "IBV_REREG_MR_" {
        /// The memory.
        CHANGE_TRANSLATION = 1,
        /// The protection domain.
        CHANGE_PD = 1 << 1,
        /// The access flags.
        CHANGE_ACCESS = 1 << 2,
    }
}
