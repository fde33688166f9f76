//! Waiting without polling, where devices announce completions.
//!
//! A rank whose wait gets long asks for an announcement of the next completion, looks once more, and then sleeps on the
//! descriptors of its devices: their completion channels, and those of their asynchronous events. Completion queues that
//! were found full beyond a threshold are not slept on: more is coming than an announcement is worth.

use super::{endpoint::lock, engine::Engine};
use crate::Sleeper;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Sleeps until a device of the engine has something.
#[derive(Debug)]
pub(super) struct DeviceSleeper {
    engine: Arc<Mutex<Engine>>,
    /// Completion channels and asynchronous events, as copies of our own.
    descriptors: Vec<OwnedFd>,
}

impl DeviceSleeper {
    /// For all devices of the engine; `None` unless all of them announce completions.
    pub(super) fn new(engine: &Arc<Mutex<Engine>>) -> Option<DeviceSleeper> {
        let mut descriptors = Vec::new();
        for port in &lock(engine).ports {
            let channel = port.channel.as_ref()?;
            descriptors.push(channel.fd().try_clone_to_owned().ok()?);
            if let Some(events) = port.context.async_fd() {
                descriptors.push(events.try_clone_to_owned().ok()?);
            }
        }
        (!descriptors.is_empty()).then(|| DeviceSleeper { engine: Arc::clone(engine), descriptors })
    }
}

impl Sleeper for DeviceSleeper {
    fn sleep(&self, most: Duration) {
        if !lock(&self.engine).may_sleep() {
            return;
        }
        let mut waiting: Vec<PollFd<'_>> =
            self.descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        // Whatever ends the sleep, whoever polls next finds out.
        let woken = poll(&mut waiting, Some(&time)).is_ok_and(|ready| ready > 0);
        lock(&self.engine).has_slept(woken);
    }
}
