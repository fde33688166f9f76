//! An agent's end of the conversation: frames over stdin and stdout, neither of which it ever waits for.

use crate::launch::frame::{self, Decoder, FromAgent, ToAgent};
use rustix::io::{Errno, read, write};
use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Bytes of queued frames above which output of ranks is not read.
const MOST_OUTGOING: usize = 1 << 20;

/// How often we say that we are there.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Frames in and out.
#[derive(Debug)]
pub(super) struct Channel {
    decoder: Decoder,
    outgoing: VecDeque<u8>,
    /// When something last came.
    heard: Instant,
    /// When something was last said.
    said: Instant,
    /// Is nobody there any more?
    closed: bool,
}

impl Channel {
    /// Over this process' stdin and stdout, which become non-blocking.
    pub(super) fn open() -> io::Result<Channel> {
        rustix::io::ioctl_fionbio(io::stdin(), true)?;
        rustix::io::ioctl_fionbio(io::stdout(), true)?;
        let now = Instant::now();
        let outgoing = VecDeque::from(frame::GREETING.to_vec());
        Ok(Channel { decoder: Decoder::default(), outgoing, heard: now, said: now, closed: false })
    }

    /// Is nobody there any more, or has there been silence for so long?
    pub(super) fn is_lost(&self, silence: Duration) -> bool {
        self.closed || self.heard.elapsed() > silence
    }

    /// Whether frames wait to be written.
    pub(super) fn is_waiting(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Should no more be queued that can wait?
    pub(super) fn is_full(&self) -> bool {
        self.outgoing.len() > MOST_OUTGOING
    }

    /// Queues a frame.
    pub(super) fn say(&mut self, what: &FromAgent, tail: &[u8]) {
        self.said = Instant::now();
        if !self.closed {
            self.outgoing.extend(frame::encode(what, tail));
        }
    }

    /// Says that we are there when it is time to; returns when it is the next time.
    pub(super) fn keep_alive(&mut self) -> Instant {
        if self.said.elapsed() >= ALIVE_EVERY && self.outgoing.is_empty() {
            self.say(&FromAgent::Alive, b"");
        }
        self.said.max(Instant::now() - ALIVE_EVERY / 2) + ALIVE_EVERY
    }

    /// Reads what is there, and returns the frames that are whole.
    pub(super) fn receive(&mut self) -> Vec<(ToAgent, Vec<u8>)> {
        let mut buffer = vec![0; 1 << 16];
        match read(io::stdin().as_fd(), &mut buffer) {
            Ok(0) => self.closed = true,
            Ok(n) => {
                self.heard = Instant::now();
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
                // The sender is not the launcher.
                Err(_) => {
                    self.closed = true;
                    return frames;
                }
            }
        }
    }

    /// Writes what can be written.
    pub(super) fn send(&mut self) {
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
