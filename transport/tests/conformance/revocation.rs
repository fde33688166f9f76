//! A rank whose call has failed owns its memory again: late peers get an error, and never other bytes.

use crate::fixture::*;
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError, memory::Span,
};

/// More than a link reads in one poll.
const LONG: usize = 1 << 20;

/// Protocols by which a peer reads the sender's memory.
fn in_place(pair: &Pair) -> Vec<Protocol> {
    pair.protocols().into_iter().filter(|protocol| *protocol != Protocol::Copy).collect()
}

fn post(link: &mut dyn Link, protocol: Protocol, src: Span<'_>) {
    let mut state = SendState::new(5, protocol);
    assert_eq!(link.poll_send(&mut state, src).expect("room"), SendProgress::Posted, "{protocol:?}");
}

#[track_caller]
fn assert_revoked(received: &Result<RecvProgress, TransportError>, context: &str) {
    assert!(matches!(received, Err(TransportError::Revoked { peer: 0 })), "{context}: {received:?}");
}

pub(crate) fn memory_of_a_rank_that_has_failed_is_not_received(mut pair: Pair) {
    let protocols = in_place(&pair);
    let mut memory = registered(&pair.0[0].slab, &noise(LONG, 1));
    for (lane, protocol) in protocols.iter().enumerate() {
        post(pair.ends(lane).0, *protocol, memory.span());
    }
    pair.ends(0).0.abort();
    memory.as_mut_slice().fill(66);
    for (lane, protocol) in protocols.iter().enumerate() {
        let (mut copied, mut reduced) = (vec![0; LONG], vec![0; LONG]);
        let sinks: [&mut dyn Sink; 2] = [&mut CopySink(&mut copied), &mut ReduceSink(&mut reduced)];
        for sink in sinks {
            let received = pair.ends(lane).1.poll_recv(&mut RecvState::new(5, LONG), sink);
            assert_revoked(&received, &format!("{protocol:?}"));
        }
    }
}

pub(crate) fn a_message_whose_sender_fails_during_the_read_is_not_received(mut pair: Pair) {
    let mut memory = registered(&pair.0[0].slab, &noise(LONG, 2));
    let before = memory.as_slice().to_vec();
    let (a, b) = pair.ends(0);
    post(a, Protocol::Direct, memory.span());
    let (mut state, mut received) = (RecvState::new(5, LONG), vec![0; LONG]);
    let first = b.poll_recv(&mut state, &mut CopySink(&mut received)).expect("sent");
    assert_eq!(first, RecvProgress::Advanced);
    let good = state.received();
    // The failure of one lane's call is one of the rank, whose memory it is.
    pair.from(0, 1).0.abort();
    memory.as_mut_slice().fill(66);
    let (_, b) = pair.ends(0);
    let late = b.poll_recv(&mut state, &mut CopySink(&mut received));
    assert_revoked(&late, "after a part");
    assert_eq!(state.received(), good, "bytes read too late are not passed on");
    assert!(received[..good] == before[..good]);
}

pub(crate) fn staged_messages_of_a_rank_that_has_failed_still_arrive(mut pair: Pair) {
    let (a, b) = pair.ends(0);
    let mut bytes = noise(1000, 3);
    let before = bytes.clone();
    let mut state = SendState::new(5, Protocol::Copy);
    assert_eq!(a.poll_send(&mut state, Span::from(&*bytes)).expect("room"), SendProgress::Complete);
    a.abort();
    bytes.fill(66);
    let mut received = vec![0; 1000];
    let progress = b.poll_recv(&mut RecvState::new(5, 1000), &mut CopySink(&mut received)).expect("staged");
    assert_eq!(progress, RecvProgress::Complete);
    assert!(received == before);
}
