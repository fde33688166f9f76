//! Allocation of registered memory.
//!
//! # Safety
//! Freed memory is read by its address. It stays mapped as long as its arena, which the tests hold.

use super::*;
use crate::{memory::ArenaLayout, ring::RingLayout};

fn slab(blocks: usize) -> Slab {
    let layout = ArenaLayout {
        ranks: 1,
        lanes: 1,
        ring: RingLayout::default(),
        slab_bytes: blocks * Slab::BLOCK_BYTES as usize,
    };
    // Miri has no objects that processes share.
    if cfg!(miri) {
        return Slab::new(&Arena::private(layout).expect("memory for a test"), None);
    }
    let (arena, fd) = Arena::shared(layout).expect("memory for a test");
    Slab::new(&arena, Some(fd))
}

#[test]
fn freed_neighbours_join_and_read_as_zero() {
    let slab = slab(4);
    let mut held: Vec<_> = (0..4).map(|_| slab.allocate(60_000).expect("one block each")).collect();
    assert_eq!(slab.free_bytes(), 0);
    held[1].as_mut_slice().fill(7);
    held.remove(1);
    held.remove(1);
    let joined = slab.allocate(2 * Slab::BLOCK_BYTES as usize).expect("two neighbors were freed");
    assert!(joined.as_slice().iter().all(|byte| *byte == 0));
    drop(joined);
    drop(held);
    assert_eq!(slab.free_bytes(), 4 * Slab::BLOCK_BYTES);
    slab.allocate(4 * Slab::BLOCK_BYTES as usize).expect("all of it is one range again");
}

/// Pages lie on the NUMA node of the thread that makes them. That of a peer may be on another node.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn the_thread_that_allocates_a_shared_buffer_makes_its_pages_and_no_others() {
    let slab = slab(8);
    assert_eq!(blocks_present(&slab), 0, "a new arena has no pages");
    let _buffer = slab.allocate(3 * Slab::BLOCK_BYTES as usize).expect("room");
    assert_eq!(blocks_present(&slab), 3);
}

/// Pages that are made and given back for each result of a call take ten times as long as the call.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn pages_of_freed_buffers_are_kept_up_to_a_limit() {
    let slab = slab(8);
    *slab.0.lock() = Blocks::new(8 * Slab::BLOCK_BYTES, 3 * Slab::BLOCK_BYTES);
    let allocate = |blocks: u64| slab.allocate((blocks * Slab::BLOCK_BYTES) as usize).expect("room");
    let buffers = [2, 2, 1].map(allocate);
    assert_eq!(blocks_present(&slab), 5);
    drop(buffers);
    assert_eq!((blocks_present(&slab), slab.free_bytes()), (3, 8 * Slab::BLOCK_BYTES), "2 + 1 are kept");
    let mut all = allocate(8);
    assert_eq!(blocks_present(&slab), 8);
    assert!(all.as_slice().iter().all(|byte| *byte == 0));
    all.as_mut_slice().fill(7);
    drop(all);
    assert_eq!(blocks_present(&slab), 0, "longer than the limit");
    assert!(allocate(8).as_slice().iter().all(|byte| *byte == 0));
}

/// Returns how many blocks of a slab have pages.
#[cfg(all(target_os = "linux", not(miri)))]
fn blocks_present(slab: &Slab) -> u64 {
    let object = slab.0.object.as_ref().expect("a shared arena");
    rustix::fs::fstat(object).expect("its size").st_blocks as u64 * 512 / Slab::BLOCK_BYTES
}

/// Whether one entry of the page tables maps the huge page at an address.
#[cfg(all(target_os = "linux", not(miri)))]
fn is_huge(start: *const u8) -> bool {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("the mappings of this process");
    let mut lines = text.lines().skip_while(|line| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let ends = range.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
        !matches!(ends, Some((Ok(from), Ok(to))) if (from..to).contains(&start.addr()))
    });
    let line = lines.find(|line| line.starts_with("ShmemPmdMapped:")).expect("a line of a mapping");
    !line.contains(" 0 kB")
}

/// With pages of 4 KiB an `all_reduce` of 16 MiB of registered memory took 1.2 times as long.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn large_buffers_consist_of_huge_pages_for_their_rank_and_its_peers() {
    let layout =
        ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 4 * HUGE_PAGE_BYTES };
    for boundary in [None, Some(LINE)] {
        let (arena, fd) = match boundary {
            None => Arena::shared(layout),
            Some(boundary) => Arena::shared_for_device(layout, boundary),
        }
        .expect("memory for a test");
        let theirs = Arena::of_peer(layout, &fd).expect("mapped");
        let object = fd.try_clone().expect("a descriptor");
        let slab = match boundary {
            None => Slab::new(&arena, Some(object)),
            Some(boundary) => Slab::for_device(&arena, object, layout.slab_bytes as u64, boundary),
        };
        let small = slab.allocate(1).expect("room");
        let mut large = slab.allocate(2 * HUGE_PAGE_BYTES + 1).expect("room");
        assert!(large.as_slice().iter().all(|byte| *byte == 0));
        large.as_mut_slice()[HUGE_PAGE_BYTES] = 7;
        let offset = arena.locate(large.as_ptr(), large.len()).expect("a part of the slab");
        let seen = theirs.slab_span(offset, large.len()).expect("mapped").as_ptr();
        assert!(large.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        assert!(seen.addr().is_multiple_of(HUGE_PAGE_BYTES), "at the same place of a huge page");
        // SAFETY: the byte is part of the peer's mapping, and no other code writes it now.
        assert_eq!(unsafe { seen.add(HUGE_PAGE_BYTES).read() }, 7);
        // Whether this system makes huge pages at all.
        let control = Mapping::shared(HUGE_PAGE_BYTES).expect("memory for a test").0;
        control.make_huge(0..HUGE_PAGE_BYTES, true);
        if is_huge(control.as_ptr()) {
            assert!(is_huge(large.as_ptr()) && is_huge(seen));
        }
        assert_eq!(slab.free_bytes(), HUGE_PAGE_BYTES as u64 * 2 - 2 * Slab::BLOCK_BYTES);
        drop(small);
    }
}

#[test]
fn a_large_buffer_begins_anywhere_where_no_huge_page_is_free() {
    let slab = slab(3 * HUGE_PAGE_BYTES / Slab::BLOCK_BYTES as usize);
    let _small = slab.allocate(1).expect("room");
    let first = slab.allocate(HUGE_PAGE_BYTES).expect("room");
    let rest = 2 * HUGE_PAGE_BYTES - Slab::BLOCK_BYTES as usize;
    slab.allocate(rest).expect_err("not in one piece");
    drop(first);
    let mut whole = slab.allocate(HUGE_PAGE_BYTES + rest).expect("all that is free");
    assert_eq!(slab.free_bytes(), 0);
    assert!(whole.as_slice().iter().all(|byte| *byte == 0));
    whole.as_mut_slice().fill(7);
}

#[test]
fn a_full_slab_is_an_error_that_says_how_much_is_free() {
    let slab = slab(2);
    let _one = slab.allocate(1).expect("one block");
    let error = slab.allocate(100_000).expect_err("two blocks are not free");
    assert!(error.to_string().contains("TBCCL_SLAB_BYTES"), "{error}");
    slab.allocate(usize::MAX).expect_err("no overflow");
}

#[test]
fn registered_memory_is_found_and_other_memory_is_not() {
    let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 1 << 20 };
    let arena = Arena::private(layout).expect("memory for a test");
    let slab = Slab::new(&arena, None);
    let first = slab.allocate(10).expect("room");
    let buffer = slab.allocate(10).expect("room");
    assert_eq!(arena.locate(first.as_ptr(), 10), Some(0));
    assert_eq!(arena.locate(buffer.as_ptr(), 10), Some(Slab::BLOCK_BYTES));
    assert_eq!(arena.locate(buffer.as_ptr(), 1 << 20), None);
    let foreign = [0u8; 4];
    assert_eq!(arena.locate(foreign.as_ptr(), 4), None);
    assert_eq!(slab.locate(buffer.as_ptr(), 10), Some(Slab::BLOCK_BYTES));
    assert_eq!(slab.locate(buffer.as_ptr(), 1 << 20), None);
    assert_eq!(slab.locate(foreign.as_ptr(), 4), None);
}

const LINE: u64 = 4 << 30;
const GIB: usize = 1 << 30;

/// Returns the resident memory of the process in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

#[test]
fn no_buffer_crosses_a_line_and_untouched_pages_take_up_nothing() {
    let before = resident_bytes();
    let mapping = Arc::new(Mapping::private_for_device(6 * GIB, LINE).expect("addresses"));
    let slab = || Slab::over(Arc::clone(&mapping), 0..mapping.len(), Some(LINE));
    let crosses = |buffer: &Registered| {
        let first = buffer.as_ptr() as u64;
        first / LINE != (first + buffer.len() as u64 - 1) / LINE
    };
    let filled = slab();
    let rest = GIB - HUGE_PAGE_BYTES;
    let mut held =
        [HUGE_PAGE_BYTES, 3 * GIB, 2 * GIB - 1, rest].map(|len| filled.allocate(len).expect("room"));
    assert_eq!(filled.free_bytes(), 0);
    assert!(held.iter().all(|buffer| !crosses(buffer)));
    for buffer in &mut held {
        let last = buffer.len() - 1;
        assert_eq!(buffer.as_slice()[last], 0);
        buffer.as_mut_slice()[last] = 1;
    }
    drop(held);
    assert_eq!(filled.free_bytes(), 6 * GIB as u64);
    let half = slab();
    let _first = half.allocate(3 * GIB).expect("room");
    let second = half.allocate(2 * GIB).expect("on the other side of the line");
    assert!(!crosses(&second));
    let whole = slab().allocate(6 * GIB).expect("longer than a line, it begins at one");
    assert_eq!(whole.as_ptr() as u64 % LINE, 0);
    drop(whole);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GIB as u64 / 2, "{grown} bytes were touched");
}

#[test]
fn pages_that_a_device_knows_are_kept_and_zeroed_before_they_are_handed_out_again() {
    let mapping = Arc::new(Mapping::private(1 << 20).expect("memory for a test"));
    let slab = Slab::over(Arc::clone(&mapping), 1 << 16..1 << 20, None);
    let mut first = slab.allocate(100_000).expect("room");
    assert_eq!(first.as_ptr(), mapping.as_ptr().wrapping_add(1 << 16));
    first.as_mut_slice().fill(7);
    let (place, kept) = (first.as_ptr(), first.as_ptr() as usize);
    drop(first);
    // SAFETY: the mapping is alive, and no buffer has the range now.
    assert_eq!(unsafe { place.read() }, 7, "the page is the one that was written");
    let again = slab.allocate(400_000).expect("room");
    assert_eq!(again.as_ptr() as usize, kept);
    assert!(again.as_slice().iter().all(|byte| *byte == 0));
}

#[test]
fn memory_that_a_device_knew_is_zero_when_it_is_handed_out_without_the_device() {
    let layout = ArenaLayout { ranks: 1, lanes: 1, ring: RingLayout::default(), slab_bytes: 1 << 20 };
    let (arena, fd) = Arena::shared_for_device(layout, LINE).expect("memory for a test");
    let object = || fd.try_clone().expect("a descriptor");
    let former = Slab::for_device(&arena, object(), 512 << 10, LINE);
    assert!(former.is_in(&arena) && former.free_bytes() == 512 << 10, "a part of it");
    let mut first = former.allocate(100_000).expect("room");
    assert!(arena.locate(first.as_ptr(), 100_000).is_some(), "peers have it mapped");
    first.as_mut_slice().fill(7);
    let place = first.as_ptr();
    drop(first);
    // SAFETY: the mapping is alive, and no buffer has the range now.
    assert_eq!(unsafe { place.read() }, 7, "the device would still see this page");
    let latter = Slab::replacing(&former, &arena, object());
    drop(former);
    assert_eq!(latter.free_bytes(), 1 << 20, "all of it");
    let all = latter.allocate(1 << 20).expect("room");
    assert!(all.as_slice().iter().all(|byte| *byte == 0));
}
