//! Runs in brief messages, and where they end.

use super::*;
use crate::executor::{Message, MessageMemory};
use collectives::plan::plan;
use std::cell::Cell;

/// Returns the part of a rank in an exchange, and the constants of a call of `count` elements.
fn exchange(rank: u32, count: u64) -> (Program, CallConstants) {
    let spec = Spec::new(Collective::AllGather, 2).expect("two ranks");
    let program = Program::compile(&plan(&spec, "direct").expect("a plan"), Rank(rank), LANES);
    assert!(program.straight.is_some(), "{}", program.algorithm);
    let constants = constants(count, ELEM_BYTES, (program.chunks, 2));
    (program, constants)
}

/// Plays two ranks on two cores that exchange blocks of `count` elements, and checks their results.
fn exchange_of(count: u64, play: impl FnOnce([&mut Executor; 2], [&Program; 2], [&Binding<'_>; 2])) {
    let block = |value| vec![value; count as usize * ELEM_BYTES];
    let expected = [block(1u8), block(2)].concat();
    let got = exchange_between(count, play);
    assert!(got.iter().all(|output| *output == expected), "blocks of {count} elements");
}

/// Returns the results of two ranks on two cores that exchange blocks of `count` elements.
fn exchange_between(
    count: u64,
    play: impl FnOnce([&mut Executor; 2], [&Program; 2], [&Binding<'_>; 2]),
) -> [Vec<u8>; 2] {
    let mut ranks = over_local_on(2, 2);
    let bytes = count as usize * ELEM_BYTES;
    let inputs = [1u8, 2].map(|value| vec![value; bytes]);
    let mut outputs = [vec![0; 2 * bytes], vec![0; 2 * bytes]];
    let parts = [0, 1].map(|rank| exchange(rank, count));
    let straight = [0, 1]
        .map(|rank: usize| SizedStraight::new(&parts[rank].0, &parts[rank].1, ranks[rank].0.protocols()));
    let mut memory = outputs.iter_mut().map(|output| SpanMut::from(&mut output[..]));
    let bindings = [0, 1].map(|rank: usize| Binding {
        straight: straight[rank].as_ref(),
        input: Span::from(&inputs[rank][..]),
        output: memory.next().expect("two"),
        ..without_memory(&parts[rank].1)
    });
    let (first, second) = ranks.split_at_mut(1);
    play([&mut first[0].0, &mut second[0].0], [&parts[0].0, &parts[1].0], [&bindings[0], &bindings[1]]);
    outputs
}

#[test]
fn a_call_whose_messages_are_there_is_complete_without_a_watch() {
    for count in [0, 1, 12, 26, 27, 1000] {
        exchange_of(count, |[first, second], programs, bindings| {
            let done = first.run_brief(programs[0], bindings[0], || {}).expect("its peer has sent nothing");
            assert!(second.run_brief(programs[1], bindings[1], || {}).is_none(), "all is there");
            first.run_call(programs[0], bindings[0], done, &mut TimeoutWatch).expect("it is there by now");
        });
    }
}

/// The record of a call is written while its messages are on their way.
#[test]
fn what_is_to_be_done_meanwhile_is_done_once_after_the_sends_and_before_any_wait() {
    exchange_of(1, |[first, second], programs, bindings| {
        let (times, theirs) = (Cell::new(0), Cell::new(None));
        let done = first.run_brief(programs[0], bindings[0], || {
            times.set(times.get() + 1);
            theirs.set(Some(second.run_brief(programs[1], bindings[1], || {}).is_none()));
        });
        assert_eq!((times.get(), theirs.get()), (1, Some(true)), "the peer had the message of the first");
        assert!(done.is_none(), "the peer had sent by then");
    });
    let mut times = 0;
    let (program, constants) = exchange(0, 1);
    let (mut executor, _) = over_local(2).remove(0);
    assert!(
        executor.run_brief(&program, &without_memory(&constants), || times += 1).is_some(),
        "no straight program"
    );
    assert_eq!(times, 1);
}

#[test]
fn a_call_of_longer_messages_has_done_nothing_in_brief_ones() {
    exchange_between(20_000, |[first, second], programs, bindings| {
        let done = [
            first.run_brief(programs[0], bindings[0], || {}),
            second.run_brief(programs[1], bindings[1], || {}),
        ];
        assert!(done.iter().all(|done| done.is_some_and(|done| done.sends + done.steps == 0)), "{done:?}");
    });
}

#[test]
fn a_brief_message_that_comes_late_is_received_as_any_other() {
    let mut ranks = over_local_on(2, 2);
    let (mut receiver, _) = ranks.pop().expect("two");
    let (mut sender, _) = ranks.pop().expect("two");
    let (sent, mut got) = ([7u8; 300], [0u8; 300]);
    let link = |peer: usize| peer * usize::from(LANES);
    let expected = Message {
        peer: Rank(0),
        link: link(0),
        digest: 4,
        memory: MessageMemory::Recv((&mut got[..]).into()),
    };
    let message =
        Message { peer: Rank(1), link: link(1), digest: 4, memory: MessageMemory::Send((&sent[..]).into()) };
    assert!(receiver.run_brief_message(&expected, || {}).is_some(), "nothing was sent");
    assert!(sender.run_brief_message(&message, || {}).is_none(), "it leaves at once");
    receiver.run_message(&expected, &mut TimeoutWatch).expect("it is there");
    assert!(sender.run_brief_message(&message, || {}).is_none());
    assert!(receiver.run_brief_message(&expected, || {}).is_none(), "the second is there");
    let other = Message { digest: 6, ..expected };
    assert!(sender.run_brief_message(&message, || {}).is_none());
    assert!(receiver.run_brief_message(&other, || {}).is_some(), "it belongs to another call");
    assert!(matches!(receiver.run_message(&other, &mut TimeoutWatch), Err(Stop::Link { .. })));
    assert_eq!(got, sent);
}

/// Registered memory of 5000 bytes was copied.
#[test]
fn a_message_that_is_read_in_place_is_no_brief_one() {
    let (mut sender, slab) = over_local_on(2, 2).swap_remove(0);
    let (registered, heap) = (slab.allocate(100).expect("room"), [0u8; 100]);
    let link = usize::from(LANES);
    let of = |src| Message { peer: Rank(1), link, digest: 4, memory: MessageMemory::Send(src) };
    let is_sent = |src| sender.run_brief_message(&of(src), || {}).is_none();
    assert_eq!([registered.span(), Span::from(&heap[..])].map(is_sent), [false, true]);
}
