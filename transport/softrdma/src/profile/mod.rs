//! Profiles of devices: capabilities, limits and misbehavior, as data.
//!
//! The device reads a [`Profile`]'s fields and never compares its name, so a new kind of device is a new
//! constant in `devices`. `TN` is Apple's technical note TN3205.

mod devices;

use crate::suggestion;
use std::{fmt, time::Duration};
use verbs_sys::{AtomicCap, LinkLayer, Mtu, NodeType, QpType, TransportType, WrOpcode};

/// The fate of a send on an unreliable connection when the peer has no receive posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmatchedSend {
    /// The send is lost, as the InfiniBand specification says.
    Drop,
    /// The send and all later ones wait until a receive is posted.
    ///
    /// TN: hardware credits hold a send until the peer has a matching receive. Confirmed by JACCL, which
    /// sends without asking.
    Hold,
}

/// The fate of work on a port whose cable is unplugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnplugBehavior {
    /// Reliable connections fail after their retries; unreliable ones lose their messages.
    Fails,
    /// Posting crashes the process, because the mapping of the device's doorbell is gone.
    ///
    /// mlx issue 4192: `SIGSEGV` in `tbt_post_recv` on both ends. The device logs a warning and holds the
    /// posted work. It really crashes only after `softrdma fault unplug --crash`.
    Crashes,
}

/// A queue depth that the device grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// Depth that the creator of the queue is told.
    pub reported: u32,
    /// Part of the depth that receives can fill.
    pub usable: u32,
}

/// Error numbers that depend on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errnos {
    /// The device lacks this kind of queue pair, opcode or registration.
    pub unsupported: i32,
    /// All queue pairs are in use.
    pub no_queue_pair: i32,
    /// All registrations are in use.
    pub no_registration: i32,
    /// All protection domains are in use, or the port is down.
    pub no_domain: i32,
    /// A queue is full.
    pub queue_full: i32,
    /// The GID index names no usable address of the port.
    pub no_address: i32,
    /// The port's cable does not lead to the peer's address.
    pub unreachable: i32,
}

/// The capabilities, limits and behavior of a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name in fabric files.
    pub name: &'static str,

    /// Node type, as `ibv_devices` and `ibv_devinfo` print it.
    pub node_type: NodeType,
    /// Transport type, as `ibv_devices` and `ibv_devinfo` print it.
    pub transport_type: TransportType,
    /// Link layer of the ports. On all but InfiniBand an address is a GID.
    pub link_layer: LinkLayer,
    /// Vendor's number.
    pub vendor_id: u32,
    /// Vendor's number of the part.
    pub vendor_part_id: u32,
    /// Firmware version.
    pub firmware: &'static str,
    /// Name of the board, as `ibv_devinfo` prints it.
    pub board: &'static str,
    /// `PortAttr::active_width`.
    pub active_width: u8,
    /// `PortAttr::active_speed`.
    pub active_speed: u8,
    /// Largest packet size.
    pub max_mtu: Mtu,
    /// Packet size in use.
    pub active_mtu: Mtu,

    /// Whether reliable connections are supported.
    pub rc: bool,
    /// Whether unreliable connections are supported.
    pub uc: bool,
    /// Whether unreliable datagrams are supported.
    pub ud: bool,
    /// Supported send opcodes: bit n for opcode n.
    pub opcodes: u32,
    /// Maximum number of shared receive queues; 0 if unsupported.
    pub max_srq: u32,
    /// Scope of atomic operations.
    pub atomic_cap: AtomicCap,
    /// Maximum reads and atomic operations in flight on a queue pair.
    pub max_rd_atomic: u8,
    /// Whether extended queue pairs and completion queues (`ibv_qp_ex`, `ibv_cq_ex`) are supported.
    pub extended_verbs: bool,

    /// Whether registered memory gets a remote key; otherwise the key is 0.
    pub remote_keys: bool,
    /// Whether a registration may choose its addresses: from 0, or from any given number.
    pub zero_based: bool,
    /// Whether completion channels are supported, and with them the arming of completion queues.
    pub completion_events: bool,

    /// Maximum queue pairs, as `ibv_query_device` reports.
    pub reported_qps: u32,
    /// Queue pairs that can really be created.
    pub usable_qps: u32,
    /// Maximum protection domains.
    pub max_pd: u32,
    /// Maximum registrations; also the reported value.
    pub max_mr: u32,
    /// Largest registration that is reported, in bytes.
    pub max_mr_bytes: u64,
    /// Whether larger registrations fail.
    pub enforces_max_mr_bytes: bool,
    /// Maximum completion queues.
    pub max_cq: u32,
    /// Maximum completions in one queue.
    pub max_cqe: u32,
    /// Maximum depth of a send or receive queue.
    pub max_wr: u32,
    /// Depths that are granted, in increasing order. A request is rounded up to one of them; an empty list
    /// grants the request as it is.
    pub depths: &'static [QueueDepth],
    /// Maximum scatter/gather elements of a work request.
    pub max_sge: u32,
    /// Maximum inline bytes of a work request.
    pub max_inline: u32,
    /// Largest message in bytes.
    pub max_message_bytes: u32,

    /// Frame size in bytes, if depths are counted in frames. Both ends of a message must then have the same
    /// number of frames, or the receive fails.
    pub frame_bytes: Option<u32>,
    /// The fate of a send on UC without a posted receive.
    pub uc_unmatched_send: UnmatchedSend,
    /// Whether a failed send on an unreliable service moves the queue pair to SQE, which stops only the send
    /// queue, and not to ERR.
    pub unreliable_errors_enter_sqe: bool,
    /// Whether a queue pair knows only the registrations that existed when it reached RTR.
    pub registrations_bound_at_rtr: bool,
    /// Whether the device keeps addresses in 32 bits, so that bytes beyond a 4 GiB line land exactly 4 GiB
    /// lower.
    pub wraps_at_4gib: bool,
    /// Whether protection domains can be allocated while the port is down.
    pub allocates_pd_when_down: bool,
    /// The fate of work on an unplugged port.
    pub unplug_behavior: UnplugBehavior,
    /// Default idle time after which a connection stops working.
    pub idle_limit: Option<Duration>,
    /// Default index of the IPv4-mapped GID.
    pub ipv4_gid_index: u8,
    /// Whether a second link-local GID follows the IPv4-mapped one.
    pub second_link_local: bool,
    /// Error numbers of the device.
    pub errnos: Errnos,
}

impl Profile {
    /// Returns the profile with this name.
    ///
    /// # Errors
    /// [`UnknownProfile`], with the nearest name and the list of all.
    pub fn by_name(name: &str) -> Result<&'static Profile, UnknownProfile> {
        Profile::ALL
            .into_iter()
            .find(|profile| profile.name == name)
            .ok_or_else(|| UnknownProfile(name.into()))
    }

    /// Whether the device supports this service of queue pairs.
    #[must_use]
    pub const fn supports_service(&self, service: QpType) -> bool {
        match service {
            QpType::RC => self.rc,
            QpType::UC => self.uc,
            QpType::UD => self.ud,
            _ => false,
        }
    }

    /// Whether this opcode can be posted on this service.
    ///
    /// The specification permits reads and atomic operations on reliable connections only, and only sends on
    /// datagrams.
    #[must_use]
    pub const fn supports_opcode(&self, service: QpType, opcode: WrOpcode) -> bool {
        let by_service = match service {
            QpType::RC => true,
            QpType::UC => matches!(
                opcode,
                WrOpcode::SEND
                    | WrOpcode::SEND_WITH_IMM
                    | WrOpcode::RDMA_WRITE
                    | WrOpcode::RDMA_WRITE_WITH_IMM
            ),
            QpType::UD => matches!(opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM),
            _ => false,
        };
        by_service && self.supports_service(service) && opcode.0 < 32 && self.opcodes >> opcode.0 & 1 != 0
    }

    /// Returns the units of queue depth that a message of `bytes` bytes takes: its frames, or one.
    #[must_use]
    pub const fn depth_units(&self, bytes: u64) -> u64 {
        match self.frame_bytes {
            Some(frame) if bytes > 0 => bytes.div_ceil(frame as u64),
            _ => 1,
        }
    }

    /// Returns the depth that is reported for a requested one, or `None` if the request is too large.
    #[must_use]
    pub fn granted_depth(&self, requested: u32) -> Option<u32> {
        if requested > self.max_wr {
            return None;
        }
        let raised = self.depths.iter().map(|depth| depth.reported).find(|reported| *reported >= requested);
        raised.or(self.depths.is_empty().then_some(requested))
    }

    /// Returns the depth that receives can fill in a queue of this reported depth.
    #[must_use]
    pub fn usable_depth(&self, reported: u32) -> u32 {
        self.depths.iter().find(|depth| depth.reported == reported).map_or(reported, |depth| depth.usable)
    }

    /// Whether a region crosses a 4 GiB line, behind which the device loses the upper half of addresses.
    #[must_use]
    pub const fn crosses_4gib_line(&self, address: u64, bytes: u64) -> bool {
        self.wraps_at_4gib && bytes > 0 && address >> 32 != (address.wrapping_add(bytes - 1)) >> 32
    }
}

/// An unknown profile name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProfile(String);

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Profile::ALL.map(|profile| profile.name);
        write!(f, "unknown profile `{}`{}", self.0, suggestion::suggest(&self.0, names))
    }
}

impl std::error::Error for UnknownProfile {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_by_name() {
        for profile in Profile::ALL {
            assert_eq!(Profile::by_name(profile.name), Ok(profile));
        }
        let error = Profile::by_name("apple").expect_err("not a profile").to_string();
        assert_eq!(error, "unknown profile `apple`, did you mean `apple-tb5`?; known: ib, usb4, apple-tb5");
    }

    #[test]
    fn opcodes_need_the_profile_and_the_service() {
        let allowed = |profile: &Profile, service| {
            WrOpcode::ALL.iter().filter(|opcode| profile.supports_opcode(service, **opcode)).count()
        };
        assert_eq!([QpType::RC, QpType::UC, QpType::UD].map(|s| allowed(&Profile::IB, s)), [7, 4, 2]);
        assert_eq!([QpType::RC, QpType::UC, QpType::UD].map(|s| allowed(&Profile::USB4, s)), [4, 3, 0]);
        assert_eq!([QpType::RC, QpType::UC, QpType::UD].map(|s| allowed(&Profile::APPLE_TB5, s)), [0, 1, 0]);
        assert!(!Profile::IB.supports_opcode(QpType::RC, WrOpcode(99)));
        assert!(!Profile::IB.supports_opcode(QpType::XRC_SEND, WrOpcode::SEND));
    }

    #[test]
    fn depths_are_counted_in_frames_where_the_device_does() {
        let apple = Profile::APPLE_TB5;
        assert_eq!([0, 1, 4096, 4097, 524_288].map(|bytes| apple.depth_units(bytes)), [1, 1, 1, 2, 128]);
        assert_eq!(Profile::IB.depth_units(524_288), 1);
        assert_eq!([1, 256, 1024, 4095].map(|d| apple.granted_depth(d)), [1023, 1023, 4095, 4095].map(Some));
        assert_eq!((apple.granted_depth(4096), Profile::IB.granted_depth(7)), (None, Some(7)));
        assert_eq!([1023, 4095, 7].map(|reported| apple.usable_depth(reported)), [1008, 4095, 7]);
        assert_eq!(Profile::IB.usable_depth(1023), 1023);
        assert_eq!(apple.max_message_bytes, 16_773_120);
        assert!(apple.depth_units(apple.max_message_bytes.into()) <= apple.usable_depth(4095).into());
    }

    #[test]
    fn four_gib_lines_are_seen() {
        let line = 1_u64 << 32;
        let apple = Profile::APPLE_TB5;
        assert!(!apple.crosses_4gib_line(line - 4096, 4096) && apple.crosses_4gib_line(line - 4096, 4097));
        assert!(apple.crosses_4gib_line(line, line + 1) && !apple.crosses_4gib_line(line, line));
        assert!(!apple.crosses_4gib_line(line - 1, 0) && !Profile::IB.crosses_4gib_line(line - 1, 2));
    }
}
