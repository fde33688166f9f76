//! Sends that are prepared for the next call.

use super::{
    stub_link::{CAPABILITIES, StubLink},
    *,
};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Counts the sends that a run prepares for the next one, on a host of two ranks with `cores` cores.
fn sends_prepared_by(steps: Vec<Step>, cores: u32) -> u32 {
    let program = by_hand(1, steps);
    let (_, slab) = over_local(1).remove(0);
    let prepared: Arc<AtomicU32> = Arc::default();
    let link = StubLink {
        capabilities: &CAPABILITIES,
        send: |_: Span<'_>| SendProgress::Complete,
        announced: Arc::default(),
        prepared: Arc::clone(&prepared),
    };
    let links: Vec<Option<Box<dyn Link>>> = vec![None, None, Some(Box::new(link)), None];
    let protocols = Protocols::with_minima(usize::MAX, u64::MAX);
    let mut executor = Executor::new(links, slab, WaitPolicy::for_host(2, cores), protocols);
    let constants = constants(0, 1, (1, 2));
    let straight = SizedStraight::new(&program, &constants, &protocols);
    let binding = Binding { straight: straight.as_ref(), ..without_memory(&constants) };
    executor.run(&program, &[binding], &mut TimeoutWatch).expect("all is there");
    prepared.load(Relaxed)
}

#[test]
fn the_next_send_is_prepared_where_the_peer_does_not_wait_for_it() {
    let range = |buffer| ChunkRange { buffer, first: 0, len: 1 };
    let step = |action| Step { action, lane: 0, after: Vec::new().into(), follows: None };
    let send = step(Action::Send { peer: Rank(1), src: range(Buffer::Input) });
    let recv = step(Action::Recv { peer: Rank(1), dst: range(Buffer::Output) });
    assert_eq!(sends_prepared_by(vec![send.clone(), recv.clone()], 2), 1, "both ranks send before they wait");
    let shared = sends_prepared_by(vec![send.clone(), recv.clone()], 1);
    assert_eq!(shared, 0, "the peer may have had the core, and wait");
    assert_eq!(sends_prepared_by(vec![send], 2), 0, "the peer does nothing but wait");
    assert_eq!(sends_prepared_by(vec![recv], 2), 0, "nothing is sent");
}
