//! Event channels: descriptors of this process that peers make readable when an armed queue gets a
//! completion.
//!
//! Invariant: a datagram and the notification that it stands for are consumed by one thread, which holds
//! [`EventChannel::consuming`].

use crate::shm::{CQS, CqRecord, Process, is_readable};
use rustix::{fd::OwnedFd, io};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::Ordering::{Relaxed, SeqCst},
};

/// A descriptor by which peers wake this process.
#[derive(Debug)]
pub(crate) struct EventChannel {
    pub(crate) number: u32,
    pub(crate) fd: OwnedFd,
    consuming: Mutex<()>,
}

impl EventChannel {
    /// Locks the channel while a thread takes a datagram and the notification that it stands for.
    pub(crate) fn consuming(&self) -> MutexGuard<'_, ()> {
        self.consuming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The event channels of a NIC, on which programs may sleep until something is completed.
#[derive(Debug, Default)]
pub(crate) struct EventChannels {
    list: Mutex<Vec<Arc<EventChannel>>>,
}

impl EventChannels {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<EventChannel>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a channel.
    pub(crate) fn create(&self, process: &Process) -> io::Result<Arc<EventChannel>> {
        let number = process.new_channel();
        let fd = process.waker.listen(process.me.slot, number)?;
        let channel = Arc::new(EventChannel { number, fd, consuming: Mutex::default() });
        self.list().push(Arc::clone(&channel));
        Ok(channel)
    }

    /// Destroys a channel.
    pub(crate) fn destroy(&self, process: &Process, number: u32) {
        self.list().retain(|channel| channel.number != number);
        process.waker.forget(process.me.slot, number);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// Sends the datagram of a pending notification if the channel has none.
    pub(super) fn wake_if_silent(&self, process: &Process, number: u32) {
        let found = self.list().iter().find(|channel| channel.number == number).cloned();
        let Some(channel) = found else { return };
        let _consuming = channel.consuming();
        let own = process.own();
        let is_pending = |record: &CqRecord| {
            record.fixed.channel.load(Relaxed) == number && record.fixed.pending.load(SeqCst) != 0
        };
        if !is_readable(&channel.fd) && (1..CQS).filter_map(|index| own.cq(index)).any(is_pending) {
            process.waker.wake(own.owner.slot, number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::member, *};
    use crate::shm::take_one;

    #[test]
    fn a_pending_notification_has_one_datagram() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = member(&folder);
        let process = member.process();
        let channels = EventChannels::default();
        assert!(channels.is_empty());
        let channel = channels.create(process).expect("a channel");
        assert!(!channels.is_empty());
        let wake = || channels.wake_if_silent(process, channel.number);
        wake();
        assert!(!is_readable(&channel.fd), "nothing is pending");
        let fixed = &process.own().cq(1).expect("a record").fixed;
        fixed.channel.store(channel.number, Relaxed);
        fixed.pending.store(1, SeqCst);
        wake();
        wake();
        take_one(&channel.fd, false).expect("a datagram");
        assert!(!is_readable(&channel.fd), "a second datagram");
        channels.destroy(process, channel.number);
        assert!(channels.is_empty());
    }
}
