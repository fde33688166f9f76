//! Starting connections: the settings of an endpoint's connections, and what an attempt is made of.

use super::{
    Security,
    connection_table::Key,
    pending::{InitiatorHello, Outbound, responder_hello},
    routes::{Route, Routes},
    socket::configure,
    warning::WarningHandler,
};
use crate::secure::{Handshake, Purpose, Secret, SecureError};
use std::{
    io,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// Settings of an endpoint's connections.
#[derive(Debug)]
pub(super) struct ConnectionConfig {
    pub(super) secret: Secret,
    pub(super) security: Security,
    pub(super) buffer_bytes: Option<usize>,
    pub(super) connect_timeout: Duration,
    pub(super) peer_timeout: Duration,
}

/// Starts the connections of one rank.
#[derive(Debug)]
pub(super) struct Dialer {
    pub(super) config: ConnectionConfig,
    pub(super) routes: Arc<Routes>,
    pub(super) on_warning: WarningHandler,
}

impl Dialer {
    pub(super) fn instance_of(&self, rank: u32) -> u64 {
        self.routes.peers[rank as usize].instance
    }

    /// Starts an attempt over a route. `attempt` is the number of an attempt to replace a connection.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn dial(
        &self,
        key: Key,
        route: &Route,
        attempt: Option<u32>,
    ) -> Result<Outbound, SecureError> {
        if route.device.is_none() && self.routes.is_beside_cables(key.peer) {
            self.warn_of_lan(key.peer);
        }
        let instances = [self.instance_of(self.routes.rank), self.instance_of(key.peer)];
        let hello = InitiatorHello {
            from: self.routes.rank,
            to: key.peer,
            instances,
            lane: key.lane,
            stripe: key.stripe,
            attempt: attempt.unwrap_or(0),
        };
        let handshake = Handshake::initiator(&self.config.secret, Purpose::Data, &hello.encode())?;
        let expected_hello = responder_hello(key.peer, instances[1]);
        let buffer_bytes = self.config.buffer_bytes;
        Ok(Outbound::begin(route, buffer_bytes, handshake, expected_hello, attempt.is_some())?)
    }

    /// Warns of messages over the LAN, once per process.
    #[cold]
    fn warn_of_lan(&self, peer: u32) {
        static IS_WARNED: AtomicBool = AtomicBool::new(false);
        if !IS_WARNED.swap(true, Relaxed) {
            self.on_warning.warn(&format!(
                "no cable leads to rank {peer}; the program's messages to it go over the network that the \
                 ranks met on, collectives go along other ranks"
            ));
        }
    }

    /// Sets the options of a connection.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn configure(&self, stream: &TcpStream) -> io::Result<()> {
        let ConnectionConfig { buffer_bytes, peer_timeout, .. } = self.config;
        configure(stream, buffer_bytes, peer_timeout, is_within_host(stream))
    }
}

/// Whether both ends are on this host.
fn is_within_host(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(ours), Ok(theirs)) => ours.ip() == theirs.ip() || theirs.ip().is_loopback(),
        _ => false,
    }
}
