//! Devices and ports, and the structures that query them.
//!
//! # Safety
//! The macro of the parent module defines these structures; see there.

use super::{Unused, structures};
use crate::{AtomicCap, GidType, LinkLayer, Mtu, NodeType, PortState, TransportType};
use std::{
    ffi::{c_char, c_int},
    fmt,
};

/// `IBV_SYSFS_NAME_MAX`: bytes of a name, with its terminating zero.
pub const SYSFS_NAME_MAX: usize = 64;

/// `IBV_SYSFS_PATH_MAX`: bytes of a path, with its terminating zero.
pub const SYSFS_PATH_MAX: usize = 256;

/// `union ibv_gid`: the address of a port, in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether the GID table entry is unused. Ports list such entries until their network is configured.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// Returns the IPv4-mapped GID `::ffff:a.b.c.d`, as ports on Ethernet and Thunderbolt list it.
    #[must_use]
    pub const fn from_ipv4(address: std::net::Ipv4Addr) -> Gid {
        Gid(address.to_ipv6_mapped().octets())
    }

    /// Returns the IPv4 address of an IPv4-mapped GID.
    #[must_use]
    pub const fn to_ipv4(self) -> Option<std::net::Ipv4Addr> {
        std::net::Ipv6Addr::from_octets(self.0).to_ipv4_mapped()
    }
}

structures! {
    /// `struct _ibv_device_ops`: two slots that are no longer used.
    DeviceOps = "struct _ibv_device_ops", 16 {
        _dummy1: Unused = 0,
        _dummy2: Unused = 8,
    }

    /// `struct ibv_device`: an entry of the device list.
    Device = "struct ibv_device", 664 {
        _ops: DeviceOps = 0,
        node_type: NodeType = 16,
        transport_type: TransportType = 20,
        /// Name of the device, such as `mlx5_0` or `rdma_en2`.
        name: [c_char; SYSFS_NAME_MAX] = 24,
        /// Name of the kernel's device file, such as `uverbs0`.
        dev_name: [c_char; SYSFS_NAME_MAX] = 88,
        dev_path: [c_char; SYSFS_PATH_MAX] = 152,
        ibdev_path: [c_char; SYSFS_PATH_MAX] = 408,
    }

    /// `struct ibv_device_attr`: the attributes and limits of a device.
    DeviceAttr = "struct ibv_device_attr", 232 {
        fw_ver: [c_char; 64] = 0,
        /// In network byte order.
        node_guid: u64 = 64,
        /// In network byte order.
        sys_image_guid: u64 = 72,
        max_mr_size: u64 = 80,
        page_size_cap: u64 = 88,
        vendor_id: u32 = 96,
        vendor_part_id: u32 = 100,
        hw_ver: u32 = 104,
        max_qp: c_int = 108,
        max_qp_wr: c_int = 112,
        /// [`DeviceCapFlags`](crate::DeviceCapFlags).
        device_cap_flags: u32 = 116,
        max_sge: c_int = 120,
        max_sge_rd: c_int = 124,
        max_cq: c_int = 128,
        max_cqe: c_int = 132,
        max_mr: c_int = 136,
        max_pd: c_int = 140,
        max_qp_rd_atom: c_int = 144,
        max_ee_rd_atom: c_int = 148,
        max_res_rd_atom: c_int = 152,
        max_qp_init_rd_atom: c_int = 156,
        max_ee_init_rd_atom: c_int = 160,
        atomic_cap: AtomicCap = 164,
        max_ee: c_int = 168,
        max_rdd: c_int = 172,
        max_mw: c_int = 176,
        max_raw_ipv6_qp: c_int = 180,
        max_raw_ethy_qp: c_int = 184,
        max_mcast_grp: c_int = 188,
        max_mcast_qp_attach: c_int = 192,
        max_total_mcast_qp_attach: c_int = 196,
        max_ah: c_int = 200,
        max_fmr: c_int = 204,
        max_map_per_fmr: c_int = 208,
        max_srq: c_int = 212,
        max_srq_wr: c_int = 216,
        max_srq_sge: c_int = 220,
        max_pkeys: u16 = 224,
        local_ca_ack_delay: u8 = 226,
        phys_port_cnt: u8 = 227,
    }

    /// `struct ibv_query_device_ex_input`.
    QueryDeviceExInput = "struct ibv_query_device_ex_input", 4 {
        comp_mask: u32 = 0,
    }

    /// `struct ibv_odp_caps`: operations supported on memory with on-demand paging.
    OdpCaps = "struct ibv_odp_caps", 24 {
        general_caps: u64 = 0,
        /// For RC, UC and UD.
        per_transport_caps: [u32; 3] = 8,
    }

    /// `struct ibv_tso_caps`.
    TsoCaps = "struct ibv_tso_caps", 8 {
        max_tso: u32 = 0,
        supported_qpts: u32 = 4,
    }

    /// `struct ibv_rss_caps`.
    RssCaps = "struct ibv_rss_caps", 32 {
        supported_qpts: u32 = 0,
        max_rwq_indirection_tables: u32 = 4,
        max_rwq_indirection_table_size: u32 = 8,
        rx_hash_fields_mask: u64 = 16,
        rx_hash_function: u8 = 24,
    }

    /// `struct ibv_packet_pacing_caps`.
    PacketPacingCaps = "struct ibv_packet_pacing_caps", 12 {
        qp_rate_limit_min: u32 = 0,
        qp_rate_limit_max: u32 = 4,
        supported_qpts: u32 = 8,
    }

    /// `struct ibv_tm_caps`.
    TmCaps = "struct ibv_tm_caps", 20 {
        max_rndv_hdr_size: u32 = 0,
        max_num_tags: u32 = 4,
        flags: u32 = 8,
        max_ops: u32 = 12,
        max_sge: u32 = 16,
    }

    /// `struct ibv_cq_moderation_caps`.
    CqModerationCaps = "struct ibv_cq_moderation_caps", 4 {
        max_cq_count: u16 = 0,
        max_cq_period: u16 = 2,
    }

    /// `struct ibv_pci_atomic_caps`.
    PciAtomicCaps = "struct ibv_pci_atomic_caps", 6 {
        fetch_add: u16 = 0,
        swap: u16 = 2,
        compare_swap: u16 = 4,
    }

    /// `struct ibv_device_attr_ex`: extended device attributes. Callers pass the size that they know.
    DeviceAttrEx = "struct ibv_device_attr_ex", 400 {
        orig_attr: DeviceAttr = 0,
        comp_mask: u32 = 232,
        odp_caps: OdpCaps = 240,
        completion_timestamp_mask: u64 = 264,
        /// In kilohertz.
        hca_core_clock: u64 = 272,
        device_cap_flags_ex: u64 = 280,
        tso_caps: TsoCaps = 288,
        rss_caps: RssCaps = 296,
        max_wq_type_rq: u32 = 328,
        packet_pacing_caps: PacketPacingCaps = 332,
        raw_packet_caps: u32 = 344,
        tm_caps: TmCaps = 348,
        cq_mod_caps: CqModerationCaps = 368,
        max_dm_size: u64 = 376,
        pci_atomic_caps: PciAtomicCaps = 384,
        xrc_odp_caps: u32 = 392,
        phys_port_cnt_ex: u32 = 396,
    }

    /// `struct ibv_port_attr`. The exported `ibv_query_port` fills only [`PortAttr::COMPAT_BYTES`].
    PortAttr = "struct ibv_port_attr", 52 {
        state: PortState = 0,
        max_mtu: Mtu = 4,
        active_mtu: Mtu = 8,
        gid_tbl_len: c_int = 12,
        port_cap_flags: u32 = 16,
        max_msg_sz: u32 = 20,
        bad_pkey_cntr: u32 = 24,
        qkey_viol_cntr: u32 = 28,
        pkey_tbl_len: u16 = 32,
        lid: u16 = 34,
        sm_lid: u16 = 36,
        lmc: u8 = 38,
        max_vl_num: u8 = 39,
        sm_sl: u8 = 40,
        subnet_timeout: u8 = 41,
        init_type_reply: u8 = 42,
        /// Code for the number of lanes: 1 is 1X, 2 is 4X, 4 is 8X, 8 is 12X, 16 is 2X.
        active_width: u8 = 43,
        /// Code for Gb/s per lane: 1 is 2.5, 2 is 5, 4 is 10, 16 is 14, 32 is 25, 64 is 50.
        active_speed: u8 = 44,
        /// Code for the physical state: 2 is polling, 3 is disabled, 5 is link up.
        phys_state: u8 = 45,
        link_layer: LinkLayer = 46,
        flags: u8 = 47,
        port_cap_flags2: u16 = 48,
    }

    /// `struct ibv_gid_entry`: an entry of a port's GID table.
    GidEntry = "struct ibv_gid_entry", 32 {
        gid: Gid = 0,
        gid_index: u32 = 16,
        port_num: u32 = 20,
        gid_type: GidType = 24,
        ndev_ifindex: u32 = 28,
    }

    /// `struct ibv_values_ex`.
    ValuesEx = "struct ibv_values_ex", 24 {
        comp_mask: u32 = 0,
        raw_clock: Clock = 8,
    }
}

impl PortAttr {
    /// Bytes that the exported function `ibv_query_port` fills: the members before `port_cap_flags2`, which
    /// its oldest callers have room for.
    pub const COMPAT_BYTES: usize = 48;
}

/// `struct timespec`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Clock(pub libc::timespec);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.tv_sec, self.0.tv_nsec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_map_ipv4() {
        let address = std::net::Ipv4Addr::new(169, 254, 3, 1);
        let gid = Gid::from_ipv4(address);
        assert_eq!(gid.0[8..], [0, 0, 0xff, 0xff, 169, 254, 3, 1]);
        assert_eq!(gid.to_ipv4(), Some(address));
        assert_eq!((Gid([1; 16]).to_ipv4(), Gid::default().to_ipv4()), (None, None));
        assert!(Gid::default().is_empty() && !gid.is_empty());
    }
}
