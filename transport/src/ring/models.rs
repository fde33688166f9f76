//! Models of a ring under a model checker: `make model-deep`. Threads play processes.
//!
//! Staging bytes and registered memory are plain memory whose accesses Loom checks: that is the test.
//!
//! # Safety
//! A ring lies in memory that both of its ends keep alive.

use super::{Buffers, Content, Publish, RingLayout, RingReceiver, RingSender};
use crate::{
    memory::Span,
    sync::{
        mark_read, mark_write,
        model::{Arc, explore_with, thread},
    },
};
use std::ptr;

const LAYOUT: RingLayout = RingLayout::SMALLEST;

#[derive(Clone, Copy)]
#[repr(align(128))]
struct Line(#[expect(dead_code, reason = "only its place is used")] [u64; 16]);

/// Zeroed memory of a ring.
struct Memory(Box<[Line]>);

/// One end of a ring, with its memory.
struct End<T>(T, #[expect(dead_code, reason = "it is kept alive")] [Arc<Memory>; 2]);

/// Returns both ends of a new ring on which `cells` cells were sent and consumed. They are of no link, and
/// use no cells that change hands.
fn ring(cells: u64) -> (End<RingSender>, End<RingReceiver>) {
    let memory = memory();
    ends([&memory, &memory], cells)
}

/// Returns each end's parts of a new link: the sending end of one ring and the receiving one of the other.
fn link() -> [(End<RingSender>, End<RingReceiver>); 2] {
    let rings = [memory(), memory()];
    let [(there, taken), (back, returned)] = [0, 1].map(|ring| ends([&rings[ring], &rings[1 - ring]], 0));
    [(there, returned), (back, taken)]
}

/// Returns the memory of a ring.
fn memory() -> Arc<Memory> {
    Arc::new(Memory(vec![Line([0; 16]); LAYOUT.bytes() / size_of::<Line>()].into()))
}

/// Returns both ends of a ring, beside the ring in the other direction.
fn ends(rings: [&Arc<Memory>; 2], cells: u64) -> (End<RingSender>, End<RingReceiver>) {
    let starts = rings.map(|memory| memory.0.as_ptr().cast_mut().cast());
    let kept = || rings.map(Arc::clone);
    // SAFETY: the lines are as long as the rings, aligned and zeroed, and each end keeps them alive. They
    // have no other user.
    unsafe {
        let sender = RingSender::starting_at(cells, starts, LAYOUT);
        let receiver = RingReceiver::starting_at(cells, starts, LAYOUT);
        (End(sender, kept()), End(receiver, kept()))
    }
}

/// Repeats an attempt until it returns a value, while other threads run.
fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        thread::yield_now();
    }
}

/// Waits for the next message, which is an inline one; returns its digest and its first word.
fn take_inline(receiver: &mut RingReceiver, publish: Publish) -> (u64, u64) {
    let head = until(|| receiver.head());
    let digest = receiver.digest();
    assert!(matches!(receiver.content(head), Ok(Content::Inline { len: 8 })), "not sent here");
    let mut first = 0;
    // SAFETY: the payload has 8 bytes.
    receiver.read_inline(8, |payload| first = unsafe { payload.as_ptr().cast::<u64>().read() });
    receiver.consume(None, publish);
    (digest, first)
}

fn send_inline(sender: &mut RingSender, number: u64) {
    let bytes = number.to_ne_bytes();
    until(|| sender.send_inline(number, Span::from(&bytes[..])).expect("intact").then_some(()));
}

/// More messages than cells: each cell is used again once its message was consumed.
fn inline_messages_from(start: u64) {
    let (mut sender, mut receiver) = ring(start);
    let other = thread::spawn(move || (1..=3).for_each(|number| send_inline(&mut sender.0, number)));
    for number in 1..=3 {
        assert_eq!(take_inline(&mut receiver.0, Publish::Lazily), (number, number));
    }
    other.join().expect("a sender");
    assert_eq!(receiver.0.head(), None);
}

#[test]
fn loom_inline_messages_come_whole_and_in_order() {
    explore_with("inline messages on a full ring", 3, || inline_messages_from(0));
}

#[test]
fn loom_inline_messages_come_whole_where_stamps_wrap() {
    explore_with("inline messages whose stamps wrap", 2, || inline_messages_from((1 << 32) - 3));
}

/// Ranks that exchange messages send in the cells that they have received in.
#[test]
fn loom_cells_that_change_hands_come_whole_and_in_order() {
    explore_with("messages in cells that change hands", 3, || {
        let [mut ours, mut theirs] = link();
        let other = thread::spawn(move || exchange(&mut theirs, 3));
        exchange(&mut ours, 3);
        other.join().expect("the other end");
    });
}

/// Sends and takes messages in turns.
fn exchange((sends, returned): &mut (End<RingSender>, End<RingReceiver>), count: u64) {
    for number in 1..=count {
        sends.0.take_swap(&returned.0);
        send_inline(&mut sends.0, number);
        assert_eq!(take_inline(&mut returned.0, Publish::Lazily), (number, number));
    }
}

/// A message in the ring is not overtaken by a later one in a cell that changes hands.
#[test]
fn loom_messages_in_different_cells_come_in_order() {
    explore_with("messages in the ring and in cells that change hands", 3, || {
        let [mut ours, mut theirs] = link();
        let other = thread::spawn(move || {
            let (replies, taken) = &mut theirs;
            assert_eq!(take_inline(&mut taken.0, Publish::Lazily), (1, 1));
            replies.0.take_swap(&taken.0);
            send_inline(&mut replies.0, 1);
            for number in 2..=3 {
                assert_eq!(take_inline(&mut taken.0, Publish::Lazily), (number, number));
            }
        });
        let (sends, returned) = &mut ours;
        for number in 1..=2 {
            sends.0.take_swap(&returned.0);
            send_inline(&mut sends.0, number);
        }
        assert_eq!(take_inline(&mut returned.0, Publish::Lazily), (1, 1));
        sends.0.take_swap(&returned.0);
        send_inline(&mut sends.0, 3);
        other.join().expect("the other end");
    });
}

/// A message in two lines comes whole, and its cell is used again once it was consumed.
#[test]
fn loom_long_messages_come_whole_and_in_order() {
    take_long_messages("messages in two lines that are polled", true);
    take_long_messages("messages in two lines, of which one is polled", false);
}

fn take_long_messages(what: &'static str, polls_both: bool) {
    explore_with(what, 3, move || {
        let (mut sender, mut receiver) = ring(0);
        receiver.0.poll_both(polls_both);
        let other = thread::spawn(move || {
            for number in 1..=3u8 {
                let bytes = [number; 60];
                until(|| sender.0.send_long(9, Span::from(&bytes[..])).expect("intact").then_some(()));
            }
        });
        for number in 1..=3u8 {
            until(|| receiver.0.has_long(60).then_some(()));
            receiver.0.read_long(60, |_, part| {
                // SAFETY: the part holds these bytes.
                let bytes = unsafe { std::slice::from_raw_parts(part.as_ptr(), part.len()) };
                assert!(bytes.iter().all(|byte| *byte == number));
            });
            receiver.0.consume(None, Publish::Lazily);
        }
        other.join().expect("a sender");
        assert_eq!(receiver.0.head(), None);
    });
}

/// Staging bytes are written again only after they were read.
#[test]
fn loom_a_piece_is_not_overwritten_while_it_is_read() {
    explore_with("staged pieces on a full ring", 3, || {
        let (mut sender, mut receiver) = ring(0);
        let other = thread::spawn(move || {
            for number in 1..=3u8 {
                let bytes = [number; 40];
                let send =
                    || sender.0.send_piece(9, 40, Span::from(&bytes[..])).expect("intact").then_some(());
                until(send);
            }
        });
        for number in 1..=3 {
            let head = until(|| receiver.0.head());
            let Ok(Content::Staged { position, len, .. }) = receiver.0.content(head) else {
                panic!("not sent")
            };
            let piece = receiver.0.piece(position, len).expect("valid");
            // SAFETY: the span holds `len` bytes.
            let first = unsafe { piece.as_ptr().read() };
            assert_eq!((first, len), (number, 40));
            // The read ends here.
            mark_read(piece.as_ptr(), len);
            receiver.0.consume(Some(position + 64), Publish::Lazily);
        }
        other.join().expect("a sender");
    });
}

/// A sender overwrites its memory once the receiver has consumed the message that was read in place.
#[test]
fn loom_registered_memory_is_free_once_its_message_is_consumed() {
    explore_with("a message that is read in place", 4, || {
        let (mut sender, mut receiver) = ring(0);
        let memory = Arc::new(Memory(vec![Line([0; 16])].into()));
        let theirs = Arc::clone(&memory);
        let other = thread::spawn(move || {
            let start: *const u8 = ptr::from_ref(&theirs.0[0]).cast();
            mark_write(start, 64);
            let cell = sender.0.send_direct(1, 64, 0).expect("intact").expect("credit");
            until(|| sender.0.is_consumed(cell).expect("intact").then_some(()));
            mark_write(start, 64);
        });
        let head = until(|| receiver.0.head());
        assert!(matches!(receiver.0.content(head), Ok(Content::Direct { total: 64, offset: 0 })));
        mark_read(ptr::from_ref(&memory.0[0]).cast(), 64);
        receiver.0.consume(None, Publish::Now);
        other.join().expect("a sender");
    });
}

/// Small messages between one that waits for its consumption: the receiver publishes at once then.
#[test]
fn loom_a_sender_that_waits_learns_of_the_consumption() {
    explore_with("a message that is read in place behind an inline one", 3, || {
        let (mut sender, mut receiver) = ring(0);
        let other = thread::spawn(move || {
            send_inline(&mut sender.0, 1);
            let cell = sender.0.send_pull(2, 64, 77).expect("intact").expect("credit");
            until(|| sender.0.is_consumed(cell).expect("intact").then_some(()));
        });
        assert_eq!(take_inline(&mut receiver.0, Publish::Lazily), (1, 1));
        let head = until(|| receiver.0.head());
        assert!(matches!(receiver.0.content(head), Ok(Content::Pull { total: 64, address: 77 })));
        receiver.0.consume(None, Publish::Now);
        other.join().expect("a sender");
    });
}

/// A buffer is written by the end that owns it: it goes to the peer, comes back, and goes there again.
#[test]
fn loom_a_buffer_is_written_only_after_it_has_come_back() {
    explore_with("a buffer that changes hands", 3, || {
        let (there, back) = (ring(0), ring(0));
        let starts = [&there.0, &back.0].map(|end| end.0.base());
        // SAFETY: both ends of the rings keep them alive, and each gets its buffers once.
        let [mut ours, mut theirs] =
            unsafe { [(0, 1), (1, 0)].map(|(s, r)| Buffers::new(starts[s], starts[r], LAYOUT)) };
        let ((mut sends, mut taken), (mut replies, mut returned)) = (there, back);
        let other = thread::spawn(move || {
            for number in [1, 2] {
                assert_eq!(take_handed(&mut taken.0, &mut theirs), number);
                hand_over(&mut replies.0, &mut theirs, 10 * number);
            }
        });
        for number in [1, 2] {
            hand_over(&mut sends.0, &mut ours, number);
            assert_eq!(take_handed(&mut returned.0, &mut ours), 10 * number);
        }
        other.join().expect("the other end");
    });
}

fn hand_over(sender: &mut RingSender, buffers: &mut Buffers, number: u8) {
    let bytes = [number; 40];
    until(|| sender.hand_over(9, 40, Span::from(&bytes[..]), buffers).expect("intact").then_some(()));
}

/// Waits for a piece that is handed over, and returns its first byte.
fn take_handed(receiver: &mut RingReceiver, buffers: &mut Buffers) -> u8 {
    let head = until(|| receiver.head());
    let Ok(Content::Handed { buffer, len: 40, .. }) = receiver.content(head) else { panic!("not sent") };
    let (here, piece) = buffers.piece(buffer, 40).expect("valid");
    // SAFETY: the span holds 40 bytes.
    let first = unsafe { piece.as_ptr().read() };
    // The read ends here.
    mark_read(piece.as_ptr(), 40);
    buffers.take(here);
    receiver.consume(None, Publish::Lazily);
    first
}
