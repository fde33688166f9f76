//! Waiting without polling, on devices that support completion events.
//!
//! A rank whose wait is long requests an event for the next completion, polls once more, and then sleeps on
//! the descriptors of its devices: completion channels and asynchronous events. It does not sleep after many
//! completions in a row: more are about to come, and polling costs less than an event.
//!
//! Threads of several communicators may sleep at a time. An event wakes all of them.

use super::shared_engine::SharedEngine;
use crate::Sleeper;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
};
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

/// Sleeper that wakes when a device of the engine has an event.
#[derive(Debug)]
pub(super) struct DeviceSleeper {
    engine: Arc<SharedEngine>,
    /// Arrivals at the last attempt to sleep.
    seen: AtomicU64,
    /// Duplicated descriptors of the completion channels and of the asynchronous events.
    descriptors: Vec<OwnedFd>,
}

impl DeviceSleeper {
    /// Creates a sleeper for all devices of the engine.
    ///
    /// Returns `None` if there is no device, or if one has no completion channel.
    pub(super) fn new(engine: &Arc<SharedEngine>) -> Option<DeviceSleeper> {
        let mut descriptors = Vec::new();
        for port in &engine.lock().ports {
            let channel = port.channel.as_ref()?;
            descriptors.push(channel.fd().try_clone_to_owned().ok()?);
            if let Some(events) = port.context.async_fd() {
                descriptors.push(events.try_clone_to_owned().ok()?);
            }
        }
        let seen = AtomicU64::new(u64::MAX);
        (!descriptors.is_empty()).then(|| DeviceSleeper { engine: Arc::clone(engine), seen, descriptors })
    }
}

impl Sleeper for DeviceSleeper {
    fn sleep(&self, max: Duration) {
        if !self.engine.lock().may_sleep(&self.seen) {
            return;
        }
        let mut waiting: Vec<PollFd<'_>> =
            self.descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: max.as_secs() as i64, tv_nsec: max.subsec_nanos().into() };
        // The cause of the wake-up does not matter: the next poll finds it.
        let woken = poll(&mut waiting, Some(&timeout)).is_ok_and(|ready| ready > 0);
        self.engine.lock().has_slept(woken);
    }
}
