//! Point-to-point messages of all groups, over links of the world's ranks.
//!
//! A send must return before its receive is posted, at least for small messages: an MLX stream makes one call
//! after the other, and both ends of an exchange may send first. Here large messages return early, too.
//! A message that its receiver does not take soon is copied, and the copy stays until it has been delivered,
//! up to about [`SEND_BUFFER_BYTES`] in total. A message beyond that limit is sent from the caller's buffer,
//! and the call waits for it.
//!
//! # Safety
//! The caller's buffer is used until the call returns.

use crate::{activity::Activity, boundary::Outcome, group::Group};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tbccl::{Communicator, Delivery, P2p, P2pRequest, Rank};

/// Maximum bytes of sent messages that wait for their receivers.
const SEND_BUFFER_BYTES: usize = 256 << 20;

/// Context in which ranks announce that they leave. No group has it.
const DEPARTURE_CONTEXT: u32 = u32::MAX;

/// Address of an empty message.
const EMPTY: *const u8 = std::ptr::dangling();

/// Point-to-point messages between the ranks of the world.
#[derive(Debug)]
pub struct Messages {
    /// Dropped first, after which nothing reads the buffered copies any more.
    p2p: P2p,
    /// Messages that may not have been delivered yet.
    buffered: Mutex<Vec<BufferedSend>>,
    activity: Arc<Activity>,
}

/// Message that had not been delivered when its send returned.
#[derive(Debug)]
struct BufferedSend {
    to: Rank,
    request: P2pRequest,
    bytes: usize,
}

/// Announcements of departures: this rank's, and those of the others as they arrive.
#[derive(Debug)]
pub(crate) struct Departure {
    _sent: Vec<P2pRequest>,
    /// A request for each other rank. It is complete once the rank has announced its departure, or has left
    /// or died.
    news: Vec<(Rank, P2pRequest)>,
}

impl Departure {
    /// Whether all other ranks leave, have left or have died.
    pub(crate) fn all_others_leave(&self) -> bool {
        self.news.iter().all(|(_, news)| news.test().is_some())
    }

    /// Waits for another announcement, for up to `timeout`.
    pub(crate) fn wait_for_next(&self, timeout: Duration) {
        if let Some((_, news)) = self.news.iter().find(|(_, news)| news.test().is_none()) {
            let _ = news.wait(Some(timeout));
        }
    }

    fn includes(&self, rank: Rank) -> bool {
        self.news.iter().find(|(other, _)| *other == rank).is_none_or(|(_, news)| news.test().is_some())
    }
}

impl Messages {
    /// Opens the point-to-point messages of a communicator's ranks over its links.
    pub(crate) fn new(links: Communicator, activity: Arc<Activity>) -> Outcome<Messages> {
        Ok(Messages { p2p: P2p::new(links)?, buffered: Mutex::default(), activity })
    }

    /// Sends bytes to a world rank in a group's context. Returns when the caller's buffer may be reused.
    ///
    /// # Safety
    /// `bytes` bytes are readable at `data` until this returns.
    pub unsafe fn send(
        &self,
        group: &Group,
        to: Rank,
        tag: i32,
        (data, bytes): (*const u8, usize),
    ) -> Outcome {
        let _in_progress = self.activity.begin();
        let mut buffered = self.buffered();
        remove_completed(&mut buffered)?;
        let buffered_bytes: usize = buffered.iter().map(|send| send.bytes).sum();
        // Other threads may send while this one waits.
        drop(buffered);
        if bytes > SEND_BUFFER_BYTES.saturating_sub(buffered_bytes) {
            // SAFETY: readable by the caller's promise, and this waits until the request is done.
            let request = unsafe { self.p2p.send(to, group.context(), tag, data, bytes)? };
            return wait(&request).map(drop);
        }
        // SAFETY: readable until this returns, by the caller's promise.
        let request = unsafe { self.p2p.send_buffered(to, group.context(), tag, data, bytes)? };
        match request.test() {
            Some(done) => drop(done?),
            None => self.buffered().push(BufferedSend { to, request, bytes }),
        }
        Ok(())
    }

    /// Receives bytes from one world rank or any in a group's context. Blocks until they have arrived.
    ///
    /// # Safety
    /// `bytes` bytes are writable at `data` until this returns, and nothing else uses them.
    pub unsafe fn recv(
        &self,
        group: &Group,
        from: Option<Rank>,
        tag: Option<i32>,
        (data, bytes): (*mut u8, usize),
    ) -> Outcome<Delivery> {
        let _in_progress = self.activity.begin();
        // SAFETY: writable by the caller's promise, and this waits until the request is done.
        let request = unsafe { self.p2p.recv(from, group.context(), tag, data, bytes)? };
        wait(&request)
    }

    /// Tells the other ranks that this rank leaves, and begins to listen for the same from them.
    pub(crate) fn announce_departure(&self) -> Departure {
        let others = || (0..self.p2p.size()).map(Rank).filter(|rank| *rank != self.p2p.rank());
        let announce = |rank| {
            // SAFETY: an empty message reads nothing.
            unsafe { self.p2p.send(rank, DEPARTURE_CONTEXT, 0, EMPTY, 0) }.ok()
        };
        let listen = |rank| {
            // SAFETY: an empty message writes nothing.
            let news = unsafe { self.p2p.recv(Some(rank), DEPARTURE_CONTEXT, None, EMPTY.cast_mut(), 0) };
            news.ok().map(|news| (rank, news))
        };
        Departure {
            _sent: others().filter_map(announce).collect(),
            news: others().filter_map(listen).collect(),
        }
    }

    /// Whether a message to a rank that has not announced its departure has not been delivered.
    pub(crate) fn has_undelivered(&self, departure: &Departure) -> bool {
        let buffered = self.buffered();
        buffered.iter().any(|send| send.request.test().is_none() && !departure.includes(send.to))
    }

    /// Aborts all messages.
    pub(crate) fn abort(&self) {
        self.p2p.abort();
    }

    fn buffered(&self) -> MutexGuard<'_, Vec<BufferedSend>> {
        self.buffered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes delivered messages. Returns the first error of those that failed.
fn remove_completed(buffered: &mut Vec<BufferedSend>) -> Outcome {
    let mut failed = None;
    buffered.retain(|send| match send.request.test() {
        None => true,
        Some(Ok(_)) => false,
        Some(Err(error)) => {
            failed.get_or_insert(error);
            false
        }
    });
    failed.map_or(Ok(()), |error| Err(error.into()))
}

fn wait(request: &P2pRequest) -> Outcome<Delivery> {
    loop {
        if let Some(done) = request.wait(None) {
            return Ok(done?);
        }
    }
}
