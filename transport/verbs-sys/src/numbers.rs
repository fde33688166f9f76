//! Enumerations of the verbs ABI, as numbers with names. All are C enums: 32 bits wide, without a sign.

use std::fmt;

macro_rules! numbers {
    ($($(#[$doc:meta])* $type:ident { $($(#[$name_doc:meta])* $name:ident = $number:expr,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $type(pub u32);

        impl $type {
            $($(#[$name_doc])* pub const $name: $type = $type($number);)*

            /// Every number with a name, in the order of the ABI.
            pub const ALL: &[$type] = &[$($type::$name),*];

            /// The name, when the number has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                $(if self.0 == $type::$name.0 { return Some(stringify!($name)); })*
                None
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($type), "({})"), self.0),
                }
            }
        }
    )*};
}

macro_rules! flags {
    ($($(#[$doc:meta])* $type:ident { $($(#[$name_doc:meta])* $name:ident = $number:expr,)* })*) => {
        numbers! { $($(#[$doc])* $type { $($(#[$name_doc])* $name = $number,)* })* }

        $(impl $type {
            /// No flag.
            pub const NONE: $type = $type(0);

            /// Are all of these set?
            #[must_use]
            pub const fn contains(self, flags: $type) -> bool {
                self.0 & flags.0 == flags.0
            }
        }

        impl std::ops::BitOr for $type {
            type Output = $type;

            fn bitor(self, other: $type) -> $type {
                $type(self.0 | other.0)
            }
        })*
    };
}

numbers! {
    /// `enum ibv_qp_type`: the service of a queue pair.
    QpType {
        /// Reliable connection.
        RC = 2,
        /// Unreliable connection; the only one of Apple's Thunderbolt device.
        UC = 3,
        /// Unreliable datagram.
        UD = 4,
        /// Ethernet frames.
        RAW_PACKET = 8,
        /// Extended reliable connection, sending side.
        XRC_SEND = 9,
        /// Extended reliable connection, receiving side.
        XRC_RECV = 10,
        /// A kind of the device's own.
        DRIVER = 0xff,
    }

    /// `enum ibv_qp_state`: where a queue pair is in its life.
    QpState {
        /// New; nothing can be posted.
        RESET = 0,
        /// Receives can be posted.
        INIT = 1,
        /// Ready to receive.
        RTR = 2,
        /// Ready to send.
        RTS = 3,
        /// The send queue is drained.
        SQD = 4,
        /// The send queue has failed.
        SQE = 5,
        /// Failed; everything posted is flushed.
        ERR = 6,
        /// Unknown to the library.
        UNKNOWN = 7,
    }

    /// `enum ibv_wr_opcode`: what a posted send does.
    WrOpcode {
        /// Writes into the peer's memory.
        RDMA_WRITE = 0,
        /// Writes, and consumes a receive that learns a number.
        RDMA_WRITE_WITH_IMM = 1,
        /// Sends into a posted receive.
        SEND = 2,
        /// Sends, with a number.
        SEND_WITH_IMM = 3,
        /// Reads the peer's memory.
        RDMA_READ = 4,
        /// Compares and swaps 8 bytes of the peer's memory.
        ATOMIC_CMP_AND_SWP = 5,
        /// Adds to 8 bytes of the peer's memory.
        ATOMIC_FETCH_AND_ADD = 6,
        /// Invalidates a local key.
        LOCAL_INV = 7,
        /// Binds a memory window.
        BIND_MW = 8,
        /// Sends, and invalidates a key of the peer's.
        SEND_WITH_INV = 9,
        /// Segmentation by the device.
        TSO = 10,
        /// The device's own.
        DRIVER1 = 11,
        /// Makes earlier writes visible or persistent.
        FLUSH = 14,
    }

    /// `enum ibv_wc_opcode`: what a completion is the completion of.
    WcOpcode {
        /// A send.
        SEND = 0,
        /// An RDMA write.
        RDMA_WRITE = 1,
        /// An RDMA read.
        RDMA_READ = 2,
        /// A compare and swap.
        COMP_SWAP = 3,
        /// A fetch and add.
        FETCH_ADD = 4,
        /// The binding of a window.
        BIND_MW = 5,
        /// The invalidation of a local key.
        LOCAL_INV = 6,
        /// A segmented send.
        TSO = 7,
        /// A receive. All that complete a receive have this bit.
        RECV = 1 << 7,
        /// A receive consumed by an RDMA write with a number.
        RECV_RDMA_WITH_IMM = (1 << 7) + 1,
    }

    /// `enum ibv_wc_status`: how a work request came out.
    WcStatus {
        /// Well.
        SUCCESS = 0,
        /// A local buffer has the wrong length.
        LOC_LEN_ERR = 1,
        /// The queue pair can't carry it out.
        LOC_QP_OP_ERR = 2,
        /// The end-to-end context can't carry it out.
        LOC_EEC_OP_ERR = 3,
        /// A local key does not cover the memory.
        LOC_PROT_ERR = 4,
        /// The queue pair had failed before.
        WR_FLUSH_ERR = 5,
        /// A window could not be bound.
        MW_BIND_ERR = 6,
        /// The response was malformed.
        BAD_RESP_ERR = 7,
        /// The peer's write did not fit here.
        LOC_ACCESS_ERR = 8,
        /// The peer found the request invalid.
        REM_INV_REQ_ERR = 9,
        /// The peer's key does not allow it.
        REM_ACCESS_ERR = 10,
        /// The peer could not carry it out.
        REM_OP_ERR = 11,
        /// The peer did not answer.
        RETRY_EXC_ERR = 12,
        /// The peer had no receive posted.
        RNR_RETRY_EXC_ERR = 13,
        /// Reliable datagram domain violated.
        LOC_RDD_VIOL_ERR = 14,
        /// The peer found a read request invalid.
        REM_INV_RD_REQ_ERR = 15,
        /// The peer gave up.
        REM_ABORT_ERR = 16,
        /// Invalid end-to-end context number.
        INV_EECN_ERR = 17,
        /// End-to-end context in a wrong state.
        INV_EEC_STATE_ERR = 18,
        /// The device has failed.
        FATAL_ERR = 19,
        /// No response in time.
        RESP_TIMEOUT_ERR = 20,
        /// Anything else.
        GENERAL_ERR = 21,
        /// Tag matching failed.
        TM_ERR = 22,
        /// Tag matching handed a rendezvous to software.
        TM_RNDV_INCOMPLETE = 23,
    }

    /// `enum ibv_port_state`.
    PortState {
        /// None.
        NOP = 0,
        /// No cable, or nobody at its other end.
        DOWN = 1,
        /// The link is up, addresses are not there yet.
        INIT = 2,
        /// Nearly active.
        ARMED = 3,
        /// Usable.
        ACTIVE = 4,
        /// Active, with trouble on the link.
        ACTIVE_DEFER = 5,
    }

    /// `enum ibv_mtu`: the size of a packet, as a code.
    Mtu {
        /// 256 bytes.
        B256 = 1,
        /// 512 bytes.
        B512 = 2,
        /// 1024 bytes.
        B1024 = 3,
        /// 2048 bytes.
        B2048 = 4,
        /// 4096 bytes.
        B4096 = 5,
    }
}

flags! {
    /// `enum ibv_access_flags`: what may be done to registered memory.
    AccessFlags {
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

    /// `enum ibv_send_flags`: how a posted send is treated.
    SendFlags {
        /// After all earlier reads and atomics.
        FENCE = 1,
        /// It gets a completion even if it goes well.
        SIGNALED = 1 << 1,
        /// The receiver gets an event.
        SOLICITED = 1 << 2,
        /// Its bytes are taken when it is posted.
        INLINE = 1 << 3,
        /// The device computes checksums.
        IP_CSUM = 1 << 4,
    }
}

impl WcOpcode {
    /// Does it complete a receive?
    #[must_use]
    pub const fn is_receive(self) -> bool {
        self.0 & WcOpcode::RECV.0 != 0
    }
}

impl Mtu {
    /// Bytes of a packet, for a code with a name.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.name() {
            Some(_) => Some(128 << self.0),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_abi() {
        assert_eq!((QpType::RC.0, QpType::UC.0, QpType::UD.0), (2, 3, 4));
        assert_eq!((QpState::RTR.0, QpState::RTS.0, QpState::ERR.0), (2, 3, 6));
        assert_eq!((WrOpcode::RDMA_WRITE.0, WrOpcode::SEND.0, WrOpcode::FLUSH.0), (0, 2, 14));
        assert_eq!((WcOpcode::RECV.0, WcOpcode::RECV_RDMA_WITH_IMM.0), (128, 129));
        assert_eq!((WcStatus::WR_FLUSH_ERR.0, WcStatus::RETRY_EXC_ERR.0), (5, 12));
        assert_eq!((PortState::DOWN.0, PortState::ACTIVE.0), (1, 4));
        assert_eq!((AccessFlags::REMOTE_WRITE.0, AccessFlags::RELAXED_ORDERING.0), (2, 0x10_0000));
        assert_eq!((SendFlags::SIGNALED.0, SendFlags::INLINE.0), (2, 8));
    }

    #[test]
    fn statuses_are_dense_so_none_is_missing() {
        let numbers: Vec<u32> = WcStatus::ALL.iter().map(|status| status.0).collect();
        assert_eq!(numbers, (0..24).collect::<Vec<u32>>());
    }

    #[test]
    fn unknown_numbers_are_kept_and_shown() {
        assert_eq!(
            format!("{:?} {:?}", WcStatus::REM_ACCESS_ERR, WcStatus(99)),
            "REM_ACCESS_ERR WcStatus(99)"
        );
        assert_eq!(WcStatus(99).name(), None);
    }

    #[test]
    fn flags_are_distinct_bits() {
        let all = AccessFlags::ALL.iter().fold(AccessFlags::NONE, |sum, flag| sum | *flag);
        assert_eq!(all.0.count_ones() as usize, AccessFlags::ALL.len());
        assert!(all.contains(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ));
        assert!(!AccessFlags::NONE.contains(AccessFlags::LOCAL_WRITE));
    }

    #[test]
    fn codes_become_sizes() {
        let sizes: Vec<u32> = Mtu::ALL.iter().filter_map(|mtu| mtu.bytes()).collect();
        assert_eq!(sizes, [256, 512, 1024, 2048, 4096]);
        assert_eq!((Mtu(0).bytes(), Mtu(40).bytes()), (None, None));
        assert!(WcOpcode::RECV_RDMA_WITH_IMM.is_receive() && !WcOpcode::RDMA_READ.is_receive());
    }
}
