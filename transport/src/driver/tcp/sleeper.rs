//! Sleeping until something comes.

use super::table::Table;
use crate::Sleeper;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

/// Sleeps until a socket whose link found nothing to read, or no room to write, is ready, or a connection
/// changes state.
#[derive(Debug)]
pub(super) struct SocketSleeper(pub(super) Arc<Table>);

impl Sleeper for SocketSleeper {
    fn sleep(&self, most: Duration) {
        let sockets = self.0.sockets();
        let mut fds = vec![PollFd::from_borrowed_fd(self.0.news.fd(), PollFlags::IN)];
        for socket in &sockets {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::IN, socket.reads.load(Relaxed));
            wanted.set(PollFlags::OUT, socket.writes.load(Relaxed));
            if !wanted.is_empty() {
                fds.push(PollFd::from_borrowed_fd(socket.fd(), wanted));
            }
        }
        let time = Timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos().into() };
        // The result does not matter: the next poll of the links finds the cause.
        let _ = poll(&mut fds, Some(&time));
        if !fds[0].revents().is_empty() {
            self.0.news.quiet();
        }
    }
}
