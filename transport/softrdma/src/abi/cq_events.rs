//! Completion events: waits for, fetches and acknowledges notifications of completion channels.
//!
//! # Safety
//! See the module above. Queues remove themselves from their channel's list before they are destroyed.

use super::{Object, channel::ChannelObject, cq::CqObject, input, output, status_of, value_of};
use crate::shm::{is_readable, take_one, wait_readable};
use rustix::{
    fs::{OFlags, fcntl_getfl},
    io::Errno,
};
use std::{
    ffi::{c_int, c_uint, c_void},
    sync::atomic::Ordering::SeqCst,
};
use verbs_sys::{CompChannel, Cq};

/// Fetches a notification. Returns its queue, and whether there are more.
fn pending(channel: &ChannelObject) -> Option<(*mut Cq, bool)> {
    let queues = channel.queues();
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
            object.notification_acks.fetch();
            if left > 0 {
                return Some((queue, true));
            }
            found = Some(queue);
        }
    }
    found.map(|queue| (queue, false))
}

/// Waits for a notification, unless the descriptor is non-blocking.
fn next(channel: &ChannelObject) -> Result<*mut Cq, Errno> {
    let fd = &channel.event_channel.fd;
    loop {
        match take(channel) {
            Ok(Some(queue)) => return Ok(queue),
            Ok(None) => {}
            Err(Errno::AGAIN) if fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) => return Err(Errno::AGAIN),
            Err(Errno::AGAIN) => _ = wait_readable(fd, None)?,
            Err(error) => return Err(error),
        }
    }
}

/// Takes a datagram, and the notification that it stands for.
fn take(channel: &ChannelObject) -> Result<Option<*mut Cq>, Errno> {
    let _consuming = channel.event_channel.consuming();
    take_one(&channel.event_channel.fd, false)?;
    channel.nic.poll_commands();
    let Some((queue, more)) = pending(channel) else { return Ok(None) };
    if more && !is_readable(&channel.event_channel.fd) {
        channel.nic.process().waker.wake(channel.nic.process().me.slot, channel.event_channel.number);
    }
    Ok(Some(queue))
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
    let result = status_of(|| {
        let found = ChannelObject::from_c(channel)?;
        let queue = next(found)?;
        *output(cq)? = queue;
        *output(cq_context)? = input(queue)?.cq_context;
        Ok(())
    });
    if result == 0 { 0 } else { -1 }
}

/// `ibv_ack_cq_events`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint) {
    value_of((), || {
        if let Ok(found) = CqObject::from_c(cq) {
            found.notification_acks.acknowledge(count);
        }
    });
}
