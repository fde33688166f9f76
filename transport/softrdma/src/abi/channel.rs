//! Completion channels: descriptors that become readable when an armed queue gets a completion.
//!
//! # Safety
//! See the module above. Queues remove themselves from their channel's list before they are destroyed.

use super::{Object, context::ContextObject, errno, pointer_of, status_of};
use crate::nic::{EventChannel, Nic};
use rustix::{fd::AsRawFd, io::Errno};
use std::{
    ffi::c_int,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use verbs_sys::{CompChannel, Context, Cq};

/// A completion channel.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ChannelObject {
    channel: CompChannel,
    pub(super) nic: Arc<Nic>,
    pub(super) event_channel: Arc<EventChannel>,
    /// The queues that report to this channel, as addresses of their objects.
    queues: Mutex<Vec<usize>>,
}

// SAFETY: `repr(C)`, and the structure is the first member.
unsafe impl Object<CompChannel> for ChannelObject {}

impl ChannelObject {
    pub(super) fn queues(&self) -> MutexGuard<'_, Vec<usize>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, queue: *mut Cq) {
        self.queues().push(queue as usize);
    }

    pub(super) fn remove(&self, queue: *mut Cq) {
        self.queues().retain(|&known| known != queue as usize);
    }
}

/// `ibv_create_comp_channel`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    pointer_of(|| {
        let found = ContextObject::from_c(context)?;
        if !found.profile().completion_events {
            return Err(errno(found.profile().errnos.unsupported));
        }
        let event_channel = found.nic.channels().create(found.nic.process())?;
        let channel = CompChannel { context, fd: event_channel.fd.as_raw_fd(), refcnt: 0 };
        let queues = Mutex::default();
        Ok(ChannelObject { channel, nic: Arc::clone(&found.nic), event_channel, queues }.into_c())
    })
}

/// `ibv_destroy_comp_channel`
///
/// # Safety
/// The channel must not be used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    status_of(|| {
        let found = ChannelObject::from_c(channel)?;
        if !found.queues().is_empty() {
            return Err(Errno::BUSY);
        }
        found.nic.channels().destroy(found.nic.process(), found.event_channel.number);
        // SAFETY: made by `ibv_create_comp_channel`, and not used again by the caller's promise.
        drop(unsafe { ChannelObject::take_back(channel) });
        Ok(())
    })
}
