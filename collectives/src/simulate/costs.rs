//! Costs of a simulation: the time that work takes a rank, and the protocol by which a transport moves
//! messages.
//!
//! In the terms of LogGP and its descendants, `send_us` and `recv_us` are the overhead o, the per-byte
//! overheads O are `send_gbs` and `recv_gbs`. The gap per byte G and the latency L are properties of the
//! cluster's links.
//!
//! A. Alexandrov, M. Ionescu, K. Schauser, C. Scheiman: "LogGP", Journal of Parallel and Distributed
//! Computing 44(1), 1997. T. Hoefler, T. Schneider, A. Lumsdaine: "LogGOPSim", LSAP 2010.

use crate::UnknownName;
use serde::Deserialize;
use std::str::FromStr;

/// Costs, in microseconds, gigabytes per second (1e9) and bytes.
///
/// The default is free of charge: messages take latency and bandwidth alone. Infinite rates cost nothing.
/// Keys that a file leaves out keep their defaults.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Time to enter a call, once per rank.
    pub call_us: f64,
    /// Time of a message at its sender.
    pub send_us: f64,
    /// Time of a message at its receiver.
    pub recv_us: f64,
    /// Time of a piece or fragment of a message, at either end.
    pub piece_us: f64,
    /// Time of a local step.
    pub step_us: f64,
    /// Rate at which a rank copies.
    pub copy_gbs: f64,
    /// Rate at which a rank reduces, in bytes of the result.
    pub reduce_gbs: f64,
    /// Rate at which a rank packs and unpacks, in bytes of the elements.
    pub pack_gbs: f64,
    /// Rate at which a processor sends, where it must touch the sent bytes.
    pub send_gbs: f64,
    /// Rate at which a processor receives, where it must touch the received bytes.
    pub recv_gbs: f64,
    /// Largest eager message: its fragments are copied into slots, sent without a grant, and copied out of
    /// slots.
    pub eager_bytes: u64,
    /// Size of the fragments of an eager message.
    pub fragment_bytes: u64,
    /// Fragments of one peer and lane that may be in flight, or wait at the receiver, at a time.
    pub fragment_credits: u32,
    /// Whether messages above `eager_bytes` wait until the receiver has granted memory, which takes the
    /// latency of the way back.
    pub granted: bool,
    /// Cost of a grant beside the latency.
    pub grant_us: f64,
    /// Number of receives of one peer and lane that are granted ahead of time.
    pub ahead: u32,
    /// Whether messages above `eager_bytes` are copied at both ends, too.
    pub staged: bool,
    /// Size of the pieces of a message above `eager_bytes`. A piece is forwarded while the next one is in
    /// flight.
    pub piece_bytes: u64,
    /// Maximum number of pieces or fragments of a message: the resolution of the simulation, whose running
    /// time is proportional to it.
    pub most_pieces: u32,
    /// Credits: pieces of one peer and lane that may be in flight, or wait at the receiver, at a time.
    pub credits: u32,
    /// Whether grants and credits queue behind the pieces that were posted to the same links before them, as
    /// on devices that execute posted work in order, whichever queue it was posted to.
    pub words_wait: bool,
    /// Latencies of the way back after which a send above `eager_bytes` is complete, counted from the arrival
    /// of its last byte.
    pub confirmations: f64,
    /// Bytes that travel with every piece or fragment.
    pub header_bytes: u64,
    /// Frame size on the wire, of which a piece or fragment takes whole numbers; 0 for none.
    pub frame_bytes: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            call_us: 0.0,
            send_us: 0.0,
            recv_us: 0.0,
            piece_us: 0.0,
            step_us: 0.0,
            copy_gbs: f64::INFINITY,
            reduce_gbs: f64::INFINITY,
            pack_gbs: f64::INFINITY,
            send_gbs: f64::INFINITY,
            recv_gbs: f64::INFINITY,
            eager_bytes: 0,
            fragment_bytes: u64::MAX,
            fragment_credits: u32::MAX,
            granted: false,
            grant_us: 0.0,
            ahead: 16,
            staged: false,
            piece_bytes: u64::MAX,
            most_pieces: 16,
            credits: u32::MAX,
            words_wait: false,
            confirmations: 0.0,
            header_bytes: 0,
            frame_bytes: 0,
        }
    }
}

impl Costs {
    /// Returns the costs of this library's RDMA transport with remote writes, on a current machine.
    ///
    /// Messages of up to 128 KiB travel in slots, in fragments of 16 KiB. Longer messages travel in pieces of
    /// 128 KiB, eight at a time, from memory to memory, to places that the receiver has granted. The rates
    /// are estimates, to be replaced by measurements.
    #[must_use]
    pub fn rdma() -> Costs {
        Costs {
            call_us: 0.5,
            send_us: 0.5,
            recv_us: 0.5,
            piece_us: 0.2,
            step_us: 0.1,
            copy_gbs: 40.0,
            reduce_gbs: 60.0,
            pack_gbs: 20.0,
            eager_bytes: 128 << 10,
            fragment_bytes: 16 << 10,
            fragment_credits: 32,
            granted: true,
            grant_us: 1.0,
            ahead: 64,
            piece_bytes: 128 << 10,
            credits: 8,
            confirmations: 1.0,
            header_bytes: 64,
            ..Costs::default()
        }
    }

    /// Returns the costs of the same transport where devices hold sends until their receives are posted, as
    /// Apple's do.
    ///
    /// Pieces meet receives in their final places, so no message waits for a grant. Fragments have three
    /// frames of 4 KiB. Connections are unreliable, so both ends compute a checksum of every byte.
    #[must_use]
    pub fn rdma_held() -> Costs {
        Costs {
            send_us: 0.4,
            recv_us: 0.4,
            fragment_bytes: 3 * 4096 - 64,
            granted: false,
            grant_us: 0.0,
            send_gbs: 180.0,
            recv_gbs: 180.0,
            ..Costs::rdma()
        }
    }

    /// Rates at which the processor of a sender carries bytes for a software device, and at which the
    /// receiver's fetches them from the caches of the sender's.
    const SOFTWARE_DEVICE_GBS: [f64; 2] = [40.0, 80.0];

    /// Returns these costs where the devices are software, which takes processors time for each byte.
    #[must_use]
    pub fn on_software_devices(self) -> Costs {
        let both = |a: f64, b: f64| 1.0 / (1.0 / a + 1.0 / b);
        let [send, recv] = Costs::SOFTWARE_DEVICE_GBS;
        Costs { send_gbs: both(self.send_gbs, send), recv_gbs: both(self.recv_gbs, recv), ..self }
    }

    /// Returns the costs of the same machine under MLX's JACCL: two buffers of up to 512 KiB per connection
    /// and direction, every byte copied at both ends, whole frames of 4 KiB
    /// (mlx/distributed/jaccl/lib/jaccl/rdma.h and mesh_impl.h at 846d176).
    #[must_use]
    pub fn jaccl() -> Costs {
        Costs {
            granted: false,
            eager_bytes: 0,
            staged: true,
            piece_bytes: 512 << 10,
            credits: 2,
            confirmations: 0.0,
            header_bytes: 0,
            frame_bytes: 4096,
            ..Costs::rdma()
        }
    }

    /// Parses TOML with the fields of this structure.
    ///
    /// # Errors
    /// The message of the TOML parser, on one line.
    pub fn from_toml(text: &str) -> Result<Costs, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim().replace('\n', " "))
    }

    /// Returns the protocol of a message of `bytes` bytes.
    pub(super) fn protocol(&self, bytes: u64) -> Protocol {
        let eager = bytes <= self.eager_bytes;
        let (piece_bytes, credits) = match eager {
            true => (self.fragment_bytes, self.fragment_credits),
            false => (self.piece_bytes, self.credits),
        };
        let pieces = bytes.div_ceil(piece_bytes.max(1)).clamp(1, u64::from(self.most_pieces.max(1))) as u32;
        let granted = self.granted && !eager;
        Protocol { eager, granted, copied: eager || self.staged, pieces, credits: credits.max(1) }
    }

    /// Returns the largest number of credits that a message needs to know of; `None` where none are counted.
    pub(super) fn most_credits(&self) -> Option<u32> {
        [self.credits, self.fragment_credits].into_iter().filter(|credits| *credits != u32::MAX).max()
    }

    /// Returns the bytes of a piece on the wire.
    pub(super) fn on_the_wire(&self, bytes: u64) -> u64 {
        let with_header = bytes + self.header_bytes;
        match self.frame_bytes {
            0 => with_header,
            frame => with_header.max(1).next_multiple_of(frame),
        }
    }

    /// Returns the seconds that a processor takes to move a piece, beside the cost of beginning one.
    pub(super) fn moving(&self, bytes: u64, gbs: f64, copied: bool) -> f64 {
        let copying = if copied { at_rate(bytes, self.copy_gbs) } else { 0.0 };
        self.piece_us * 1e-6 + at_rate(bytes, gbs) + copying
    }
}

impl FromStr for Costs {
    type Err = UnknownName;

    /// Parses `ideal`, `rdma`, `rdma-held` or `jaccl`.
    fn from_str(text: &str) -> Result<Costs, UnknownName> {
        match text {
            "ideal" => Ok(Costs::default()),
            "rdma" => Ok(Costs::rdma()),
            "rdma-held" => Ok(Costs::rdma_held()),
            "jaccl" => Ok(Costs::jaccl()),
            _ => Err(UnknownName::new("costs", text, ["ideal", "rdma", "rdma-held", "jaccl"])),
        }
    }
}

/// Returns the seconds that `bytes` bytes take at `gbs` gigabytes per second.
pub(super) fn at_rate(bytes: u64, gbs: f64) -> f64 {
    bytes as f64 / (gbs * 1e9)
}

/// The protocol of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    /// Whether it is sent without a grant, in fragments, and the send is complete once the data is copied.
    pub(super) eager: bool,
    /// Whether it is sent after the receiver's grant.
    pub(super) granted: bool,
    /// Whether it is copied at both ends.
    pub(super) copied: bool,
    /// Number of pieces or fragments.
    pub(super) pieces: u32,
    /// Pieces or fragments of its stream that may be in flight, at least one.
    pub(super) credits: u32,
}
