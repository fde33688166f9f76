//! The state of one request.
//!
//! A request is completed once, by the thread that progresses messages, and read without a lock. The state
//! also records since when the request has made no progress, for waiting threads.

use super::{Delivery, message_copy::MessageCopy};
use crate::{
    call::{CallKind, CallRecord},
    error::Result,
};
use collectives::DType;
use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// The description of a request, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestInfo {
    pub(super) kind: CallKind,
    /// The other rank; `None` for any.
    pub(super) peer: Option<Rank>,
    pub(super) context: u32,
    /// The tag; `None` for any.
    pub(super) tag: Option<i32>,
    /// The length of its memory.
    pub(super) bytes: usize,
    /// The number of the request on this rank, from 1.
    pub(super) number: u64,
    /// When it was made, in nanoseconds on the host's monotonic clock; 0 without a trace.
    pub(super) began: u64,
}

impl RequestInfo {
    /// Returns the request as a call record.
    pub(super) fn record(&self) -> CallRecord {
        CallRecord {
            kind: self.kind,
            dtype: DType::U8,
            count: self.bytes as u64,
            root: self.peer.unwrap_or(CallRecord::ANY),
            ..CallRecord::nothing(self.number)
        }
    }

    /// Returns the properties that a call record lacks.
    pub(super) fn details(&self) -> String {
        match self.tag {
            Some(tag) => format!("message with tag {tag} in context {}", self.context),
            None => format!("message with any tag in context {}", self.context),
        }
    }
}

#[derive(Debug)]
pub(super) struct RequestState {
    pub(super) info: RequestInfo,
    result: OnceLock<Result<Delivery>>,
    /// Counts progress steps.
    moved: AtomicU32,
    /// The progress count when it was last seen to change, and that time.
    stalled_since: Mutex<Option<(u32, Instant)>>,
}

impl RequestState {
    pub(super) fn new(info: RequestInfo) -> RequestState {
        RequestState {
            info,
            result: OnceLock::new(),
            moved: AtomicU32::new(0),
            stalled_since: Mutex::new(None),
        }
    }

    /// Returns the result if the request is complete.
    #[inline]
    pub(super) fn result(&self) -> Option<Result<Delivery>> {
        self.result.get().cloned()
    }

    /// Completes the request. The first result stays.
    pub(super) fn complete(&self, result: Result<Delivery>) {
        let _ = self.result.set(result);
    }

    /// Records progress.
    pub(super) fn mark_progress(&self) {
        self.moved.fetch_add(1, Relaxed);
    }

    /// Returns the time without progress, measured from the first call on.
    pub(super) fn stalled_for(&self) -> Duration {
        let (moved, now) = (self.moved.load(Relaxed), Instant::now());
        let mut stalled_since = self.stalled_since.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, since) = stalled_since.get_or_insert((moved, now));
        if *seen != moved {
            (*seen, *since) = (moved, now);
        }
        now.saturating_duration_since(*since)
    }
}

/// A send in flight.
#[derive(Clone, Debug)]
pub(super) struct SendRequest {
    pub(super) state: Arc<RequestState>,
    pub(super) src: Span<'static>,
    /// The copy that `src` is, if it is not the caller's memory.
    copy: Option<MessageCopy>,
}

impl SendRequest {
    pub(super) fn new(state: &Arc<RequestState>, src: Span<'static>) -> SendRequest {
        SendRequest { state: Arc::clone(state), src, copy: None }
    }

    /// Replaces the caller's memory by a copy, if one is given and this is the request with that state;
    /// returns whether it is.
    pub(super) fn give_copy(&mut self, state: &Arc<RequestState>, copy: Option<&MessageCopy>) -> bool {
        let is_this = Arc::ptr_eq(&self.state, state);
        if let (true, Some(copy)) = (is_this, copy) {
            self.src = copy.bytes;
            self.copy = Some(copy.clone());
        }
        is_this
    }
}

/// A receive in flight.
#[derive(Debug)]
pub(super) struct RecvRequest {
    pub(super) state: Arc<RequestState>,
    pub(super) dst: SpanMut<'static>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_moves_is_not_stalled() {
        let info = RequestInfo {
            kind: CallKind::Recv,
            peer: None,
            context: 3,
            tag: None,
            bytes: 8,
            number: 1,
            began: 0,
        };
        assert_eq!(info.record().to_string(), "recv of 8 u8 from any rank");
        assert_eq!(info.details(), "message with any tag in context 3");
        let state = RequestState::new(info);
        assert!(state.stalled_for().is_zero());
        std::thread::sleep(Duration::from_millis(2));
        assert!(state.stalled_for() >= Duration::from_millis(2));
        state.mark_progress();
        assert!(state.stalled_for().is_zero());
    }
}
