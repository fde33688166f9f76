//! Signals as pollable events.

use super::{LaunchError, spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::{backend::SignalDelivery, exfiltrator::SignalOnly},
};
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Instant,
};

/// Signals that are forwarded to the ranks.
const FORWARDED: [i32; 5] = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// Catches and queues signals while it exists.
#[derive(Debug)]
pub(super) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// Whether `SIGCHLD` has arrived since the last query.
    child_ended: bool,
}

impl Signals {
    /// Starts to catch `SIGCHLD` and the forwarded signals, except those that this process ignores.
    pub(super) fn catch() -> Result<Signals, LaunchError> {
        let signals = FORWARDED.into_iter().filter(|signal| !spawn::is_ignored(*signal)).chain([SIGCHLD]);
        let delivery = UnixStream::pair()
            .and_then(|(read, write)| SignalDelivery::with_pipe(read, write, SignalOnly, signals))
            .map_err(LaunchError::system("catch signals"))?;
        Ok(Signals { delivery, child_ended: false })
    }

    /// Returns a descriptor that is readable when a signal has arrived.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }

    /// Returns the signals other than `SIGCHLD` that have arrived, each once.
    pub(super) fn arrived(&mut self) -> Vec<i32> {
        let (children, others) =
            self.delivery.pending().partition::<Vec<i32>, _>(|signal| *signal == SIGCHLD);
        self.child_ended |= !children.is_empty();
        others
    }

    /// Whether a child has ended since the last call, as far as [`Signals::arrived`] has seen.
    pub(super) fn take_child_ended(&mut self) -> bool {
        std::mem::take(&mut self.child_ended)
    }

    /// Sleeps until a signal arrives, `other` is readable or closed, or the time is `until`. Returns the
    /// forwarded signals that have arrived, each once.
    pub(super) fn wait(
        &mut self,
        until: Option<Instant>,
        other: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<i32>, LaunchError> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A deadline too far away to be expressed is no limit.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = vec![PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)];
        fds.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(LaunchError::system("wait for the ranks")(io::Error::from(error))),
        }
        drop(fds);
        Ok(self.arrived())
    }
}
