//! Point-to-point messages of all groups, over links of the world's ranks.
//!
//! A send must return before its receive is posted, at least for small messages: an MLX stream makes one call
//! after the other, and both ends of an exchange may send first. Here large messages return early, too.
//! A message is copied, and the copy stays until it has been delivered, up to [`SEND_BUFFER_BYTES`] in total.
//! A message beyond that limit is sent from the caller's buffer, and the call waits for it.
//!
//! # Safety
//! The caller's buffer is used until the call returns, and a copy until its request is done.

use crate::{boundary::Outcome, group::Group};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tbccl::{Communicator, Delivery, P2p, P2pRequest, Rank};

/// Maximum bytes of sent messages that wait for their receivers.
const SEND_BUFFER_BYTES: usize = 256 << 20;

/// Maximum time that a leaving rank waits for buffered messages.
const FINALIZE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time between checks for departed receivers.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Context in which ranks announce that they receive no more messages. No group has it.
const FINALIZE_CONTEXT: u32 = u32::MAX;

/// Address of an empty message.
const EMPTY: *const u8 = std::ptr::dangling();

/// Point-to-point messages between the ranks of the world.
#[derive(Debug)]
pub struct Messages {
    /// Dropped first, after which nothing reads the buffered copies any more.
    p2p: P2p,
    /// Messages that may not have been delivered yet.
    buffered: Mutex<Vec<BufferedSend>>,
}

/// Message sent from a copy.
#[derive(Debug)]
struct BufferedSend {
    to: Rank,
    request: P2pRequest,
    /// Bytes of the message, which must stay until the request is done.
    copy: Box<[u8]>,
}

impl Messages {
    /// Opens the point-to-point messages of a communicator's ranks over its links.
    pub fn new(links: Communicator) -> Outcome<Messages> {
        Ok(Messages { p2p: P2p::new(links)?, buffered: Mutex::default() })
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
        let mut buffered = self.buffered();
        remove_completed(&mut buffered)?;
        let buffered_bytes: usize = buffered.iter().map(|send| send.copy.len()).sum();
        if bytes > SEND_BUFFER_BYTES - buffered_bytes {
            drop(buffered);
            // SAFETY: readable by the caller's promise, and this waits until the request is done.
            let request = unsafe { self.p2p.send(to, group.context(), tag, data, bytes)? };
            return wait(&request).map(drop);
        }
        let mut copy = Box::<[u8]>::default();
        if bytes > 0 {
            // SAFETY: readable by the caller's promise, and not empty.
            copy = unsafe { std::slice::from_raw_parts(data, bytes) }.into();
        }
        // SAFETY: the copy stays until the request is done.
        let request = unsafe { self.p2p.send(to, group.context(), tag, copy.as_ptr(), bytes)? };
        match request.test() {
            Some(done) => drop(done?),
            None => buffered.push(BufferedSend { to, request, copy }),
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
        // SAFETY: writable by the caller's promise, and this waits until the request is done.
        let request = unsafe { self.p2p.recv(from, group.context(), tag, data, bytes)? };
        wait(&request)
    }

    /// Announces that this rank receives no more messages, and waits a while for its own to be delivered.
    ///
    /// Messages to ranks that have announced the same are not waited for.
    pub fn finish(&self) {
        let others = (0..self.p2p.size()).map(Rank).filter(|rank| *rank != self.p2p.rank());
        // SAFETY: an empty message reads nothing.
        let _requests: Vec<_> =
            others.map(|rank| unsafe { self.p2p.send(rank, FINALIZE_CONTEXT, 0, EMPTY, 0) }).collect();
        let deadline = Instant::now() + FINALIZE_TIMEOUT;
        let mut buffered = self.buffered();
        let mut departures: HashMap<Rank, P2pRequest> = HashMap::new();
        for BufferedSend { to, .. } in &*buffered {
            let (source, dst) = (Some(*to), EMPTY.cast_mut());
            // SAFETY: an empty message writes nothing.
            if let Ok(request) = unsafe { self.p2p.recv(source, FINALIZE_CONTEXT, None, dst, 0) } {
                departures.insert(*to, request);
            }
        }
        let is_deliverable = |send: &BufferedSend| {
            let departed = departures.get(&send.to).is_none_or(|request| request.test().is_some());
            send.request.test().is_none() && !departed
        };
        while let Some(first) = buffered.iter().find(|send| is_deliverable(send)) {
            if Instant::now() > deadline {
                break;
            }
            let _ = first.request.wait(Some(POLL_INTERVAL));
        }
        // Copies of unfinished requests are dropped after the point-to-point layer, which may still read
        // them.
        buffered.retain(|send| send.request.test().is_none());
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
