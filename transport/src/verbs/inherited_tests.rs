//! Objects that a forked child has inherited, on a library of stubs that counts what is destroyed.
//!
//! # Safety
//! The stubs have the types of the verbs functions. Each object is a leaked structure of zeroes, which is
//! valid for all of them. A forked child only drops objects and leaves by `_exit`.

use super::{Access, Library, QueuePairSpec, functions::Functions};
use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    mem::MaybeUninit,
    ptr::{self, addr_of_mut},
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};
use verbs_sys::{
    CompChannel, Context, Cq, Device, Gid, Mr, Pd, PortAttr, Qp, QpAttr, QpInitAttr, QpType, RecvWr, SendWr,
    Wc,
};

/// Number of objects that were destroyed in this process, or its parent before the fork.
static DESTROYED: AtomicI32 = AtomicI32::new(0);

fn made<T>() -> *mut T {
    Box::leak(Box::new(MaybeUninit::<T>::zeroed())).as_mut_ptr()
}

fn destroyed() -> c_int {
    DESTROYED.fetch_add(1, Relaxed);
    0
}

unsafe extern "C" fn get_device_list(_: *mut c_int) -> *mut *mut Device {
    Box::leak(Box::new([made::<Device>(), ptr::null_mut()])).as_mut_ptr()
}
unsafe extern "C" fn free_device_list(_: *mut *mut Device) {}
unsafe extern "C" fn get_device_name(_: *mut Device) -> *const c_char {
    c"stub".as_ptr()
}
unsafe extern "C" fn poll(_: *mut Cq, _: c_int, _: *mut Wc) -> c_int {
    0
}
unsafe extern "C" fn post_send(_: *mut Qp, _: *mut SendWr, _: *mut *mut SendWr) -> c_int {
    0
}
unsafe extern "C" fn post_recv(_: *mut Qp, _: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    0
}
unsafe extern "C" fn req_notify(_: *mut Cq, _: c_int) -> c_int {
    0
}
unsafe extern "C" fn open_device(_: *mut Device) -> *mut Context {
    let context = made::<Context>();
    // SAFETY: the structure was made above.
    unsafe {
        addr_of_mut!((*context).async_fd).write(-1);
        addr_of_mut!((*context).ops.poll_cq).write(Some(poll));
        addr_of_mut!((*context).ops.post_send).write(Some(post_send));
        addr_of_mut!((*context).ops.post_recv).write(Some(post_recv));
        addr_of_mut!((*context).ops.req_notify_cq).write(Some(req_notify));
    }
    context
}
unsafe extern "C" fn close_device(_: *mut Context) -> c_int {
    destroyed()
}
unsafe extern "C" fn query_port(_: *mut Context, _: u8, _: *mut PortAttr) -> c_int {
    1
}
unsafe extern "C" fn query_gid(_: *mut Context, _: u8, _: c_int, _: *mut Gid) -> c_int {
    1
}
unsafe extern "C" fn alloc_pd(_: *mut Context) -> *mut Pd {
    made()
}
unsafe extern "C" fn dealloc_pd(_: *mut Pd) -> c_int {
    destroyed()
}
unsafe extern "C" fn reg_mr(_: *mut Pd, _: *mut c_void, _: usize, _: c_int) -> *mut Mr {
    made()
}
unsafe extern "C" fn dereg_mr(_: *mut Mr) -> c_int {
    destroyed()
}
unsafe extern "C" fn create_cq(
    _: *mut Context,
    _: c_int,
    _: *mut c_void,
    _: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    made()
}
unsafe extern "C" fn destroy_cq(_: *mut Cq) -> c_int {
    destroyed()
}
unsafe extern "C" fn create_qp(_: *mut Pd, _: *mut QpInitAttr) -> *mut Qp {
    made()
}
unsafe extern "C" fn modify_qp(_: *mut Qp, _: *mut QpAttr, _: c_int) -> c_int {
    0
}
unsafe extern "C" fn destroy_qp(_: *mut Qp) -> c_int {
    destroyed()
}
unsafe extern "C" fn create_comp_channel(_: *mut Context) -> *mut CompChannel {
    // The descriptor is 0, standard input, whose flags the test does not use.
    made()
}
unsafe extern "C" fn destroy_comp_channel(_: *mut CompChannel) -> c_int {
    destroyed()
}
unsafe extern "C" fn get_cq_event(_: *mut CompChannel, _: *mut *mut Cq, _: *mut *mut c_void) -> c_int {
    1
}
unsafe extern "C" fn ack_cq_events(_: *mut Cq, _: c_uint) {}

const STUBS: Functions = Functions {
    ibv_get_device_list: get_device_list,
    ibv_free_device_list: free_device_list,
    ibv_get_device_name: get_device_name,
    ibv_open_device: open_device,
    ibv_close_device: close_device,
    ibv_query_port: query_port,
    ibv_query_gid: query_gid,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr: reg_mr,
    ibv_dereg_mr: dereg_mr,
    ibv_create_cq: create_cq,
    ibv_destroy_cq: destroy_cq,
    ibv_create_qp: create_qp,
    ibv_modify_qp: modify_qp,
    ibv_destroy_qp: destroy_qp,
    ibv_fork_init: None,
    ibv_get_device_guid: None,
    ibv_query_device: None,
    ibv_query_qp: None,
    ibv_create_comp_channel: Some(create_comp_channel),
    ibv_destroy_comp_channel: Some(destroy_comp_channel),
    ibv_get_cq_event: Some(get_cq_event),
    ibv_ack_cq_events: Some(ack_cq_events),
    ibv_get_async_event: None,
    ibv_ack_async_event: None,
};

#[test]
fn a_forked_child_that_drops_objects_destroys_none_of_its_parents() {
    let mut memory = [0u8; 64];
    let context = Library::of_functions(STUBS).open("stub").expect("a device");
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
        unsafe { libc::_exit(DESTROYED.load(Relaxed)) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one; the pointer is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "objects that the child has destroyed");
    drop(objects);
    assert_eq!(DESTROYED.load(Relaxed), 6);
}
