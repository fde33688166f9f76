//! What a device can do, how much of it there is, and how it misbehaves: as data.
//!
//! The device core asks a [`Profile`] and never for its name, so a new kind of device is a new constant. What the
//! Thunderbolt device of macOS does is not written down in one place; each rule of [`Profile::APPLE_TB5`] says
//! where it comes from. `TN` is Apple's technical note TN3205.

mod devices;

use crate::suggestion;
use std::{fmt, time::Duration};
use verbs_sys::{AtomicCap, LinkLayer, Mtu, NodeType, QpType, TransportType, WrOpcode};

/// What becomes of a send on an unreliable connection when the peer has no receive posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmatchedSend {
    /// It is lost, as the InfiniBand specification says.
    Drop,
    /// It waits, and so does all behind it, until one is posted.
    ///
    /// TN: hardware credits hold a send until the peer has a matching receive. Confirmed by JACCL, which sends
    /// without asking.
    Hold,
}

/// What becomes of work on a port whose cable is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnplugBehavior {
    /// Reliable connections fail after their retries, unreliable ones lose what they send.
    Fails,
    /// Posting crashes the process: the mapping of the device's doorbell is gone.
    ///
    /// mlx issue 4192: `SIGSEGV` in `tbt_post_recv` on both ends. The device says so in its log and holds what is
    /// posted; it crashes only when it is asked to be that true, by `softrdma fault unplug --crash`.
    Crashes,
}

/// A depth that queues can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// What is reported to who makes the queue.
    pub reported: u32,
    /// How much of it receives can fill.
    pub usable: u32,
}

/// The numbers of errors that depend on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errnos {
    /// A kind of queue pair, opcode or registration that it does not have.
    pub unsupported: i32,
    /// All queue pairs are taken.
    pub no_queue_pair: i32,
    /// All registrations are taken.
    pub no_registration: i32,
    /// All protection domains are taken, or the port is down.
    pub no_domain: i32,
    /// A queue has no room.
    pub queue_full: i32,
    /// The port has no usable address where the caller says it is.
    pub no_address: i32,
    /// The peer's address can't be reached by this port's cable.
    pub unreachable: i32,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// As fabric files name it.
    pub name: &'static str,

    /// What `ibv_devices` and `ibv_devinfo` say it is.
    pub node_type: NodeType,
    /// What they say runs on its wire.
    pub transport_type: TransportType,
    /// What its ports are plugged into. On all but InfiniBand an address is a GID.
    pub link_layer: LinkLayer,
    /// Its maker's number.
    pub vendor_id: u32,
    /// Its maker's number for it.
    pub vendor_part_id: u32,
    /// The version of what runs in it.
    pub firmware: &'static str,
    /// The name of the board, as `ibv_devinfo` prints it.
    pub board: &'static str,
    /// `PortAttr::active_width`.
    pub active_width: u8,
    /// `PortAttr::active_speed`.
    pub active_speed: u8,
    /// The largest packet.
    pub max_mtu: Mtu,
    /// The packets it uses.
    pub active_mtu: Mtu,

    /// Reliable connections.
    pub rc: bool,
    /// Unreliable connections.
    pub uc: bool,
    /// Unreliable datagrams.
    pub ud: bool,
    /// Bit n is set when the opcode n can be posted.
    pub opcodes: u32,
    /// Receives that several queue pairs share; 0 when there are none.
    pub max_srq: u32,
    /// Atomic operations, and with whom they are atomic.
    pub atomic_cap: AtomicCap,
    /// Reads and atomic operations under way on one queue pair.
    pub max_rd_atomic: u8,
    /// Extended interfaces of queue pairs and completion queues.
    pub extended_verbs: bool,

    /// Does registered memory get a key for peers? If not it is 0.
    pub remote_keys: bool,
    /// May registrations have addresses that begin at 0, or at any given number?
    pub zero_based: bool,
    /// Completion channels and the arming of completion queues.
    pub completion_events: bool,

    /// Queue pairs that `ibv_query_device` reports.
    pub reported_qps: u32,
    /// Queue pairs that can be made.
    pub usable_qps: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Registrations that can be made, and are reported.
    pub max_mr: u32,
    /// The largest registration that is reported.
    pub max_mr_bytes: u64,
    /// Is a larger registration refused?
    pub enforces_max_mr_bytes: bool,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions in one queue.
    pub max_cqe: u32,
    /// The largest depth of a queue of work requests.
    pub max_wr: u32,
    /// A requested depth is raised to the first of these that suffices; empty when it is granted as it is.
    pub depths: &'static [QueueDepth],
    /// Runs of memory of one work request.
    pub max_sge: u32,
    /// Bytes that can be taken at once when posting.
    pub max_inline: u32,
    /// The largest message.
    pub max_message_bytes: u32,

    /// When set, depths are counted in frames of so many bytes, and both ends of a message must have the same
    /// number of them, or the receive fails.
    pub frame_bytes: Option<u32>,
    /// See [`UnmatchedSend`].
    pub uc_unmatched_send: UnmatchedSend,
    /// Does a send that fails on an unreliable service stop the send queue only (SQE), and not the queue pair?
    pub unreliable_errors_enter_sqe: bool,
    /// Is a registration that was made after a queue pair became ready to receive unknown to that queue pair?
    pub registrations_bound_at_rtr: bool,
    /// Are addresses kept in 32 bits, so that what lies beyond a 4 GiB line lands exactly 4 GiB lower?
    pub wraps_at_4gib: bool,
    /// Can protection domains be made on a port that is down?
    pub allocates_pd_when_down: bool,
    /// See [`UnplugBehavior`].
    pub unplug_behavior: UnplugBehavior,
    /// A connection on which no message has passed for so long stops working, unless the fabric file says otherwise.
    pub idle_limit: Option<Duration>,
    /// Where the table of GIDs has the IPv4-mapped address, unless the fabric file says otherwise.
    pub ipv4_gid_index: u8,
    /// Is there one more link-local address behind the IPv4-mapped one?
    pub second_link_local: bool,
    /// See [`Errnos`].
    pub errnos: Errnos,
}

impl Profile {
    /// The one with that name.
    ///
    /// # Errors
    /// The nearest name, and all of them.
    pub fn by_name(name: &str) -> Result<&'static Profile, UnknownProfile> {
        Profile::ALL
            .into_iter()
            .find(|profile| profile.name == name)
            .ok_or_else(|| UnknownProfile(name.into()))
    }

    /// Can queue pairs of this kind be made?
    #[must_use]
    pub const fn supports_service(&self, service: QpType) -> bool {
        match service {
            QpType::RC => self.rc,
            QpType::UC => self.uc,
            QpType::UD => self.ud,
            _ => false,
        }
    }

    /// Can work with this opcode be posted to queue pairs of this kind? The specification leaves reads and atomics
    /// to reliable connections, and only sends to datagrams.
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

    /// How many units of a queue's depth a message of so many bytes takes: its frames, or one.
    #[must_use]
    pub const fn depth_units(&self, bytes: u64) -> u64 {
        match self.frame_bytes {
            Some(frame) if bytes > 0 => bytes.div_ceil(frame as u64),
            _ => 1,
        }
    }

    /// The depth that is reported when this one is requested, if it can be had.
    #[must_use]
    pub fn granted_depth(&self, requested: u32) -> Option<u32> {
        if requested > self.max_wr {
            return None;
        }
        let raised = self.depths.iter().map(|depth| depth.reported).find(|reported| *reported >= requested);
        raised.or(self.depths.is_empty().then_some(requested))
    }

    /// How many units of receives a queue takes whose depth was reported to be that.
    #[must_use]
    pub fn usable_depth(&self, reported: u32) -> u32 {
        self.depths.iter().find(|depth| depth.reported == reported).map_or(reported, |depth| depth.usable)
    }

    /// Does a region cross a line at which the device loses the upper half of addresses?
    #[must_use]
    pub const fn crosses_4gib_line(&self, address: u64, bytes: u64) -> bool {
        self.wraps_at_4gib && bytes > 0 && address >> 32 != (address.wrapping_add(bytes - 1)) >> 32
    }
}

/// No profile has that name.
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
