//! Random traffic in all directions: the order holds no matter how the ends are polled.

use crate::fixture::*;
use std::{collections::VecDeque, time::Instant};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState,
    memory::{Registered, Slab, Span},
};

/// A message in flight, and its offset in the source.
pub(crate) struct InFlight {
    state: SendState,
    at: usize,
    len: usize,
    registered: bool,
    posted: bool,
    complete: bool,
}

/// Random traffic on one direction of a link.
pub(crate) struct Traffic {
    numbers: Numbers,
    foreign: Vec<u8>,
    registered: Registered,
    protocols: Vec<Protocol>,
    in_flight: VecDeque<InFlight>,
    /// Messages that the receiver expects: offset, length, digest.
    due: VecDeque<(usize, usize, u64)>,
    begun: u64,
    arrived: u64,
    receiving: Option<(RecvState, Vec<u8>)>,
}

impl Traffic {
    const SOURCE: usize = 64 * 1024;

    fn new(seed: u64, slab: &Slab, protocols: Vec<Protocol>) -> Traffic {
        let foreign = noise(Traffic::SOURCE, seed);
        Traffic {
            numbers: Numbers(seed | 1),
            registered: registered(slab, &foreign),
            foreign,
            protocols,
            in_flight: VecDeque::new(),
            due: VecDeque::new(),
            begun: 0,
            arrived: 0,
            receiving: None,
        }
    }

    /// Creates a message of random size and protocol, from registered memory or not.
    fn invent(&mut self) {
        let len = match self.numbers.below(10) {
            0..5 => self.numbers.below(64),
            5..8 => self.numbers.below(PIECE + 200),
            _ => self.numbers.below(6 * PIECE),
        };
        let at = self.numbers.below(Traffic::SOURCE - len);
        let protocol = self.protocols[self.numbers.below(self.protocols.len())];
        let registered = self.numbers.below(4) != 0;
        let state = SendState::new(self.begun, protocol);
        self.in_flight.push_back(InFlight { state, at, len, registered, posted: false, complete: false });
        self.due.push_back((at, len, self.begun));
        self.begun += 1;
    }

    /// Polls all messages in flight, and starts another one if the last one is posted.
    fn send(&mut self, link: &mut dyn Link) {
        if self.in_flight.iter().all(|f| f.posted) {
            self.invent();
        }
        self.poll_flying(link);
    }

    fn poll_flying(&mut self, link: &mut dyn Link) {
        for flight in &mut self.in_flight {
            let from = if flight.registered { self.registered.span() } else { Span::from(&*self.foreign) };
            match link.poll_send(&mut flight.state, from.sub(flight.at, flight.len)).expect("send") {
                SendProgress::Idle | SendProgress::Advanced => break,
                SendProgress::Posted => flight.posted = true,
                SendProgress::Complete => (flight.posted, flight.complete) = (true, true),
            }
        }
        self.in_flight.retain(|f| !f.complete);
    }

    fn receive(&mut self, link: &mut dyn Link) {
        let Some(&(at, len, digest)) = self.due.front() else {
            assert_eq!(link.peek_digest(), None, "a message that nobody sent");
            return;
        };
        let (state, received) =
            self.receiving.get_or_insert_with(|| (RecvState::new(digest, len), vec![0; len]));
        let progress = match digest % 3 {
            0 => link.poll_recv(state, &mut ReduceSink(received)),
            _ => link.poll_recv(state, &mut CopySink(received)),
        };
        if progress.expect("recv") == RecvProgress::Complete {
            assert!(
                self.foreign[at..at + len] == *received,
                "message {digest} of {len} bytes is not what was sent"
            );
            self.receiving = None;
            self.due.pop_front();
            self.arrived += 1;
        }
    }
}

pub(crate) fn messages_arrive_in_order_however_the_ends_are_polled(mut pair: Pair) {
    exchange(&mut pair);
}

/// Runs random traffic and checks all of it.
pub(crate) fn exchange(pair: &mut Pair) {
    for seed in 1..=4 {
        let mut numbers = Numbers(seed * 0x9e37_79b9);
        // Polls both directions of both lanes in turn.
        let mut traffic: Vec<Traffic> = (0..4)
            .map(|i| Traffic::new(seed * 10 + i, &pair.0[i as usize % 2].slab, pair.protocols()))
            .collect();
        let until = Instant::now() + PATIENCE;
        while traffic.iter().any(|t| t.arrived < 2000) {
            assert!(Instant::now() < until, "stuck");
            let at = numbers.below(4);
            let (sender, receiver) = pair.from(at % 2, at / 2);
            let sends = numbers.below(2) == 0;
            for _ in 0..numbers.below(2 * CELLS) {
                if sends { traffic[at].send(sender) } else { traffic[at].receive(receiver) }
            }
        }
        for (at, traffic) in traffic.iter_mut().enumerate() {
            let (sender, receiver) = pair.from(at % 2, at / 2);
            while !traffic.due.is_empty() {
                assert!(Instant::now() < until, "stuck");
                traffic.poll_flying(sender);
                traffic.receive(receiver);
            }
        }
    }
}
