//! Objects that a forked child has inherited, on a device that counts what is destroyed.
//!
//! # Safety
//! A forked child only drops objects and leaves by `_exit`.

use super::{
    Access, QueuePairSpec,
    null_device::{destroyed_objects, library},
};
use verbs_sys::QpType;

#[test]
fn a_forked_child_that_drops_objects_destroys_none_of_its_parents() {
    let mut memory = [0u8; 64];
    let context = library().open("null").expect("a device");
    let channel = context.channel().expect("a channel");
    let cq = context.completion_queue(16, Some(&channel)).expect("a queue");
    let domain = context.domain().expect("a domain");
    // SAFETY: no work is posted on the region.
    let region = unsafe { domain.register(memory.as_mut_ptr(), memory.len(), Access::Local) };
    let spec = QueuePairSpec { service: QpType::RC, send_depth: 1, recv_depth: 1, inline_bytes: 0 };
    let queue_pair = domain.queue_pair(&spec, &cq).expect("a queue pair");
    let objects = (queue_pair, region.expect("a region"), domain, cq, channel, context);
    // SAFETY: the child only drops the objects and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        drop(objects);
        // SAFETY: `_exit` runs no code of the parent.
        unsafe { libc::_exit(destroyed_objects()) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one; the pointer is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "objects that the child has destroyed");
    drop(objects);
    assert_eq!(destroyed_objects(), 6);
}
