//! Messages, on the world's p2p.
//!
//! `MPI_Send` must return before its receive is posted, at least for small messages: MLX's stream makes one call after the
//! other, and both ends of an exchange may send first. Here it returns for large ones, too: what is sent is copied, and kept
//! until it has gone, up to [`KEPT_BYTES`] at a time. What is beyond that is sent from where it is, and waited for.
//!
//! # Safety
//! Memory of a call is used until the call returns, and what was copied until the p2p says that it is done with it.

use crate::{boundary::Outcome, group::Group};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tbccl::{Communicator, Delivery, P2p, P2pRequest, Rank};

/// Bytes that are kept for receivers that have not come for them.
const KEPT_BYTES: usize = 256 << 20;

/// How long this rank waits at the end until what it has sent has gone.
const LAST_POST: Duration = Duration::from_secs(30);

/// Between looks at what is left.
const MOMENT: Duration = Duration::from_millis(5);

/// No group's number: in it ranks tell each other that they take nothing any more.
const FAREWELL: u32 = u32::MAX;

/// The address of no bytes.
const NOTHING: *const u8 = std::ptr::dangling();

/// The world's p2p.
#[derive(Debug)]
pub(crate) struct Post {
    /// The first to be dropped: it looks at nothing any more then.
    p2p: P2p,
    /// What has been sent and may not have gone yet.
    kept: Mutex<Vec<Kept>>,
}

/// A message that was sent from a copy.
#[derive(Debug)]
struct Kept {
    to: Rank,
    request: P2pRequest,
    /// Not looked at, and dropped once the p2p does not need it.
    copy: Box<[u8]>,
}

impl Post {
    /// Over links of its own.
    pub(crate) fn open(links: Communicator) -> Outcome<Post> {
        Ok(Post { p2p: P2p::new(links)?, kept: Mutex::default() })
    }

    /// Sends bytes to a rank of the world, as one of a group.
    ///
    /// # Safety
    /// So many bytes are readable there until this returns.
    pub(crate) unsafe fn send(
        &self,
        group: &Group,
        to: Rank,
        tag: i32,
        (data, bytes): (*const u8, usize),
    ) -> Outcome {
        let mut kept = self.kept();
        sweep(&mut kept)?;
        let is_kept: usize = kept.iter().map(|kept| kept.copy.len()).sum();
        if bytes > KEPT_BYTES - is_kept {
            drop(kept);
            // SAFETY: the caller's promise, and this waits until the p2p is done with it.
            let request = unsafe { self.p2p.send(to, group.context(), tag, data, bytes)? };
            return wait(&request).map(drop);
        }
        let mut copy = Box::<[u8]>::default();
        if bytes > 0 {
            // SAFETY: the caller's promise.
            copy = unsafe { std::slice::from_raw_parts(data, bytes) }.into();
        }
        // SAFETY: the copy is kept until the request is done.
        let request = unsafe { self.p2p.send(to, group.context(), tag, copy.as_ptr(), bytes)? };
        match request.test() {
            Some(done) => drop(done?),
            None => kept.push(Kept { to, request, copy }),
        }
        Ok(())
    }

    /// Receives bytes from a rank of the world, or any, as one of a group.
    ///
    /// # Safety
    /// So many bytes are writable there until this returns, and nobody else uses them.
    pub(crate) unsafe fn recv(
        &self,
        group: &Group,
        from: Option<Rank>,
        tag: Option<i32>,
        (data, bytes): (*mut u8, usize),
    ) -> Outcome<Delivery> {
        // SAFETY: the caller's promise, and this waits until the p2p is done with it.
        let request = unsafe { self.p2p.recv(from, group.context(), tag, data, bytes)? };
        wait(&request)
    }

    /// Waits for what was sent to go, for a while. What nobody will take any more is not waited for: whoever comes here says so
    /// to all.
    pub(crate) fn finish(&self) {
        let others = (0..self.p2p.size()).map(Rank).filter(|rank| *rank != self.p2p.rank());
        // SAFETY: there is nothing to be read.
        let _said: Vec<_> =
            others.map(|rank| unsafe { self.p2p.send(rank, FAREWELL, 0, NOTHING, 0) }).collect();
        let until = Instant::now() + LAST_POST;
        let mut kept = self.kept();
        let mut farewells: HashMap<Rank, P2pRequest> = HashMap::new();
        for Kept { to, .. } in &*kept {
            // SAFETY: there is nothing to be written.
            if let Ok(request) = unsafe { self.p2p.recv(Some(*to), FAREWELL, None, NOTHING.cast_mut(), 0) } {
                farewells.insert(*to, request);
            }
        }
        let is_of_use = |kept: &Kept| kept.request.test().is_none() && farewells[&kept.to].test().is_none();
        while let Some(first) = kept.iter().find(|kept| farewells.contains_key(&kept.to) && is_of_use(kept)) {
            if Instant::now() > until {
                break;
            }
            let _ = first.request.wait(Some(MOMENT));
        }
        // The rest goes when the p2p has gone, which may still look at it.
        kept.retain(|kept| kept.request.test().is_none());
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets go of what has gone.
fn sweep(kept: &mut Vec<Kept>) -> Outcome {
    let mut failed = None;
    kept.retain(|kept| match kept.request.test() {
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
