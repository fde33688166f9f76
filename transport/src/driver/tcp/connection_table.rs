//! Table of connections: established, requested, and being made.
//!
//! Links request connections, the connector's thread makes them, and links take them. Both ends may start to
//! make the same connection at the same time; then the lower rank's attempt wins. Each end decides this by
//! itself: while it is connecting, it accepts an attempt of a lower rank and refuses one of a higher rank. An
//! initiator waits for a [`Verdict`] before it uses the connection, so nothing is sent into a connection that
//! the other end has refused.

use super::{probe_cache::ProbeCache, socket::Socket, traffic::TrafficTable, wire::Striping};
use crate::{
    TransportError,
    secure::{Opener, Sealer},
};
use rustix::fd::{AsFd, BorrowedFd};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*},
    },
    time::Duration,
};

/// Identity of one connection: the peer, the lane, and the connection's number within the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) peer: u32,
    /// Lane of messages; the number after the last one stands for the connection of match acknowledgements.
    pub(super) lane: u8,
    pub(super) stripe: u8,
}

/// An authenticated connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// Ciphers of both directions, if the connection is encrypted.
    pub(super) ciphers: Option<Box<(Sealer, Opener)>>,
}

/// The responder's answer to an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    /// The connection may be used.
    Accepted = 1,
    /// The responder is connecting too, and its attempt wins.
    Crossed = 2,
    /// The connection exists already.
    Duplicate = 3,
}

impl Verdict {
    pub(super) fn from_byte(byte: u8) -> Option<Verdict> {
        [Verdict::Accepted, Verdict::Crossed, Verdict::Duplicate].into_iter().find(|v| *v as u8 == byte)
    }
}

/// State of one connection.
#[derive(Debug, Default)]
enum SlotState {
    #[default]
    Idle,
    /// This end is connecting.
    Connecting,
    /// The other end is connecting, and this end has given up its own attempt.
    AwaitingPeer,
    /// Connected; the link has not taken the connection yet.
    Ready(Connection),
    /// The link has taken the connection.
    Taken,
}

/// The connections of a lane to a peer.
#[derive(Debug)]
struct Lane {
    /// [`WAITING`], [`READY`] or [`FAILED`]; read by the link without the lock.
    state: AtomicU8,
    inner: Mutex<LaneInner>,
}

#[derive(Debug, Default)]
struct LaneInner {
    stripes: Vec<SlotState>,
    failure: Option<String>,
}

const WAITING: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;

/// Wakes a thread that polls its descriptor: a self-pipe.
#[derive(Debug)]
pub(super) struct Waker {
    writer: UnixStream,
    reader: UnixStream,
}

impl Waker {
    fn new() -> io::Result<Waker> {
        let (writer, reader) = UnixStream::pair()?;
        writer.set_nonblocking(true)?;
        reader.set_nonblocking(true)?;
        Ok(Waker { writer, reader })
    }

    /// Wakes the thread now, or ends its next sleep at once.
    pub(super) fn wake(&self) {
        // If the socket is full, a wake-up is pending already.
        let _ = (&self.writer).write(&[1]);
    }

    /// Clears pending wake-ups.
    pub(super) fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.reader).read(&mut bytes), Ok(n) if n > 0) {}
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// All connections of an endpoint.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Time without an answer after which a peer's host counts as gone.
    pub(super) peer_timeout: Duration,
    /// Earlier probes of cables, which a path that fails voids.
    pub(super) probes: ProbeCache,
    /// Number of lanes of messages.
    pub(super) lanes: u8,
    /// Distribution of messages over connections, by peer.
    striping: Vec<Striping>,
    /// Lanes by peer and lane number, one more per peer than `lanes`.
    entries: Vec<Lane>,
    /// Peers and lanes that the connector must connect.
    requested: Mutex<Vec<(u32, u8)>>,
    /// Sockets in use by links, for the sleeper and for closing.
    sockets: Mutex<Vec<Weak<Socket>>>,
    /// Bytes of the rails to all peers.
    pub(super) traffic: TrafficTable,
    /// Wakes the connector's thread.
    pub(super) connector_waker: Waker,
    /// Wakes threads that wait for a connection, when the state of a lane changes.
    pub(super) state_waker: Waker,
    /// Number of refused connections.
    pub(super) refused: AtomicU64,
    /// Tells the connector's thread to end.
    pub(super) is_stopping: AtomicBool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionTable {
    /// Creates a table without connections. `striping` is by peer.
    pub(super) fn new(
        rank: u32,
        lanes: u8,
        striping: Vec<Striping>,
        peer_timeout: Duration,
        probes: ProbeCache,
    ) -> io::Result<ConnectionTable> {
        let size = striping.len() as u32;
        let entries = striping.iter().flat_map(|striping| {
            (0..=lanes).map(|lane| {
                let stripes = if lane == lanes { 1 } else { striping.sockets };
                let inner =
                    LaneInner { stripes: (0..stripes).map(|_| SlotState::Idle).collect(), failure: None };
                Lane { state: AtomicU8::new(WAITING), inner: Mutex::new(inner) }
            })
        });
        Ok(ConnectionTable {
            rank,
            size,
            peer_timeout,
            probes,
            lanes,
            entries: entries.collect(),
            striping,
            requested: Mutex::default(),
            sockets: Mutex::default(),
            traffic: TrafficTable::default(),
            connector_waker: Waker::new()?,
            state_waker: Waker::new()?,
            refused: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Returns the table with counters of the bytes of rails.
    pub(super) fn with_traffic(self, traffic: TrafficTable) -> ConnectionTable {
        ConnectionTable { traffic, ..self }
    }

    /// Returns the distribution of messages to a peer over its connections.
    pub(super) fn striping(&self, peer: u32) -> Striping {
        self.striping[peer as usize]
    }

    fn lane(&self, peer: u32, lane: u8) -> &Lane {
        &self.entries[peer as usize * (usize::from(self.lanes) + 1) + usize::from(lane)]
    }

    /// Whether the key names a valid connection of this job, made or not.
    pub(super) fn is_valid(&self, key: Key) -> bool {
        let is_peer = key.peer < self.size && key.peer != self.rank && key.lane <= self.lanes;
        is_peer && usize::from(key.stripe) < lock(&self.lane(key.peer, key.lane).inner).stripes.len()
    }

    /// Requests a lane's connections from the connector.
    pub(super) fn request(&self, peer: u32, lane: u8) {
        lock(&self.requested).push((peer, lane));
        self.connector_waker.wake();
    }

    /// Returns the connections to start now, and marks them as being connected.
    pub(super) fn take_requests(&self) -> Vec<Key> {
        let requested = std::mem::take(&mut *lock(&self.requested));
        let mut keys = Vec::new();
        for (peer, lane) in requested {
            for (stripe, slot) in lock(&self.lane(peer, lane).inner).stripes.iter_mut().enumerate() {
                if matches!(slot, SlotState::Idle) {
                    *slot = SlotState::Connecting;
                    keys.push(Key { peer, lane, stripe: stripe as u8 });
                }
            }
        }
        keys
    }

    /// Decides on an incoming attempt, sends the verdict, and keeps the connection if it is accepted.
    pub(super) fn accept(
        &self,
        key: Key,
        send_verdict: impl FnOnce(Verdict) -> Result<Connection, io::Error>,
    ) -> io::Result<Verdict> {
        let lane = self.lane(key.peer, key.lane);
        let mut inner = lock(&lane.inner);
        let slot = &mut inner.stripes[usize::from(key.stripe)];
        let verdict = match slot {
            SlotState::Idle | SlotState::AwaitingPeer => Verdict::Accepted,
            SlotState::Connecting if key.peer < self.rank => Verdict::Accepted,
            SlotState::Connecting => Verdict::Crossed,
            SlotState::Ready(_) | SlotState::Taken => Verdict::Duplicate,
        };
        let connection = send_verdict(verdict)?;
        if verdict == Verdict::Accepted {
            *slot = SlotState::Ready(connection);
            self.mark_if_ready(lane, inner);
        }
        Ok(verdict)
    }

    /// Records the verdict on this end's attempt. Returns whether the other end's attempt is still awaited.
    pub(super) fn record_verdict(&self, key: Key, verdict: Verdict, connection: Connection) -> bool {
        let lane = self.lane(key.peer, key.lane);
        let mut inner = lock(&lane.inner);
        let slot = &mut inner.stripes[usize::from(key.stripe)];
        if !matches!(slot, SlotState::Connecting) {
            return false;
        }
        match verdict {
            Verdict::Accepted => {
                *slot = SlotState::Ready(connection);
                self.mark_if_ready(lane, inner);
                false
            }
            Verdict::Crossed | Verdict::Duplicate => {
                *slot = SlotState::AwaitingPeer;
                true
            }
        }
    }

    /// Whether a connection is still being made by either end.
    pub(super) fn is_pending(&self, key: Key) -> bool {
        let inner = lock(&self.lane(key.peer, key.lane).inner);
        matches!(inner.stripes[usize::from(key.stripe)], SlotState::Connecting | SlotState::AwaitingPeer)
    }

    /// Records that a connection can't be made.
    pub(super) fn fail(&self, key: Key, why: String) {
        let lane = self.lane(key.peer, key.lane);
        let mut inner = lock(&lane.inner);
        if matches!(inner.stripes[usize::from(key.stripe)], SlotState::Connecting | SlotState::AwaitingPeer) {
            inner.failure.get_or_insert(why);
            lane.state.store(FAILED, Release);
            self.state_waker.wake();
        }
    }

    fn mark_if_ready(&self, lane: &Lane, inner: MutexGuard<'_, LaneInner>) {
        if !inner.stripes.iter().all(|slot| matches!(slot, SlotState::Ready(_))) {
            return;
        }
        lane.state.store(READY, Release);
        drop(inner);
        self.state_waker.wake();
    }

    /// Takes the connections of a lane, once all of them are made. A lane's connections can be taken once.
    ///
    /// # Errors
    /// [`TransportError::Unreachable`] if they can't be made.
    #[inline]
    pub(super) fn take(&self, peer: u32, lane: u8) -> Result<Option<Vec<Connection>>, TransportError> {
        match self.lane(peer, lane).state.load(Acquire) {
            WAITING => Ok(None),
            _ => self.take_slow(peer, lane),
        }
    }

    #[cold]
    fn take_slow(&self, peer: u32, lane: u8) -> Result<Option<Vec<Connection>>, TransportError> {
        let mut inner = lock(&self.lane(peer, lane).inner);
        if let Some(what) = &inner.failure {
            return Err(TransportError::Unreachable { peer, what: what.clone() });
        }
        let take = |slot: &mut SlotState| match std::mem::replace(slot, SlotState::Taken) {
            SlotState::Ready(connection) => Some(connection),
            _ => None,
        };
        Ok(inner.stripes.iter_mut().map(take).collect())
    }

    /// Whether a lane is connected, whether or not its link has taken the connections.
    ///
    /// # Errors
    /// [`TransportError::Unreachable`] if the connection can't be made.
    pub(super) fn is_ready(&self, peer: u32, lane: u8) -> Result<bool, TransportError> {
        match self.lane(peer, lane).state.load(Acquire) {
            FAILED => self.take_slow(peer, lane).map(|_| false),
            state => Ok(state == READY),
        }
    }

    /// Makes the socket of a connection to a peer, and adds it to those that the sleeper and closing look at.
    pub(super) fn register(&self, stream: TcpStream, peer: u32) -> Arc<Socket> {
        let traffic = self.traffic.of(peer, &stream);
        let socket = Arc::new(Socket::new(stream, traffic));
        let mut sockets = lock(&self.sockets);
        sockets.retain(|known| known.strong_count() > 0);
        sockets.push(Arc::downgrade(&socket));
        socket
    }

    /// Returns all sockets in use.
    pub(super) fn sockets(&self) -> Vec<Arc<Socket>> {
        lock(&self.sockets).iter().filter_map(Weak::upgrade).collect()
    }
}
