//! Completion channels: real descriptors that become readable when an armed queue gets a completion.
//!
//! # Safety
//! See the module above. Queues take themselves off their channel's list before they are destroyed.

use super::{Object, code, context::ContextObject, cq::CqObject, errno, object};
use crate::{
    nic::Listening,
    shm::{is_readable, take_one, wait_readable},
};
use rustix::{
    fd::AsRawFd,
    fs::{OFlags, fcntl_getfl},
    io::Errno,
};
use std::{
    ffi::{c_int, c_uint, c_void},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::SeqCst},
};
use verbs_sys::{CompChannel, Context, Cq};

/// A completion channel.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ChannelObject {
    channel: CompChannel,
    nic: Arc<crate::nic::Nic>,
    pub(super) listening: Arc<Listening>,
    /// The queues that announce themselves here, as addresses of their objects.
    queues: Mutex<Vec<usize>>,
}

// SAFETY: `repr(C)`, and the structure is the first member.
unsafe impl Object<CompChannel> for ChannelObject {}

impl ChannelObject {
    fn queues(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, queue: *mut Cq) {
        self.queues().push(queue as usize);
    }

    pub(super) fn remove(&self, queue: *mut Cq) {
        self.queues().retain(|&known| known != queue as usize);
    }

    /// A queue with an announcement that was not fetched, and whether there are more.
    fn pending(&self) -> Option<(*mut Cq, bool)> {
        let queues = self.queues();
        let mut found = None;
        for &queue in queues.iter() {
            let queue = queue as *mut Cq;
            let Ok(object) = CqObject::from_c(queue) else { continue };
            let Ok(record) = object.record() else { continue };
            let pending = &record.fixed.pending;
            if found.is_some() {
                if pending.load(SeqCst) > 0 {
                    return found.map(|queue| (queue, true));
                }
            } else if pending.load(SeqCst) > 0 {
                let left = pending.fetch_sub(1, SeqCst) - 1;
                object.announced.fetch();
                if left > 0 {
                    return Some((queue, true));
                }
                found = Some(queue);
            }
        }
        found.map(|queue| (queue, false))
    }

    /// Waits for an announcement, unless the descriptor is non-blocking.
    fn next(&self) -> Result<*mut Cq, Errno> {
        let fd = &self.listening.fd;
        loop {
            match self.take() {
                Ok(Some(queue)) => return Ok(queue),
                Ok(None) => {}
                Err(Errno::AGAIN) if fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) => return Err(Errno::AGAIN),
                Err(Errno::AGAIN) => _ = wait_readable(fd, None)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a datagram, and the announcement that it is about.
    fn take(&self) -> Result<Option<*mut Cq>, Errno> {
        let _taking = self.listening.taking();
        take_one(&self.listening.fd, false)?;
        self.nic.notice();
        let Some((queue, more)) = self.pending() else { return Ok(None) };
        if more && !is_readable(&self.listening.fd) {
            self.nic.process.waker.wake(self.nic.process.me.slot, self.listening.number);
        }
        Ok(Some(queue))
    }
}

/// `ibv_create_comp_channel`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    object(|| {
        let found = ContextObject::from_c(context)?;
        if !found.profile().completion_events {
            return Err(errno(found.profile().errnos.unsupported));
        }
        let listening = found.nic.listen()?;
        let channel = CompChannel { context, fd: listening.fd.as_raw_fd(), refcnt: 0 };
        let queues = Mutex::default();
        Ok(ChannelObject { channel, nic: Arc::clone(&found.nic), listening, queues }.into_c())
    })
}

/// `ibv_destroy_comp_channel`
///
/// # Safety
/// The channel must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    code(|| {
        let found = ChannelObject::from_c(channel)?;
        if !found.queues().is_empty() {
            return Err(Errno::BUSY);
        }
        found.nic.stop_listening(found.listening.number);
        // SAFETY: made by `ibv_create_comp_channel`, and not used again by the caller's promise.
        drop(unsafe { ChannelObject::take_back(channel) });
        Ok(())
    })
}

/// `ibv_get_cq_event`
///
/// # Safety
/// The pointers must be places for what is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let result = code(|| {
        let found = ChannelObject::from_c(channel)?;
        let queue = found.next()?;
        *super::place(cq)? = queue;
        *super::place(cq_context)? = super::given(queue)?.cq_context;
        Ok(())
    });
    if result == 0 { 0 } else { -1 }
}

/// `ibv_ack_cq_events`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint) {
    super::value((), || {
        if let Ok(found) = CqObject::from_c(cq) {
            found.announced.acknowledge(count);
        }
    });
}
