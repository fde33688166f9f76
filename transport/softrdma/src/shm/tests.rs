//! Processes that share a folder, all played by the test.
//!
//! # Safety
//! A child that a test forks makes assertions and ends. It takes no lock that another thread may hold but
//! those of the allocator, which the C library makes usable in children.

use super::{
    Completion, Directory, Process, Pushed, QueueKind, Unreached, holds_lock,
    lock::{Acquired, Owner},
};
use std::sync::{
    Arc,
    atomic::Ordering::{Relaxed, SeqCst},
};

const SLOTS: u64 = 4;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn join(folder: &tempfile::TempDir) -> Process {
    let directory = Directory::open(folder.path(), 1).expect("a fabric");
    Process::join(Arc::new(directory), 0).expect("a place")
}

/// A process with a completion queue of a few slots at index 1.
fn with_queue(folder: &tempfile::TempDir) -> Process {
    let process = join(folder);
    let ring = process.allocate(SLOTS * 64).expect("room");
    process.own().cq(1).expect("a record").init(ring.0, SLOTS, SLOTS, 1, 0);
    process
}

fn completion(number: u64) -> Completion {
    Completion { wr_id: number, number, qpn: 7, kind: QueueKind::Receive, ..Completion::default() }
}

#[test]
fn places_are_taken_in_order_and_given_back() {
    let folder = folder();
    let (first, second) = (join(&folder), join(&folder));
    assert_eq!((first.me.slot, second.me.slot), (0, 1));
    assert!(second.view(0, 0).is_some() && !second.is_dead(first.me));
    let gone = first.me;
    drop(first);
    assert!(second.is_dead(gone));
    let third = join(&folder);
    assert_eq!(third.me.slot, 0);
    assert_ne!(third.me.incarnation, gone.incarnation);
    assert!(second.view(0, gone.incarnation).is_some_and(|view| view.is_dead()));
    assert!(second.view(0, third.me.incarnation).is_some_and(|view| !view.is_dead()));
    drop((second, third));
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("readable").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn another_fabric_or_version_is_refused() {
    let folder = folder();
    let directory = Directory::open(folder.path(), 1).expect("a fabric");
    assert_eq!(Directory::open(folder.path(), 2).err(), Some(rustix::io::Errno::STALE));
    directory.header().version.fetch_add(1, Relaxed);
    assert_eq!(Directory::open(folder.path(), 1).err(), Some(rustix::io::Errno::PROTO));
    directory.header().magic.store(3, Relaxed);
    assert_eq!(Directory::open(folder.path(), 1).err(), Some(rustix::io::Errno::BADMSG));
}

#[test]
fn completions_come_in_order_until_there_is_no_room() {
    let folder = folder();
    let owner = with_queue(&folder);
    let peer = join(&folder);
    let there = peer.view(owner.me.slot, 0).expect("the owner");
    let record = there.cq(1).expect("a record");
    let push = |number| record.push(there, peer.me, |_| false, None, &completion(number), || {});
    for lap in 0..3 {
        for number in lap * SLOTS..(lap + 1) * SLOTS {
            assert_eq!(push(number), Pushed::Unnotified);
        }
        for number in lap * SLOTS..(lap + 1) * SLOTS {
            let own = owner.own().cq(1).expect("a record");
            assert_eq!(own.peek(owner.own(), number), Some(completion(number)));
            own.consume(number + 1);
        }
    }
    (0..SLOTS).for_each(|number| assert_eq!(push(number), Pushed::Unnotified));
    assert_eq!(push(9), Pushed::Overrun);
}

#[test]
fn an_armed_queue_wakes_once() {
    let folder = folder();
    let owner = with_queue(&folder);
    let record = owner.own().cq(1).expect("a record");
    let push =
        |completion: &Completion| record.push(owner.own(), owner.me, |_| false, None, completion, || {});
    record.arm(true);
    assert_eq!(push(&completion(0)), Pushed::Unnotified);
    assert_eq!(push(&Completion { is_solicited: true, ..completion(1) }), Pushed::Notified);
    assert_eq!(push(&Completion { is_solicited: true, ..completion(2) }), Pushed::Unnotified);
    record.arm(false);
    assert_eq!(push(&completion(3)), Pushed::Notified);
    assert_eq!(record.fixed.pending.load(SeqCst), 2);
}

/// A process that is killed between writing a completion and moving the tail leaves a completion that counts,
/// once.
#[test]
fn a_completion_of_the_dead_counts_once() {
    let folder = folder();
    let owner = with_queue(&folder);
    let record = owner.own().cq(1).expect("a record");
    let dead = Owner { slot: 200, incarnation: 1 };
    let push =
        |number| record.push(owner.own(), owner.me, |who| who == dead, None, &completion(number), || {});
    assert_eq!(push(0), Pushed::Unnotified);
    for is_written in [true, false] {
        let tail = record.producers.tail.load(Relaxed);
        if is_written {
            assert_eq!(push(tail), Pushed::Unnotified);
            record.producers.tail.store(tail, Relaxed);
        }
        std::mem::forget(record.producers.lock.lock(dead, |_| false));
        let expected = tail + u64::from(is_written);
        assert_eq!(push(expected), Pushed::Unnotified);
        assert_eq!(record.producers.tail.load(Relaxed), expected + 1);
        assert_eq!(record.peek(owner.own(), expected).map(|found| found.number), Some(expected));
    }
}

#[test]
fn an_intent_tells_whether_a_completion_was_written() {
    let folder = folder();
    let owner = with_queue(&folder);
    let record = owner.own().cq(1).expect("a record");
    let view = owner.own();
    assert!(!record.was_pushed(view, 1, Some(7), QueueKind::Receive, 0));
    record.push(view, owner.me, |_| false, None, &completion(0), || {});
    assert!(record.was_pushed(view, 1, Some(7), QueueKind::Receive, 0));
    assert!(!record.was_pushed(view, 1, Some(8), QueueKind::Receive, 0));
    assert!(!record.was_pushed(view, 1, Some(7), QueueKind::Receive, 1));
    assert!(!record.was_pushed(view, 0, Some(7), QueueKind::Receive, 0));
}

#[test]
fn a_lock_of_a_process_that_left_is_taken_over() {
    let folder = folder();
    let (here, there) = (join(&folder), join(&folder));
    let lock = &here.own().header().atomics;
    std::mem::forget(lock.lock(there.me, |_| false));
    drop(there);
    assert_eq!(lock.lock(here.me, |who| here.is_dead(who)).acquired, Acquired::Stolen);
}

#[test]
fn a_process_is_seen_to_hold_a_lock_of_a_peer_as_long_as_it_does() {
    let folder = folder();
    let (here, there) = (join(&folder), join(&folder));
    let own = std::process::id();
    let locks = here.own().locks().count();
    assert!(locks > 3 * 64, "send, receive and completion queues, and atomic operations: {locks}");
    for lock in here.own().locks().step_by(locks / 9) {
        assert!(!holds_lock(&here.directory, own));
        let held = lock.lock(there.me, |_| false);
        assert!(holds_lock(&here.directory, own));
        assert!(!holds_lock(&here.directory, own + 1), "another process");
        drop(held);
    }
    // The lock of an earlier user of the slot, which the next one to take it takes over.
    let earlier = Owner { incarnation: there.me.incarnation + 1, ..there.me };
    std::mem::forget(here.own().header().atomics.lock(earlier, |_| false));
    assert!(!holds_lock(&here.directory, own));
}

fn names(folder: &std::path::Path) -> Vec<std::ffi::OsString> {
    std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.file_name()).collect()
}

fn join_at(path: &std::path::Path) -> Process {
    loop {
        let directory = Directory::open(path, 1).expect("a fabric");
        match Process::join(Arc::new(directory), 0) {
            Err(rustix::io::Errno::NOENT) => {}
            joined => return joined.expect("a place"),
        }
    }
}

#[test]
fn the_last_to_leave_removes_a_folder_of_ours() {
    let base = folder();
    let path = base.path().join("ours");
    let (first, second) = (join_at(&path), join_at(&path));
    drop(first);
    assert!(path.is_dir());
    // Files of killed processes.
    for name in ["p9", "w9.1", "m10", "w11.2"] {
        std::fs::write(path.join(name), "").expect("room for a file");
    }
    drop(second);
    assert!(names(base.path()).is_empty());
}

#[test]
fn nobody_removes_what_others_have_made() {
    let base = folder();
    let theirs = base.path().join("theirs");
    std::fs::create_dir(&theirs).expect("a folder");
    drop(join_at(&theirs));
    assert_eq!(names(&theirs), ["fabric"]);
    let ours = base.path().join("ours");
    let process = join_at(&ours);
    std::fs::write(ours.join("notes"), "").expect("room for a file");
    drop(process);
    assert!(ours.join("notes").exists());
}

/// A process that is killed after it has created the folder leaves one that is recognized.
#[test]
fn a_folder_of_a_killed_process_is_removed_by_the_next() {
    let base = folder();
    let path = base.path().join("ours");
    drop(Directory::open(&path, 1).expect("a fabric"));
    drop(join_at(&path));
    assert!(!path.exists());
}

/// Processes that join while the last member leaves are in a folder that exists.
#[test]
fn joining_and_leaving_at_the_same_time_meet() {
    let base = folder();
    let path = base.path().join("ours");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let process = join_at(&path);
                    let file = path.join(format!("p{}", process.me.slot));
                    assert!(file.exists(), "{}", file.display());
                }
            });
        }
    });
    assert!(names(base.path()).is_empty());
}

#[test]
fn a_place_that_was_half_made_is_no_obstacle() {
    let folder = folder();
    for name in ["m0", "w0.3"] {
        std::fs::write(folder.path().join(name), "").expect("room for a file");
    }
    assert_eq!(join(&folder).me.slot, 0);
}

/// A process that has a dead process's file mapped keeps neither its memory nor a descriptor.
#[test]
fn the_memory_of_the_dead_is_given_back() {
    use std::os::unix::fs::MetadataExt;
    let folder = folder();
    let survivor = join(&folder);
    let dead = with_queue(&folder);
    let slot = dead.me.slot;
    rustix::fs::fallocate(dead.pages_fd(), rustix::fs::FallocateFlags::empty(), 0, 1 << 20).expect("room");
    let open = |kind: char| std::fs::File::open(folder.path().join(format!("{kind}{slot}"))).expect("a file");
    let files = [open('p'), open('m')];
    let blocks = || files.each_ref().map(|file| file.metadata().expect("a file").blocks());
    let view = survivor.view(slot, 0).expect("the other");
    survivor.pages(view).expect("its pages");
    assert!(blocks().iter().all(|blocks| *blocks > 0));
    dead.die();
    assert!(view.is_dead());
    let [file, pages] = blocks();
    assert!(file * 512 <= rustix::param::page_size() as u64 && pages == 0, "{file} and {pages} blocks");
}

/// A view of a dead process is not led to the pages of the slot's next user.
#[test]
fn pages_of_a_slots_next_user_are_not_taken_for_those_of_the_last() {
    let folder = folder();
    let (last, peer) = (join(&folder), join(&folder));
    let view = peer.view(last.me.slot, 0).expect("the last user");
    last.die();
    let next = join(&folder);
    assert_eq!(next.me.slot, view.owner.slot);
    assert_eq!(peer.pages(view).err(), Some(Unreached::Gone));
    let view = peer.view(next.me.slot, next.me.incarnation).expect("the next user");
    assert!(peer.pages(view).is_ok());
}

/// Processes that can't be looked up, because the program has opened too many files, are not dead: what they
/// hold must not be repaired, and their memory is reached once there are descriptors again.
#[test]
fn processes_are_not_dead_because_this_one_has_no_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let folder = folder();
    let (me, known, other) = (join(&folder), join(&folder), join(&folder));
    let view = me.view(known.me.slot, 0).expect("a member");
    in_child(|| {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).expect("less");
        assert_eq!(me.pages(view).err(), Some(Unreached::NoResources));
        assert_eq!(me.find(other.me.slot, other.me.incarnation).err(), Some(Unreached::NoResources));
        assert!(!me.is_dead(other.me));
        setrlimit(Resource::Nofile, before).expect("as before");
        assert!(me.pages(view).is_ok());
        assert!(me.find(other.me.slot, other.me.incarnation).is_ok());
    });
}

/// Runs assertions in a child process, whose limits are its own.
fn in_child(asserts: impl FnOnce()) {
    // SAFETY: see the module.
    match unsafe { libc::fork() } {
        0 => {
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(asserts)).is_ok();
            // SAFETY: ends the process.
            unsafe { libc::_exit(if passed { 0 } else { 1 }) }
        }
        child => {
            let child = rustix::process::Pid::from_raw(child).expect("a child");
            let ended = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
            assert_eq!(ended.expect("a child").and_then(|(_, status)| status.exit_status()), Some(0));
        }
    }
}

/// Room for unwritten pages is promised only while there is room for all of them.
#[test]
fn no_more_is_promised_than_there_is() {
    let folder = folder();
    let [a, b] = [0, 1].map(|_| join(&folder));
    let about = rustix::fs::statvfs(folder.path()).expect("a file system");
    let room = about.f_bavail * about.f_frsize;
    if about.f_blocks == 0 {
        return;
    }
    assert_eq!(a.reserve_pages(0, room * 2), None);
    assert_eq!(a.reserve_pages(0, room / 2), Some(()));
    assert_eq!(a.reserve_pages(room / 2, room), None, "with what it has promised before");
    assert_eq!(b.reserve_pages(0, room / 3 * 2), None, "with what the other has promised");
    assert_eq!(b.reserve_pages(0, room / 4), Some(()));
    drop(a);
    assert_eq!(b.reserve_pages(room / 4, room / 2), Some(()), "the other is gone");
}
