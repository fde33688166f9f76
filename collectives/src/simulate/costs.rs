//! What work costs a rank, and how a transport moves a message: the parameters of a simulation beside the cluster's.
//!
//! In the terms of LogGP and its descendants: `send_us` and `recv_us` are o, the gap per byte G is the links', the
//! per-byte overheads O are `send_gbs` and `recv_gbs`, and L is the links' latency.
//!
//! A. Alexandrov, M. Ionescu, K. Schauser, C. Scheiman: "LogGP", Journal of Parallel and Distributed Computing 44(1), 1997.
//! T. Hoefler, T. Schneider, A. Lumsdaine: "LogGOPSim", LSAP 2010.

use crate::UnknownName;
use serde::Deserialize;
use std::str::FromStr;

/// Costs, in microseconds, gigabytes per second (1e9) and bytes. The default costs nothing: messages are latency and
/// bandwidth alone.
///
/// Infinite rates cost nothing. Read from a file, what is left out has its default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Entering a call, once per rank.
    pub call_us: f64,
    /// A message, at its sender.
    pub send_us: f64,
    /// A message, at its receiver.
    pub recv_us: f64,
    /// A piece of a message, at either end.
    pub piece_us: f64,
    /// A local step.
    pub step_us: f64,
    /// How fast a rank copies.
    pub copy_gbs: f64,
    /// How fast a rank combines, in bytes of the result.
    pub reduce_gbs: f64,
    /// How fast a rank packs and unpacks, in bytes of the elements.
    pub pack_gbs: f64,
    /// How fast a processor can send, where it must touch what it sends.
    pub send_gbs: f64,
    /// How fast a processor can receive, likewise.
    pub recv_gbs: f64,
    /// Messages up to this size are copied into a buffer, sent unasked, and copied out of one.
    pub eager_bytes: u64,
    /// Smallest operation, in bytes, whose messages all wait for a grant.
    pub bulk_bytes: u64,
    /// Largest message that is sent without a grant. Larger ones wait until the receiver has granted memory,
    /// which takes the latency of the way back.
    pub granted: bool,
    /// Cost of a grant beside the latency.
    pub grant_us: f64,
    /// Receives of one peer and lane that are granted ahead of time.
    pub ahead: u32,
    /// Larger messages are copied at both ends, too.
    pub staged: bool,
    /// Messages are cut into pieces of this size. A piece is handed on while the next one is under way.
    pub piece_bytes: u64,
    /// Most pieces of a message: the resolution of the simulation. Its time grows in proportion.
    pub most_pieces: u32,
    /// Pieces of one peer and lane that may be on their way, or lie at the receiver, at a time.
    pub credits: u32,
    /// Grants and credits queue behind the pieces that were posted to the same links before them, as on
    /// devices that execute posted work in order, whichever queue it was posted to.
    pub words_wait: bool,
    /// A larger send is complete this many latencies of the way back after its last byte has arrived.
    pub confirmations: f64,
    /// Bytes that travel with every piece.
    pub header_bytes: u64,
    /// A piece takes whole frames of this size on the wire; 0 for none.
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
    /// Our transport over RDMA, on a machine of today: an estimate, to be replaced by measured numbers. Messages of more
    /// than a slot go in pieces of 128 KiB, eight at a time, straight from memory into memory.
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

    /// The same machine under MLX's JACCL: two buffers of up to 512 KiB per connection and direction, every byte copied at
    /// both ends, whole frames of 4 KiB (mlx/distributed/jaccl/lib/jaccl/rdma.h and mesh_impl.h at 846d176).
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

    /// Reads a file: TOML with fields of this name.
    ///
    /// # Errors
    /// What is wrong, in the words of the reader.
    pub fn from_toml(text: &str) -> Result<Costs, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim().replace('\n', " "))
    }

    /// The protocol of a message of a size, in an operation of a size.
    pub(super) fn way(&self, bytes: u64, operation_bytes: u64) -> Way {
        let eager = bytes <= self.eager_bytes && (operation_bytes < self.bulk_bytes || bytes == 0);
        let pieces = if eager { 1 } else { self.pieces(bytes) };
        Way { eager, granted: self.granted && !eager, copied: eager || self.staged, pieces }
    }

    fn pieces(&self, bytes: u64) -> u32 {
        let wanted = bytes.div_ceil(self.piece_bytes.max(1));
        wanted.clamp(1, u64::from(self.most_pieces.max(1))) as u32
    }

    /// Bytes of a piece on the wire.
    pub(super) fn on_the_wire(&self, bytes: u64) -> u64 {
        let with_header = bytes + self.header_bytes;
        match self.frame_bytes {
            0 => with_header,
            frame => with_header.max(1).next_multiple_of(frame),
        }
    }

    /// Seconds that a processor takes to move a piece, beside what it costs to begin one.
    pub(super) fn moving(&self, bytes: u64, gbs: f64, copied: bool) -> f64 {
        let copying = if copied { at_rate(bytes, self.copy_gbs) } else { 0.0 };
        self.piece_us * 1e-6 + at_rate(bytes, gbs) + copying
    }
}

impl FromStr for Costs {
    type Err = UnknownName;

    /// `ideal`, `rdma` or `jaccl`.
    fn from_str(text: &str) -> Result<Costs, UnknownName> {
        match text {
            "ideal" => Ok(Costs::default()),
            "rdma" => Ok(Costs::rdma()),
            "jaccl" => Ok(Costs::jaccl()),
            _ => Err(UnknownName::new("costs", text, ["ideal", "rdma", "jaccl"])),
        }
    }
}

/// Seconds that a number of bytes take at a number of gigabytes per second.
pub(super) fn at_rate(bytes: u64, gbs: f64) -> f64 {
    bytes as f64 / (gbs * 1e9)
}

/// How one message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// Sent without a grant; the send is complete once the data is copied.
    pub(super) eager: bool,
    /// Sent after the receiver's grant.
    pub(super) granted: bool,
    /// Copied at both ends.
    pub(super) copied: bool,
    /// Into how many pieces it is cut.
    pub(super) pieces: u32,
}
