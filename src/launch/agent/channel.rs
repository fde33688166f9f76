//! The agent's side of the frame connection: non-blocking frames over stdin and stdout, or over a socket.

use crate::launch::frame::{self, Decoder, FromAgent, ToAgent};
use rustix::io::{Errno, read, write};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// Maximum bytes of queued frames; above it, the output of ranks is not read.
const MAX_OUTGOING_BYTES: usize = 1 << 20;

/// Interval between keep-alive frames.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// A non-blocking, buffered frame connection to the launcher.
#[derive(Debug)]
pub(super) struct Channel {
    /// The socket; without it, frames travel over stdin and stdout.
    socket: Option<OwnedFd>,
    stdin: io::Stdin,
    stdout: io::Stdout,
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
    /// Opens the connection over a socket, or else over this process's stdin and stdout, and makes it
    /// non-blocking.
    pub(super) fn open(socket: Option<OwnedFd>) -> io::Result<Channel> {
        let now = Instant::now();
        let channel = Channel {
            socket,
            stdin: io::stdin(),
            stdout: io::stdout(),
            decoder: Decoder::default(),
            outgoing: VecDeque::from(frame::GREETING.to_vec()),
            last_received: now,
            last_queued: now,
            closed: false,
        };
        rustix::io::ioctl_fionbio(channel.input(), true)?;
        rustix::io::ioctl_fionbio(channel.output(), true)?;
        Ok(channel)
    }

    /// Returns the descriptor from which frames are read.
    pub(super) fn input(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().map_or(self.stdin.as_fd(), AsFd::as_fd)
    }

    /// Returns the descriptor to which frames are written.
    pub(super) fn output(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().map_or(self.stdout.as_fd(), AsFd::as_fd)
    }

    /// Whether the connection is closed, or nothing has arrived for `timeout`. A socket ends with the
    /// launcher, so silence there means nothing: the launcher may be stopped.
    pub(super) fn is_lost(&self, timeout: Duration) -> bool {
        self.closed || (self.socket.is_none() && self.last_received.elapsed() > timeout)
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
        match read(self.input(), &mut buffer) {
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

    /// Writes queued bytes until the connection would block.
    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match write(self.output(), self.outgoing.as_slices().0) {
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
