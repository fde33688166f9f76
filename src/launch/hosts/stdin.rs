//! Forwarding of the launcher's stdin to the ranks that get it.
//!
//! A piece is read when every rank has taken the one before, so buffered input is bounded, and a rank that
//! does not read delays only ranks with the same input. A terminal's input goes to no rank: ranks are not in
//! its foreground.

use crate::launch::frame::{self, ToAgent};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, read},
};
use std::{
    io::{self, IsTerminal},
    os::fd::OwnedFd,
    sync::mpsc,
    thread,
};

/// Read at once.
const PIECE_BYTES: usize = 1 << 15;

/// A rank that gets what we read, and the way there.
pub(super) type Target = (u32, mpsc::Sender<Vec<u8>>);

/// The thread that reads. Ends when dropped.
#[derive(Debug)]
pub(super) struct Pump {
    /// Closing it ends the thread.
    _stop: OwnedFd,
    /// A rank has taken its piece.
    taken: mpsc::Sender<()>,
}

impl Pump {
    /// Whether there is input to forward.
    pub(super) fn is_wanted() -> bool {
        !io::stdin().is_terminal()
    }

    /// Starts to pass on.
    pub(super) fn start(targets: Vec<Target>) -> io::Result<Pump> {
        let (stopped, stop) = io::pipe()?;
        let (taken, takes) = mpsc::channel();
        let stopped = OwnedFd::from(stopped);
        let body = move || pass_on(&targets, &takes, &stopped);
        thread::Builder::new().name("stdin".to_owned()).spawn(body)?;
        Ok(Pump { _stop: OwnedFd::from(stop), taken })
    }

    /// A rank has taken its piece.
    pub(super) fn was_taken(&self) {
        let _ = self.taken.send(());
    }
}

fn pass_on(targets: &[Target], takes: &mpsc::Receiver<()>, stopped: &OwnedFd) {
    let stdin = io::stdin();
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR)) || !fds[1].revents().is_empty() {
            return;
        }
        if fds[0].revents().is_empty() {
            continue;
        }
        let piece = match read(&stdin, &mut buffer) {
            Ok(n) => &buffer[..n],
            Err(Errno::AGAIN | Errno::INTR) => continue,
            // A stdin that can't be read, as one that is closed, has ended.
            Err(_) => &[],
        };
        for (rank, to) in targets {
            let _ = to.send(frame::encode(&ToAgent::Stdin { rank: *rank }, piece));
        }
        // The launcher drops its end when the job is over.
        if piece.is_empty() || targets.iter().any(|_| takes.recv().is_err()) {
            return;
        }
    }
}
