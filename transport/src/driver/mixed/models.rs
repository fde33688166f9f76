//! Models of the words by which ranks of one host confirm matched messages, under a model checker:
//! `make model-deep`.

use super::link::MatchAckLink;
use crate::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink,
    driver::ring_link::RingLink,
    memory::{Arena, ArenaLayout, Span, SpanMut},
    ring::RingLayout,
    sync::{
        mark_read, mark_write,
        model::{Arc, explore_with, thread},
    },
};
use std::ptr;

/// Words of the boards.
const WORDS: [usize; 2] = [1024, 1025];

/// Returns the links of both ranks to each other.
fn links() -> [MatchAckLink; 2] {
    let ring = RingLayout::SMALLEST;
    let layout = ArenaLayout { ranks: 2, lanes: 1, ring, slab_bytes: 4096 };
    let arenas = [(); 2].map(|()| Arena::private(layout).expect("memory"));
    [(0usize, 1usize), (1, 0)].map(|(rank, peer)| {
        let ring =
            RingLink::new("model", (rank as u32, &arenas[rank]), (peer as u32, &arenas[peer]), 0, None);
        let word = |rank: usize| (arenas[rank].board(), WORDS[0]);
        MatchAckLink::new(ring, word(rank), word(peer), None)
    })
}

/// A sink for one word.
struct Word(u64);

impl Sink for Word {
    fn write(&mut self, _: usize, data: Span<'_>) {
        SpanMut::from(bytemuck::bytes_of_mut(&mut self.0)).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}

fn receive(link: &mut MatchAckLink, number: u64) {
    let (mut state, mut sink) = (RecvState::new(2, 8), Word(0));
    while link.poll_recv(&mut state, &mut sink).expect("intact") != RecvProgress::Complete {
        thread::yield_now();
    }
    assert_eq!(sink.0, number);
}

fn send(link: &mut MatchAckLink, state: SendState, number: u64) {
    let (mut state, bytes) = (state, number.to_ne_bytes());
    while link.poll_send(&mut state, Span::from(&bytes[..])).expect("intact") != SendProgress::Complete {
        thread::yield_now();
    }
}

/// The sender of a confirmed message sees the acts of the receiver before it asked for the message; an
/// earlier message's confirmation does not confirm a later one.
#[test]
fn loom_a_confirmed_message_was_matched() {
    explore_with("a confirmed message behind another one", 3, || {
        let [mut sender, mut receiver] = links();
        let done = Arc::new(0u64);
        let theirs = Arc::clone(&done);
        let other = thread::spawn(move || {
            receive(&mut receiver, 1);
            mark_write(ptr::from_ref(&*theirs).cast(), 8);
            receive(&mut receiver, 2);
        });
        send(&mut sender, SendState::new(2, Protocol::Copy), 1);
        send(&mut sender, SendState::new(2, Protocol::Copy).with_match_ack(), 2);
        mark_read(ptr::from_ref(&*done).cast(), 8);
        other.join().expect("a receiver");
    });
}
