//! Two engines driven in turn by one thread, so that the test controls every interleaving: what is stored,
//! which credit returns, and how protocol errors are reported.

use super::{
    Delivery, P2p,
    engine::{Engine, Posted},
    frame::{FRAME_BYTES, Frame, FrameBytes},
    parker::Parker,
    peer::{CONTROL, CREDIT_UNITS, FRAME_DIGEST, MAX_ANNOUNCED, units_of},
    state::RequestState,
};
use crate::{Communicator, Config, Error, communicator::LinkAccess, error::Result};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use topology::Rank;
use transport::{
    Capabilities, Counters, Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink,
    TransportError,
    memory::{Span, SpanMut},
};

/// Longest message that the links of these tests send ahead of its receive.
const EAGER_BYTES: usize = 16 << 10;

fn links(ranks: u32) -> Vec<LinkAccess> {
    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    Communicator::local(ranks, &config).expect("memory for a test").into_iter().map(LinkAccess::new).collect()
}

fn pair() -> [Engine; 2] {
    let engines: Vec<Engine> =
        links(2).into_iter().map(|links| Engine::new(links, Arc::new(Parker::default()))).collect();
    engines.try_into().expect("two")
}

static BYTES: [u8; 200_000] = [0x5a; 200_000];

fn send(from: &mut Engine, to: u32, tag: i32, len: usize) -> Posted {
    from.send(Rank(to), 0, tag, Span::from(&BYTES[..len])).expect("taken")
}

/// Receives into leaked memory.
fn recv(to: &mut Engine, from: Option<u32>, tag: Option<i32>, capacity: usize) -> Posted {
    let memory: &'static mut [u8] = Box::leak(vec![0; capacity].into());
    to.recv(from.map(Rank), 0, tag, SpanMut::from(memory)).expect("taken")
}

fn result_of(posted: &Posted) -> Option<Result<Delivery>> {
    match posted {
        Posted::Done(result) => Some(result.clone()),
        Posted::Pending(state) => RequestState::result(state),
    }
}

fn is_done(posted: &Posted) -> bool {
    result_of(posted).is_some()
}

/// Drives both engines until nothing moves.
fn settle([a, b]: &mut [Engine; 2]) {
    while a.drive() | b.drive() {}
    assert!(a.failed().is_none() && b.failed().is_none(), "{:?} {:?}", a.failed(), b.failed());
}

#[test]
fn nothing_is_left_of_ten_thousand_messages() {
    let mut pair = pair();
    let lengths = [0, 8, 36, 37, 1000, EAGER_BYTES, EAGER_BYTES + 1, 50_000];
    for round in 0..1250 {
        let sent: Vec<Posted> = (0..8)
            .map(|i| send(&mut pair[i % 2], 1 - (i % 2) as u32, (i / 2) as i32, lengths[(i + round) % 8]))
            .collect();
        if round % 2 == 0 {
            settle(&mut pair);
        }
        let received: Vec<Posted> = (0..8)
            .map(|i| {
                let tag = (round % 3 != 0).then_some((3 - i / 2) as i32);
                let from = (round % 5 != 0).then_some(1 - (i % 2) as u32);
                let memory = if round < 10 { 50_000 } else { lengths.len() };
                // Most receives have no room for their message, which must leave nothing behind either.
                recv(&mut pair[i % 2], from, tag, memory)
            })
            .collect();
        settle(&mut pair);
        assert!(sent.iter().chain(&received).all(is_done), "round {round}");
        for engine in &pair {
            assert_eq!((engine.memory(), engine.is_busy()), ((0, 0, 0), false), "round {round}");
        }
    }
}

#[test]
fn what_is_kept_for_a_receiver_that_takes_nothing_is_bounded_and_all_of_it_arrives() {
    let mut pair = pair();
    let len = 1000;
    let most = (CREDIT_UNITS / units_of(len)) as usize;
    let sent: Vec<Posted> = (0..2 * most).map(|tag| send(&mut pair[0], 1, tag as i32, len)).collect();
    // The receiver processes all messages while it waits for another one.
    let other = recv(&mut pair[1], Some(0), Some(-1), 0);
    settle(&mut pair);
    assert_eq!(pair[1].memory().1, 2 * most, "all have arrived, as such or as words of them");
    assert_eq!(sent.iter().filter(|sent| is_done(sent)).count(), most, "no more than the credit allows");
    for tag in (0..2 * most).rev() {
        let received = recv(&mut pair[1], Some(0), Some(tag as i32), len);
        settle(&mut pair);
        assert!(matches!(result_of(&received), Some(Ok(Delivery { bytes, .. })) if bytes == len));
    }
    let last = send(&mut pair[0], 1, -1, 0);
    settle(&mut pair);
    assert!(sent.iter().chain([&other, &last]).all(is_done));
    // The credit has returned, or returns with the next frame; and the receiver progresses for another
    // receive again.
    let _other = recv(&mut pair[1], Some(0), Some(-2), 0);
    let again: Vec<Posted> = (0..most / 2).map(|tag| send(&mut pair[0], 1, tag as i32, len)).collect();
    settle(&mut pair);
    assert!(again.iter().all(is_done));
}

#[test]
fn a_sender_that_never_waits_finds_its_credit_again() {
    let mut pair = pair();
    for _ in 0..10 * CREDIT_UNITS / units_of(8) {
        let received = recv(&mut pair[1], Some(0), Some(0), 8);
        assert!(is_done(&send(&mut pair[0], 1, 0, 8)), "it goes at once");
        while !is_done(&received) {
            pair[1].drive();
        }
    }
}

/// A sender without requests once took a single frame before it announced its message, which then waited for
/// the receiver.
#[test]
fn a_sender_finds_the_credit_behind_messages_that_it_has_no_receive_for() {
    let mut pair = pair();
    let len = 1000;
    let most = (CREDIT_UNITS / units_of(len)) as usize;
    let other = recv(&mut pair[1], Some(0), Some(-1), 0);
    let sent: Vec<Posted> = (0..most).map(|_| send(&mut pair[0], 1, 0, len)).collect();
    settle(&mut pair);
    assert!(sent.iter().all(is_done) && !pair[0].is_busy());
    let unexpected: Vec<Posted> = (0..20).map(|_| send(&mut pair[1], 0, 0, 8)).collect();
    let received: Vec<Posted> = (0..most).map(|_| recv(&mut pair[1], Some(0), Some(0), len)).collect();
    while pair[1].drive() {}
    assert!(unexpected.iter().chain(&received).all(is_done) && pair[0].credit_of(1) < units_of(len));
    assert!(is_done(&send(&mut pair[0], 1, -1, len)), "it goes at once");
    settle(&mut pair);
    assert!(is_done(&other));
}

/// Returns the error of rank 0 after rank 1, whose links the test owns, has sent it these frames.
fn error_of(frames: &[FrameBytes]) -> Error {
    let mut links = links(2);
    let mut hostile = links.pop().expect("two");
    let mut engine = Engine::new(links.pop().expect("two"), Arc::new(Parker::default()));
    let waiting = recv(&mut engine, Some(1), Some(1), 100);
    for frame in frames {
        let mut state = SendState::new(FRAME_DIGEST, Protocol::Copy);
        let mut is_sent = || {
            let sent = hostile.link(Rank(0), CONTROL).poll_send(&mut state, Span::from(&frame[..]));
            sent.expect("sound") == SendProgress::Complete
        };
        while !is_sent() && engine.failed().is_none() {
            engine.drive();
        }
    }
    while engine.drive() {}
    assert!(!is_done(&waiting), "its error is the engine's");
    engine.failed().cloned().expect("it has failed")
}

#[test]
fn nonsense_of_a_peer_is_an_error_that_names_it() {
    let ready = |number| Frame::RequestToSend { context: 0, tag: 0, number, len: 8 }.encode(0);
    let eager = Frame::Eager { context: 0, tag: 0, len: EAGER_BYTES }.encode(0);
    let short = Frame::Short { context: 0, tag: 0, len: 8 }.encode(0);
    for (frames, what) in [
        (vec![[0xff; FRAME_BYTES]], "unknown kind"),
        (vec![ready(1)], "out of order"),
        (vec![ready(0), ready(0)], "out of order"),
        (vec![Frame::ClearToSend { number: 0 }.encode(0)], "a clear-to-send"),
        (vec![Frame::Reject { number: 7 }.encode(0)], "a rejection"),
        (vec![Frame::Credit.encode(1)], "more credit"),
        (vec![short; 10 + (CREDIT_UNITS / units_of(8)) as usize], "more eager bytes"),
        ((0..=MAX_ANNOUNCED as u64).map(ready).collect(), "more announced messages"),
        // The payload differs from the announced one.
        (vec![eager, short], "another operation"),
    ] {
        let error = error_of(&frames).to_string();
        assert!(error.contains(what) && error.contains("rank 1"), "{what}: {error}");
    }
}

#[test]
fn what_arrives_while_its_receive_is_posted_is_counted_once() {
    // The frame of an eager message has arrived and its bytes have not; then a receive is posted, by source
    // or for any.
    for from in [Some(1), None] {
        let mut links = links(2);
        let mut other = links.pop().expect("two");
        let mut engine = Engine::new(links.pop().expect("two"), Arc::new(Parker::default()));
        let open = recv(&mut engine, Some(1), Some(99), 0);
        let queue_frame = |links: &mut LinkAccess, digest, bytes: &[u8]| {
            let mut state = SendState::new(digest, Protocol::Copy);
            let sent = links.link(Rank(0), CONTROL).poll_send(&mut state, Span::from(bytes));
            assert_eq!(sent.expect("sound"), SendProgress::Complete);
        };
        queue_frame(&mut other, FRAME_DIGEST, &Frame::Eager { context: 0, tag: 0, len: 1000 }.encode(0));
        while engine.drive() {}
        let received = recv(&mut engine, from, Some(0), 1000);
        queue_frame(&mut other, super::peer::EAGER_DIGEST | 1000 << 1, &BYTES[..1000]);
        queue_frame(&mut other, FRAME_DIGEST, &Frame::Short { context: 0, tag: 99, len: 0 }.encode(0));
        while engine.drive() {}
        assert!(is_done(&open) && is_done(&received), "{from:?}");
        assert_eq!((engine.memory(), engine.is_busy()), ((0, 0, 0), false));
    }
}

#[test]
fn after_a_panic_no_message_uses_its_memory_and_all_ranks_fail() {
    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    let comms = Communicator::local(2, &config).expect("memory for a test");
    let ranks: Vec<P2p> = comms.into_iter().map(|comm| P2p::new(comm).expect("healthy")).collect();
    let core = &ranks[0].0.core;
    let panicking =
        AssertUnwindSafe(|| core.with(|_| -> Result<()> { panic!("a defect, as this test wants") }));
    assert!(catch_unwind(panicking).is_err());
    let error = core.with(|_| Ok(())).expect_err("nobody knows the engine's state");
    assert!(matches!(error, Error::Defect(_)), "{error}");
    let engine = core.engine.lock().expect_err("poisoned").into_inner();
    assert!(engine.as_ref().is_some_and(|engine| engine.failed().is_some()), "links may use memory");
    drop(engine);
    let healthy = ranks[1].0.core.with(|engine| Ok(engine.links().is_healthy())).expect("no panic here");
    assert!(!healthy, "rank 0 has failed");
}

/// A link on which messages are posted and never leave.
#[derive(Debug)]
struct Stuck;

impl Link for Stuck {
    fn capabilities(&self) -> &Capabilities {
        unreachable!("a short message depends on none")
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn poll_send(&mut self, _: &mut SendState, _: Span<'_>) -> Result<SendProgress, TransportError> {
        Ok(SendProgress::Posted)
    }

    fn poll_recv(&mut self, _: &mut RecvState, _: &mut dyn Sink) -> Result<RecvProgress, TransportError> {
        Ok(RecvProgress::Idle)
    }

    fn peek_digest(&self) -> Option<u64> {
        None
    }
}

/// A request that waits for such a frame asks for failures and its time limit only while nothing moves.
#[test]
fn a_frame_that_never_leaves_is_no_progress() {
    let [mut sender, _receiver] = pair();
    sender.links().wrap_link(Rank(1), CONTROL, |_| Box::new(Stuck));
    // It is posted at once.
    let _short = send(&mut sender, 1, 1, 4);
    assert!(!sender.drive() && !sender.drive());
}

#[test]
fn announced_messages_that_nobody_receives_are_bounded_and_the_rest_goes_on() {
    let mut pair = pair();
    // The receiver processes all messages while it waits for another one.
    let _other = recv(&mut pair[1], Some(0), Some(-1), 0);
    let mut sent = Vec::new();
    for number in 0..MAX_ANNOUNCED {
        sent.push(send(&mut pair[0], 1, 1, EAGER_BYTES + 1));
        if number % 1000 == 0 {
            settle(&mut pair);
        }
    }
    let error = pair[0].send(Rank(1), 0, 1, Span::from(&BYTES[..EAGER_BYTES + 1])).expect_err("too many");
    assert!(matches!(error, Error::InvalidArgument(_)) && error.to_string().contains("65536"), "{error}");
    settle(&mut pair);
    assert!(is_done(&send(&mut pair[0], 1, 2, 4)), "short messages have room of their own");
    let received = recv(&mut pair[1], Some(0), Some(1), EAGER_BYTES + 1);
    settle(&mut pair);
    assert!(is_done(&received) && is_done(&sent[0]) && !is_done(&sent[1]));
    let _more = send(&mut pair[0], 1, 1, EAGER_BYTES + 1);
    settle(&mut pair);
}
