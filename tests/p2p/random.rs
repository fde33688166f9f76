//! Random traffic, checked against MPI's matching rules.
//!
//! All ranks derive the whole traffic from a seed. All receives of a context use the same wildcards, so that
//! every receive finds a message; the unit tests of the matching mix wildcards.

use crate::parcel::{Parcel, recv, send};
use tbccl::{Delivery, P2p};

/// A pseudo-random number generator with a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % most
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// A message of the traffic.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: u32,
    to: u32,
    context: u32,
    tag: i32,
    len: usize,
    /// Index among the messages of its sender.
    number: u32,
}

const LENGTHS: [usize; 9] = [8, 12, 36, 37, 300, 5000, 16_384, 16_385, 60_000];

impl Message {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.number as u8 ^ self.from as u8; self.len];
        bytes[..4].copy_from_slice(&self.from.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }
}

/// Whether receives of a context leave the sender, and the tag, open.
fn is_open(context: u32) -> (bool, bool) {
    (context & 1 != 0, context & 2 != 0)
}

fn messages(ranks: u32, count: u32, random: &mut Random) -> Vec<Message> {
    let mut number = vec![0; ranks as usize];
    (0..count)
        .map(|_| {
            let from = random.below(ranks.into()) as u32;
            number[from as usize] += 1;
            Message {
                from,
                to: random.below(ranks.into()) as u32,
                context: random.below(4) as u32,
                tag: random.below(3) as i32 - 1,
                // Short lengths are more frequent.
                len: LENGTHS[(random.below(9) * random.below(9) / 8) as usize],
                number: number[from as usize],
            }
        })
        .collect()
}

/// A receive with its request and its result.
struct Got {
    /// The message that it was posted for; any message with the same match may arrive.
    expected: Message,
    delivery: Delivery,
    number: u32,
}

/// Sends and receives `count` messages among all ranks, in an order derived from the seed. Rounds that may
/// overlap have different numbers, and therefore different contexts.
pub(crate) fn traffic(p2p: &P2p, seed: u64, round: u32, count: u32) {
    let me = p2p.rank().0;
    let all = messages(p2p.size(), count, &mut Random(seed));
    let mut random = Random(seed ^ u64::from(me) << 32 ^ 0x5eed);
    let mut outgoing: Vec<Message> = all.iter().copied().filter(|message| message.from == me).collect();
    let mut incoming: Vec<Message> = all.iter().copied().filter(|message| message.to == me).collect();
    random.shuffle(&mut incoming);
    outgoing.reverse();
    let (mut sent, mut received): (Vec<Parcel>, Vec<(Message, Parcel)>) = (Vec::new(), Vec::new());
    while !outgoing.is_empty() || !incoming.is_empty() {
        let sends = random.below((outgoing.len() + incoming.len()) as u64) < outgoing.len() as u64;
        if let Some(message) = if sends { outgoing.pop() } else { None } {
            let Message { to, context, tag, .. } = message;
            sent.push(send(p2p, to, 4 * round + context, tag, message.bytes()).expect("taken"));
        } else if let Some(message) = incoming.pop() {
            let (any_rank, any_tag) = is_open(message.context);
            let from = (!any_rank).then_some(message.from);
            let tag = (!any_tag).then_some(message.tag);
            let longest = LENGTHS[LENGTHS.len() - 1];
            received
                .push((message, recv(p2p, from, 4 * round + message.context, tag, longest).expect("taken")));
        }
        if random.below(4) == 0 {
            let _ = sent.last().map(|parcel| parcel.request.test());
        }
    }
    let received_messages: Vec<Got> =
        received.into_iter().map(|(expected, parcel)| open(expected, parcel)).collect();
    sent.into_iter().for_each(|parcel| drop(parcel.open().expect("sent")));
    check_order(me, &all, &received_messages);
}

fn open(expected: Message, parcel: Parcel) -> Got {
    let (delivery, bytes) = parcel.open().expect("received");
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (from, number) = (word(0), word(4));
    assert_eq!(from, delivery.from.0);
    let (any_rank, any_tag) = is_open(expected.context);
    assert!((any_rank || expected.from == from) && (any_tag || expected.tag == delivery.tag), "{expected:?}");
    assert!(bytes[8..delivery.bytes].iter().all(|byte| *byte == number as u8 ^ from as u8), "{expected:?}");
    Got { expected, delivery, number }
}

/// Asserts that every message arrived once and unchanged, and overtook no earlier message of its sender and
/// context that matches the same receives.
fn check_order(me: u32, all: &[Message], received_messages: &[Got]) {
    for message in all.iter().filter(|message| message.to == me) {
        let mut of_it = received_messages.iter().filter(|received| {
            received.expected.context == message.context
                && received.delivery.from.0 == message.from
                && received.number == message.number
        });
        let only = of_it.next().unwrap_or_else(|| panic!("{message:?} is lost"));
        assert!(of_it.next().is_none(), "{message:?} came twice");
        assert_eq!((only.delivery.tag, only.delivery.bytes), (message.tag, message.len), "{message:?}");
    }
    for (at, later) in received_messages.iter().enumerate() {
        for earlier in &received_messages[..at] {
            let same = earlier.expected.context == later.expected.context
                && earlier.delivery.from == later.delivery.from;
            let (any_rank, any_tag) = is_open(earlier.expected.context);
            let could = (any_rank || earlier.expected.from == later.delivery.from.0)
                && (any_tag || earlier.expected.tag == later.delivery.tag);
            assert!(!(same && could && later.number < earlier.number), "overtaken: {:?}", later.expected);
        }
    }
}
