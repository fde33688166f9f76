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
    /// Time of a piece of a message, at either end.
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
    /// Largest eager message: it is copied into a buffer, sent without a grant, and copied out of a buffer.
    pub eager_bytes: u64,
    /// Smallest operation, in bytes, whose messages all wait for a grant.
    pub bulk_bytes: u64,
    /// Whether messages above `eager_bytes` wait until the receiver has granted memory, which takes the
    /// latency of the way back.
    pub granted: bool,
    /// Cost of a grant beside the latency.
    pub grant_us: f64,
    /// Number of receives of one peer and lane that are granted ahead of time.
    pub ahead: u32,
    /// Whether messages above `eager_bytes` are copied at both ends, too.
    pub staged: bool,
    /// Size of the pieces that messages are cut into. A piece is forwarded while the next one is in flight.
    pub piece_bytes: u64,
    /// Maximum number of pieces of a message: the resolution of the simulation, whose running time is
    /// proportional to it.
    pub most_pieces: u32,
    /// Credits: pieces of one peer and lane that may be in flight, or wait at the receiver, at a time.
    pub credits: u32,
    /// Whether grants and credits queue behind the pieces that were posted to the same links before them, as
    /// on devices that execute posted work in order, whichever queue it was posted to.
    pub words_wait: bool,
    /// Latencies of the way back after which a send above `eager_bytes` is complete, counted from the arrival
    /// of its last byte.
    pub confirmations: f64,
    /// Bytes that travel with every piece.
    pub header_bytes: u64,
    /// Frame size on the wire, of which a piece takes whole numbers; 0 for none.
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
            bulk_bytes: u64::MAX,
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
    /// Returns the costs of this library's RDMA transport on a current machine: an estimate, to be replaced
    /// by measurements. Messages larger than a slot travel in pieces of 128 KiB, eight at a time, from memory
    /// to memory.
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
            eager_bytes: 4040,
            bulk_bytes: 4096,
            granted: true,
            grant_us: 1.0,
            piece_bytes: 128 << 10,
            credits: 8,
            confirmations: 1.0,
            header_bytes: 64,
            ..Costs::default()
        }
    }

    /// Returns the costs of the same machine under MLX's JACCL: two buffers of up to 512 KiB per connection
    /// and direction, every byte copied at both ends, whole frames of 4 KiB
    /// (mlx/distributed/jaccl/lib/jaccl/rdma.h and mesh_impl.h at 846d176).
    #[must_use]
    pub fn jaccl() -> Costs {
        Costs {
            granted: false,
            eager_bytes: 0,
            bulk_bytes: u64::MAX,
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

    /// Returns the protocol of a message of `bytes` bytes, in an operation of `operation_bytes` bytes.
    pub(super) fn protocol(&self, bytes: u64, operation_bytes: u64) -> Protocol {
        let eager = bytes <= self.eager_bytes && (operation_bytes < self.bulk_bytes || bytes == 0);
        let pieces = if eager { 1 } else { self.pieces(bytes) };
        Protocol { eager, granted: self.granted && !eager, copied: eager || self.staged, pieces }
    }

    fn pieces(&self, bytes: u64) -> u32 {
        let wanted = bytes.div_ceil(self.piece_bytes.max(1));
        wanted.clamp(1, u64::from(self.most_pieces.max(1))) as u32
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

    /// Parses `ideal`, `rdma` or `jaccl`.
    fn from_str(text: &str) -> Result<Costs, UnknownName> {
        match text {
            "ideal" => Ok(Costs::default()),
            "rdma" => Ok(Costs::rdma()),
            "jaccl" => Ok(Costs::jaccl()),
            _ => Err(UnknownName::new("costs", text, ["ideal", "rdma", "jaccl"])),
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
    /// Whether it is sent without a grant, and the send is complete once the data is copied.
    pub(super) eager: bool,
    /// Whether it is sent after the receiver's grant.
    pub(super) granted: bool,
    /// Whether it is copied at both ends.
    pub(super) copied: bool,
    /// Number of pieces.
    pub(super) pieces: u32,
}
