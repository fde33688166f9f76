//! A ring in ordinary memory, its two ends called in turn.
//!
//! # Safety
//! The rings lie in memory of the test that outlives both of their ends.

use super::{
    Buffers, Content, INLINE_BYTES, LONG_BYTES, Publish, RingLayout, RingReceiver, RingSender, Stores,
    cell::ConsumerLine,
};
use crate::{BriefMessage, TransportError, memory::Span};
use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

const LAYOUT: RingLayout = RingLayout {
    cells: 8,
    staging_bytes: 4 * 128,
    piece_bytes: 128,
    buffers: 2,
    lap_bytes: 4 * 128,
    stores: Stores::Auto,
    fetches: false,
};

/// Zeroed pairs of cache lines of a whole ring, which both ends write.
///
/// A vector may be moved while pointers into it are in use, by the rules that Miri checks; a box may not.
struct Memory(Vec<UnsafeCell<Line>>, RingLayout);

#[repr(align(128))]
struct Line(#[expect(dead_code, reason = "only its place is used")] [u64; 16]);

impl Memory {
    fn new() -> Memory {
        Memory::of(LAYOUT)
    }

    fn of(layout: RingLayout) -> Memory {
        let pairs = layout.bytes() / size_of::<Line>();
        Memory((0..pairs).map(|_| UnsafeCell::new(Line([0; 16]))).collect(), layout)
    }

    /// Returns both ends of a ring on which `cells` cells were sent and consumed. They are of no link, and
    /// use no cells that change hands.
    fn ends(&self, cells: u64) -> (RingSender, RingReceiver) {
        self.ends_beside(self, cells)
    }

    /// Returns both ends of a ring of a link whose ring in the other direction is `other`.
    fn ends_beside(&self, other: &Memory, cells: u64) -> (RingSender, RingReceiver) {
        // SAFETY: the lines are as long as the ring, aligned and zeroed, and outlive the ends in these tests.
        unsafe {
            let [base, other] = [self, other].map(|ring| ring.0.as_ptr().cast_mut().cast());
            (
                RingSender::starting_at(cells, [base, other], self.1),
                RingReceiver::starting_at(cells, [base, other], self.1),
            )
        }
    }

    fn consumer_line(&self) -> &ConsumerLine {
        // SAFETY: a ring begins with the consumer line, which is made of atomics.
        unsafe { &*self.0.as_ptr().cast() }
    }
}

/// Returns a copy of bytes that nobody writes meanwhile.
fn bytes_of(span: Span<'_>) -> Vec<u8> {
    // SAFETY: the span holds these bytes, and its owner does not write them until they are consumed.
    unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len()) }.to_vec()
}

/// Receives the next message's digest and bytes, if there is one.
fn take(receiver: &mut RingReceiver) -> Option<(u64, Vec<u8>)> {
    let head = receiver.head()?;
    let digest = receiver.digest();
    match receiver.content(head).expect("valid") {
        Content::Inline { len } => {
            let mut bytes = vec![];
            receiver.read_inline(len, |payload| bytes = bytes_of(payload));
            receiver.consume(None, Publish::Lazily);
            Some((digest, bytes))
        }
        Content::Staged { position, len, .. } => {
            let piece = receiver.piece(position, len).expect("valid");
            // SAFETY: the span holds `len` bytes, which the sender does not write until they are consumed.
            let bytes = unsafe { std::slice::from_raw_parts(piece.as_ptr(), len) }.to_vec();
            receiver.consume(Some(position + len.next_multiple_of(RingLayout::LINE) as u64), Publish::Lazily);
            Some((digest, bytes))
        }
        Content::Long { len } => {
            if !receiver.has_long(len) {
                return None;
            }
            let mut bytes = vec![];
            receiver.read_long(len, |before, part| {
                assert_eq!(before, bytes.len());
                bytes.extend(bytes_of(part));
            });
            receiver.consume(None, Publish::Lazily);
            Some((digest, bytes))
        }
        other => panic!("not sent here: {other:?}"),
    }
}

#[test]
fn stamps_may_wrap_around() {
    let memory = Memory::new();
    let start = (1 << 32) - 3 * LAYOUT.cells as u64;
    let (mut sender, mut receiver) = memory.ends(start);
    for i in 0..8 * LAYOUT.cells as u64 {
        assert!(take(&mut receiver).is_none(), "an old cell was taken for message {i}");
        assert!(sender.send_inline(i, Span::from(i.to_ne_bytes().as_slice())).expect("intact"));
        assert_eq!(take(&mut receiver), Some((i, i.to_ne_bytes().to_vec())));
    }
}

#[test]
fn stamps_may_wrap_around_on_a_full_ring() {
    let memory = Memory::new();
    let (mut sender, mut receiver) = memory.ends((1 << 32) - 5);
    let (mut sent, mut taken) = (0u64, 0u64);
    while taken < 40 {
        while sender.send_inline(sent, Span::empty()).expect("intact") {
            sent += 1;
        }
        assert!(sent - taken <= LAYOUT.cells as u64, "more messages than cells");
        let (digest, _) = take(&mut receiver).expect("a full ring");
        assert_eq!(digest, taken);
        taken += 1;
    }
}

/// A sender uses 8 pieces of an area of 32, as it does where the area is longer than its caches need.
const SHORT_LAPS: RingLayout = RingLayout {
    cells: 64,
    staging_bytes: 32 * 128,
    piece_bytes: 128,
    buffers: 2,
    lap_bytes: 8 * 128,
    stores: Stores::Auto,
    fetches: false,
};

#[test]
fn pieces_never_wrap_and_never_overwrite_what_is_not_consumed() {
    for layout in [LAYOUT, SHORT_LAPS] {
        // Lengths for which laps end at every line, with and without skipped bytes.
        for stride in 1..=layout.piece_bytes {
            send_pieces(layout, |i| 1 + (i as usize * stride) % layout.piece_bytes);
            if cfg!(miri) && stride >= 8 {
                break;
            }
        }
    }
}

/// Sends pieces of these lengths as long as there is room, and takes a varying number of them, in turns.
fn send_pieces(layout: RingLayout, len: impl Fn(u64) -> usize) {
    let memory = Memory::of(layout);
    let (mut sender, mut receiver) = memory.ends(0);
    let piece = |i: u64| vec![i as u8; len(i)];
    let (mut sent, mut taken) = (0u64, 0u64);
    while taken < if cfg!(miri) { 20 } else { 100 } {
        loop {
            let bytes = piece(sent);
            if !sender.send_piece(sent, bytes.len(), Span::from(bytes.as_slice())).expect("intact") {
                break;
            }
            sent += 1;
        }
        assert!(sent > taken, "no credit on an empty ring");
        for _ in 0..=taken % (sent - taken) {
            assert_eq!(take(&mut receiver), Some((taken, piece(taken))));
            taken += 1;
        }
    }
}

#[test]
fn a_sender_uses_no_more_of_the_area_than_a_lap() {
    let memory = Memory::of(SHORT_LAPS);
    let (mut sender, mut receiver) = memory.ends(0);
    let bytes = [1; 128];
    let mut laps = 0;
    for _ in 0..100 {
        assert!(sender.send_piece(0, 128, Span::from(bytes.as_slice())).expect("intact"));
        let head = receiver.head().expect("sent");
        let Ok(Content::Staged { position, len: 128, .. }) = receiver.content(head) else {
            panic!("a piece")
        };
        let at = position as usize % SHORT_LAPS.staging_bytes;
        assert!(at + 128 <= SHORT_LAPS.lap_bytes, "a piece at {at}");
        laps += usize::from(at == 0);
        assert!(take(&mut receiver).is_some());
    }
    assert_eq!(laps, 100usize.div_ceil(8));
}

/// Short pieces took twice as long while most of them had new pages: for the first 16,000 of 256 bytes.
#[test]
fn laps_become_longer_so_that_at_most_half_of_the_pieces_of_each_have_new_pages() {
    let (staging_bytes, lap_bytes, piece_bytes) = (4 << 20, 2 << 20, 4096);
    let stores = Stores::Cached;
    let memory = Memory::of(RingLayout {
        cells: 8,
        staging_bytes,
        piece_bytes,
        buffers: 2,
        lap_bytes,
        stores,
        fetches: false,
    });
    let (mut sender, mut receiver) = memory.ends(0);
    let bytes = [1; 4096];
    let (mut used, mut laps) = (0, vec![]);
    for _ in 0..2 * lap_bytes / piece_bytes + 64 {
        assert!(sender.send_piece(0, piece_bytes, Span::from(bytes.as_slice())).expect("intact"));
        let head = receiver.head().expect("sent");
        let Ok(Content::Staged { position, .. }) = receiver.content(head) else { panic!("a piece") };
        let end = position as usize % staging_bytes + piece_bytes;
        if end == piece_bytes {
            laps.push((0, 0));
        }
        let lap = laps.last_mut().expect("it begins at the start");
        *lap = (lap.0 + 1, lap.1 + usize::from(end > used));
        used = used.max(end);
        assert!(take(&mut receiver).is_some());
    }
    // Pieces of each lap, and those of them with new pages.
    assert_eq!(laps[..4], [(64, 64), (128, 64), (256, 128), (512, 256)]);
    assert_eq!(used, lap_bytes);
}

#[test]
fn inline_messages_of_every_length_keep_their_bytes() {
    let memory = Memory::new();
    let (mut sender, mut receiver) = memory.ends(0);
    for len in 0..=INLINE_BYTES {
        let bytes: Vec<u8> = (0..len as u8).map(|b| b ^ 0xa5).collect();
        assert!(sender.send_inline(7, Span::from(bytes.as_slice())).expect("intact"));
        assert_eq!(take(&mut receiver), Some((7, bytes)));
    }
}

/// Returns a message whose bytes differ from each other and from those of other numbers.
fn long_message(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at * 3 + number * 101) as u8).collect()
}

#[test]
fn long_messages_of_every_length_keep_their_bytes_where_stamps_wrap() {
    let memory = Memory::new();
    let (mut sender, mut receiver) = memory.ends((1 << 32) - 9);
    for len in INLINE_BYTES + 1..=LONG_BYTES {
        let bytes = long_message(len as u64, len);
        assert!(sender.send_long(7, Span::from(bytes.as_slice())).expect("intact"));
        assert_eq!(take(&mut receiver), Some((7, bytes)));
        assert!(take(&mut receiver).is_none());
    }
}

#[test]
fn a_long_message_is_taken_only_where_all_of_it_is_there() {
    for polls_both in [true, false] {
        let memory = Memory::new();
        let (mut sender, mut receiver) = memory.ends(0);
        receiver.poll_both(polls_both);
        let (bytes, second) = (long_message(1, 100), (RingLayout::cell_start(0) + RingLayout::LINE) / 8);
        assert!(sender.send_long(1, Span::from(bytes.as_slice())).expect("intact"));
        // SAFETY: this is the first word of the second line of the first cell, which is made of atomics.
        let rest = unsafe { &*memory.0.as_ptr().cast::<AtomicU64>().add(second) };
        let published = rest.swap(0, Relaxed);
        assert!(!receiver.has_long(100), "its second line is not there");
        assert!(!receiver.has_long(60));
        is_brief(&receiver, 100, "not yet");
        rest.store(published, Relaxed);
        assert!(!receiver.has_long(60), "a message of another length");
        assert!(receiver.has_long(100));
        is_brief(&receiver, 100, "whole");
        is_brief(&receiver, 60, "another");
        rest.store(published + 1, Relaxed);
        assert!(!receiver.has_long(100), "its second line is that of another message");
        is_brief(&receiver, 100, "not yet");
    }
}

/// Checks what the receiver says of a brief message of digest 1 and `len` bytes. Miri sees no memory of
/// cells.
fn is_brief(receiver: &RingReceiver, len: usize, expected: &str) {
    let found = match receiver.brief(1, len) {
        BriefMessage::NotYet => "not yet",
        BriefMessage::Another => "another",
        BriefMessage::Whole(_) => "whole",
    };
    assert_eq!(found, if cfg!(miri) { "another" } else { expected });
}

/// Both ends of a link, each with the ends of both rings.
struct Exchange {
    ends: [(RingSender, RingReceiver); 2],
    rings: [Memory; 2],
}

impl Exchange {
    fn of(layout: RingLayout, cells: u64) -> Exchange {
        let rings = [(); 2].map(|()| Memory::of(layout));
        let [(there, taken), (back, returned)] =
            [0, 1].map(|ring| rings[ring].ends_beside(&rings[1 - ring], cells));
        Exchange { ends: [(there, returned), (back, taken)], rings }
    }

    /// Sends a message of an end, of a length that its number decides; returns whether there was room.
    fn send(&mut self, end: usize, number: u64) -> bool {
        let (sender, receiver) = &mut self.ends[end];
        sender.take_swap(receiver);
        let bytes = Exchange::message(number);
        let sent = match bytes.len() {
            0..=INLINE_BYTES => sender.send_inline(number, Span::from(&*bytes)),
            len if len <= LONG_BYTES => sender.send_long(number, Span::from(&*bytes)),
            len => sender.send_piece(number, len, Span::from(&*bytes)),
        };
        sent.expect("intact")
    }

    /// Takes the next message of an end, which is this one.
    fn take(&mut self, end: usize, number: u64) {
        assert_eq!(take(&mut self.ends[end].1), Some((number, Exchange::message(number))));
    }

    fn message(number: u64) -> Vec<u8> {
        long_message(number, [8, 60, 0, LONG_BYTES, LONG_BYTES + 1][number as usize % 5])
    }

    /// Returns the number of cells of the first ring that have been used, but for the one that changes hands.
    fn used_cells(&self) -> usize {
        let is_used = |slot: usize| {
            let at = RingLayout::cell_start(slot) / 8;
            // SAFETY: this is the head of a cell, which is made of atomics.
            unsafe { &*self.rings[0].0.as_ptr().cast::<AtomicU64>().add(at) }.load(Relaxed) != 0
        };
        (0..self.rings[0].1.cells).filter(|slot| is_used(*slot)).count()
    }
}

#[test]
fn ranks_that_exchange_messages_or_send_in_turns_use_the_cells_that_change_hands() {
    for in_turns in [false, true] {
        let mut link = Exchange::of(LAYOUT, 0);
        for number in (1..=600).filter(|number| number % 5 != 4) {
            assert!(link.send(0, number));
            if in_turns {
                link.take(1, number);
            }
            assert!(link.send(1, number));
            link.take(0, number);
            if !in_turns {
                link.take(1, number);
            }
            // A sender that reads the line gets an error.
            link.rings[0].consumer_line().cells.store(u64::MAX, Relaxed);
        }
        assert_eq!(link.used_cells(), 0);
    }
}

#[test]
fn a_rank_that_sends_without_replies_uses_the_ring() {
    for before in 0..5 {
        let mut link = Exchange::of(LAYOUT, 0);
        for number in 1..=before {
            assert!(link.send(0, number) && link.send(1, number));
            link.take(0, number);
            link.take(1, number);
        }
        for number in 1..=100 {
            assert!(link.send(0, number), "message {number} after {before} exchanges");
            link.take(1, number);
        }
        assert_eq!(link.used_cells(), LAYOUT.cells);
    }
}

/// A message in the ring and one in a cell that changes hands may be on their way at the same time.
#[test]
fn messages_in_different_cells_are_taken_in_order() {
    let mut link = Exchange::of(LAYOUT, 0);
    // The first message of an end is in a cell that changes hands, the second one in the ring.
    assert!(link.send(0, 1) && link.send(0, 2));
    link.take(1, 1);
    assert!(link.send(1, 1));
    link.take(0, 1);
    // Again in a cell that changes hands, before the second one was taken.
    assert!(link.send(0, 3) && link.send(0, 4));
    for number in 2..=4 {
        link.take(1, number);
    }
    assert_eq!(link.used_cells(), 2);
}

/// Ranks that send and take any number of messages in any order lose none, and find room at last.
#[test]
fn messages_arrive_in_order_however_they_are_exchanged() {
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for layout in [LAYOUT, SHORT_LAPS] {
        let mut link = Exchange::of(layout, (1 << 32) - 999);
        let (mut sent, mut taken) = ([0; 2], [0; 2]);
        for _ in 0..if cfg!(miri) { 60 } else { 5000 } {
            let (end, most) = (random(2) as usize, [1, 2, layout.cells as u64][random(3) as usize]);
            for _ in 0..1 + random(most) {
                if link.send(end, sent[end] + 1) {
                    sent[end] += 1;
                }
            }
            assert!(sent[end] > taken[1 - end] || sent[end] == 0, "no room in an empty ring");
            let (end, most) = (random(2) as usize, 1 + random(2 * layout.cells as u64));
            for _ in 0..most.min(sent[1 - end] - taken[end]) {
                link.take(end, taken[end] + 1);
                taken[end] += 1;
            }
        }
    }
}

#[test]
fn credits_that_nobody_can_have_given_are_an_error() {
    for (cells, staging) in [(u64::MAX, 0), (9, 0), (0, u64::MAX), (0, 4096), (1 << 63, 1 << 63)] {
        let memory = Memory::new();
        let (mut sender, _receiver) = memory.ends(0);
        let bytes = [1u8; 64];
        for _ in 0..LAYOUT.cells {
            assert!(sender.send_piece(0, 64, Span::from(bytes.as_slice())).expect("not looked at yet"));
        }
        memory.consumer_line().cells.store(cells, Relaxed);
        memory.consumer_line().staging.store(staging, Relaxed);
        let refused = sender.send_piece(0, 64, Span::from(bytes.as_slice()));
        assert!(matches!(refused, Err(TransportError::Corrupt(_))), "{cells} {staging}: {refused:?}");
        assert!(matches!(sender.is_consumed(0), Err(TransportError::Corrupt(_))));
    }
}

#[test]
fn pieces_are_taken_only_from_where_the_next_one_must_be() {
    let memory = Memory::new();
    let (_sender, receiver) = memory.ends(0);
    assert!(receiver.piece(0, 128).is_ok());
    for (position, len) in [
        (0, 0),
        (0, 129),
        (0, usize::MAX),
        (64, 64),
        (512, 64),
        (u64::MAX, 1),
        (u64::MAX - 63, 64),
        (1 << 63, 128),
    ] {
        assert!(
            matches!(receiver.piece(position, len), Err(TransportError::Corrupt(_))),
            "{len} bytes at {position}"
        );
    }
}

#[test]
fn pieces_arrive_as_they_were_over_many_laps_however_they_are_stored() {
    let piece_bytes = 4096;
    let staging_bytes = 1 << 20;
    for (stores, fetches) in [
        (Stores::Streamed, false),
        (Stores::Cached, false),
        (Stores::Fetched, false),
        (Stores::Auto, false),
        (Stores::Auto, true),
    ] {
        let lap_bytes = staging_bytes;
        let layout =
            RingLayout { cells: 8, staging_bytes, piece_bytes, buffers: 2, lap_bytes, stores, fetches };
        let memory = Memory::of(layout);
        let (mut sender, mut receiver) = memory.ends(0);
        let mut furthest = 0;
        for i in 0..3000u32 {
            // Each fourth one is whole.
            let len = if i % 4 == 0 { piece_bytes } else { 1 + (i as usize * 997) % piece_bytes };
            let message: Vec<u8> = (0..len as u32).map(|at| (at * 7 + i) as u8).collect();
            let span = Span::from(message.as_slice());
            assert!(sender.send_piece(u64::from(i), len, span).expect("intact"), "there is room");
            let head = receiver.head().expect("sent");
            let Ok(Content::Staged { position, .. }) = receiver.content(head) else { panic!("staged") };
            furthest = furthest.max(position % staging_bytes as u64);
            assert_eq!(take(&mut receiver), Some((u64::from(i), message)));
        }
        let is_short = furthest < staging_bytes as u64 / 4;
        assert_eq!(
            is_short,
            stores == Stores::Streamed && cfg!(all(target_arch = "x86_64", not(miri))),
            "{stores}"
        );
    }
}

/// Returns the buffers of both ends of a link: of that which sends through the first ring, and of the other.
fn buffers_of(there: &Memory, back: &Memory) -> [Buffers; 2] {
    let start = |memory: &Memory| memory.0.as_ptr().cast_mut().cast();
    // SAFETY: the memory is as long as a ring, and outlives the buffers in these tests.
    unsafe { [(there, back), (back, there)].map(|(s, r)| Buffers::new(start(s), start(r), there.1)) }
}

/// Takes a piece that was handed over; returns its digest, its bytes and the peer's number of the buffer.
fn take_handed(receiver: &mut RingReceiver, buffers: &mut Buffers) -> (u64, Vec<u8>, u64) {
    let head = receiver.head().expect("sent");
    let Ok(Content::Handed { buffer, len, .. }) = receiver.content(head) else { panic!("handed over") };
    let (here, piece) = buffers.piece(buffer, len).expect("valid");
    // SAFETY: the span holds `len` bytes, which nobody writes until the buffer is sent back.
    let bytes = unsafe { std::slice::from_raw_parts(piece.as_ptr(), len) }.to_vec();
    buffers.take(here);
    let digest = receiver.digest();
    receiver.consume(None, Publish::Lazily);
    (digest, bytes, buffer)
}

/// Each end sends up to three pieces in turns, as long as it owns a buffer; each piece arrives as it was.
#[test]
fn buffers_change_hands_with_pieces_of_any_length() {
    let (there, back) = (Memory::new(), Memory::new());
    let mut ends = [there.ends(0), back.ends(0)];
    let mut buffers = buffers_of(&there, &back);
    let mut owned = [LAYOUT.buffers; 2];
    for round in 0..if cfg!(miri) { 40 } else { 2000u64 } {
        let end = (round % 2) as usize;
        for nth in 0..1 + round / 2 % 3 {
            if !buffers[end].has_one() {
                assert_eq!(owned, [[0, 4], [4, 0]][end]);
                break;
            }
            let len = 1 + (round * 3 + nth) as usize * 31 % LAYOUT.buffer_bytes();
            let bytes = long_message(round + nth, len);
            let (sender, receiver) = &mut ends[end];
            let sent = sender.hand_over(round, len, Span::from(bytes.as_slice()), &mut buffers[end]);
            assert!(sent.expect("intact"), "there is a cell");
            assert_eq!(take_handed(receiver, &mut buffers[1 - end]).1, bytes);
            owned[end] -= 1;
            owned[1 - end] += 1;
        }
    }
}

#[test]
fn an_end_sends_in_the_buffer_that_came_last() {
    let (there, back) = (Memory::new(), Memory::new());
    let [mut ends, mut back_ends] = [there.ends(0), back.ends(0)];
    let [mut ours, mut theirs] = buffers_of(&there, &back);
    let count = LAYOUT.buffers as u64;
    let mut last = count - 1;
    for digest in 0..20 {
        let bytes = [digest as u8; 9];
        assert!(ends.0.hand_over(digest, 9, Span::from(&bytes[..]), &mut ours).expect("intact"));
        let (_, _, number) = take_handed(&mut ends.1, &mut theirs);
        assert_eq!(number, last, "the sender's number");
        assert!(back_ends.0.hand_over(digest, 9, Span::from(&bytes[..]), &mut theirs).expect("intact"));
        let (_, _, number) = take_handed(&mut back_ends.1, &mut ours);
        // Each end has its own numbers.
        assert_eq!(number, (last + count) % (2 * count), "the buffer that has just come");
        last = (number + count) % (2 * count);
    }
}

#[test]
fn a_buffer_is_taken_only_from_the_end_that_owns_it() {
    let (there, back) = (Memory::new(), Memory::new());
    let [ours, theirs] = buffers_of(&there, &back);
    let count = LAYOUT.buffers as u64;
    assert!(theirs.piece(0, 1).is_ok() && ours.piece(count - 1, LAYOUT.buffer_bytes()).is_ok());
    // The numbers from `count` on are of buffers that the receiver of this message owns.
    for (number, len) in [
        (count, 1),
        (2 * count - 1, 1),
        (2 * count, 1),
        (u64::MAX, 1),
        (0, 0),
        (0, LAYOUT.buffer_bytes() + 1),
        (0, usize::MAX),
    ] {
        let refused = theirs.piece(number, len);
        assert!(matches!(refused, Err(TransportError::Corrupt(_))), "{len} bytes in buffer {number}");
    }
    let none = Memory::of(RingLayout { buffers: 0, ..LAYOUT });
    let [ours, _] = buffers_of(&none, &none);
    assert!(!ours.has_one() && ours.piece(0, 1).is_err());
}

#[test]
fn lines_that_are_fetched_ahead_change_no_message() {
    let layout = RingLayout { staging_bytes: 16 * 128, lap_bytes: 9 * 128, ..LAYOUT };
    let memory = Memory::of(layout);
    let (mut sender, mut receiver) = memory.ends(0);
    let back = Memory::of(layout);
    let [buffers, _] = buffers_of(&memory, &back);
    for digest in 0..600u64 {
        let len = digest as usize * 31 % (layout.piece_bytes + 1);
        let message: Vec<u8> = (0..len).map(|at| (at as u64 + digest) as u8).collect();
        let span = Span::from(message.as_slice());
        // Of this length, or of others: what comes is not known for sure.
        sender.fetch_next([len, 16, 100, 3000][digest as usize % 4], &receiver, &buffers);
        let is_sent = match len {
            0..=INLINE_BYTES => sender.send_inline(digest, span),
            _ if len <= LONG_BYTES => sender.send_long(digest, span),
            _ => sender.send_piece(digest, len, span),
        };
        assert!(is_sent.expect("intact"), "there is room");
        assert_eq!(take(&mut receiver), Some((digest, message)));
    }
}
