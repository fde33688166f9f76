//! Queue pairs: state transitions and posting.
//!
//! ```text
//! RESET -> INIT (receives may be posted) -> RTR -> RTS (sends may be posted)      any -> ERR, any -> RESET
//! ```
//!
//! # Safety
//! A queue pair lives until it is dropped, and owns the completion queue and the domain that it was made
//! from. Verbs allow several threads to post to it at the same time. Requests live until the call that posts
//! them returns; the poster promises that the memory they name is valid.

use super::{
    Access, Action, AsyncEvent, CompletionQueue, Context, Domain, Gid, LocalRun, PostError, SendRequest,
    Subject, VerbsError,
    errno::{Errno, check},
    port::PORT,
    post::with_receive,
};
use std::{
    ffi::c_int,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};
use verbs_sys::{AhAttr, Mtu, Qp, QpAttr, QpAttrMask as Mask, QpCap, QpInitAttr, QpState, QpType};

/// Type and depths of a queue pair. Every work request has at most one scatter/gather entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairSpec {
    /// Service type: `RC` or `UC`.
    pub service: QpType,
    /// Send queue depth, in work requests.
    pub send_depth: u32,
    /// Receive queue depth, in work requests.
    pub recv_depth: u32,
    /// Inline data of a work request, in bytes.
    pub inline_bytes: u32,
}

/// This end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Index of the source GID.
    pub gid_index: u8,
    /// Path MTU; equal at both ends.
    pub mtu: Mtu,
    /// Packet sequence number of the first packet, 24 bits.
    pub psn: u32,
    /// Class of the packets.
    pub class: PacketClass,
}

/// Class of a connection's packets, by which switches and adapters choose queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketClass {
    /// Service level of InfiniBand, and priority on Ethernet: 0 to 15.
    pub service_level: u8,
    /// Traffic class of the global routing header: DSCP and ECN bits of RoCE v2's IP header.
    pub traffic_class: u8,
}

/// The peer's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Queue pair number.
    pub qp: u32,
    /// GID of the port.
    pub gid: Gid,
    /// Local identifier (LID) of the port; 0 on all but InfiniBand.
    pub lid: u16,
    /// Packet sequence number of the first packet, 24 bits.
    pub psn: u32,
}

/// Timers of reliable connections.
///
/// The acknowledgement timeout is 4.096 us << 17 = 0.54 s for each of 7 attempts, so that a peer that is slow
/// for a moment is not given up. Other means detect a port that goes down or a process that dies, and
/// earlier. RNR retries are unlimited (7) and 10 us apart, since deadlines belong to the callers.
mod timers {
    pub(super) const TIMEOUT: u8 = 17;
    pub(super) const RETRIES: u8 = 7;
    pub(super) const RNR_RETRIES: u8 = 7;
    pub(super) const RNR_TIMER: u8 = 1;
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    raw: NonNull<Qp>,
    number: u32,
    service: QpType,
    granted: QpCap,
    /// Whether the queue pair is known to be in RESET. It then needs no transition to RESET, which some
    /// devices may reject.
    is_reset: AtomicBool,
    _completions: [CompletionQueue; 2],
    domain: Domain,
}

// SAFETY: verbs allow any thread to use a queue pair, several at a time; the other fields are immutable or
// atomic.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl Domain {
    /// Creates a queue pair with one completion queue for sends and receives.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device does not grant the queue pair.
    pub fn queue_pair(&self, spec: &QueuePairSpec, cq: &CompletionQueue) -> Result<QueuePair, VerbsError> {
        QueuePair::of(self, spec, (cq, cq))
    }

    /// Creates a queue pair with separate completion queues, so that sends and receives do not delay each
    /// other's completions.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device does not grant the queue pair.
    pub fn queue_pair_on(
        &self,
        spec: &QueuePairSpec,
        sends: &CompletionQueue,
        receives: &CompletionQueue,
    ) -> Result<QueuePair, VerbsError> {
        QueuePair::of(self, spec, (sends, receives))
    }
}

impl QueuePair {
    pub(super) fn of(
        domain: &Domain,
        spec: &QueuePairSpec,
        (sends, receives): (&CompletionQueue, &CompletionQueue),
    ) -> Result<QueuePair, VerbsError> {
        let context = domain.context();
        let mut init = QpInitAttr::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (sends.raw(), receives.raw(), spec.service);
        init.cap = QpCap {
            max_send_wr: spec.send_depth,
            max_recv_wr: spec.recv_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: spec.inline_bytes,
        };
        Errno::clear();
        // SAFETY: the domain and the completion queues are alive.
        let raw = unsafe { (context.functions().ibv_create_qp)(domain.raw(), &raw mut init) };
        let action = Action::QueuePair { service: spec.service };
        let raw = NonNull::new(raw).ok_or_else(|| context.refused(action, Errno::last()))?;
        // SAFETY: the queue pair was created above.
        let number = unsafe { (&raw const (*raw.as_ptr()).qp_num).read() };
        let mut created = QueuePair {
            raw,
            number,
            service: spec.service,
            granted: init.cap,
            is_reset: AtomicBool::new(true),
            _completions: [sends.clone(), receives.clone()],
            domain: domain.clone(),
        };
        created.granted = created.query_capacities().unwrap_or(init.cap);
        Ok(created)
    }

    /// Queries the granted capacities: TN3205 requires it, since the device may have changed the depths.
    fn query_capacities(&self) -> Option<QpCap> {
        let (mut attr, mut init) = (QpAttr::zeroed(), QpInitAttr::zeroed());
        let ask = self.context().functions().ibv_query_qp?;
        // SAFETY: the queue pair is alive, and there is room for the answers.
        check(unsafe { ask(self.raw.as_ptr(), &raw mut attr, Mask::CAP.0 as c_int, &raw mut init) }).ok()?;
        (init.cap.max_send_wr > 0 && init.cap.max_recv_wr > 0).then_some(init.cap)
    }

    /// Returns the queue pair number, which the peer connects to.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the service type.
    #[must_use]
    pub fn service(&self) -> QpType {
        self.service
    }

    /// Returns the granted depths, which may exceed the requested ones.
    #[must_use]
    pub fn granted(&self) -> QpCap {
        self.granted
    }

    /// Moves the queue pair from any state to INIT.
    ///
    /// All posted work is discarded. Receives may be posted from now on.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device rejects a transition.
    pub fn initialize(&self, access: Access) -> Result<(), VerbsError> {
        if !self.is_reset.load(Relaxed) {
            self.reset()?;
        }
        let mut attr = QpAttr::zeroed();
        attr.qp_state = QpState::INIT;
        attr.port_num = PORT;
        attr.qp_access_flags = access.of_queue_pair().0;
        self.is_reset.store(false, Relaxed);
        self.modify(&attr, Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS, Action::Initialize)
    }

    /// Connects the queue pair to its peer: from INIT to RTR and RTS.
    ///
    /// On devices without [`late_registration`](super::DeviceCapabilities::late_registration) the queue pair
    /// can use only the regions registered before this call.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device rejects a transition.
    pub fn connect(&self, ours: &LocalAddress, theirs: &RemoteAddress) -> Result<(), VerbsError> {
        let is_reliable = self.service == QpType::RC;
        let mut attr = QpAttr::zeroed();
        attr.qp_state = QpState::RTR;
        attr.path_mtu = ours.mtu;
        attr.dest_qp_num = theirs.qp;
        attr.rq_psn = theirs.psn & 0xff_ffff;
        attr.ah_attr = self.address_vector(ours, theirs);
        let mut mask = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        if is_reliable {
            attr.max_dest_rd_atomic = self.outstanding_reads();
            attr.min_rnr_timer = timers::RNR_TIMER;
            mask |= Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
        }
        self.modify(&attr, mask, Action::Connect { peer: theirs.gid, gid_index: ours.gid_index })?;
        let mut attr = QpAttr::zeroed();
        attr.qp_state = QpState::RTS;
        attr.sq_psn = ours.psn & 0xff_ffff;
        let mut mask = Mask::SQ_PSN;
        if is_reliable {
            attr.timeout = timers::TIMEOUT;
            attr.retry_cnt = timers::RETRIES;
            attr.rnr_retry = timers::RNR_RETRIES;
            attr.max_rd_atomic = self.outstanding_reads();
            mask |= Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
        }
        self.modify(&attr, mask, Action::Send)
    }

    /// Changes the rights of the peer, on a connected queue pair.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device rejects the change.
    pub fn permit(&self, access: Access) -> Result<(), VerbsError> {
        let mut attr = QpAttr::zeroed();
        attr.qp_state = QpState::RTS;
        attr.qp_access_flags = access.of_queue_pair().0;
        self.modify(&attr, Mask::ACCESS_FLAGS, Action::Send)
    }

    /// Moves the queue pair to RESET: posted work is discarded without completions. The device accesses no
    /// memory for it any more when this returns.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device rejects the transition.
    pub fn reset(&self) -> Result<(), VerbsError> {
        let mut attr = QpAttr::zeroed();
        attr.qp_state = QpState::RESET;
        self.modify(&attr, Mask::NONE, Action::Reset)?;
        self.is_reset.store(true, Relaxed);
        Ok(())
    }

    /// Moves the queue pair to ERR: posted work completes with `WR_FLUSH_ERR`. The device may still finish
    /// the request that it is working on.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the device rejects the transition.
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut attr = QpAttr::zeroed();
        attr.qp_state = QpState::ERR;
        self.is_reset.store(false, Relaxed);
        self.modify(&attr, Mask::NONE, Action::Fail)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::Failed`]; nothing was posted then.
    ///
    /// # Safety
    /// The memory of `run` must stay mapped and registered, and its content must not be relied on, until the
    /// receive has completed or this queue pair was reset or dropped.
    #[inline]
    pub unsafe fn post_receive(&self, id: u64, run: LocalRun) -> Result<(), PostError> {
        // SAFETY: the queue pair is alive and with it its device; `Context::open` checked that the device's
        // table has the operation.
        let post = unsafe { (*(*self.raw.as_ptr()).context).ops.post_recv };
        let Some(post) = post else { return Err(PostError::Failed(Errno::ENOSYS)) };
        let result = with_receive(id, run, |wr| {
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair and the request are alive; the caller promises the memory.
            unsafe { post(self.raw.as_ptr(), wr, &raw mut bad) }
        });
        if result == 0 { Ok(()) } else { Err(PostError::of_result(result)) }
    }

    /// Posts a send or an RDMA write.
    ///
    /// # Errors
    /// [`PostError::Full`] or [`PostError::Failed`]; nothing was posted then.
    ///
    /// # Safety
    /// The memory of the request's run must stay mapped, registered (unless the request is inline) and
    /// unchanged until this request, or a later signaled one, has completed, or this queue pair was reset,
    /// failed or dropped. The memory of an inline request must be readable during the call.
    #[inline]
    pub unsafe fn post_send(&self, request: &SendRequest) -> Result<(), PostError> {
        // SAFETY: as in `post_receive`.
        let post = unsafe { (*(*self.raw.as_ptr()).context).ops.post_send };
        let Some(post) = post else { return Err(PostError::Failed(Errno::ENOSYS)) };
        let result = request.with_c(|wr| {
            let mut bad = ptr::null_mut();
            // SAFETY: the queue pair and the request are alive; the caller promises the memory.
            unsafe { post(self.raw.as_ptr(), wr, &raw mut bad) }
        });
        if result == 0 { Ok(()) } else { Err(PostError::of_result(result)) }
    }

    /// Returns the address by which events name the queue pair.
    pub(super) fn address(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    fn context(&self) -> &Context {
        self.domain.context()
    }

    /// Returns the number of outstanding RDMA reads. The crate posts none, but some devices require a number.
    fn outstanding_reads(&self) -> u8 {
        let max = self.context().attributes().map_or(1, |attr| attr.max_qp_rd_atom);
        u8::from(max > 0)
    }

    /// Returns the address vector of the peer. Link-local addresses and Thunderbolt cables have no routers,
    /// so one hop suffices.
    fn address_vector(&self, ours: &LocalAddress, theirs: &RemoteAddress) -> AhAttr {
        let is_near = theirs.gid.is_link_local() || self.context().is_thunderbolt();
        let mut address_vector = AhAttr::zeroed();
        address_vector.is_global = 1;
        address_vector.port_num = PORT;
        address_vector.dlid = theirs.lid;
        address_vector.sl = ours.class.service_level;
        address_vector.grh.traffic_class = ours.class.traffic_class;
        address_vector.grh.dgid = theirs.gid.into();
        address_vector.grh.sgid_index = ours.gid_index;
        address_vector.grh.hop_limit = if is_near { 1 } else { 64 };
        address_vector
    }

    fn modify(&self, attr: &QpAttr, mask: Mask, action: Action) -> Result<(), VerbsError> {
        let mut attr = *attr;
        let modify = self.context().functions().ibv_modify_qp;
        Errno::clear();
        // SAFETY: the queue pair is alive.
        let result = unsafe { modify(self.raw.as_ptr(), &raw mut attr, (mask | Mask::STATE).0 as c_int) };
        check(result).map_err(|errno| self.context().refused(action, errno))
    }
}

impl AsyncEvent {
    /// Whether the event is about this queue pair.
    #[must_use]
    pub fn is_about(&self, queue_pair: &QueuePair) -> bool {
        self.subject == Subject::QueuePair(queue_pair.address())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.context().is_inherited() {
            return;
        }
        // SAFETY: the queue pair was created once and is destroyed once.
        let _ = check(unsafe { (self.context().functions().ibv_destroy_qp)(self.raw.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::null_device::library;

    #[test]
    fn address_vectors_have_the_class_of_the_packets() {
        let context = library().open("null").expect("the only device");
        let domain = context.domain().expect("a domain");
        let queue = context.completion_queue(4, None).expect("a completion queue");
        let spec = QueuePairSpec { service: QpType::RC, send_depth: 1, recv_depth: 1, inline_bytes: 0 };
        let pair = domain.queue_pair(&spec, &queue).expect("a queue pair");
        let class = PacketClass { service_level: 5, traffic_class: 0x68 };
        let ours = LocalAddress { gid_index: 3, mtu: Mtu::B1024, psn: 0, class };
        let theirs = RemoteAddress { qp: 1, gid: Gid([1; 16]), lid: 9, psn: 0 };
        let vector = pair.address_vector(&ours, &theirs);
        assert_eq!(
            (vector.sl, vector.grh.traffic_class, vector.grh.sgid_index, vector.dlid),
            (5, 0x68, 3, 9)
        );
    }
}
