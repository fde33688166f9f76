//! The profiles of known devices.
//!
//! The behavior of Apple's Thunderbolt device is not written down in one place; each rule of
//! [`Profile::APPLE_TB5`] names its source. `TN` is Apple's technical note TN3205.

use super::{Errnos, Profile, QueueDepth, UnmatchedSend, UnplugBehavior};
use std::time::Duration;
use verbs_sys::{AtomicCap, LinkLayer, Mtu, NodeType, TransportType, WrOpcode};

/// Returns the bit set of opcodes.
const fn opcodes(list: &[WrOpcode]) -> u32 {
    let (mut bits, mut at) = (0, 0);
    while at < list.len() {
        bits |= 1 << list[at].0;
        at += 1;
    }
    bits
}

const LINUX_ERRNOS: Errnos = Errnos {
    unsupported: libc::EOPNOTSUPP,
    no_queue_pair: libc::ENOMEM,
    no_registration: libc::ENOMEM,
    no_domain: libc::ENOMEM,
    queue_full: libc::ENOMEM,
    no_address: libc::EINVAL,
    unreachable: libc::ETIMEDOUT,
};

impl Profile {
    /// InfiniBand and RoCE: everything that the software device supports.
    pub const IB: Profile = Profile {
        name: "ib",
        node_type: NodeType::CA,
        transport_type: TransportType::IB,
        link_layer: LinkLayer::ETHERNET,
        vendor_id: 0x02_c9ff,
        vendor_part_id: 1,
        firmware: "1.0.0",
        board: "SOFT_IB",
        active_width: 2,
        active_speed: 64,
        max_mtu: Mtu::B4096,
        active_mtu: Mtu::B4096,
        rc: true,
        uc: true,
        ud: true,
        opcodes: opcodes(&[
            WrOpcode::RDMA_WRITE,
            WrOpcode::RDMA_WRITE_WITH_IMM,
            WrOpcode::SEND,
            WrOpcode::SEND_WITH_IMM,
            WrOpcode::RDMA_READ,
            WrOpcode::ATOMIC_CMP_AND_SWP,
            WrOpcode::ATOMIC_FETCH_AND_ADD,
        ]),
        max_srq: 256,
        atomic_cap: AtomicCap::GLOB,
        max_rd_atomic: 16,
        extended_verbs: true,
        remote_keys: true,
        zero_based: true,
        completion_events: true,
        reported_qps: 1024,
        usable_qps: 1024,
        max_pd: 1024,
        max_mr: 4096,
        max_mr_bytes: 1 << 40,
        enforces_max_mr_bytes: true,
        max_cq: 1024,
        max_cqe: 65_535,
        max_wr: 16_384,
        depths: &[],
        max_sge: 16,
        max_inline: 220,
        max_message_bytes: 1 << 30,
        frame_bytes: None,
        uc_unmatched_send: UnmatchedSend::Drop,
        unreliable_errors_enter_sqe: true,
        registrations_bound_at_rtr: false,
        wraps_at_4gib: false,
        allocates_pd_when_down: true,
        unplug_behavior: UnplugBehavior::Fails,
        idle_limit: None,
        ipv4_gid_index: 1,
        second_link_local: false,
        errnos: LINUX_ERRNOS,
    };

    /// Linux over USB4 or Thunderbolt: the public `thunderbolt-ibverbs` driver in its native mode.
    ///
    /// RC and UC with remote reads and writes; no UD, no atomic operations.
    pub const USB4: Profile = Profile {
        name: "usb4",
        vendor_part_id: 4,
        board: "SOFT_USB4",
        active_width: 4,
        active_speed: 4,
        ud: false,
        opcodes: opcodes(&[
            WrOpcode::RDMA_WRITE,
            WrOpcode::RDMA_WRITE_WITH_IMM,
            WrOpcode::SEND,
            WrOpcode::RDMA_READ,
        ]),
        max_srq: 0,
        atomic_cap: AtomicCap::NONE,
        extended_verbs: false,
        max_sge: 4,
        max_inline: 0,
        ..Profile::IB
    };

    /// macOS over Thunderbolt 5.
    ///
    /// UC only: sends into posted receives, polled completions, hard limits.
    pub const APPLE_TB5: Profile = Profile {
        name: "apple-tb5",
        // TN and `ibv_devinfo` output: transport Thunderbolt (100), width 8X, speed 10.0 Gb/s, one port.
        node_type: NodeType::CA,
        transport_type: TransportType::THUNDERBOLT,
        vendor_id: 0x05ac,
        vendor_part_id: 5,
        firmware: "0.0.1",
        board: "SOFT_APPLE_TB5",
        active_width: 4,
        active_speed: 4,
        // TN: RC and UD fail, and so do all opcodes but SEND. mlx issue 4530 has the errno.
        rc: false,
        uc: true,
        ud: false,
        opcodes: opcodes(&[WrOpcode::SEND]),
        // gojaccl's notes: `max_srq` 0, `max_qp_rd_atom` 0, `rkey` 0.
        max_srq: 0,
        atomic_cap: AtomicCap::NONE,
        max_rd_atomic: 0,
        extended_verbs: false,
        remote_keys: false,
        // mesh's notes: zero-based and IOVA registrations fail with errno 102.
        zero_based: false,
        // No public program uses a completion channel there; gojaccl states that there is none.
        completion_events: false,
        // mlx issues 3162 and 4209: 11 reported, the 11th fails with EBUSY; 100 registrations, then ENOMEM.
        reported_qps: 11,
        usable_qps: 10,
        max_pd: 11,
        max_mr: 100,
        // mesh's notes and ds4: the device advertises 0xfa0000, but registrations of 3 GB work.
        max_mr_bytes: 0xfa_0000,
        enforces_max_mr_bytes: false,
        max_cq: 22,
        // TN's example: a completion queue of 4095 + 1, depths of 4095 frames of 4 KiB, and messages of as
        // many.
        max_cqe: 4096,
        max_wr: 4095,
        frame_bytes: Some(4096),
        max_message_bytes: 4095 * 4096,
        // mesh's notes and ds4: 256 requested, 1023 reported. hellas requests 35 and 41: 63 receives are
        // accepted, the 64th fails with ENOMEM. Depths count frames, and 512 frames in one queue work
        // (llama.cpp), so these must have been 63 receives of 64 KiB, 1008 frames; that is our reading. A
        // message of 4095 frames, which TN allows, needs all of the deeper queue.
        depths: &[QueueDepth { reported: 1023, usable: 1008 }, QueueDepth { reported: 4095, usable: 4095 }],
        // TN: one scatter/gather element each way. JACCL, llama.cpp and ds4 ask for no inline bytes.
        max_sge: 1,
        max_inline: 0,
        // TN on flow control and on the meaning of a completion. Since sends are held, no error reports that
        // a peer has died: mlx issues 3910 and 4530.
        uc_unmatched_send: UnmatchedSend::Hold,
        // No public report shows a queue pair that works after an error.
        unreliable_errors_enter_sqe: false,
        // mesh's disassembly and ds4: the device maps the registrations when the queue pair is armed.
        registrations_bound_at_rtr: true,
        // mesh's disassembly and test: the key is packed with the low 32 bits of the address.
        wraps_at_4gib: true,
        // mlx issues 3777, 4485 and 4530: the device opens, `ibv_alloc_pd` fails.
        allocates_pd_when_down: false,
        unplug_behavior: UnplugBehavior::Crashes,
        // gojaccl and exo issue 1973: about 30 minutes.
        idle_limit: Some(Duration::from_secs(30 * 60)),
        // TN: [0] fe80 from the hardware address, [1] ::ffff:169.254.x.x, [2] another fe80.
        ipv4_gid_index: 1,
        second_link_local: true,
        // The table of errno numbers in public runbooks; 102 is EOPNOTSUPP on macOS, 96 is ENODATA.
        errnos: Errnos { no_queue_pair: libc::EBUSY, no_domain: libc::ENODATA, ..LINUX_ERRNOS },
        ..Profile::IB
    };

    /// All profiles.
    pub const ALL: [&'static Profile; 3] = [&Profile::IB, &Profile::USB4, &Profile::APPLE_TB5];
}
