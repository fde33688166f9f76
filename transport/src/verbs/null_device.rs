//! A device that moves no bytes, as a verbs library of functions, for tests and fuzzing.
//!
//! Each thread has a device of its own, which notes the receives and sends that are posted to its queue
//! pairs. The caller decides what completes. The library counts destroyed objects.
//!
//! # Safety
//! The functions have the types of the verbs functions. Each object is a boxed structure of zeroes, which is
//! valid for all of them, and is freed by the function that destroys it. Callers keep the rules of verbs: an
//! object is destroyed once, after the objects made from it.

use super::{Library, functions::Functions};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    ffi::{c_char, c_int, c_uint, c_void},
    mem::MaybeUninit,
    ptr::{self, addr_of_mut},
};
use verbs_sys::{
    CompChannel, Context, Cq, Device, Gid, Mr, Pd, PortAttr, PortState, Qp, QpAttr, QpAttrMask, QpInitAttr,
    QpState, RecvWr, SendFlags, SendWr, Wc,
};

#[cfg(test)]
use verbs_sys::WcOpcode;

/// Requests posted to a queue pair and not completed.
#[derive(Debug, Default)]
struct Posted {
    receives: VecDeque<u64>,
    sends: VecDeque<u64>,
    /// All sends and writes of bytes that a test may look at, oldest first.
    #[cfg(test)]
    requests: VecDeque<PostedRequest>,
}

/// A send or a write that is posted to a queue pair.
#[cfg(test)]
#[derive(Clone, Debug)]
pub(crate) struct PostedRequest {
    pub(crate) id: u64,
    pub(crate) is_write: bool,
    pub(crate) is_signaled: bool,
    /// Address and bytes of the message when it was posted.
    pub(crate) address: usize,
    pub(crate) bytes: Vec<u8>,
}

thread_local! {
    /// Number of objects that this thread has destroyed, or the parent's thread before a fork.
    static DESTROYED: Cell<c_int> = const { Cell::new(0) };
    /// Requests of each queue pair, by number.
    static POSTED: RefCell<HashMap<u32, Posted>> = RefCell::default();
    /// Completions that have not been polled, by the address of their queue.
    static COMPLETIONS: RefCell<HashMap<usize, VecDeque<Wc>>> = RefCell::default();
}

#[cfg(test)]
thread_local! {
    /// Addresses of the completion queues of the sends and of the receives of each queue pair, by number.
    static QUEUES: RefCell<HashMap<u32, (usize, usize)>> = RefCell::default();
}

/// Returns the library of the device, and forgets all requests that this thread has posted.
pub(crate) fn library() -> Library {
    POSTED.with_borrow_mut(HashMap::clear);
    COMPLETIONS.with_borrow_mut(HashMap::clear);
    Library::of_functions(FUNCTIONS)
}

/// Returns the number of objects that this thread has destroyed, or the parent's thread before a fork.
#[cfg(test)]
pub(super) fn destroyed_objects() -> c_int {
    DESTROYED.get()
}

/// Takes out the identifier of the oldest receive that is posted to a queue pair.
#[cfg_attr(not(feature = "fuzzing"), allow(dead_code, reason = "tests of forks complete nothing"))]
pub(crate) fn take_receive(queue_pair: u32) -> Option<u64> {
    POSTED.with_borrow_mut(|posted| posted.get_mut(&queue_pair)?.receives.pop_front())
}

/// Takes out the identifier of the oldest signaled send that is posted to a queue pair.
#[cfg_attr(not(feature = "fuzzing"), allow(dead_code, reason = "tests of forks complete nothing"))]
pub(crate) fn take_send(queue_pair: u32) -> Option<u64> {
    POSTED.with_borrow_mut(|posted| posted.get_mut(&queue_pair)?.sends.pop_front())
}

/// Returns the sends and writes that are posted to a queue pair, oldest first.
#[cfg(test)]
pub(crate) fn requests(queue_pair: u32) -> Vec<PostedRequest> {
    POSTED
        .with_borrow(|posted| posted.get(&queue_pair).map(|posted| posted.requests.iter().cloned().collect()))
        .unwrap_or_default()
}

/// Takes out the oldest send or write of a queue pair, as a device that executes it.
#[cfg(test)]
pub(crate) fn execute(queue_pair: u32) -> Option<PostedRequest> {
    POSTED.with_borrow_mut(|posted| {
        let posted = posted.get_mut(&queue_pair)?;
        let request = posted.requests.pop_front()?;
        if request.is_signaled {
            posted.sends.retain(|id| *id != request.id);
        }
        Some(request)
    })
}

/// Completes the oldest send or write of a queue pair, as a device whose completions are polled.
#[cfg(test)]
pub(crate) fn finish_send(queue_pair: u32) -> Option<PostedRequest> {
    let request = execute(queue_pair)?;
    if request.is_signaled {
        let (sends, _) = QUEUES.with_borrow(|queues| queues.get(&queue_pair).copied())?;
        add_completion(sends, request.id, WcOpcode::SEND, request.bytes.len());
    }
    Some(request)
}

/// Completes the oldest receive of a queue pair, as a device whose completions are polled.
#[cfg(test)]
pub(crate) fn finish_receive(queue_pair: u32, bytes: usize) -> Option<u64> {
    let id = take_receive(queue_pair)?;
    let (_, receives) = QUEUES.with_borrow(|queues| queues.get(&queue_pair).copied())?;
    add_completion(receives, id, WcOpcode::RECV, bytes);
    Some(id)
}

/// Returns the completions of a queue pair's queue of receives that have not been polled.
#[cfg(test)]
pub(crate) fn unpolled_receives(queue_pair: u32) -> usize {
    let queue = QUEUES.with_borrow(|queues| queues.get(&queue_pair).map(|(_, receives)| *receives));
    COMPLETIONS.with_borrow(|queues| queue.and_then(|queue| queues.get(&queue)).map_or(0, VecDeque::len))
}

#[cfg(test)]
fn add_completion(queue: usize, id: u64, opcode: WcOpcode, bytes: usize) {
    // SAFETY: zeroes are valid for it.
    let mut completion: Wc = unsafe { std::mem::zeroed() };
    completion.wr_id = id;
    completion.opcode = opcode;
    completion.byte_len = bytes as u32;
    COMPLETIONS.with_borrow_mut(|queues| queues.entry(queue).or_default().push_back(completion));
}

/// Notes a request, with the bytes that the device would read now.
#[cfg(test)]
fn note(number: u32, request: &SendWr) {
    let flags = SendFlags(request.send_flags);
    // SAFETY: requests of this crate have one element, which names memory that stays while it is posted.
    let (address, bytes) = unsafe {
        let element = &*request.sg_list;
        let start = element.addr as *const u8;
        (element.addr as usize, std::slice::from_raw_parts(start, element.length as usize).to_vec())
    };
    let request = PostedRequest {
        id: request.wr_id,
        is_write: request.opcode != verbs_sys::WrOpcode::SEND,
        is_signaled: flags.contains(SendFlags::SIGNALED),
        address,
        bytes,
    };
    POSTED.with_borrow_mut(|posted| posted.entry(number).or_default().requests.push_back(request));
}

fn made<T>() -> *mut T {
    Box::into_raw(Box::new(MaybeUninit::<T>::zeroed())).cast()
}

/// Frees an object that [`made`] has returned.
fn destroyed<T>(object: *mut T) -> c_int {
    // SAFETY: the caller destroys an object of this library, once.
    drop(unsafe { Box::from_raw(object.cast::<MaybeUninit<T>>()) });
    DESTROYED.set(DESTROYED.get() + 1);
    0
}

unsafe extern "C" fn get_device_list(_: *mut c_int) -> *mut *mut Device {
    Box::into_raw(Box::new([made::<Device>(), ptr::null_mut()])).cast()
}
unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    // SAFETY: the list was made by `get_device_list`, with one device.
    unsafe {
        drop(Box::from_raw((*list).cast::<MaybeUninit<Device>>()));
        drop(Box::from_raw(list.cast::<[*mut Device; 2]>()));
    }
}
unsafe extern "C" fn get_device_name(_: *mut Device) -> *const c_char {
    c"null".as_ptr()
}
unsafe extern "C" fn poll(queue: *mut Cq, count: c_int, found: *mut Wc) -> c_int {
    COMPLETIONS.with_borrow_mut(|queues| {
        let Some(due) = queues.get_mut(&(queue as usize)) else { return 0 };
        let count = due.len().min(count as usize);
        for (index, completion) in due.drain(..count).enumerate() {
            // SAFETY: the caller has room for `count` completions.
            unsafe { found.add(index).write(completion) };
        }
        count as c_int
    })
}
unsafe extern "C" fn post_send(queue_pair: *mut Qp, request: *mut SendWr, _: *mut *mut SendWr) -> c_int {
    // SAFETY: both live until the call returns.
    let (number, id, flags) =
        unsafe { ((*queue_pair).qp_num, (*request).wr_id, SendFlags((*request).send_flags)) };
    #[cfg(test)]
    // SAFETY: as above.
    note(number, unsafe { &*request });
    if flags.contains(SendFlags::SIGNALED) {
        POSTED.with_borrow_mut(|posted| posted.entry(number).or_default().sends.push_back(id));
    }
    0
}
unsafe extern "C" fn post_recv(queue_pair: *mut Qp, request: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    // SAFETY: both live until the call returns.
    let (number, id) = unsafe { ((*queue_pair).qp_num, (*request).wr_id) };
    POSTED.with_borrow_mut(|posted| posted.entry(number).or_default().receives.push_back(id));
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
unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    destroyed(context)
}
unsafe extern "C" fn query_port(_: *mut Context, _: u8, port: *mut PortAttr) -> c_int {
    // SAFETY: the caller has room for the answer.
    unsafe { addr_of_mut!((*port).state).write(PortState::ACTIVE) };
    0
}
unsafe extern "C" fn query_gid(_: *mut Context, _: u8, _: c_int, _: *mut Gid) -> c_int {
    1
}
unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut Pd {
    let domain = made::<Pd>();
    // SAFETY: the structure was made above.
    unsafe { addr_of_mut!((*domain).context).write(context) };
    domain
}
unsafe extern "C" fn dealloc_pd(domain: *mut Pd) -> c_int {
    destroyed(domain)
}
unsafe extern "C" fn reg_mr(_: *mut Pd, _: *mut c_void, _: usize, _: c_int) -> *mut Mr {
    made()
}
unsafe extern "C" fn dereg_mr(region: *mut Mr) -> c_int {
    destroyed(region)
}
unsafe extern "C" fn create_cq(
    context: *mut Context,
    _: c_int,
    _: *mut c_void,
    _: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    let queue = made::<Cq>();
    // SAFETY: the structure was made above.
    unsafe { addr_of_mut!((*queue).context).write(context) };
    queue
}
unsafe extern "C" fn destroy_cq(queue: *mut Cq) -> c_int {
    destroyed(queue)
}
unsafe extern "C" fn create_qp(domain: *mut Pd, attributes: *mut QpInitAttr) -> *mut Qp {
    let queue_pair = made::<Qp>();
    let number = POSTED.with_borrow_mut(|posted| {
        let number = posted.len() as u32 + 1;
        posted.insert(number, Posted::default());
        number
    });
    #[cfg(test)]
    QUEUES.with_borrow_mut(|queues| {
        // SAFETY: the caller's attributes live until the call returns.
        let (sends, receives) = unsafe { ((*attributes).send_cq, (*attributes).recv_cq) };
        queues.insert(number, (sends as usize, receives as usize))
    });
    #[cfg(not(test))]
    let _ = attributes;
    // SAFETY: the structure was made above, and the domain is alive.
    unsafe {
        addr_of_mut!((*queue_pair).context).write((*domain).context);
        addr_of_mut!((*queue_pair).qp_num).write(number);
    }
    queue_pair
}
unsafe extern "C" fn modify_qp(queue_pair: *mut Qp, attributes: *mut QpAttr, mask: c_int) -> c_int {
    // SAFETY: both live until the call returns.
    let (number, state) = unsafe { ((*queue_pair).qp_num, (*attributes).qp_state) };
    let is_discarded = [QpState::RESET, QpState::ERR].contains(&state);
    if mask & QpAttrMask::STATE.0 as c_int != 0 && is_discarded {
        POSTED.with_borrow_mut(|posted| posted.insert(number, Posted::default()));
    }
    0
}
unsafe extern "C" fn destroy_qp(queue_pair: *mut Qp) -> c_int {
    destroyed(queue_pair)
}
unsafe extern "C" fn create_comp_channel(_: *mut Context) -> *mut CompChannel {
    // The descriptor is 0, standard input, whose flags the tests do not use.
    made()
}
unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    destroyed(channel)
}
unsafe extern "C" fn get_cq_event(_: *mut CompChannel, _: *mut *mut Cq, _: *mut *mut c_void) -> c_int {
    1
}
unsafe extern "C" fn ack_cq_events(_: *mut Cq, _: c_uint) {}

const FUNCTIONS: Functions = Functions {
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
    _ibv_query_gid_ex: None,
    ibv_query_qp: None,
    ibv_create_comp_channel: Some(create_comp_channel),
    ibv_destroy_comp_channel: Some(destroy_comp_channel),
    ibv_get_cq_event: Some(get_cq_event),
    ibv_ack_cq_events: Some(ack_cq_events),
    ibv_get_async_event: None,
    ibv_ack_async_event: None,
};
