//! A second driver for the pairs of ranks that a first one does not connect.
//!
//! Schedules use the connections of the first driver only, and relay messages along them. Messages of a
//! program between two other ranks go over the second driver. `fallback` makes this choice, after set-up of
//! the first driver; the endpoint here continues with set-up of the second.
//!
//! A link of the second driver makes progress on the first while it is idle: a peer may wait for an answer
//! that only this rank gives.
//!
//! # Safety
//! The only unsafe function passes memory on to the first driver, under the caller's promise.

use super::{Endpoint, ProgressHandle, RailInfo, RegistrationGuard};
use crate::{
    Capabilities, Counters, Link, PollCounters, RecvProgress, RecvState, SendProgress, SendState, Sink,
    TransportError,
    memory::{Slab, Span, SpanMut},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// One rank's endpoint of two drivers.
#[derive(Debug)]
pub(super) struct Supplemented {
    rank: u32,
    first: Box<dyn Endpoint>,
    second: Box<dyn Endpoint>,
}

impl Supplemented {
    /// Returns the endpoint of two drivers. Set-up of the first is complete, and that of the second has not
    /// begun.
    pub(super) fn new(rank: u32, first: Box<dyn Endpoint>, second: Box<dyn Endpoint>) -> Supplemented {
        Supplemented { rank, first, second }
    }

    fn is_first_for(&self, peer: u32) -> bool {
        self.first.connects(self.rank.min(peer), self.rank.max(peer))
    }
}

impl Endpoint for Supplemented {
    fn name(&self) -> &'static str {
        self.first.name()
    }

    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        self.second.exchange(messages)
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        self.first.connects(a, b) || self.second.connects(a, b)
    }

    fn is_for_schedules(&self, a: u32, b: u32) -> bool {
        self.first.connects(a, b) && self.first.is_for_schedules(a, b)
    }

    fn hosts(&self) -> Option<&[u32]> {
        self.first.hosts()
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        if self.is_first_for(peer) {
            return self.first.link(peer, lane);
        }
        let link = self.second.link(peer, lane);
        match self.first.progress_handle() {
            Some(progress_handle) => Box::new(SupplementLink { link, progress_handle }),
            None => link,
        }
    }

    fn slab(&self) -> &Slab {
        self.first.slab()
    }

    unsafe fn register(
        &mut self,
        start: *mut u8,
        len: usize,
    ) -> Result<Option<Box<dyn RegistrationGuard>>, TransportError> {
        // SAFETY: the caller keeps the same promise that `register` asks for.
        unsafe { self.first.register(start, len) }
    }

    fn begin_use(&mut self, memory: Span<'_>) {
        self.first.begin_use(memory);
    }

    fn end_use(&mut self, memory: Span<'_>) {
        self.first.end_use(memory);
    }

    fn progress_handle(&self) -> Option<Arc<dyn ProgressHandle>> {
        self.first.progress_handle()
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        if self.is_first_for(peer) { self.first.rails(peer) } else { self.second.rails(peer) }
    }

    fn prefer_rail(&mut self, peer: u32, rail: Option<usize>) {
        if self.is_first_for(peer) {
            self.first.prefer_rail(peer, rail);
        } else {
            self.second.prefer_rail(peer, rail);
        }
    }

    fn flush(&mut self, within: Duration, is_gone: &dyn Fn(u32) -> bool) -> bool {
        let until = Instant::now() + within;
        let is_done = self.first.flush(within, is_gone);
        self.second.flush(until.saturating_duration_since(Instant::now()), is_gone) && is_done
    }

    fn close(&mut self, timeout: Duration) {
        let until = Instant::now() + timeout;
        self.first.close(timeout);
        self.second.close(until.saturating_duration_since(Instant::now()));
    }
}

/// A link of the second driver.
#[derive(Debug)]
struct SupplementLink {
    link: Box<dyn Link>,
    progress_handle: Arc<dyn ProgressHandle>,
}

impl SupplementLink {
    /// Makes progress on the first driver.
    ///
    /// Drops errors that name no peer: the next use of that driver returns them again.
    fn progress_first(&self) -> Result<(), TransportError> {
        let progress = self.progress_handle.progress();
        progress.or_else(|error| if error.peer().is_some() { Err(error) } else { Ok(()) })
    }

    fn after_send(&self, progress: SendProgress) -> Result<SendProgress, TransportError> {
        if matches!(progress, SendProgress::Idle | SendProgress::Posted) {
            self.progress_first()?;
        }
        Ok(progress)
    }
}

impl Link for SupplementLink {
    fn capabilities(&self) -> &Capabilities {
        self.link.capabilities()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }

    fn poll_counters(&self) -> PollCounters {
        self.link.poll_counters()
    }

    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        let progress = self.link.poll_send(state, src)?;
        self.after_send(progress)
    }

    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let progress = self.link.poll_send_prefix(state, src, ready)?;
        self.after_send(progress)
    }

    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let progress = self.link.poll_recv(state, sink)?;
        if progress == RecvProgress::Idle {
            self.progress_first()?;
        }
        Ok(progress)
    }

    fn await_reply(&mut self, len: usize) {
        self.link.await_reply(len);
    }

    fn prepare_send(&mut self, len: usize) {
        self.link.prepare_send(len);
    }

    fn peek_digest(&self) -> Option<u64> {
        self.link.peek_digest()
    }

    fn announce(
        &mut self,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        self.link.announce(state, destination)
    }

    fn abort(&mut self) {
        self.link.abort();
    }
}
