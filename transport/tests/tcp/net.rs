//! Endpoints in threads of this process, and messages between them.

use std::{
    sync::{Arc, Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    driver::{
        Endpoint,
        tcp::{ProbeCache, TcpConfig, TcpEndpoint, WarningHandler},
    },
    memory::{Span, SpanMut},
    secure::Secret,
};

/// Upper bound for every wait of these tests, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Warnings of endpoints about refused connections.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

pub(crate) fn secret() -> Secret {
    Secret::from_bytes([3; 32])
}

pub(crate) fn config() -> TcpConfig {
    TcpConfig {
        secret: Some(secret()),
        slab_bytes: 1 << 20,
        connect_timeout: PATIENCE,
        probes: ProbeCache::separate(),
        ..TcpConfig::default()
    }
}

/// Connects endpoints with these options, by rank. Returns the error of each one that failed.
pub(crate) fn try_connect_all(configs: &[TcpConfig], log: &Log) -> Vec<Result<TcpEndpoint, TransportError>> {
    let ranks = configs.len();
    let (messages, barrier) = (Mutex::new(vec![Vec::new(); ranks]), Barrier::new(ranks));
    let (messages, barrier) = (&messages, &barrier);
    let exchange = |rank: usize| {
        let log = Arc::clone(log);
        let say = WarningHandler::new(move |what| log.lock().expect("no panics").push(what.to_owned()));
        let mut end = TcpEndpoint::open(&configs[rank], rank as u32, say)?;
        let mut received = Vec::new();
        while let Some(message) = end.exchange(&received)? {
            messages.lock().expect("no panics")[rank] = message;
            barrier.wait();
            received = messages.lock().expect("no panics").clone();
            barrier.wait();
        }
        Ok(end)
    };
    let exchange = &exchange;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || exchange(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panics")).collect()
    })
}

/// Connects endpoints with equal options.
pub(crate) fn connect_all(config: &TcpConfig, ranks: usize, log: &Log) -> Vec<TcpEndpoint> {
    let all = try_connect_all(&vec![config.clone(); ranks], log);
    all.into_iter().map(|end| end.expect("the endpoints are connected")).collect()
}

/// Copies a message to its destination.
pub(crate) struct CopySink<'a>(pub(crate) &'a mut [u8]);

impl Sink for CopySink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(SpanMut::from(&mut *self.0))
    }
}

pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 8) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Sends a message there and back, checks it, and returns the time that it took.
pub(crate) fn echo<'l>(
    a: &mut (dyn Link + 'l),
    b: &mut (dyn Link + 'l),
    digest: u64,
    len: usize,
) -> Duration {
    let bytes = noise(len, digest + 1);
    let began = Instant::now();
    for turn in [0, 1] {
        let (from, to) = if turn == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
        let (mut send, mut recv) = (SendState::new(digest, Protocol::Copy), RecvState::new(digest, len));
        let mut payload = vec![0; len];
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            assert!(began.elapsed() < PATIENCE, "stuck");
            sent = sent
                || from.poll_send(&mut send, Span::from(&*bytes)).expect("send") == SendProgress::Complete;
            let progress = to.poll_recv(&mut recv, &mut CopySink(&mut payload));
            received = received || progress.expect("recv") == RecvProgress::Complete;
            thread::yield_now();
        }
        assert!(payload == bytes, "{len} bytes");
    }
    began.elapsed()
}

/// Waits until `done` returns true.
pub(crate) fn until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
