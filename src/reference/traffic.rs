//! Random traffic, checked against MPI's matching rules.
//!
//! All ranks derive the whole traffic from a seed. All receives of a context use the same wildcards, so that
//! every receive finds a message; the unit tests of the matching mix wildcards.

use super::{
    Random,
    parcel::{Parcel, recv, send},
};
use std::time::Duration;
use tbccl::{Delivery, Error, P2p};

/// Failure of the traffic of one rank.
#[derive(Debug)]
pub enum TrafficError {
    /// The first error of a message. All other messages have ended as well.
    Failed(Error),
    /// A violation of the rules: a message that is lost, late, damaged, or in the wrong place.
    Wrong(String),
}

impl From<Error> for TrafficError {
    fn from(error: Error) -> TrafficError {
        TrafficError::Failed(error)
    }
}

/// The traffic of a set of ranks, which all of them describe with equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of the traffic among those that may overlap; each has contexts of its own.
    pub round: u32,
    /// Messages of all ranks.
    pub messages: u32,
    /// Time that a message may take after all messages of this rank have been posted.
    pub limit: Duration,
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

impl Traffic {
    /// Sends and receives the messages of this rank, in an order derived from the seed.
    ///
    /// # Errors
    /// [`TrafficError`]; after an error of a message, all messages of this rank have ended.
    pub fn run(&self, p2p: &P2p) -> Result<(), TrafficError> {
        let me = p2p.rank().0;
        let all = messages(p2p.size(), self.messages, &mut Random(self.seed));
        let (sent, received, first_error) = self.post(p2p, &all);
        let (mut arrived, mut failed) = (Vec::new(), first_error);
        for (expected, parcel) in received {
            match parcel.open_within(self.limit) {
                Some(Ok((delivery, bytes))) => arrived.push(opened(expected, delivery, &bytes)?),
                Some(Err(error)) => failed = failed.or(Some(error)),
                None => return Err(late(&format!("a receive of {expected:?}"), self.limit)),
            }
        }
        for parcel in sent {
            match parcel.open_within(self.limit) {
                Some(Ok(_)) => {}
                Some(Err(error)) => failed = failed.or(Some(error)),
                None => return Err(late("a send", self.limit)),
            }
        }
        match failed {
            Some(error) => Err(error.into()),
            None => check_order(me, &all, &arrived),
        }
    }

    /// Posts the sends and receives of this rank, until one is refused.
    fn post(&self, p2p: &P2p, all: &[Message]) -> (Vec<Parcel>, Vec<(Message, Parcel)>, Option<Error>) {
        let me = p2p.rank().0;
        let mut random = Random(self.seed ^ u64::from(me) << 32 ^ 0x5eed);
        let mut outgoing: Vec<Message> = all.iter().copied().filter(|message| message.from == me).collect();
        let mut incoming: Vec<Message> = all.iter().copied().filter(|message| message.to == me).collect();
        random.shuffle(&mut incoming);
        outgoing.reverse();
        let (mut sent, mut received): (Vec<Parcel>, Vec<(Message, Parcel)>) = (Vec::new(), Vec::new());
        while !outgoing.is_empty() || !incoming.is_empty() {
            let sends = random.below((outgoing.len() + incoming.len()) as u64) < outgoing.len() as u64;
            let posted = if let Some(message) = if sends { outgoing.pop() } else { None } {
                let Message { to, context, tag, .. } = message;
                send(p2p, to, 4 * self.round + context, tag, message.bytes()).map(|parcel| sent.push(parcel))
            } else if let Some(message) = incoming.pop() {
                let (any_rank, any_tag) = is_open(message.context);
                let from = (!any_rank).then_some(message.from);
                let tag = (!any_tag).then_some(message.tag);
                let context = 4 * self.round + message.context;
                let posted = recv(p2p, from, context, tag, LENGTHS[LENGTHS.len() - 1]);
                posted.map(|parcel| received.push((message, parcel)))
            } else {
                Ok(())
            };
            if let Err(error) = posted {
                return (sent, received, Some(error));
            }
            if random.below(4) == 0 {
                let _ = sent.last().map(|parcel| parcel.request.test());
            }
        }
        (sent, received, None)
    }
}

fn wrong(what: impl Into<String>) -> TrafficError {
    TrafficError::Wrong(what.into())
}

fn late(what: &str, limit: Duration) -> TrafficError {
    wrong(format!("{what} is not done after {limit:?}"))
}

/// Checks the content of a message that a receive got.
fn opened(expected: Message, delivery: Delivery, bytes: &[u8]) -> Result<Got, TrafficError> {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (from, number) = (word(0), word(4));
    let (any_rank, any_tag) = is_open(expected.context);
    let is_match = from == delivery.from.0
        && (any_rank || expected.from == from)
        && (any_tag || expected.tag == delivery.tag);
    let is_intact = bytes[8..delivery.bytes].iter().all(|byte| *byte == number as u8 ^ from as u8);
    if is_match && is_intact {
        return Ok(Got { expected, delivery, number });
    }
    Err(wrong(format!(
        "the receive for {expected:?} got message {number} of rank {from}, intact: {is_intact}, {delivery:?}"
    )))
}

/// Checks that every message arrived once and unchanged, and overtook no earlier message of its sender and
/// context that matches the same receives.
fn check_order(me: u32, all: &[Message], arrived: &[Got]) -> Result<(), TrafficError> {
    for message in all.iter().filter(|message| message.to == me) {
        let mut of_it = arrived.iter().filter(|got| {
            got.expected.context == message.context
                && got.delivery.from.0 == message.from
                && got.number == message.number
        });
        let Some(only) = of_it.next() else { return Err(wrong(format!("{message:?} is lost"))) };
        if of_it.next().is_some() {
            return Err(wrong(format!("{message:?} came twice")));
        }
        if (only.delivery.tag, only.delivery.bytes) != (message.tag, message.len) {
            return Err(wrong(format!("{message:?} came as {:?}", only.delivery)));
        }
    }
    for (at, later) in arrived.iter().enumerate() {
        let overtakes = |earlier: &&Got| overtakes(later, earlier);
        if let Some(earlier) = arrived[..at].iter().find(overtakes) {
            return Err(wrong(format!("{:?} overtook {:?}", earlier.expected, later.expected)));
        }
    }
    Ok(())
}

/// Whether the message of a later receive should have matched the earlier one, which got a later message.
fn overtakes(later: &Got, earlier: &Got) -> bool {
    let is_same_stream =
        earlier.expected.context == later.expected.context && earlier.delivery.from == later.delivery.from;
    let (any_rank, any_tag) = is_open(earlier.expected.context);
    let is_match = (any_rank || earlier.expected.from == later.delivery.from.0)
        && (any_tag || earlier.expected.tag == later.delivery.tag);
    is_same_stream && is_match && later.number < earlier.number
}
