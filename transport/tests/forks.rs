//! Forked children of processes with registered memory.
//!
//! # Safety
//! A forked child runs one closure and leaves by `_exit`, which runs none of the parent's destructors. An
//! alarm ends a child that hangs. Raw mappings replace only pages that the test owns.

#![cfg(target_os = "linux")]

use std::sync::Arc;
use transport::{
    TransportError,
    memory::{Arena, ArenaLayout, Mapping, Slab},
    ring::{RingLayout, Stores},
};

const LAYOUT: ArenaLayout = ArenaLayout {
    ranks: 1,
    lanes: 1,
    ring: RingLayout {
        cells: 16,
        staging_bytes: 4096,
        piece_bytes: 4096,
        buffers: 2,
        lap_bytes: 4096,
        stores: Stores::Auto,
        fetches: false,
    },
    slab_bytes: 1 << 20,
};

/// Runs a closure in a forked child and returns its exit status.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs the closure and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: a child that hangs is ended by the alarm's signal.
        unsafe { libc::alarm(30) };
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
        // SAFETY: `_exit` runs no code of the parent.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one; the pointer is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -status }
}

#[test]
fn a_child_that_drops_registered_memory_leaves_the_parents_bytes_alone() {
    let (arena, object) = Arena::shared(LAYOUT).expect("memory for a test");
    let slab = Slab::new(&arena, Some(object));
    let mut memory = slab.allocate(100_000).expect("room");
    memory.as_mut_slice().fill(7);
    let free = slab.free_bytes();
    let (kept, parents_slab) = (memory.as_slice().as_ptr(), slab.clone());
    let mut memory = Some(memory);
    let status = in_child(|| {
        drop(memory.take());
        drop((slab, arena));
        0
    });
    assert_eq!(status, 0);
    let memory = memory.expect("it was dropped in the child only");
    assert_eq!(memory.as_slice().as_ptr(), kept);
    assert!(memory.as_slice().iter().all(|byte| *byte == 7));
    assert_eq!(parents_slab.free_bytes(), free);
}

#[test]
fn a_child_gets_no_memory_of_its_parents_slab() {
    let (arena, object) = Arena::shared(LAYOUT).expect("memory for a test");
    let slab = Slab::new(&arena, Some(object));
    let status = in_child(|| i32::from(!matches!(slab.allocate(1), Err(TransportError::Forked))));
    assert_eq!(status, 0);
    slab.allocate(1).expect("the parent still does");
}

#[test]
fn a_child_has_memory_of_its_own() {
    drop(Mapping::private(4096).expect("memory for a test"));
    let status = in_child(|| {
        let (arena, object) = Arena::shared(LAYOUT).expect("memory for a test");
        let slab = Slab::new(&arena, Some(object));
        drop(slab.allocate(1).expect("room"));
        i32::from(slab.free_bytes() != LAYOUT.slab_bytes as u64)
    });
    assert_eq!(status, 0);
}

/// A device's library may have excluded the pages from children (`MADV_DONTFORK`).
#[test]
fn a_child_does_not_unmap_other_pages_at_the_addresses_of_its_parents() {
    const LEN: usize = 1 << 16;
    let mapping = Arc::new(Mapping::private(LEN).expect("memory for a test"));
    let start = mapping.as_ptr();
    // SAFETY: the range is a whole mapping of this test.
    assert_eq!(unsafe { libc::madvise(start.cast(), LEN, libc::MADV_DONTFORK) }, 0);
    let status = in_child(|| {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the call fails where pages are mapped already.
        let new = unsafe { libc::mmap(start.cast(), LEN, prot, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
        if new != start.cast() {
            return 1;
        }
        drop(mapping);
        // SAFETY: the pages were mapped above. Without them the signal ends the child.
        unsafe { start.write(1) };
        0
    });
    assert_eq!(status, 0);
}
