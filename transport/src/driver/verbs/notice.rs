//! Control messages that wait for room.
//!
//! They are sequenced: each arrives once, and in order. A notice about a piece goes by the rail of the piece.

use super::wire::{ANY_RAIL, Header, Kind, Mark, Ready};

/// Maximum bytes of a cause on the wire.
const CAUSE_BYTES: usize = 200;

/// A control message.
#[derive(Clone, Debug)]
pub(super) enum Notice {
    /// A piece has been sent by a rail.
    Sent { mark: Mark, rail: u8 },
    /// A piece that was granted again had arrived before.
    Arrived(Mark),
    /// This end of a rail is dead in a life.
    RailDown { rail: u8, life: u8, cause: String },
    /// The placed queues are dead; the next epoch begins.
    PlacedDown { epoch: u32, cause: String },
    /// The placed queues are new.
    PlacedReady(Ready),
    /// Receives are posted for the bulk messages of a stream.
    Placed { stream: u32, from: u32 },
    /// A bulk message must travel in slots.
    Relay { stream: u32, number: u32 },
    /// The placed queues of a stream are wanted for another one. `announced` is the number of the next bulk
    /// message that the sender of this expects on the stream.
    Revoke { stream: u32, announced: u32 },
    /// Messages of a stream from `until` on wait for the placed queues.
    Revoked { stream: u32, until: u32 },
    /// A stream has ended at this end, with these counters.
    Ended { stream: u32, limit: u32, done: u32 },
}

impl Notice {
    /// The rail that the notice must be sent by while that is up.
    pub(super) fn pinned(&self) -> Option<u8> {
        match self {
            Notice::Sent { rail, .. } => Some(*rail),
            Notice::PlacedReady(ready) if ready.via != ANY_RAIL => Some(ready.via as u8),
            _ => None,
        }
    }

    /// The header, the payload and its length.
    pub(super) fn encode(&self) -> (Header, [u8; CAUSE_BYTES], usize) {
        let mut payload = [0; CAUSE_BYTES];
        let mut put = |bytes: &[u8]| {
            let len = bytes.len().min(CAUSE_BYTES);
            payload[..len].copy_from_slice(&bytes[..len]);
            len
        };
        let (header, len) = match self {
            Notice::Sent { mark, .. } => (Header::new(Kind::Sent), put(bytemuck::bytes_of(mark))),
            Notice::Arrived(mark) => (Header::new(Kind::Arrived), put(bytemuck::bytes_of(mark))),
            Notice::RailDown { rail, life, cause } => {
                let header = Header { value: (*rail).into(), flags: *life, ..Header::new(Kind::RailDown) };
                (header, put(cause.as_bytes()))
            }
            Notice::PlacedDown { epoch, cause } => {
                (Header { value: *epoch, ..Header::new(Kind::PlacedDown) }, put(cause.as_bytes()))
            }
            Notice::PlacedReady(ready) => (Header::new(Kind::PlacedReady), put(bytemuck::bytes_of(ready))),
            Notice::Placed { stream, from } => (about(Kind::Placed, *stream, *from), 0),
            Notice::Relay { stream, number } => (about(Kind::Relay, *stream, *number), 0),
            Notice::Revoke { stream, announced } => (about(Kind::Revoke, *stream, *announced), 0),
            Notice::Revoked { stream, until } => (about(Kind::Revoked, *stream, *until), 0),
            Notice::Ended { stream, limit, done } => {
                (Header { limit: *limit, done: *done, ..about(Kind::Ended, *stream, 0) }, 0)
            }
        };
        (header, payload, len)
    }
}

fn about(kind: Kind, stream: u32, value: u32) -> Header {
    Header { stream, value, ..Header::new(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_say_what_they_are_about() {
        let (header, payload, len) = Notice::RailDown { rail: 3, life: 200, cause: "é".repeat(300) }.encode();
        assert_eq!(
            (header.kind, header.value, header.flags, len),
            (Kind::RailDown as u8, 3, 200, CAUSE_BYTES)
        );
        assert_eq!(payload[..2], "é".as_bytes()[..]);
        let mark = Mark { piece: 7, crc: 8, stream: 1, attempt: 2 };
        let sent = Notice::Sent { mark, rail: 5 };
        let (_, payload, len) = sent.encode();
        assert_eq!((sent.pinned(), bytemuck::pod_read_unaligned::<Mark>(&payload[..len])), (Some(5), mark));
        let (header, _, len) = Notice::Revoked { stream: 1, until: 9 }.encode();
        assert_eq!((header.stream, header.value, len), (1, 9, 0));
    }
}
