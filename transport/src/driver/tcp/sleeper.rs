//! Sleeping until a socket is ready.

use super::connection_table::ConnectionTable;
use crate::Sleeper;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// Sleeps until a socket whose link found nothing to read, or no room to write, is ready, or a connection
/// changes state.
#[derive(Debug)]
pub(super) struct SocketSleeper(pub(super) Arc<ConnectionTable>);

impl Sleeper for SocketSleeper {
    fn sleep(&self, max: Duration) {
        let sockets = self.0.sockets();
        let mut fds = vec![PollFd::from_borrowed_fd(self.0.state_waker.fd(), PollFlags::IN)];
        for socket in &sockets {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, socket.wants_read.load(Relaxed));
            events.set(PollFlags::OUT, socket.wants_write.load(Relaxed));
            if !events.is_empty() {
                fds.push(PollFd::from_borrowed_fd(socket.fd(), events));
            }
        }
        let time = Timespec { tv_sec: max.as_secs() as _, tv_nsec: max.subsec_nanos().into() };
        // The result does not matter: the next poll of the links finds the cause.
        let _ = poll(&mut fds, Some(&time));
        if !fds[0].revents().is_empty() {
            self.0.state_waker.clear();
        }
    }
}
