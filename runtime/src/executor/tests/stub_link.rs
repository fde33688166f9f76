//! A link on which empty messages arrive and no others, with sends controlled by a test.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};
use transport::{
    Capabilities, Counters, Link, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    memory::{Span, SpanMut},
};

pub(super) struct StubLink<F> {
    pub(super) capabilities: &'static Capabilities,
    /// The progress of a polled send.
    pub(super) send: F,
    /// Number of announced receives.
    pub(super) announced: Arc<AtomicU32>,
    /// Number of sends that were prepared.
    pub(super) prepared: Arc<AtomicU32>,
}

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    driver: "stub",
    inline_bytes: 0,
    piece_bytes: 4096,
    direct: false,
    pull: false,
    announced_bytes: None,
    eager_bytes: 16 << 10,
    packed_bytes: 0,
    coarse_prefixes: false,
};

impl<F> fmt::Debug for StubLink<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StubLink").field("announced", &self.announced).finish_non_exhaustive()
    }
}

impl<F: FnMut(Span<'_>) -> SendProgress + Send> Link for StubLink<F> {
    fn capabilities(&self) -> &Capabilities {
        self.capabilities
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn poll_send(&mut self, _: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        Ok((self.send)(src))
    }

    fn poll_recv(&mut self, _: &mut RecvState, sink: &mut dyn Sink) -> Result<RecvProgress, TransportError> {
        let is_empty = sink.destination().is_some_and(SpanMut::is_empty);
        Ok(if is_empty { RecvProgress::Complete } else { RecvProgress::Idle })
    }

    fn prepare_send(&mut self, _: usize) {
        self.prepared.fetch_add(1, Ordering::Relaxed);
    }

    fn peek_digest(&self) -> Option<u64> {
        None
    }

    fn announce(&mut self, _: &mut RecvState, _: Option<SpanMut<'_>>) -> Result<bool, TransportError> {
        self.announced.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}
