//! Asynchronous events of objects and ports.
//!
//! Events of objects are bits in their records. An event of a port is a state that differs from the last
//! reported one. A datagram on the context's channel says that there is an event. The descriptor must be
//! readable exactly while there is one, so a thread that fetches an event takes all datagrams, and sends a
//! new one if there are more events.
//!
//! # Safety
//! See the module above. Objects remove themselves from the context's lists before they are destroyed.

use super::{
    Object, acks::EventAcks, context::ContextObject, cq::CqObject, output, qp::QpObject, srq::SrqObject,
    status_of,
};
use crate::{shm::take_one, sync::AtomicU32};
use std::{
    ffi::c_int,
    sync::{PoisonError, atomic::Ordering::SeqCst},
};
use verbs_sys::{AsyncElement, AsyncEvent, Context, Cq, EventType, Qp, Srq};

/// Takes one bit of a word of events.
fn take_event(events: &AtomicU32) -> Option<EventType> {
    let bits = events.load(SeqCst);
    if bits == 0 {
        return None;
    }
    let number = bits.trailing_zeros();
    (events.fetch_and(!(1 << number), SeqCst) >> number & 1 != 0).then_some(EventType(number))
}

fn event(event_type: EventType, element: AsyncElement) -> AsyncEvent {
    AsyncEvent { element, event_type }
}

impl ContextObject {
    /// Notes the present state of the port, so that later changes are events.
    pub(super) fn note_state(&self) {
        let gid_changes = self.nic.control().ports[self.port as usize].gid_change.load(SeqCst);
        self.watch(|watched| (watched.was_up, watched.gid_changes) = (self.is_up(), gid_changes));
    }

    /// Fetches an event of the port.
    fn port_event(&self) -> Option<EventType> {
        let is_up = self.is_up();
        let gid_changes = self.nic.control().ports[self.port as usize].gid_change.load(SeqCst);
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.was_up != is_up {
            watched.was_up = is_up;
            return Some(if is_up { EventType::PORT_ACTIVE } else { EventType::PORT_ERR });
        }
        if watched.gid_changes != gid_changes {
            watched.gid_changes = gid_changes;
            return Some(EventType::GID_CHANGE);
        }
        None
    }

    /// Whether [`ContextObject::next_event`] would find an event.
    fn has_event(&self) -> bool {
        let (is_up, ports) = (self.is_up(), &self.nic.control().ports);
        let gid_changes = ports[self.port as usize].gid_change.load(SeqCst);
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let is_set = |events: &AtomicU32| events.load(SeqCst) != 0;
        let cq = |address: &usize| {
            let object = <CqObject as Object<Cq>>::from_c(*address as *mut Cq);
            object.and_then(CqObject::record).is_ok_and(|record| is_set(&record.fixed.events))
        };
        let qp = |address: &usize| {
            let object = <QpObject as Object<Qp>>::from_c(*address as *mut Qp);
            object.and_then(QpObject::qp_ref).is_ok_and(|qp_ref| is_set(&qp_ref.record.signals.events))
        };
        let srq = |address: &usize| {
            let object = SrqObject::from_c(*address as *mut Srq).ok();
            let record = object.and_then(|object| object.queue.record());
            record.is_some_and(|record| is_set(&record.producer.events))
        };
        watched.was_up != is_up
            || watched.gid_changes != gid_changes
            || watched.cqs.iter().any(cq)
            || watched.qps.iter().any(qp)
            || watched.srqs.iter().any(srq)
    }

    fn next_event(&self) -> Option<AsyncEvent> {
        if let Some(kind) = self.port_event() {
            return Some(event(kind, AsyncElement { port_num: 1 }));
        }
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for &address in &watched.cqs {
            let cq = address as *mut Cq;
            let object = <CqObject as Object<Cq>>::from_c(cq).ok()?;
            if let Some(kind) = object.record().ok().and_then(|record| take_event(&record.fixed.events)) {
                object.event_acks.fetch();
                return Some(event(kind, AsyncElement { cq }));
            }
        }
        for &address in &watched.qps {
            let qp = address as *mut Qp;
            let object = <QpObject as Object<Qp>>::from_c(qp).ok()?;
            if let Some(kind) =
                object.qp_ref().ok().and_then(|qp_ref| take_event(&qp_ref.record.signals.events))
            {
                object.event_acks.fetch();
                return Some(event(kind, AsyncElement { qp }));
            }
        }
        for &address in &watched.srqs {
            let srq = address as *mut Srq;
            let object = SrqObject::from_c(srq).ok()?;
            if let Some(kind) = object.queue.record().and_then(|record| take_event(&record.producer.events)) {
                object.event_acks.fetch();
                return Some(event(kind, AsyncElement { srq }));
            }
        }
        None
    }
}

/// `ibv_get_async_event`: waits for an event, unless the descriptor is non-blocking.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_async_event(context: *mut Context, to: *mut AsyncEvent) -> c_int {
    let result = status_of(|| {
        let found = ContextObject::from_c(context)?;
        let to = output(to)?;
        loop {
            while take_one(&found.async_fd, false).is_ok() {}
            found.nic.poll_commands();
            if let Some(next) = found.next_event() {
                *to = next;
                if found.has_event() {
                    let process = found.nic.process();
                    process.waker.wake(process.me.slot, found.async_channel);
                }
                return Ok(());
            }
            take_one(&found.async_fd, true)?;
        }
    });
    if result == 0 { 0 } else { -1 }
}

/// Returns the counts of the object that an event is about; none for events of ports.
fn acks_of<'a>(event: &AsyncEvent) -> Option<&'a EventAcks> {
    // SAFETY: all members of the union are pointers or plain numbers, and the kind says which one counts. The
    // object exists: it is not destroyed before this event is acknowledged.
    unsafe {
        match event.event_type {
            EventType::CQ_ERR => {
                <CqObject as Object<Cq>>::from_c(event.element.cq).ok().map(|object| &object.event_acks)
            }
            EventType::SRQ_ERR | EventType::SRQ_LIMIT_REACHED => {
                SrqObject::from_c(event.element.srq).ok().map(|object| &object.event_acks)
            }
            EventType::QP_FATAL
            | EventType::QP_REQ_ERR
            | EventType::QP_ACCESS_ERR
            | EventType::COMM_EST
            | EventType::SQ_DRAINED
            | EventType::PATH_MIG
            | EventType::PATH_MIG_ERR
            | EventType::QP_LAST_WQE_REACHED => {
                <QpObject as Object<Qp>>::from_c(event.element.qp).ok().map(|object| &object.event_acks)
            }
            _ => None,
        }
    }
}

/// `ibv_ack_async_event`: lets the destruction of the event's object continue.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(event: *mut AsyncEvent) {
    super::value_of((), || {
        if let Some(event_acks) = super::input(event).ok().and_then(acks_of) {
            event_acks.acknowledge(1);
        }
    });
}
