//! Wrappers of the device's C functions, which destroy objects in the right order and return errors.
//!
//! # Safety
//! An object keeps the objects it was created from alive. A pointer is passed to the device only while its
//! object exists: `destroy` clears the pointer when the device has destroyed the object. Lists of requests
//! live until the call returns. The functions are declared with the types of `verbs-sys`, from which the
//! device defines them.

#[path = "verbs/posting.rs"]
mod posting;

pub(crate) use posting::{QueuePair, Work};

use crate::memory::Memory;
use rustix::{
    fd::BorrowedFd,
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
};
use softrdma as _;
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
    sync::{
        Arc,
        atomic::{
            AtomicPtr,
            Ordering::{Acquire, Release},
        },
    },
    time::{Duration, Instant},
};
use verbs_sys::{
    AccessFlags, Ah, AhAttr, AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, EventType, Gid, Mr,
    Pd, PortAttr, Qp, QpAttr, QpInitAttr, RecvWr, Sge, Srq, SrqAttr, SrqAttrMask, SrqInitAttr, Wc,
};

unsafe extern "C" {
    safe fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device;
    fn ibv_free_device_list(list: *mut *mut Device);
    safe fn ibv_get_device_name(device: *mut Device) -> *const c_char;
    safe fn ibv_open_device(device: *mut Device) -> *mut Context;
    fn ibv_close_device(context: *mut Context) -> c_int;
    safe fn ibv_query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int;
    safe fn ibv_query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int;
    safe fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, gid: *mut Gid) -> c_int;
    safe fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    fn ibv_dealloc_pd(pd: *mut Pd) -> c_int;
    safe fn ibv_reg_mr_iova2(
        pd: *mut Pd,
        addr: *mut c_void,
        len: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut Mr;
    fn ibv_dereg_mr(mr: *mut Mr) -> c_int;
    safe fn ibv_rereg_mr(
        mr: *mut Mr,
        flags: c_int,
        pd: *mut Pd,
        addr: *mut c_void,
        len: usize,
        access: c_int,
    ) -> c_int;
    safe fn ibv_resize_cq(cq: *mut Cq, cqe: c_int) -> c_int;
    safe fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel;
    fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int;
    fn ibv_get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, about: *mut *mut c_void) -> c_int;
    safe fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint);
    safe fn ibv_create_cq(
        context: *mut Context,
        cqe: c_int,
        about: *mut c_void,
        channel: *mut CompChannel,
        vector: c_int,
    ) -> *mut Cq;
    fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    safe fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp;
    safe fn ibv_modify_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int) -> c_int;
    safe fn ibv_query_qp(qp: *mut Qp, attr: *mut QpAttr, mask: c_int, init: *mut QpInitAttr) -> c_int;
    fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    safe fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq;
    safe fn ibv_modify_srq(srq: *mut Srq, attr: *mut SrqAttr, mask: c_int) -> c_int;
    fn ibv_destroy_srq(srq: *mut Srq) -> c_int;
    safe fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah;
    fn ibv_destroy_ah(ah: *mut Ah) -> c_int;
    safe fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int;
    safe fn ibv_ack_async_event(event: *mut AsyncEvent);
}

/// Time limit of any wait, generous for a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// An error number.
pub(crate) type Errno = i32;

fn check_pointer<T>(pointer: *mut T) -> Result<AtomicPtr<T>, Errno> {
    if pointer.is_null() {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or_default());
    }
    Ok(AtomicPtr::new(pointer))
}

/// Destroys an object, and clears its pointer on success.
fn destroy<T>(pointer: &AtomicPtr<T>, function: unsafe extern "C" fn(*mut T) -> c_int) -> Errno {
    let object = pointer.load(Acquire);
    if object.is_null() {
        return 0;
    }
    // SAFETY: the object exists. Its pointer stays set until it is destroyed, since calls about it may be
    // waiting; no test destroys an object twice at the same time.
    let result = unsafe { function(object) };
    if result == 0 {
        pointer.store(ptr::null_mut(), Release);
    }
    result
}

/// Waits until a descriptor is readable, and returns whether it is.
pub(crate) fn is_readable(fd: c_int, timeout: Duration) -> bool {
    let mut fds = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut fds, 1, timeout.as_millis() as c_int) == 1 }
}

/// Repeats `ready` until it returns a value. The panic message names `what`.
pub(crate) fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(began.elapsed() < TIMEOUT, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// An open device of the node that the environment names.
///
/// The caller of `open` must keep other threads from changing the environment.
#[derive(Debug)]
pub(crate) struct Node {
    context: AtomicPtr<Context>,
}

impl Node {
    pub(crate) fn open(name: &str) -> Result<Arc<Node>, Errno> {
        let list = check_pointer(ibv_get_device_list(ptr::null_mut()))?.into_inner();
        let mut found = ptr::null_mut();
        // SAFETY: the list ends with null, and names end with zero.
        unsafe {
            let mut at = list;
            while !(*at).is_null() {
                if CStr::from_ptr(ibv_get_device_name(*at)).to_str() == Ok(name) {
                    found = *at;
                }
                at = at.add(1);
            }
            ibv_free_device_list(list);
        }
        Ok(Arc::new(Node { context: check_pointer(ibv_open_device(found))? }))
    }

    pub(crate) fn raw(&self) -> *mut Context {
        self.context.load(Acquire)
    }

    /// Returns the C structure.
    fn context(&self) -> &Context {
        // SAFETY: the context is open until `self` is dropped.
        unsafe { &*self.raw() }
    }

    pub(crate) fn attr(&self) -> DeviceAttr {
        let mut attr = DeviceAttr::zeroed();
        assert_eq!(ibv_query_device(self.raw(), &raw mut attr), 0);
        attr
    }

    pub(crate) fn port(&self) -> PortAttr {
        let mut attr = PortAttr::zeroed();
        assert_eq!(ibv_query_port(self.raw(), 1, &raw mut attr), 0);
        attr
    }

    pub(crate) fn gid(&self, index: u32) -> Option<Gid> {
        let mut gid = Gid::default();
        let asked = ibv_query_gid(self.raw(), 1, index as c_int, &raw mut gid);
        (asked == 0).then_some(gid)
    }

    /// Returns the index of the IPv4-mapped GID.
    pub(crate) fn ipv4_index(&self) -> Option<u8> {
        (0..self.port().gid_tbl_len as u8)
            .find(|&index| self.gid(index.into()).and_then(Gid::to_ipv4).is_some())
    }

    /// Waits for the next asynchronous event, acknowledges it and returns its type.
    pub(crate) fn event(&self, timeout: Duration) -> Option<EventType> {
        self.next_event(timeout).map(|event| event.acknowledge())
    }

    /// Waits for the next asynchronous event, which the caller acknowledges.
    pub(crate) fn next_event(&self, timeout: Duration) -> Option<Event> {
        if !is_readable(self.context().async_fd, timeout) {
            return None;
        }
        let mut event = AsyncEvent::zeroed();
        assert_eq!(ibv_get_async_event(self.raw(), &raw mut event), 0);
        Some(Event(event))
    }

    pub(crate) fn pd(self: &Arc<Node>) -> Result<Arc<Domain>, Errno> {
        Ok(Arc::new(Domain { pd: check_pointer(ibv_alloc_pd(self.raw()))?, node: Arc::clone(self) }))
    }

    pub(crate) fn channel(self: &Arc<Node>) -> Result<Arc<Channel>, Errno> {
        let channel = check_pointer(ibv_create_comp_channel(self.raw()))?;
        Ok(Arc::new(Channel { channel, _node: Arc::clone(self) }))
    }

    pub(crate) fn cq(
        self: &Arc<Node>,
        cqe: i32,
        channel: Option<&Arc<Channel>>,
    ) -> Result<Arc<CompletionQueue>, Errno> {
        let raw = channel.map_or(ptr::null_mut(), |channel| channel.channel.load(Acquire));
        let cq = check_pointer(ibv_create_cq(self.raw(), cqe, ptr::null_mut(), raw, 0))?;
        Ok(Arc::new(CompletionQueue { cq, node: Arc::clone(self), _channel: channel.cloned() }))
    }
}

/// An asynchronous event that was not yet acknowledged.
#[derive(Debug)]
pub(crate) struct Event(AsyncEvent);

impl Event {
    pub(crate) fn kind(&self) -> EventType {
        self.0.event_type
    }

    pub(crate) fn acknowledge(mut self) -> EventType {
        ibv_ack_async_event(&raw mut self.0);
        self.0.event_type
    }
}

// SAFETY: the pointer is only passed to the device.
unsafe impl Send for Event {}

impl Drop for Node {
    fn drop(&mut self) {
        destroy(&self.context, ibv_close_device);
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pd: AtomicPtr<Pd>,
    node: Arc<Node>,
}

impl Domain {
    pub(crate) fn destroy(&self) -> Errno {
        destroy(&self.pd, ibv_dealloc_pd)
    }

    /// Registers all of the memory under its own addresses.
    pub(crate) fn register(
        self: &Arc<Domain>,
        memory: &Arc<Memory>,
        access: AccessFlags,
    ) -> Result<Region, Errno> {
        self.register_part(memory, memory.address(), memory.len(), memory.address(), access)
    }

    pub(crate) fn register_part(
        self: &Arc<Domain>,
        memory: &Arc<Memory>,
        start: u64,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Region, Errno> {
        let mr = check_pointer(ibv_reg_mr_iova2(self.raw(), start as *mut c_void, len, iova, access.0))?;
        // SAFETY: the region was just created.
        let (lkey, rkey) = unsafe { ((*mr.load(Acquire)).lkey, (*mr.load(Acquire)).rkey) };
        Ok(Region { mr, lkey, rkey, _domain: Arc::clone(self), _memory: Arc::clone(memory) })
    }

    pub(crate) fn raw(&self) -> *mut Pd {
        self.pd.load(Acquire)
    }

    pub(crate) fn qp(self: &Arc<Domain>, mut init: QpInitAttr, queues: Queues) -> Result<QueuePair, Errno> {
        init.send_cq = queues.send.cq.load(Acquire);
        init.recv_cq = queues.recv.cq.load(Acquire);
        init.srq = queues.srq.as_ref().map_or(ptr::null_mut(), |srq| srq.srq.load(Acquire));
        let qp = check_pointer(ibv_create_qp(self.raw(), &raw mut init))?;
        Ok(QueuePair { qp, cap: init.cap, _queues: queues, domain: Arc::clone(self) })
    }

    pub(crate) fn srq(
        self: &Arc<Domain>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Arc<SharedReceiveQueue>, Errno> {
        let attr = SrqAttr { max_wr, max_sge, srq_limit: 0 };
        let mut init = SrqInitAttr { srq_context: ptr::null_mut(), attr };
        let srq = check_pointer(ibv_create_srq(self.raw(), &raw mut init))?;
        Ok(Arc::new(SharedReceiveQueue { srq, domain: Arc::clone(self) }))
    }

    pub(crate) fn address(self: &Arc<Domain>, mut attr: AhAttr) -> Result<Arc<AddressHandle>, Errno> {
        let ah = check_pointer(ibv_create_ah(self.raw(), &raw mut attr))?;
        Ok(Arc::new(AddressHandle { ah, _domain: Arc::clone(self) }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Region {
    mr: AtomicPtr<Mr>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    _domain: Arc<Domain>,
    _memory: Arc<Memory>,
}

impl Region {
    /// Changes the access rights.
    pub(crate) fn change_access(&self, access: AccessFlags) -> c_int {
        const CHANGE_ACCESS: c_int = 4;
        let mr = self.mr.load(Acquire);
        ibv_rereg_mr(mr, CHANGE_ACCESS, ptr::null_mut(), ptr::null_mut(), 0, access.0 as c_int)
    }

    pub(crate) fn destroy(&self) -> Errno {
        destroy(&self.mr, ibv_dereg_mr)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// An address handle: the destination port of datagrams.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    ah: AtomicPtr<Ah>,
    _domain: Arc<Domain>,
}

impl AddressHandle {
    pub(crate) fn raw(&self) -> *mut Ah {
        self.ah.load(Acquire)
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        destroy(&self.ah, ibv_destroy_ah);
    }
}

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    channel: AtomicPtr<CompChannel>,
    _node: Arc<Node>,
}

impl Channel {
    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: the channel exists until it is destroyed.
        unsafe { (*self.channel.load(Acquire)).fd }
    }

    /// Waits for a completion event, and asserts the queue that it names.
    pub(crate) fn take_event(&self, of: &CompletionQueue) {
        assert!(is_readable(self.fd(), TIMEOUT), "no announcement");
        let (mut cq, mut about) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: both pointers are valid places for results.
        let result = unsafe { ibv_get_cq_event(self.channel.load(Acquire), &raw mut cq, &raw mut about) };
        assert_eq!((result, cq), (0, of.cq.load(Acquire)));
    }

    /// Makes the descriptor non-blocking.
    pub(crate) fn set_nonblocking(&self) {
        // SAFETY: the descriptor is open as long as the channel.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd()) };
        let flags = fcntl_getfl(fd).expect("an open descriptor");
        fcntl_setfl(fd, flags | OFlags::NONBLOCK).expect("an open descriptor");
    }

    /// Takes a completion event of a non-blocking channel, and asserts the queue that it names. Returns false
    /// if there is none: the descriptor may be readable although the event was taken before.
    pub(crate) fn take_event_if_any(&self, of: &CompletionQueue) -> bool {
        let (mut cq, mut about) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: both pointers are valid places for results.
        let result = unsafe { ibv_get_cq_event(self.channel.load(Acquire), &raw mut cq, &raw mut about) };
        if result != 0 {
            assert_eq!(std::io::Error::last_os_error().kind(), std::io::ErrorKind::WouldBlock);
            return false;
        }
        assert_eq!(cq, of.cq.load(Acquire));
        true
    }

    pub(crate) fn destroy(&self) -> Errno {
        destroy(&self.channel, ibv_destroy_comp_channel)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    cq: AtomicPtr<Cq>,
    node: Arc<Node>,
    _channel: Option<Arc<Channel>>,
}

impl CompletionQueue {
    pub(crate) fn raw(&self) -> *mut Cq {
        self.cq.load(Acquire)
    }

    /// Wraps a queue that was created by another function.
    pub(crate) fn adopt(cq: *mut Cq, node: &Arc<Node>) -> Result<Arc<CompletionQueue>, Errno> {
        Ok(Arc::new(CompletionQueue { cq: check_pointer(cq)?, node: Arc::clone(node), _channel: None }))
    }

    /// Polls once: one completion, none, or an error.
    pub(crate) fn try_poll(&self) -> Result<Option<Wc>, c_int> {
        let mut wc = Wc::zeroed();
        let poll = self.node.context().ops.poll_cq.expect("every device polls");
        // SAFETY: the queue exists, and there is room for one completion.
        match unsafe { poll(self.cq.load(Acquire), 1, &raw mut wc) } {
            0 => Ok(None),
            1 => Ok(Some(wc)),
            other => Err(other),
        }
    }

    /// Waits for the next completion.
    pub(crate) fn poll(&self) -> Wc {
        wait_for("a completion", || self.try_poll().expect("a queue in order"))
    }

    /// Asserts that no completion arrives.
    pub(crate) fn stays_empty(&self) {
        for _ in 0..300 {
            let found = self.try_poll().expect("a queue in order");
            assert!(found.is_none(), "{found:?}");
        }
    }

    pub(crate) fn arm(&self, solicited_only: bool) -> Errno {
        let arm = self.node.context().ops.req_notify_cq.expect("a slot that is filled");
        // SAFETY: the queue exists.
        unsafe { arm(self.cq.load(Acquire), solicited_only.into()) }
    }

    pub(crate) fn resize(&self, cqe: c_int) -> Errno {
        ibv_resize_cq(self.raw(), cqe)
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        ibv_ack_cq_events(self.cq.load(Acquire), count);
    }

    pub(crate) fn destroy(&self) -> Errno {
        destroy(&self.cq, ibv_destroy_cq)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    srq: AtomicPtr<Srq>,
    domain: Arc<Domain>,
}

impl SharedReceiveQueue {
    pub(crate) fn post(&self, id: u64, sges: &[Sge]) -> Errno {
        let post = self.domain.node.context().ops.post_srq_recv.expect("a slot that is filled");
        let mut sges = sges.to_vec();
        let (mut wr, mut bad) = (receive(id, &mut sges), ptr::null_mut());
        // SAFETY: the queue exists; the list has one request.
        unsafe { post(self.srq.load(Acquire), &raw mut wr, &raw mut bad) }
    }

    /// Requests an event when fewer receives than `srq_limit` are left.
    pub(crate) fn limit(&self, srq_limit: u32) -> Errno {
        let mut attr = SrqAttr { max_wr: 0, max_sge: 0, srq_limit };
        ibv_modify_srq(self.srq.load(Acquire), &raw mut attr, SrqAttrMask::LIMIT.0 as c_int)
    }

    pub(crate) fn destroy(&self) -> Errno {
        destroy(&self.srq, ibv_destroy_srq)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        self.destroy();
    }
}

fn receive(id: u64, sges: &mut [Sge]) -> RecvWr {
    let sg_list = if sges.is_empty() { ptr::null_mut() } else { sges.as_mut_ptr() };
    RecvWr { wr_id: id, next: ptr::null_mut(), sg_list, num_sge: sges.len() as c_int }
}

/// The queues of a queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub(crate) send: Arc<CompletionQueue>,
    pub(crate) recv: Arc<CompletionQueue>,
    pub(crate) srq: Option<Arc<SharedReceiveQueue>>,
}
