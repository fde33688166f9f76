//! Creation and destruction of queue pairs.
//!
//! # Safety
//! See the module above.

use super::{
    Object, SpinLock,
    acks::EventAcks,
    context::ContextObject,
    cq, errno, input, output,
    pd::{PdObject, UseGuard},
    pointer_of,
    qp::QpObject,
    qp_ex,
    receive_queue::{ReceiveQueue, ReceiveQueueAttr},
    srq::SrqObject,
    status_of,
};
use crate::{
    nic::{Nic, qp_number},
    profile::Profile,
    shm::{QPS, QpRecord, SEND_SGES, SendSlot},
};
use rustix::io::Errno;
use std::{
    cell::UnsafeCell,
    ffi::c_int,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, Release},
    },
};
use verbs_sys::{
    Context, Pd, Qp, QpAttr, QpEx, QpInitAttr, QpInitAttrEx, QpInitAttrMask, QpState, QpType, SendOpsFlags,
};

/// Checks the requested capabilities, and replaces them by those that are granted.
fn grant(profile: &Profile, attr: &mut QpInitAttr) -> Result<(), Errno> {
    if !profile.supports_service(attr.qp_type) {
        return Err(errno(profile.errnos.unsupported));
    }
    let cap = &mut attr.cap;
    let is_too_much = cap.max_send_sge > profile.max_sge.min(SEND_SGES as u32)
        || cap.max_recv_sge > profile.max_sge
        || cap.max_inline_data > profile.max_inline;
    if is_too_much {
        return Err(Errno::INVAL);
    }
    cap.max_send_wr = profile.granted_depth(cap.max_send_wr).ok_or(Errno::INVAL)?;
    cap.max_recv_wr =
        if attr.srq.is_null() { profile.granted_depth(cap.max_recv_wr).ok_or(Errno::INVAL)? } else { 0 };
    Ok(())
}

/// Takes a free record for a queue pair. Returns its index, the record, and the queue pair number.
fn allocate_record<'a>(nic: &'a Nic, context: &ContextObject) -> Result<(u32, &'a QpRecord, u32), Errno> {
    let profile = context.profile();
    let own = nic.process().own();
    let is_ours = |record: &&QpRecord| {
        record.fixed.qpn.load(Relaxed) != 0 && record.fixed.port.load(Relaxed) == context.port
    };
    // On devices with few queue pairs, those of other processes count, too.
    let usable = nic.fabric().device(context.port).usable_queue_pairs;
    let taken = if usable < QPS {
        let all = nic.process().live_views().flat_map(|view| (0..QPS).filter_map(|index| view.qp(index)));
        all.filter(is_ours).count()
    } else {
        0
    };
    let none = errno(profile.errnos.no_queue_pair);
    if taken >= usable as usize {
        return Err(none);
    }
    // Index 0, with the numbers 0 and 1, is reserved for subnet management.
    let free =
        (1..QPS).find(|&index| own.qp(index).is_some_and(|record| record.fixed.qpn.load(Relaxed) == 0));
    let index = free.ok_or(none)?;
    let record = own.qp(index).ok_or(none)?;
    let generation = nic.tables().next_serial();
    Ok((index, record, qp_number::compose(nic.process().me.slot, generation, index)))
}

fn init_record(record: &QpRecord, attr: &QpInitAttr, ring: u64, slots: u64) {
    let QpRecord { fixed, send, producer, flight, signals } = record;
    send.lock.reset();
    for word in [&send.head, &send.intent, &send.waits_since, &send.last_due, &send.last_used, &producer.tail]
    {
        word.store(0, Relaxed);
    }
    for word in [&flight.due, &flight.number, &flight.not_before] {
        word.store(0, Relaxed);
    }
    send.mask.store(slots - 1, Relaxed);
    for word in [&signals.peer_waits, &signals.events, &signals.flush, &signals.drain] {
        word.store(0, Relaxed);
    }
    for word in [&signals.timeout, &signals.retry_count] {
        word.store(0, Relaxed);
    }
    for word in [&fixed.access, &fixed.qkey, &fixed.dest_qpn, &fixed.dest_incarnation] {
        word.store(0, Relaxed);
    }
    fixed.newest_mr.store(u32::MAX, Relaxed);
    fixed.dest_port.store(u32::MAX, Relaxed);
    fixed.state.store(QpState::RESET.0, Relaxed);
    fixed.kind.store(attr.qp_type.0, Relaxed);
    fixed.ring.store(ring, Relaxed);
}

fn create(pd: *mut Pd, attr: &mut QpInitAttr) -> Result<QpObject, Errno> {
    let domain = PdObject::from_c(pd)?;
    let context = domain.context()?;
    let (nic, profile) = (&context.nic, context.profile());
    let (send_cq, recv_cq) = (cq::named(attr.send_cq)?, cq::named(attr.recv_cq)?);
    grant(profile, attr)?;
    let shared = if attr.srq.is_null() { None } else { Some(SrqObject::from_c(attr.srq)?) };
    if shared.is_some() && profile.max_srq == 0 {
        return Err(errno(profile.errnos.unsupported));
    }
    let receives = match shared {
        Some(_) => None,
        None => {
            let rq_attr = ReceiveQueueAttr {
                pd: domain.number,
                is_shared: false,
                async_channel: context.async_channel,
            };
            let (depth, sges) = (attr.cap.max_recv_wr, attr.cap.max_recv_sge);
            Some(ReceiveQueue::new(nic, context.port, depth, sges, rq_attr)?)
        }
    };
    let slots = u64::from(attr.cap.max_send_wr.max(1)).next_power_of_two();
    let ring = nic.process().allocate(slots * size_of::<SendSlot>() as u64)?;
    let guard = nic.tables().lock();
    let (index, record, qpn) = match allocate_record(nic, context) {
        Ok(taken) => taken,
        Err(error) => {
            nic.process().free(ring);
            return Err(error);
        }
    };
    init_record(record, attr, ring.0, slots);
    let fixed = &record.fixed;
    fixed.pd.store(domain.number, Relaxed);
    fixed.port.store(context.port, Relaxed);
    fixed.send_cq.store(send_cq.index, Relaxed);
    fixed.recv_cq.store(recv_cq.index, Relaxed);
    let rq = receives.as_ref().map(|queue| queue.index).or(shared.map(|shared| shared.queue.index));
    fixed.rq.store(rq.unwrap_or(u32::MAX), Relaxed);
    record.signals.async_channel.store(context.async_channel, Relaxed);
    nic.credits().set_freed_sends(index, 0);
    fixed.qpn.store(qpn, Release);
    drop(guard);
    let mut uses = vec![domain.used()];
    let used = [Some(&send_cq.users), Some(&recv_cq.users), shared.map(|shared| &shared.users)];
    for users in used.into_iter().flatten() {
        users.fetch_add(1, Relaxed);
        uses.push(UseGuard(Arc::clone(users)));
    }
    let mut qp = QpEx::zeroed();
    let base = &mut qp.qp_base;
    base.context = context.as_c();
    base.qp_context = attr.qp_context;
    base.pd = pd;
    base.send_cq = attr.send_cq;
    base.recv_cq = attr.recv_cq;
    base.srq = attr.srq;
    base.handle = index;
    base.qp_num = qpn;
    base.state = QpState::RESET;
    base.qp_type = attr.qp_type;
    Ok(QpObject {
        qp,
        nic: Arc::clone(nic),
        profile,
        index,
        kind: attr.qp_type,
        cap: attr.cap,
        send_depth: attr.cap.max_send_wr.min(nic.fabric().device(context.port).usable_depth),
        signals_all: attr.sq_sig_all != 0,
        is_timed: nic.fabric().is_timed(context.port),
        ring,
        receives,
        post_lock: SpinLock::default(),
        posting: UnsafeCell::default(),
        attr: UnsafeCell::new(QpAttr::zeroed()),
        event_acks: EventAcks::default(),
        _uses: uses,
    })
}

fn publish(qp: QpObject) -> Result<*mut Qp, Errno> {
    let context = ContextObject::from_c(qp.qp.qp_base.context)?;
    let handed: *mut Qp = Object::<Qp>::into_c(qp);
    context.watch(|watched| watched.qps.push(handed as usize));
    Ok(handed)
}

/// `ibv_create_qp`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    pointer_of(|| publish(create(pd, output(attr)?)?))
}

/// Attributes that are supported for queue pairs with extended calls.
const SUPPORTED: u32 =
    QpInitAttrMask::PD.0 | QpInitAttrMask::SEND_OPS_FLAGS.0 | QpInitAttrMask::CREATE_FLAGS.0;

pub(super) unsafe extern "C" fn create_ex(_context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
    pointer_of(|| {
        let attr = output(attr)?;
        let has_pd = attr.comp_mask & QpInitAttrMask::PD.0 != 0;
        let has_flags = attr.comp_mask & QpInitAttrMask::CREATE_FLAGS.0 != 0 && attr.create_flags != 0;
        if attr.comp_mask & !SUPPORTED != 0 || !has_pd || has_flags {
            return Err(Errno::OPNOTSUPP);
        }
        // The larger structure begins as the smaller one does.
        let mut plain = QpInitAttr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        let profile = PdObject::from_c(attr.pd)?.context()?.profile();
        let wants_calls = attr.comp_mask & QpInitAttrMask::SEND_OPS_FLAGS.0 != 0;
        if wants_calls && !qp_ex::supports(profile, attr.qp_type, SendOpsFlags(attr.send_ops_flags as u32)) {
            return Err(Errno::OPNOTSUPP);
        }
        let mut made = create(attr.pd, &mut plain)?;
        if wants_calls {
            qp_ex::set_calls(&mut made.qp);
        }
        attr.cap = plain.cap;
        publish(made)
    })
}

/// `ibv_qp_to_qp_ex`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
    let is_extended = input(qp.cast::<QpEx>()).is_ok_and(|qp| qp.wr_start.is_some());
    if is_extended { qp.cast() } else { std::ptr::null_mut() }
}

/// `ibv_destroy_qp`: waits until all fetched events are acknowledged.
///
/// # Safety
/// The queue pair must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    status_of(|| {
        let found: &QpObject = Object::<Qp>::from_c(qp)?;
        let qp_ref = found.qp_ref()?;
        let context = ContextObject::from_c(found.qp.qp_base.context)?;
        context.watch(|watched| watched.qps.retain(|&known| known != qp as usize));
        found.event_acks.wait();
        qp_ref.record.fixed.state.store(QpState::RESET.0, Release);
        found.nic.discard(qp_ref, || qp_ref.record.fixed.qpn.store(0, Release));
        for queue in [found.qp.qp_base.send_cq, found.qp.qp_base.recv_cq] {
            QpObject::cq(queue)?.purge(qp_ref.qpn());
        }
        found.nic.process().free(found.ring);
        // SAFETY: made by `publish`, and not used again by the caller's promise.
        drop(unsafe { <QpObject as Object<Qp>>::take_back(qp) });
        Ok(())
    })
}

/// Whether queue pairs of this kind are connected to one peer.
pub(super) fn is_connected(kind: QpType) -> bool {
    kind != QpType::UD
}
