//! Of devices and ports.

use super::enums;

enums! {
    /// `enum ibv_node_type`: what kind of device it is.
    plain NodeType(u32) = "IBV_NODE_" {
        /// Not known.
        UNKNOWN = u32::MAX,
        /// A channel adapter, also of Ethernet.
        CA = 1,
        /// A switch.
        SWITCH = 2,
        /// A router.
        ROUTER = 3,
        /// An adapter of iWARP.
        RNIC = 4,
        /// An adapter of usNIC.
        USNIC = 5,
        /// An adapter of usNIC over UDP.
        USNIC_UDP = 6,
        /// None of these.
        UNSPECIFIED = 7,
    }

    /// `enum ibv_transport_type`: what runs on the wire.
    plain TransportType(u32) = "IBV_TRANSPORT_" {
        /// Not known.
        UNKNOWN = u32::MAX,
        /// InfiniBand, also over Ethernet.
        IB = 0,
        /// iWARP.
        IWARP = 1,
        /// usNIC.
        USNIC = 2,
        /// usNIC over UDP.
        USNIC_UDP = 3,
        /// None of these.
        UNSPECIFIED = 4,
    }

    /// `enum ibv_port_state`.
    plain PortState(u32) = "IBV_PORT_" {
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
    plain Mtu(u32) = "IBV_MTU_" {
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

    /// `IBV_LINK_LAYER_...`: what a port is plugged into. The one enumeration that is stored in 8 bits.
    plain LinkLayer(u8) = "IBV_LINK_LAYER_" {
        /// Not said; taken for InfiniBand.
        UNSPECIFIED = 0,
        /// InfiniBand.
        INFINIBAND = 1,
        /// Ethernet: addresses are GIDs.
        ETHERNET = 2,
    }

    /// `enum ibv_atomic_cap`: with whom atomic operations are atomic.
    plain AtomicCap(u32) = "IBV_ATOMIC_" {
        /// There are none.
        NONE = 0,
        /// With those of the same device.
        HCA = 1,
        /// With the processor too.
        GLOB = 2,
    }

    /// `enum ibv_gid_type`: what an address is for.
    plain GidType(u32) = "IBV_GID_TYPE_" {
        /// InfiniBand, or the first version of RoCE.
        IB = 0,
        /// The first version of RoCE.
        ROCE_V1 = 1,
        /// The second version of RoCE: UDP.
        ROCE_V2 = 2,
    }

    /// `enum ibv_event_type`: what happened without having been asked for.
    plain EventType(u32) = "IBV_EVENT_" {
        /// A completion queue has overflowed.
        CQ_ERR = 0,
        /// A queue pair has failed.
        QP_FATAL = 1,
        /// A peer sent an invalid request.
        QP_REQ_ERR = 2,
        /// A peer reached for what it may not have.
        QP_ACCESS_ERR = 3,
        /// The first message has come to a queue pair that is not ready to send.
        COMM_EST = 4,
        /// A send queue is drained.
        SQ_DRAINED = 5,
        /// A connection has changed to its other path.
        PATH_MIG = 6,
        /// A connection could not change to its other path.
        PATH_MIG_ERR = 7,
        /// The device has failed.
        DEVICE_FATAL = 8,
        /// A port has become usable.
        PORT_ACTIVE = 9,
        /// A port can no longer be used.
        PORT_ERR = 10,
        /// A port's local address has changed.
        LID_CHANGE = 11,
        /// A port's table of partitions has changed.
        PKEY_CHANGE = 12,
        /// The subnet has another manager.
        SM_CHANGE = 13,
        /// A shared receive queue has failed.
        SRQ_ERR = 14,
        /// A shared receive queue holds fewer receives than its limit.
        SRQ_LIMIT_REACHED = 15,
        /// A failed queue pair will take no more from its shared receive queue.
        QP_LAST_WQE_REACHED = 16,
        /// The subnet manager asks to be registered with again.
        CLIENT_REREGISTER = 17,
        /// A port's table of addresses has changed.
        GID_CHANGE = 18,
        /// A work queue has failed.
        WQ_FATAL = 19,
    }

    /// `enum ibv_device_cap_flags`: what a device can do.
    flags DeviceCapFlags(u32) = "IBV_DEVICE_" {
        /// Queue pairs' depths can be changed.
        RESIZE_MAX_WR = 1,
        /// Wrong partitions are counted.
        BAD_PKEY_CNTR = 1 << 1,
        /// Wrong keys of datagrams are counted.
        BAD_QKEY_CNTR = 1 << 2,
        /// Multicast of raw packets.
        RAW_MULTI = 1 << 3,
        /// Connections can have another path.
        AUTO_PATH_MIG = 1 << 4,
        /// A queue pair can change its port.
        CHANGE_PHY_PORT = 1 << 5,
        /// The port of a datagram is checked.
        UD_AV_PORT_ENFORCE = 1 << 6,
        /// The current state can be given when it is changed.
        CURR_QP_STATE_MOD = 1 << 7,
        /// A port can be shut down.
        SHUTDOWN_PORT = 1 << 8,
        /// The type of initialisation can be set.
        INIT_TYPE = 1 << 9,
        /// There is an event when a port becomes active.
        PORT_ACTIVE_EVENT = 1 << 10,
        /// There is a system image GUID.
        SYS_IMAGE_GUID = 1 << 11,
        /// Reliable connections tell a sender that no receive is posted.
        RC_RNR_NAK_GEN = 1 << 12,
        /// Shared receive queues' depths can be changed.
        SRQ_RESIZE = 1 << 13,
        /// An event can be asked for after so many completions.
        N_NOTIFY_CQ = 1 << 14,
        /// Memory windows.
        MEM_WINDOW = 1 << 17,
        /// Checksums of datagrams.
        UD_IP_CSUM = 1 << 18,
        /// Extended reliable connections.
        XRC = 1 << 20,
        /// Sends that invalidate keys.
        MEM_MGT_EXTENSIONS = 1 << 21,
        /// Memory windows of type 2A.
        MEM_WINDOW_TYPE_2A = 1 << 23,
        /// Memory windows of type 2B.
        MEM_WINDOW_TYPE_2B = 1 << 24,
        /// Checksums of reliable connections.
        RC_IP_CSUM = 1 << 25,
        /// Checksums of raw packets.
        RAW_IP_CSUM = 1 << 26,
        /// Steering of flows.
        MANAGED_FLOW_STEERING = 1 << 29,
    }

    /// `enum ibv_port_cap_flags`: what a port can do; those that occur on Ethernet.
    flags PortCapFlags(u32) = "IBV_PORT_" {
        /// The subnet manager is here.
        SM = 1 << 1,
        /// Extended speeds.
        EXTENDED_SPEEDS_SUP = 1 << 14,
        /// There are more capabilities in `port_cap_flags2`.
        CAP_MASK2_SUP = 1 << 15,
        /// Connection management.
        CM_SUP = 1 << 16,
        /// It can be initialised again.
        REINIT_SUP = 1 << 18,
        /// Device management.
        DEVICE_MGMT_SUP = 1 << 19,
        /// The vendor's own management.
        VENDOR_CLASS_SUP = 1 << 20,
        /// GIDs are made of IP addresses.
        IP_BASED_GIDS = 1 << 26,
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

impl TransportType {
    /// What `librdma.dylib` reports for Thunderbolt. No header has a name for it.
    pub const THUNDERBOLT: TransportType = TransportType(100);
}
