//! The agent's side of the frame connection: non-blocking frames over stdin and stdout.

use crate::launch::frame::{self, Decoder, FromAgent, ToAgent};
use rustix::io::{Errno, read, write};
use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Maximum bytes of queued frames; above it, the output of ranks is not read.
const MAX_OUTGOING_BYTES: usize = 1 << 20;

/// Interval between keep-alive frames.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// A non-blocking, buffered frame connection to the launcher.
#[derive(Debug)]
pub(super) struct Channel {
    decoder: Decoder,
    outgoing: VecDeque<u8>,
    /// Time at which bytes last arrived.
    last_received: Instant,
    /// Time at which a frame was last queued.
    last_queued: Instant,
    /// Whether the launcher has closed the connection, or it has failed.
    closed: bool,
}

impl Channel {
    /// Opens the connection over this process's stdin and stdout, and makes both non-blocking.
    pub(super) fn open() -> io::Result<Channel> {
        rustix::io::ioctl_fionbio(io::stdin(), true)?;
        rustix::io::ioctl_fionbio(io::stdout(), true)?;
        let now = Instant::now();
        let outgoing = VecDeque::from(frame::GREETING.to_vec());
        Ok(Channel {
            decoder: Decoder::default(),
            outgoing,
            last_received: now,
            last_queued: now,
            closed: false,
        })
    }

    /// Whether the connection is closed, or nothing has arrived for `timeout`.
    pub(super) fn is_lost(&self, timeout: Duration) -> bool {
        self.closed || self.last_received.elapsed() > timeout
    }

    /// Whether frames wait to be written.
    pub(super) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether output of ranks must wait until queued bytes are written.
    pub(super) fn is_full(&self) -> bool {
        self.outgoing.len() > MAX_OUTGOING_BYTES
    }

    /// Queues a frame.
    pub(super) fn queue(&mut self, frame: &FromAgent, tail: &[u8]) {
        self.last_queued = Instant::now();
        if !self.closed {
            self.outgoing.extend(frame::encode(frame, tail));
        }
    }

    /// Queues a keep-alive frame when one is due; returns the time of the next.
    pub(super) fn keep_alive(&mut self) -> Instant {
        if self.last_queued.elapsed() >= KEEP_ALIVE_INTERVAL && self.outgoing.is_empty() {
            self.queue(&FromAgent::Alive, b"");
        }
        self.last_queued.max(Instant::now() - KEEP_ALIVE_INTERVAL / 2) + KEEP_ALIVE_INTERVAL
    }

    /// Reads the available bytes and returns the complete frames.
    pub(super) fn receive(&mut self) -> Vec<(ToAgent, Vec<u8>)> {
        let mut buffer = vec![0; 1 << 16];
        match read(io::stdin().as_fd(), &mut buffer) {
            Ok(0) => self.closed = true,
            Ok(n) => {
                self.last_received = Instant::now();
                self.decoder.push(&buffer[..n]);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.closed = true,
        }
        let mut frames = Vec::new();
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return frames,
                // Undecodable bytes do not come from the launcher.
                Err(_) => {
                    self.closed = true;
                    return frames;
                }
            }
        }
    }

    /// Writes queued bytes until stdout would block.
    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match write(io::stdout().as_fd(), self.outgoing.as_slices().0) {
                Ok(n) => drop(self.outgoing.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.closed = true;
                    self.outgoing.clear();
                }
            }
        }
    }
}
