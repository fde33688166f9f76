//! All channels of an endpoint. Links use them, and the connector's thread connects them.

use super::{
    super::{
        connection_table::{ConnectionTable, Key, lock},
        device::Device,
        liveness::overdue_for,
        receive::{ExpectedPart, Polled, RecvTarget},
        routes::Route,
        socket::interface_is_running,
    },
    channel::{Answer, Channel, Failure, Phase},
    loss::Loss,
    socket_carrier::PendingSocket,
};
use crate::{TransportError, driver::Overdue, memory::Span};
use std::{
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering::Relaxed},
    time::Duration,
};

/// Time without an acknowledgement after which another connection is made, over another path first.
///
/// Systems retransmit after 0.2 s, and probe an idle connection after 1 s.
const PATH_TIMEOUT: Duration = Duration::from_secs(1);

/// A channel, and the facts about its connection that links and the connector share.
#[derive(Debug)]
pub(in super::super) struct SharedChannel {
    pub(in super::super) key: Key,
    inner: Mutex<Inner>,
}

/// A locked channel.
#[derive(Debug)]
pub(in super::super) struct Inner {
    pub(in super::super) channel: Channel<PendingSocket>,
    /// Whether the connector knows that a connection is needed.
    is_requested: bool,
    /// Route of the latest connection.
    route: Option<Route>,
    overdue: Overdue,
}

impl SharedChannel {
    fn new(key: Key) -> SharedChannel {
        let inner =
            Inner { channel: Channel::new(), is_requested: false, route: None, overdue: Overdue::default() };
        SharedChannel { key, inner: Mutex::new(inner) }
    }

    #[inline]
    pub(in super::super) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Returns the error of a channel that has failed.
    #[cold]
    fn error(&self, failure: &Failure) -> TransportError {
        let peer = self.key.peer;
        match failure {
            Failure::Closed => TransportError::Closed { peer },
            Failure::Unreachable(what) => TransportError::Unreachable { peer, what: what.clone() },
            Failure::Lost(what) => TransportError::Lost { peer, what: what.clone() },
            Failure::Protocol(what) => TransportError::Protocol { peer, what },
        }
    }

    /// Starts a part, and writes as much of it as possible; see [`Channel::write`].
    ///
    /// # Errors
    /// The channel's failure.
    #[inline]
    pub(in super::super) fn write(
        &self,
        table: &ChannelTable,
        part: Span<'_>,
        ready: usize,
    ) -> Result<(bool, bool), TransportError> {
        let mut inner = self.lock();
        let written = inner.channel.write(part, ready);
        self.check(table, &mut inner)?;
        Ok(written)
    }

    /// Receives bytes of a part; see [`Channel::receive`].
    ///
    /// # Errors
    /// The channel's failure, or that of the received bytes.
    #[inline]
    pub(in super::super) fn receive(
        &self,
        table: &ChannelTable,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
    ) -> Result<Polled, TransportError> {
        let mut inner = self.lock();
        let polled = inner.channel.receive(expected, target);
        let polled = polled.map_err(|failed| failed.into_transport_error(self.key.peer))?;
        if polled == Polled::Idle {
            self.check(table, &mut inner)?;
        }
        Ok(polled)
    }

    /// Requests a connection if the channel needs one.
    ///
    /// # Errors
    /// The channel's failure.
    #[inline]
    fn check(&self, table: &ChannelTable, inner: &mut Inner) -> Result<(), TransportError> {
        if inner.channel.phase() == Phase::Running {
            return Ok(());
        }
        self.check_stopped(table, inner)
    }

    #[cold]
    fn check_stopped(&self, table: &ChannelTable, inner: &mut Inner) -> Result<(), TransportError> {
        if let Some(failure) = inner.channel.failure() {
            return Err(self.error(failure));
        }
        if let Some(carrier) = inner.channel.carrier() {
            // A sleeping rank would be woken by the end of the connection again and again.
            carrier.socket().wants_read.store(false, Relaxed);
            carrier.socket().wants_write.store(false, Relaxed);
        }
        if inner.channel.needs_connection() && !inner.is_requested {
            inner.is_requested = true;
            table.request(self.key);
        }
        Ok(())
    }

    /// Requests the first connection, if there is none. Returns whether the channel runs.
    ///
    /// # Errors
    /// The channel's failure.
    pub(in super::super) fn connect(&self, table: &ChannelTable) -> Result<bool, TransportError> {
        let mut inner = self.lock();
        self.check(table, &mut inner)?;
        Ok(inner.channel.phase() == Phase::Running)
    }

    /// Gives up the connection if its cable is pulled, or if the peer's host does not answer.
    ///
    /// # Errors
    /// The channel's failure.
    #[cold]
    pub(in super::super) fn check_path(&self, table: &ChannelTable) -> Result<(), TransportError> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        if inner.phase() == Phase::Unconnected {
            return Ok(());
        }
        if let Some(loss) = inner.find_loss(PATH_TIMEOUT) {
            inner.channel.stop_for(loss);
        }
        self.check(table, inner)
    }
}

impl Inner {
    pub(in super::super) fn phase(&self) -> Phase {
        self.channel.phase()
    }

    /// Returns the route of the latest connection.
    pub(in super::super) fn route(&self) -> Option<&Route> {
        self.route.as_ref()
    }

    /// Returns why the present connection is of no further use. `timeout`: time without an answer.
    fn find_loss(&mut self, timeout: Duration) -> Option<Loss> {
        let socket = self.channel.running()?.socket();
        let device = self.route.as_ref().and_then(|route| route.device.as_ref());
        let is_running = |device: &Device| interface_is_running(socket.fd(), &device.name) != Some(false);
        if !device.is_none_or(is_running) {
            return Some(Loss::InterfaceDown);
        }
        let silent = overdue_for(socket.fd(), &mut self.overdue, timeout).map(Loss::Silent);
        // Nothing else tells a sender that only waits for acknowledgements.
        let ended = || socket.take_error().map_or(Loss::Ended, Loss::Failed);
        silent.or_else(|| socket.is_closed().then(ended))
    }

    /// Decides on an attempt of the peer; see [`Channel::accept`].
    pub(in super::super) fn accept(&mut self, attempt: u32, is_ours_first: bool) -> Answer {
        let loss = self.find_loss(Duration::ZERO).unwrap_or(Loss::Replaced);
        let was_running = self.phase() == Phase::Running;
        let answer = self.channel.accept(attempt, is_ours_first);
        if was_running && matches!(answer, Answer::Accepted(_)) {
            self.channel.note_loss(loss);
        }
        answer
    }

    /// Returns the route of a connection that was given up because nothing came over it.
    pub(in super::super) fn silent_route(&self) -> Option<Route> {
        self.route.clone().filter(|_| self.channel.loss().is_some_and(Loss::is_of_path))
    }

    /// Records the route of a new connection. Returns why the earlier one was given up.
    pub(in super::super) fn has_connected(&mut self, route: Option<Route>) -> Option<Loss> {
        self.route = route;
        self.overdue = Overdue::default();
        self.is_requested = false;
        self.channel.take_loss()
    }
}

/// All channels of an endpoint.
#[derive(Debug)]
pub(in super::super) struct ChannelTable {
    pub(in super::super) connections: Arc<ConnectionTable>,
    pub(in super::super) is_encrypted: bool,
    channels: Vec<Arc<SharedChannel>>,
    /// Index of the first channel to each peer; `None` for peers whose connections are not replaced.
    first: Vec<Option<usize>>,
    requested: Mutex<Vec<Key>>,
    /// Preferred routes, by peer, that have been given up.
    down: Mutex<Vec<(u32, Route)>>,
}

impl ChannelTable {
    /// Creates the channels to the peers for which `is_resumable` returns true.
    pub(in super::super) fn new(
        connections: Arc<ConnectionTable>,
        is_encrypted: bool,
        is_resumable: impl Fn(u32) -> bool,
    ) -> ChannelTable {
        let (mut channels, mut first) = (Vec::new(), Vec::new());
        for peer in 0..connections.size {
            let is_resumable = peer != connections.rank && is_resumable(peer);
            first.push(is_resumable.then_some(channels.len()));
            if !is_resumable {
                continue;
            }
            for lane in 0..=connections.lanes {
                let stripes = if lane == connections.lanes { 1 } else { connections.striping(peer).sockets };
                let key = |stripe| Key { peer, lane, stripe: stripe as u8 };
                channels.extend((0..stripes).map(|stripe| Arc::new(SharedChannel::new(key(stripe)))));
            }
        }
        ChannelTable {
            connections,
            is_encrypted,
            channels,
            first,
            requested: Mutex::default(),
            down: Mutex::default(),
        }
    }

    /// Whether broken connections to a peer are replaced.
    pub(in super::super) fn is_resumable(&self, peer: u32) -> bool {
        self.first.get(peer as usize).is_some_and(Option::is_some)
    }

    /// Returns a channel; `None` if connections to its peer are not replaced, or if there is no such channel.
    pub(in super::super) fn channel(&self, key: Key) -> Option<&Arc<SharedChannel>> {
        let first = (*self.first.get(key.peer as usize)?)?;
        let sockets = self.connections.striping(key.peer).sockets;
        let at = first + usize::from(key.lane) * sockets + usize::from(key.stripe);
        self.channels.get(at).filter(|channel| channel.key == key)
    }

    /// Returns the channels of a lane; the lane after the last one has the match acknowledgements.
    pub(in super::super) fn lane(&self, peer: u32, lane: u8) -> Vec<Arc<SharedChannel>> {
        let is_of_lane = |channel: &&Arc<SharedChannel>| (channel.key.peer, channel.key.lane) == (peer, lane);
        self.channels.iter().filter(is_of_lane).cloned().collect()
    }

    fn request(&self, key: Key) {
        lock(&self.requested).push(key);
        self.connections.connector_waker.wake();
    }

    /// Returns the channels that need a connection.
    pub(in super::super) fn take_requests(&self) -> Vec<Key> {
        std::mem::take(&mut *lock(&self.requested))
    }

    /// Whether the systems of all peers, except those that are gone, have everything that was sent.
    pub(in super::super) fn is_received(&self, is_gone: &dyn Fn(u32) -> bool) -> bool {
        self.channels.iter().filter(|channel| !is_gone(channel.key.peer)).all(|channel| {
            // Nobody else looks at the path of a channel that no call uses.
            channel.check_path(self).is_err() || channel.lock().channel.is_received()
        })
    }

    /// Records that a preferred route has been given up. Returns whether that is news.
    pub(in super::super) fn note_down(&self, path: (u32, Route)) -> bool {
        let mut down = lock(&self.down);
        let is_news = !down.contains(&path);
        if is_news {
            down.push(path);
        }
        is_news
    }

    /// Records that a preferred route works. Returns whether that is news.
    pub(in super::super) fn note_up(&self, path: &(u32, Route)) -> bool {
        let mut down = lock(&self.down);
        let before = down.len();
        down.retain(|other| other != path);
        down.len() < before
    }

    /// Whether the cable of an interface to a peer has been given up.
    pub(in super::super) fn is_down(&self, peer: u32, interface: &str) -> bool {
        let is_it = |route: &Route| route.device.as_ref().is_some_and(|device| device.name == interface);
        lock(&self.down).iter().any(|(of, route)| *of == peer && is_it(route))
    }

    /// Wakes threads that wait for a connection.
    pub(in super::super) fn wake_links(&self) {
        self.connections.state_waker.wake();
    }
}
