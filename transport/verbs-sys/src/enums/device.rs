//! Enumerations that describe devices and ports.

use super::enums;

enums! {
    /// `enum ibv_node_type`: the kind of a device.
    plain NodeType(u32) = "IBV_NODE_" {
        /// Unknown.
        UNKNOWN = u32::MAX,
        /// Channel adapter of InfiniBand or RoCE.
        CA = 1,
        /// A switch.
        SWITCH = 2,
        /// A router.
        ROUTER = 3,
        /// iWARP adapter.
        RNIC = 4,
        /// usNIC adapter.
        USNIC = 5,
        /// usNIC adapter over UDP.
        USNIC_UDP = 6,
        /// Unspecified.
        UNSPECIFIED = 7,
    }

    /// `enum ibv_transport_type`: the protocol on the wire.
    plain TransportType(u32) = "IBV_TRANSPORT_" {
        /// Unknown.
        UNKNOWN = u32::MAX,
        /// InfiniBand or RoCE.
        IB = 0,
        /// iWARP.
        IWARP = 1,
        /// usNIC.
        USNIC = 2,
        /// usNIC over UDP.
        USNIC_UDP = 3,
        /// Unspecified.
        UNSPECIFIED = 4,
    }

    /// `enum ibv_port_state`: the logical state of a port.
    plain PortState(u32) = "IBV_PORT_" {
        /// No state; never reported by a device.
        NOP = 0,
        /// The port has no link.
        DOWN = 1,
        /// The link is up; addresses are not yet configured.
        INIT = 2,
        /// The port is configured, but not yet active.
        ARMED = 3,
        /// The port carries data.
        ACTIVE = 4,
        /// The port is active, but the link is failing.
        ACTIVE_DEFER = 5,
    }

    /// `enum ibv_mtu`: the packet size, as a code.
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

    /// `IBV_LINK_LAYER_...`: the link layer of a port. The only enumeration that is stored in 8 bits.
    plain LinkLayer(u8) = "IBV_LINK_LAYER_" {
        /// Unspecified; means InfiniBand.
        UNSPECIFIED = 0,
        /// InfiniBand.
        INFINIBAND = 1,
        /// Ethernet; addresses are GIDs.
        ETHERNET = 2,
    }

    /// `enum ibv_atomic_cap`: the scope within which atomic operations are atomic.
    plain AtomicCap(u32) = "IBV_ATOMIC_" {
        /// The device has no atomic operations.
        NONE = 0,
        /// Atomic among the operations of one device.
        HCA = 1,
        /// Atomic also against other devices and the processor.
        GLOB = 2,
    }

    /// `enum ibv_gid_type`: the protocol that a GID belongs to.
    plain GidType(u32) = "IBV_GID_TYPE_" {
        /// InfiniBand or RoCE v1.
        IB = 0,
        /// RoCE v1.
        ROCE_V1 = 1,
        /// RoCE v2, over UDP.
        ROCE_V2 = 2,
    }

    /// `enum ibv_event_type`: the type of an asynchronous event.
    plain EventType(u32) = "IBV_EVENT_" {
        /// A completion queue overran.
        CQ_ERR = 0,
        /// A queue pair failed.
        QP_FATAL = 1,
        /// A remote queue pair sent an invalid request.
        QP_REQ_ERR = 2,
        /// A remote queue pair violated access rights.
        QP_ACCESS_ERR = 3,
        /// The first packet arrived at a queue pair in state RTR.
        COMM_EST = 4,
        /// A send queue has drained.
        SQ_DRAINED = 5,
        /// A connection migrated to its alternate path.
        PATH_MIG = 6,
        /// A connection failed to migrate to its alternate path.
        PATH_MIG_ERR = 7,
        /// The device failed.
        DEVICE_FATAL = 8,
        /// A port became active.
        PORT_ACTIVE = 9,
        /// A port's link became unavailable.
        PORT_ERR = 10,
        /// A port's LID changed.
        LID_CHANGE = 11,
        /// A port's P_Key table changed.
        PKEY_CHANGE = 12,
        /// A subnet manager changed.
        SM_CHANGE = 13,
        /// A shared receive queue failed.
        SRQ_ERR = 14,
        /// A shared receive queue has fewer receives than its limit.
        SRQ_LIMIT_REACHED = 15,
        /// A failed queue pair takes no more receives from its shared receive queue.
        QP_LAST_WQE_REACHED = 16,
        /// The subnet manager asks for reregistration.
        CLIENT_REREGISTER = 17,
        /// A port's GID table changed.
        GID_CHANGE = 18,
        /// A work queue failed.
        WQ_FATAL = 19,
    }

    /// `enum ibv_device_cap_flags`: optional capabilities of a device.
    flags DeviceCapFlags(u32) = "IBV_DEVICE_" {
        /// Resizes the queues of a queue pair.
        RESIZE_MAX_WR = 1,
        /// Counts P_Key violations.
        BAD_PKEY_CNTR = 1 << 1,
        /// Counts Q_Key violations.
        BAD_QKEY_CNTR = 1 << 2,
        /// Raw packet multicast.
        RAW_MULTI = 1 << 3,
        /// Automatic path migration.
        AUTO_PATH_MIG = 1 << 4,
        /// Changes the physical port of a queue pair.
        CHANGE_PHY_PORT = 1 << 5,
        /// Checks the port of address handles.
        UD_AV_PORT_ENFORCE = 1 << 6,
        /// Accepts the current state as a modifier of a state change.
        CURR_QP_STATE_MOD = 1 << 7,
        /// Shuts down ports.
        SHUTDOWN_PORT = 1 << 8,
        /// Sets the type of initialization.
        INIT_TYPE = 1 << 9,
        /// Raises an event when a port becomes active.
        PORT_ACTIVE_EVENT = 1 << 10,
        /// Reports a system image GUID.
        SYS_IMAGE_GUID = 1 << 11,
        /// Reliable connections send RNR NAKs.
        RC_RNR_NAK_GEN = 1 << 12,
        /// Resizes shared receive queues.
        SRQ_RESIZE = 1 << 13,
        /// Raises a completion event after a given number of completions.
        N_NOTIFY_CQ = 1 << 14,
        /// Memory windows.
        MEM_WINDOW = 1 << 17,
        /// Checksum offload of datagrams.
        UD_IP_CSUM = 1 << 18,
        /// Extended reliable connections (XRC).
        XRC = 1 << 20,
        /// Memory management extensions, such as sends that invalidate a key.
        MEM_MGT_EXTENSIONS = 1 << 21,
        /// Memory windows of type 2A.
        MEM_WINDOW_TYPE_2A = 1 << 23,
        /// Memory windows of type 2B.
        MEM_WINDOW_TYPE_2B = 1 << 24,
        /// Checksum offload of reliable connections.
        RC_IP_CSUM = 1 << 25,
        /// Checksum offload of raw packets.
        RAW_IP_CSUM = 1 << 26,
        /// Flow steering.
        MANAGED_FLOW_STEERING = 1 << 29,
    }

    /// `enum ibv_port_cap_flags`: optional capabilities of a port; only those that occur on Ethernet.
    flags PortCapFlags(u32) = "IBV_PORT_" {
        /// The subnet manager runs on this port.
        SM = 1 << 1,
        /// Supports extended link speeds.
        EXTENDED_SPEEDS_SUP = 1 << 14,
        /// `port_cap_flags2` holds more capabilities.
        CAP_MASK2_SUP = 1 << 15,
        /// Supports connection management.
        CM_SUP = 1 << 16,
        /// Supports reinitialization.
        REINIT_SUP = 1 << 18,
        /// Supports device management.
        DEVICE_MGMT_SUP = 1 << 19,
        /// Supports a vendor class of management.
        VENDOR_CLASS_SUP = 1 << 20,
        /// GIDs are derived from IP addresses.
        IP_BASED_GIDS = 1 << 26,
    }
}

impl Mtu {
    /// Returns the packet size in bytes, or `None` for an unknown code.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.name() {
            Some(_) => Some(128 << self.0),
            None => None,
        }
    }
}

impl TransportType {
    /// The transport type that `librdma.dylib` reports for Thunderbolt. No header names it.
    pub const THUNDERBOLT: TransportType = TransportType(100);
}
