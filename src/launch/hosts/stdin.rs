//! Forwarding of the launcher's stdin to the ranks that receive it.
//!
//! A chunk is read only after every rank has taken the previous one, so buffered input is bounded. A rank
//! that does not read delays only ranks with the same input. Terminal input goes to no rank, because ranks
//! are not in the terminal's foreground process group.

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

/// Bytes per read.
const CHUNK_BYTES: usize = 1 << 15;

/// A rank that receives the input, and the frame queue of its agent.
pub(super) type Target = (u32, mpsc::Sender<Vec<u8>>);

/// The reading thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Pump {
    /// Write end of a pipe; closing it ends the thread.
    _stop: OwnedFd,
    /// Counts the ranks that have taken the current chunk.
    acknowledge: mpsc::Sender<()>,
}

impl Pump {
    /// Whether there is input to forward.
    pub(super) fn is_wanted() -> bool {
        !io::stdin().is_terminal()
    }

    /// Starts the thread.
    pub(super) fn start(targets: Vec<Target>) -> io::Result<Pump> {
        let (stopped, stop) = io::pipe()?;
        let (acknowledge, acknowledgements) = mpsc::channel();
        let stopped = OwnedFd::from(stopped);
        let body = move || forward(&targets, &acknowledgements, &stopped);
        thread::Builder::new().name("stdin".to_owned()).spawn(body)?;
        Ok(Pump { _stop: OwnedFd::from(stop), acknowledge })
    }

    /// Reports that a rank has taken the current chunk.
    pub(super) fn acknowledge(&self) {
        let _ = self.acknowledge.send(());
    }
}

fn forward(targets: &[Target], acknowledgements: &mpsc::Receiver<()>, stopped: &OwnedFd) {
    let stdin = io::stdin();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR)) || !fds[1].revents().is_empty() {
            return;
        }
        if fds[0].revents().is_empty() {
            continue;
        }
        let chunk = match read(&stdin, &mut buffer) {
            Ok(n) => &buffer[..n],
            Err(Errno::AGAIN | Errno::INTR) => continue,
            // An unreadable stdin, such as a closed one, counts as ended.
            Err(_) => &[],
        };
        for (rank, to) in targets {
            let _ = to.send(frame::encode(&ToAgent::Stdin { rank: *rank }, chunk));
        }
        // The receive fails once the launcher drops its sender at the end of the job.
        if chunk.is_empty() || targets.iter().any(|_| acknowledgements.recv().is_err()) {
            return;
        }
    }
}
