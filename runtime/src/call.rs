//! Call records: a rank's call, as its peers can see it.
//!
//! Ranks in different calls must find out instead of waiting for each other. Every message carries the digest
//! of its call, and every rank publishes its calls on its board, so that an error can show both sides.

use collectives::{Codec, Collective, DType, ReduceOp};
use std::fmt;
use topology::Rank;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A collective.
    Collective(Collective),
    /// A message to one rank.
    Send,
    /// A message from one rank.
    Recv,
}

/// The words of a record.
pub(crate) type Words = [u64; CallRecord::WORDS];

/// A call, by value: the properties that must be equal on all ranks that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// The number of the call among the communicator's collectives, or among the pair's messages; from 1.
    pub seq: u64,
    /// The kind.
    pub kind: CallKind,
    /// The element type.
    pub dtype: DType,
    /// The reduction, where there is one.
    pub op: Option<ReduceOp>,
    /// Elements per block.
    pub count: u64,
    /// The root, or the other rank of a message; [`CallRecord::ANY`] for a receive from any rank.
    pub root: Rank,
    /// The plan: hash of its schedule's name and shape, and of the lengths of blocks where they differ.
    pub plan: u64,
    /// Whether blocks have unequal lengths; `count` is then their mean.
    pub uneven: bool,
    /// Codec of packed messages, if they are packed.
    pub codec: Option<Codec>,
}

impl CallRecord {
    /// Placeholder for a rank: any rank.
    pub const ANY: Rank = Rank(u32::MAX);

    /// Returns a placeholder where no call is known.
    pub(crate) fn nothing(seq: u64) -> CallRecord {
        CallRecord {
            seq,
            kind: CallKind::Collective(Collective::Barrier),
            dtype: DType::U8,
            op: None,
            count: 0,
            root: Rank(0),
            plan: 0,
            uneven: false,
            codec: None,
        }
    }

    /// Returns the name of the call without its arguments, such as `all_reduce` or `send to rank 1`.
    pub(crate) fn name(&self) -> String {
        match self.kind {
            CallKind::Collective(c) if self.uneven => format!("{c}_v"),
            CallKind::Collective(c) => c.to_string(),
            CallKind::Recv if self.root == CallRecord::ANY => "recv from any rank".to_owned(),
            CallKind::Send => format!("send to rank {}", self.root),
            CallKind::Recv => format!("recv from rank {}", self.root),
        }
    }

    /// Number of the words of a record.
    pub(crate) const WORDS: usize = 5;

    /// Returns a digest of the properties that must be equal on all ranks.
    ///
    /// The two ends of a message have the same digest. Digests are even, so that a link can add a bit of its
    /// own.
    #[must_use]
    #[inline]
    pub fn digest(&self) -> u64 {
        self.unnumbered_digest().of_call(self.seq)
    }

    /// Returns the digest of all properties but the number.
    #[inline]
    pub(crate) fn unnumbered_digest(&self) -> UnnumberedDigest {
        let [_, mut packed, count, mut root, plan] = self.encode();
        if matches!(self.kind, CallKind::Send | CallKind::Recv) {
            packed = (packed & !0xff) | u64::from(KIND_MESSAGE);
            root = 0;
        }
        UnnumberedDigest([packed, count, root, plan].into_iter().fold(0x9e37_79b9_7f4a_7c15, mix))
    }

    /// Number of kinds of calls; [`CallRecord::kind_code`] is below it.
    pub(crate) const KINDS: usize = Collective::ALL.len() + 2;

    /// Returns the number of the kind of a call, from the second word of its record: that of a collective, or
    /// a higher one for sends and receives.
    #[inline]
    pub(crate) fn kind_code(word: u64) -> usize {
        let code = usize::from(word as u8);
        let message = usize::from(KIND_MESSAGE);
        if code < message { code } else { Collective::ALL.len() + code - message }.min(CallRecord::KINDS - 1)
    }

    /// Returns the name of a kind of calls by its number.
    pub(crate) fn kind_name(code: usize) -> &'static str {
        let collective = Collective::ALL.into_iter().find(|collective| *collective as usize == code);
        let message = if code == Collective::ALL.len() { "send" } else { "recv" };
        collective.map_or(message, Collective::name)
    }

    /// Returns the record in words, as boards and recorders keep it. The first one is the number of the call.
    #[inline]
    pub(crate) fn encode(&self) -> Words {
        let kind = match self.kind {
            CallKind::Collective(c) => c as u8,
            CallKind::Send => KIND_MESSAGE,
            CallKind::Recv => KIND_MESSAGE + 1,
        };
        let op = self.op.map_or(0xff, |op| op as u8);
        let packed = u64::from(kind) | u64::from(self.dtype as u8) << 8 | u64::from(op) << 16;
        let packed = packed | u64::from(self.uneven) << 24;
        let packed = packed | self.codec.map_or(0, |codec| u64::from(codec.code())) << 32;
        [self.seq, packed, self.count, u64::from(self.root.0), self.plan]
    }

    /// Decodes a record; `None` if the words hold none.
    pub(crate) fn decode(words: Words) -> Option<CallRecord> {
        let byte = |shift: u32| (words[1] >> shift) as u8;
        let kind = match byte(0) {
            KIND_MESSAGE => CallKind::Send,
            k if k == KIND_MESSAGE + 1 => CallKind::Recv,
            k => CallKind::Collective(Collective::ALL.into_iter().find(|c| *c as u8 == k)?),
        };
        Some(CallRecord {
            seq: words[0],
            kind,
            dtype: DType::ALL.into_iter().find(|t| *t as u8 == byte(8))?,
            op: ReduceOp::ALL.into_iter().find(|op| *op as u8 == byte(16)),
            count: words[2],
            root: Rank(words[3] as u32),
            plan: words[4],
            uneven: byte(24) != 0,
            codec: Codec::ALL.into_iter().find(|codec| codec.code() == byte(32)),
        })
    }
}

const KIND_MESSAGE: u8 = 0x80;

/// The digest of a call without its number: that of every call with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnnumberedDigest(u64);

impl UnnumberedDigest {
    /// Returns the digest of the call with this number.
    #[inline]
    pub(crate) fn of_call(self, seq: u64) -> u64 {
        mix(self.0, seq) & !1
    }
}

/// Adds a word to a digest: multiplies and rotates, so any single difference changes the result.
#[inline]
fn mix(digest: u64, word: u64) -> u64 {
    (digest ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CallKind::Collective(Collective::Barrier) => return f.write_str("barrier"),
            CallKind::Collective(c) if self.uneven => {
                // Boards do not keep the lengths of blocks; this part of their hash tells them apart.
                let lengths = self.plan as u16;
                write!(
                    f,
                    "{c}_v of {} {} per block on average, lengths #{lengths:04x}",
                    self.count, self.dtype
                )?;
            }
            CallKind::Collective(c) => write!(f, "{c} of {} {}", self.count, self.dtype)?,
            CallKind::Recv if self.root == CallRecord::ANY => {
                write!(f, "recv of {} {} from any rank", self.count, self.dtype)?;
            }
            CallKind::Send => write!(f, "send of {} {} to rank {}", self.count, self.dtype, self.root)?,
            CallKind::Recv => write!(f, "recv of {} {} from rank {}", self.count, self.dtype, self.root)?,
        }
        if let Some(op) = self.op {
            write!(f, ", op {op}")?;
        }
        if let Some(codec) = self.codec {
            write!(f, ", packed as {codec}")?;
        }
        if matches!(self.kind, CallKind::Collective(c) if c.has_root()) {
            write!(f, ", root {}", self.root)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> CallRecord {
        CallRecord {
            seq: 7,
            kind: CallKind::Collective(Collective::AllReduce),
            dtype: DType::Bf16,
            op: Some(ReduceOp::Max),
            count: 1 << 33,
            root: Rank(0),
            plan: 99,
            uneven: false,
            codec: None,
        }
    }

    #[test]
    fn every_part_changes_the_digest_and_survives_the_board() {
        let base = record();
        assert_eq!(CallRecord::decode(base.encode()), Some(base));
        let variants = [
            CallRecord { seq: 8, ..base },
            CallRecord { kind: CallKind::Collective(Collective::Broadcast), ..base },
            CallRecord { dtype: DType::F16, ..base },
            CallRecord { op: None, ..base },
            CallRecord { count: 5, ..base },
            CallRecord { root: Rank(1), ..base },
            CallRecord { plan: 98, ..base },
            CallRecord { uneven: true, ..base },
            CallRecord { codec: Some(Codec::Bf16), ..base },
        ];
        for other in variants {
            assert_ne!(other.digest(), base.digest(), "{other:?}");
            assert_eq!(CallRecord::decode(other.encode()), Some(other));
        }
    }

    #[test]
    fn every_kind_has_a_number_and_a_name() {
        let collectives = Collective::ALL.map(CallKind::Collective);
        let kinds = collectives.into_iter().chain([CallKind::Send, CallKind::Recv]);
        let mut found = std::collections::BTreeSet::new();
        for kind in kinds {
            let record = CallRecord { kind, ..record() };
            let code = CallRecord::kind_code(record.encode()[1]);
            assert!(record.name().starts_with(CallRecord::kind_name(code)), "{}", record.name());
            assert!(code < CallRecord::KINDS && found.insert(code), "{code}");
        }
    }

    #[test]
    fn both_ends_of_a_message_have_the_same_digest() {
        let send = CallRecord { kind: CallKind::Send, root: Rank(1), op: None, ..record() };
        let recv = CallRecord { kind: CallKind::Recv, root: Rank(0), ..send };
        assert_eq!(send.digest(), recv.digest());
        assert_ne!(send.digest(), CallRecord { count: 1, ..recv }.digest());
    }
}
