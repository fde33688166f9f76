//! Frames of the control lane, all of one length.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | kind |
//! | 1 | length of a short message |
//! | 2..4 | returned credit, in units |
//! | 4..8 | context |
//! | 8..12 | tag |
//! | 12..48 | a short message |
//! | 16..24 | in other kinds: the number of an announced message |
//! | 24..32 | in other kinds: a length |
//!
//! All numbers are little-endian. A frame is as long as the payload that a ring carries in the cache line of
//! its flag, so a short message costs one line transfer. Values from the peer are checked here as far as one
//! frame allows.

/// Length of a frame.
pub(super) const FRAME_BYTES: usize = 48;
/// Longest message that travels inside its frame.
pub(super) const SHORT_BYTES: usize = FRAME_BYTES - SHORT_AT;
/// Longest message that is sent without a rendezvous, whatever the link.
pub(super) const EAGER_BYTES: usize = 256 * 1024;

const SHORT_AT: usize = 12;

/// A control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A message inside this frame.
    Short { context: u32, tag: i32, len: usize },
    /// A message that follows on the control lane.
    Eager { context: u32, tag: i32, len: usize },
    /// Announces a message that waits for a clear-to-send. Numbers of one sender are consecutive from 0.
    RequestToSend { context: u32, tag: i32, number: u64, len: usize },
    /// Asks for an announced message: it follows on the data lane, behind those asked for before.
    ClearToSend { number: u64 },
    /// Rejects an announced message: its receive has no room for it.
    Reject { number: u64 },
    /// Returns credit only.
    Credit,
}

/// The bytes of a frame.
pub(super) type FrameBytes = [u8; FRAME_BYTES];

impl Frame {
    /// Encodes the frame with credit to return.
    pub(super) fn encode(&self, credit: u16) -> FrameBytes {
        let mut bytes = [0; FRAME_BYTES];
        let (kind, short) = match self {
            Frame::Short { len, .. } => (1, *len as u8),
            Frame::Eager { .. } => (2, 0),
            Frame::RequestToSend { .. } => (3, 0),
            Frame::ClearToSend { .. } => (4, 0),
            Frame::Reject { .. } => (5, 0),
            Frame::Credit => (6, 0),
        };
        bytes[..2].copy_from_slice(&[kind, short]);
        bytes[2..4].copy_from_slice(&credit.to_le_bytes());
        if let Frame::Short { context, tag, .. }
        | Frame::Eager { context, tag, .. }
        | Frame::RequestToSend { context, tag, .. } = self
        {
            bytes[4..8].copy_from_slice(&context.to_le_bytes());
            bytes[8..12].copy_from_slice(&tag.to_le_bytes());
        }
        if let Frame::RequestToSend { number, .. }
        | Frame::ClearToSend { number }
        | Frame::Reject { number } = self
        {
            bytes[16..24].copy_from_slice(&number.to_le_bytes());
        }
        if let Frame::Eager { len, .. } | Frame::RequestToSend { len, .. } = self {
            bytes[24..32].copy_from_slice(&(*len as u64).to_le_bytes());
        }
        bytes
    }

    /// Decodes a frame and the credit that it returns, or says what is wrong with it.
    pub(super) fn decode(bytes: &FrameBytes) -> Result<(Frame, u16), &'static str> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (context, tag, number) = (word(4), word(8) as i32, long(16));
        let len = || usize::try_from(long(24)).ok().filter(|len| *len <= isize::MAX as usize);
        let frame = match bytes[0] {
            1 if usize::from(bytes[1]) <= SHORT_BYTES => Frame::Short { context, tag, len: bytes[1].into() },
            2 => match len() {
                Some(len) if (SHORT_BYTES + 1..=EAGER_BYTES).contains(&len) => {
                    Frame::Eager { context, tag, len }
                }
                _ => return Err("an eager message longer than eager messages may be"),
            },
            3 => match len() {
                Some(len) => Frame::RequestToSend { context, tag, number, len },
                None => return Err("a message longer than memory can be"),
            },
            4 => Frame::ClearToSend { number },
            5 => Frame::Reject { number },
            6 => Frame::Credit,
            _ => return Err("a control frame of unknown kind"),
        };
        Ok((frame, u16::from_le_bytes([bytes[2], bytes[3]])))
    }

    /// Returns the short message inside a frame.
    pub(super) fn short(bytes: &FrameBytes, len: usize) -> &[u8] {
        &bytes[SHORT_AT..SHORT_AT + len]
    }

    /// Returns the place of the short message inside a frame.
    pub(super) fn short_mut(bytes: &mut FrameBytes, len: usize) -> &mut [u8] {
        &mut bytes[SHORT_AT..SHORT_AT + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_survive_the_wire() {
        let (context, tag, number) = (u32::MAX, i32::MIN, u64::MAX - 1);
        for frame in [
            Frame::Short { context, tag, len: 0 },
            Frame::Short { context: 0, tag: -1, len: SHORT_BYTES },
            Frame::Eager { context, tag, len: SHORT_BYTES + 1 },
            Frame::Eager { context, tag: 7, len: EAGER_BYTES },
            Frame::RequestToSend { context, tag, number, len: isize::MAX as usize },
            Frame::RequestToSend { context, tag, number: 0, len: 0 },
            Frame::ClearToSend { number },
            Frame::Reject { number },
            Frame::Credit,
        ] {
            assert_eq!(Frame::decode(&frame.encode(0xfedc)), Ok((frame, 0xfedc)));
        }
    }

    #[test]
    fn what_no_peer_says_is_refused() {
        let of = |kind: u8, short: u8, len: u64| {
            let mut bytes = [0; FRAME_BYTES];
            bytes[..2].copy_from_slice(&[kind, short]);
            bytes[24..32].copy_from_slice(&len.to_le_bytes());
            Frame::decode(&bytes)
        };
        assert!(of(0, 0, 0).is_err() && of(7, 0, 0).is_err());
        assert!(of(1, SHORT_BYTES as u8 + 1, 0).is_err());
        assert!(of(2, 0, SHORT_BYTES as u64).is_err() && of(2, 0, EAGER_BYTES as u64 + 1).is_err());
        assert!(of(3, 0, 1 << 63).is_err() && of(3, 0, u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_are_taken_for_more_than_they_can_be(
            bytes in prop::array::uniform32(any::<u8>()),
            kind in 0u8..8,
        ) {
            let mut frame = [0; FRAME_BYTES];
            frame[..32].copy_from_slice(&bytes);
            frame[0] = kind;
            match Frame::decode(&frame) {
                Ok((Frame::Short { len, .. }, _)) => prop_assert_eq!(Frame::short(&frame, len).len(), len),
                Ok((Frame::Eager { len, .. }, _)) => prop_assert!(len <= EAGER_BYTES),
                Ok((Frame::RequestToSend { len, .. }, _)) => prop_assert!(isize::try_from(len).is_ok()),
                _ => {}
            }
        }
    }
}
