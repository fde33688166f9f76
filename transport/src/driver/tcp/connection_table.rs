//! Table of connections: established, requested, and being made.
//!
//! Links request connections, the connector's thread makes them, and links take them. Both ends may start to
//! make the same connection at the same time; then the lower rank's call wins. Each end decides this by
//! itself: an end that is called while it calls accepts a call from a lower rank and refuses one from a
//! higher rank. A caller waits for a [`Verdict`] before it uses the connection, so nothing is sent into a
//! connection that the other end has refused.

use super::{socket::Socket, wire::Striping};
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

/// One connection: the peer, the lane, and which one of the lane's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) peer: u32,
    /// The one behind the lanes of messages carries confirmations.
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

/// The called end's answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    /// The connection may be used.
    Accepted = 1,
    /// The called one is calling too, and its call counts.
    Crossed = 2,
    /// There is such a connection already.
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
    /// We are calling.
    Connecting,
    /// The other end is calling, and we have given up our own call.
    AwaitingPeer,
    /// Connected, and not taken by its link yet.
    Ready(Connection),
    /// Its link has it.
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

/// Wakes who sleeps on its descriptor.
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

    /// Wakes the sleeper, now or when it next goes to sleep.
    pub(super) fn wake(&self) {
        // When there is no room it has been rung often enough.
        let _ = (&self.writer).write(&[1]);
    }

    /// Forgets that it was rung.
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
    /// After how long without an answer a peer's host is taken for gone.
    pub(super) peer_timeout: Duration,
    /// Lanes of messages.
    pub(super) lanes: u8,
    /// How messages to a peer are cut, by peer.
    striping: Vec<Striping>,
    /// By peer and lane.
    entries: Vec<Lane>,
    /// Which lanes the connector is to connect.
    requested: Mutex<Vec<(u32, u8)>>,
    /// All that links use, for who sleeps and who closes.
    sockets: Mutex<Vec<Weak<Socket>>>,
    /// For the connector.
    pub(super) connector_waker: Waker,
    /// Rung when the state of a lane changes; for threads that wait for a connection.
    pub(super) state_waker: Waker,
    /// Connections that were not let in.
    pub(super) refused: AtomicU64,
    /// The connector is to end.
    pub(super) is_stopping: AtomicBool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionTable {
    /// A table without connections. `parts` is by peer.
    pub(super) fn new(
        rank: u32,
        lanes: u8,
        striping: Vec<Striping>,
        peer_timeout: Duration,
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
            lanes,
            entries: entries.collect(),
            striping,
            requested: Mutex::default(),
            sockets: Mutex::default(),
            connector_waker: Waker::new()?,
            state_waker: Waker::new()?,
            refused: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// How messages to a peer are cut.
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

    /// Asks for a lane's connections.
    pub(super) fn request(&self, peer: u32, lane: u8) {
        lock(&self.requested).push((peer, lane));
        self.connector_waker.wake();
    }

    /// The calls that are to be made, for lanes that were asked for.
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

    /// Decides on a call that has come, tells the caller by `tell`, and keeps the connection if it is taken.
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

    /// Records the answer to an own call. Returns whether the other end's call is still awaited.
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

    /// Whether a call is still to be made or awaited.
    pub(super) fn is_pending(&self, key: Key) -> bool {
        let inner = lock(&self.lane(key.peer, key.lane).inner);
        matches!(inner.stripes[usize::from(key.stripe)], SlotState::Connecting | SlotState::AwaitingPeer)
    }

    /// Our call has failed, for good.
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

    /// The connections of a lane, once, when all of them are there.
    ///
    /// # Errors
    /// When they can't be made.
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

    /// Whether a lane is connected, taken by its link or not.
    ///
    /// # Errors
    /// [`TransportError::Unreachable`] if the connection can't be made.
    pub(super) fn is_ready(&self, peer: u32, lane: u8) -> Result<bool, TransportError> {
        match self.lane(peer, lane).state.load(Acquire) {
            FAILED => self.take_slow(peer, lane).map(|_| false),
            state => Ok(state == READY),
        }
    }

    /// Makes a socket known to who sleeps and who closes.
    pub(super) fn register(&self, socket: Socket) -> Arc<Socket> {
        let socket = Arc::new(socket);
        let mut sockets = lock(&self.sockets);
        sockets.retain(|known| known.strong_count() > 0);
        sockets.push(Arc::downgrade(&socket));
        socket
    }

    /// All sockets in use.
    pub(super) fn sockets(&self) -> Vec<Arc<Socket>> {
        lock(&self.sockets).iter().filter_map(Weak::upgrade).collect()
    }
}
