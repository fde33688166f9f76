//! One rank's endpoint of the TCP driver.
//!
//! ```text
//! open        listens, allocates memory           ->  own addresses  ->  the addresses of all ranks
//! exchange    probes the cables, if any two hosts may have one and the ranks remember no probe
//!                                                 ->  report  ->  the reports of all ranks
//! exchange    accepts callers, and connects to the next rank, to detect unreachable ranks early
//!                                                 ->  empty message  ->  from now on all ranks may send
//! ```

use super::{
    Security, TcpConfig,
    addresses::{interfaces, listen},
    cables::{Cable, cables},
    connection_table::ConnectionTable,
    connector::Connector,
    dialer::{ConnectionConfig, Dialer},
    link::TcpLink,
    match_acks::MatchAcks,
    paths::{Lan, PathTable, Resume, has_candidates},
    peer_info::{HeardPath, PeerInfo, decode_all, decode_reports, encode_report},
    probe::{CableSockets, probe},
    probe_cache::Offer,
    resumable_link::ResumableLink,
    resume::ChannelTable,
    routes::Routes,
    sleeper::SocketSleeper,
    traffic::TrafficTable,
    warning::WarningHandler,
    wire::Striping,
};
use crate::{
    Link, Sleeper, TransportError,
    driver::{Endpoint, RailInfo},
    memory::{Arena, ArenaLayout, Slab},
    ring::RingLayout,
    secure::Secret,
};
use events::{target, tracing::info};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, Release},
        },
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Default number of connections per lane between hosts.
///
/// Measured between two network namespaces on 2 busy cores, `all_reduce` in us with 1, 2 and 4 connections,
/// medians of 3 alternating rounds. A virtual cable: 10.1, 9.7, 10.0 (4 KiB); 106, 108, 105 (256 KiB);
/// 65,200, 70,300, 67,000 (16 MiB). The same at 20 Gb/s: 11.1, 10.6, 10.6; 115, 108, 124; 65,500, 74,300,
/// 83,000. So one connection saturates one core per rank, and the differences are within the noise of the
/// machine. Two is the default for networks that such a cable does not show: those that limit a connection by
/// its window, or by hashing it to one of several paths.
const SOCKETS_BETWEEN_HOSTS: u32 = 2;

/// Progress of set-up.
#[derive(Debug)]
enum Stage {
    /// Nothing is sent. The secret is the one that this rank sends to the others, if it does.
    Opened(Sockets, Option<Secret>),
    /// With the earlier probes that this rank has announced.
    InfoSent(Sockets, Offer),
    /// The cables were probed; with the information about all ranks.
    Probed(Sockets, Vec<PeerInfo>),
    Connected,
}

/// Sockets during set-up.
#[derive(Debug)]
struct Sockets {
    listeners: Vec<TcpListener>,
    cables: CableSockets,
}

/// One rank's endpoint of the TCP driver.
#[derive(Debug)]
pub struct TcpEndpoint {
    rank: u32,
    config: TcpConfig,
    on_warning: WarningHandler,
    instance: u64,
    stage: Stage,
    listen_addresses: Vec<SocketAddr>,
    /// Ways to all ranks; present once all ranks have sent their information.
    routes: Option<Arc<Routes>>,
    /// Table of connections; present once all ranks have sent their information.
    table: Option<Arc<ConnectionTable>>,
    /// Channels to the ranks with more than one path; present like the table of connections.
    channels: Option<Arc<ChannelTable>>,
    /// Match acknowledgements by peer.
    match_acks: Vec<Arc<MatchAcks>>,
    connector: Option<JoinHandle<()>>,
    slab: Slab,
}

impl TcpEndpoint {
    /// Listens and allocates memory.
    ///
    /// `on_warning` is called for refused connections, once per address.
    ///
    /// # Errors
    /// [`TransportError::Wiring`] if an address can't be listened on or random bytes can't be obtained, and
    /// [`TransportError::Memory`] if memory can't be allocated. The message names the remedy.
    pub fn open(
        config: &TcpConfig,
        rank: u32,
        on_warning: WarningHandler,
    ) -> Result<TcpEndpoint, TransportError> {
        let listeners = listen(&config.bind, rank)?;
        let found = cables(&config.cables);
        warn_of_missing_addresses(config, &found, &on_warning);
        let cables = CableSockets::open(&found);
        for listener in listeners.iter().chain(&cables.listeners) {
            use rustix::fd::AsFd;
            super::socket::set_buffer_sizes(listener.as_fd(), config.buffer_bytes);
        }
        let listen_addresses: Vec<SocketAddr> =
            listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        info!(target: target::TCP, rank, "listens at {listen_addresses:?}; {}", match config.security {
            Security::Authenticate => "connections are authenticated, and not encrypted",
            Security::Encrypt => "connections are encrypted",
        });
        // The arena is needed for its slab only.
        let ring =
            RingLayout { cells: 1, staging_bytes: 0, piece_bytes: 64, lap_bytes: 0, ..RingLayout::default() };
        let layout = ArenaLayout { ranks: 0, lanes: 0, ring, slab_bytes: config.slab_bytes };
        let slab = Slab::new(&Arena::private(layout)?, None);
        let failed = |what: String| TransportError::Wiring { rank, what };
        let random = Secret::generate().map_err(|error| failed(error.to_string()))?;
        let instance = u64::from_le_bytes(*random.bytes().first_chunk().expect("32 bytes"));
        let own_secret = (config.secret.is_none() && rank == 0).then(Secret::generate).transpose();
        let own_secret = own_secret.map_err(|error| failed(error.to_string()))?;
        Ok(TcpEndpoint {
            rank,
            config: config.clone(),
            on_warning,
            instance,
            stage: Stage::Opened(Sockets { listeners, cables }, own_secret),
            listen_addresses,
            routes: None,
            table: None,
            channels: None,
            match_acks: Vec::new(),
            connector: None,
            slab,
        })
    }

    /// Returns the rank of this endpoint.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the protection of the endpoint's connections.
    #[must_use]
    pub fn security(&self) -> Security {
        self.config.security
    }

    /// Returns the number of refused connections.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.refused.load(Relaxed))
    }

    /// Returns the addresses that the endpoint listens on.
    #[must_use]
    pub fn listen_addresses(&self) -> &[SocketAddr] {
        &self.listen_addresses
    }

    fn system(&self, what: &str, error: impl fmt::Display) -> TransportError {
        TransportError::Wiring { rank: self.rank, what: format!("{what}: {error}") }
    }

    fn send_peer_info(&mut self) -> Vec<u8> {
        let stage = std::mem::replace(&mut self.stage, Stage::Connected);
        let Stage::Opened(sockets, secret) = stage else { return Vec::new() };
        let (addresses, cables) = (self.listen_addresses.clone(), sockets.cables.announced.clone());
        let mut info = PeerInfo::new(self.instance, host_identity(), addresses, cables, secret.as_ref());
        let offer = self.config.probes.offer(&info.host, &info.cables, &sockets.cables.states);
        info.probes = offer.announced();
        self.stage = Stage::InfoSent(sockets, offer);
        info.encode()
    }

    /// Returns the ways to all ranks, over cables as far as the probes have found any.
    ///
    /// # Errors
    /// [`TransportError::Wiring`] if the cables leave ranks apart, and no other network may be used.
    fn find_routes(
        &self,
        peers: Vec<PeerInfo>,
        reports: &[Vec<HeardPath>],
        cables: &CableSockets,
    ) -> Result<Routes, TransportError> {
        let routes = Routes {
            rank: self.rank,
            paths: PathTable::new(&peers, reports),
            peers,
            devices: cables.devices.clone(),
            interfaces: interfaces(),
            lan: self.config.lan,
            max_relayed_ranks: self.config.max_relayed_ranks,
        };
        match routes.find_missing_cable() {
            Some((a, b)) if self.config.lan == Lan::Never => {
                let names: Vec<&str> = cables.devices.iter().map(|device| device.name.as_str()).collect();
                let ours = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let what = format!(
                    "no cable leads from rank {a} to rank {b}, directly or along other ranks, and TBCCL_LAN \
                     is never: connect each rank with the next one; cables of this host: {ours} \
                     (TBCCL_CABLES)"
                );
                Err(TransportError::Wiring { rank: self.rank, what })
            }
            _ => Ok(routes),
        }
    }

    /// Starts the connector once it is known what all ranks have heard, and checks that the next rank is
    /// reachable.
    fn connect(
        &mut self,
        sockets: Sockets,
        peers: Vec<PeerInfo>,
        reports: &[Vec<HeardPath>],
    ) -> Result<(), TransportError> {
        let routes = Arc::new(self.find_routes(peers, reports, &sockets.cables)?);
        self.warn_of_lan(&routes);
        self.routes = Some(Arc::clone(&routes));
        let secret = match &self.config.secret {
            Some(secret) => secret.clone(),
            None => routes.peers.first().and_then(PeerInfo::secret).ok_or_else(|| {
                let what = "it sent no secret; set TBCCL_SECRET or TBCCL_SECRET_FILE on all ranks";
                TransportError::DeviceDescription { peer: 0, what: what.to_owned() }
            })?,
        };
        let parts = (0..routes.peers.len() as u32).map(|peer| self.striping_with(peer, &routes)).collect();
        let table = ConnectionTable::new(
            self.rank,
            self.config.lanes,
            parts,
            self.config.peer_timeout,
            self.config.probes.clone(),
        )
        .map_err(|error| self.system("making a table of connections", error))?;
        let table = Arc::new(table.with_traffic(TrafficTable::new(routes.rail_ends())));
        let is_resumable = |peer| match self.config.resume {
            Resume::Auto => routes.has_several_paths(self.rank, peer),
            Resume::Always => true,
            Resume::Never => false,
        };
        let is_encrypted = self.config.security == Security::Encrypt;
        let channels = Arc::new(ChannelTable::new(Arc::clone(&table), is_encrypted, is_resumable));
        let match_acks = |peer| match channels.is_resumable(peer) {
            true => MatchAcks::resumable(peer, &channels),
            false => MatchAcks::new(peer, table.lanes),
        };
        self.match_acks = (0..table.size).map(|peer| Arc::new(match_acks(peer))).collect();
        let config = ConnectionConfig {
            secret,
            security: self.config.security,
            buffer_bytes: self.config.buffer_bytes,
            connect_timeout: self.config.connect_timeout,
            peer_timeout: self.config.peer_timeout,
        };
        let connector = Connector::new(
            Arc::clone(&channels),
            self.match_acks.clone(),
            Dialer { config, routes: Arc::clone(&routes), on_warning: self.on_warning.clone() },
            sockets.listeners.into_iter().chain(sockets.cables.listeners).collect(),
            self.on_warning.clone(),
        );
        let thread = thread::Builder::new().name("tbccl-tcp".into()).spawn(move || connector.run());
        self.connector = Some(thread.map_err(|error| self.system("starting a thread", error))?);
        self.table = Some(table);
        self.channels = Some(Arc::clone(&channels));
        let ranks = routes.peers.len() as u32;
        let later = (1..ranks).map(|ahead| (self.rank + ahead) % ranks);
        let next = later.into_iter().find(|peer| routes.is_for_schedules(self.rank, *peer));
        next.map_or(Ok(()), |next| connect_first_lane(&channels, next))
    }

    /// Warns of ranks that no cable leads to, once per process.
    fn warn_of_lan(&self, routes: &Routes) {
        static IS_WARNED: AtomicBool = AtomicBool::new(false);
        let ranks: Vec<String> = routes.ranks_over_lan().iter().map(u32::to_string).collect();
        if !ranks.is_empty() && !routes.paths.is_empty() && !IS_WARNED.swap(true, Relaxed) {
            self.on_warning.warn(&format!(
                "no cable leads to rank {}; data for it goes over the network that the ranks met on",
                ranks.join(", ")
            ));
        }
    }

    /// Returns the distribution of messages to a peer over connections; the same at both ends.
    fn striping_with(&self, peer: u32, routes: &Routes) -> Striping {
        let within_host = routes.peers[peer as usize].host == routes.peers[self.rank as usize].host;
        let cables = routes.paths.count(self.rank, peer) as u32;
        let between_hosts = SOCKETS_BETWEEN_HOSTS.max(cables);
        let auto = if within_host { 1 } else { between_hosts };
        let sockets = self.config.sockets.unwrap_or(auto).clamp(1, TcpConfig::MAX_SOCKETS);
        // Schedules cut long arrays into messages of about 512 KiB, which must not all take the first cable.
        let part_bytes = self.config.stripe_bytes / if cables > 1 { 2 } else { 1 };
        Striping { sockets: sockets as usize, min_part_bytes: part_bytes.max(64) }
    }
}

/// Warns of selected addresses that no interface in use has, once per process.
fn warn_of_missing_addresses(config: &TcpConfig, found: &[Cable], on_warning: &WarningHandler) {
    static IS_WARNED: AtomicBool = AtomicBool::new(false);
    let missing = config.cables.missing_addresses(found);
    if missing.is_empty() || IS_WARNED.swap(true, Relaxed) {
        return;
    }
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    on_warning.warn(&format!(
        "no interface that is up has the address {}, so no connection uses it; check the host's addresses in \
         the hostfile, or TBCCL_CABLES",
        missing.join(", ")
    ));
}

/// Connects the first lane to a peer, and waits until it is connected.
fn connect_first_lane(channels: &ChannelTable, peer: u32) -> Result<(), TransportError> {
    let (table, lane) = (&channels.connections, channels.lane(peer, 0));
    if lane.is_empty() {
        table.request(peer, 0);
    }
    let is_ready = || match &lane[..] {
        [] => table.is_ready(peer, 0),
        lane => lane.iter().try_fold(true, |is_ready, channel| Ok(is_ready & channel.connect(channels)?)),
    };
    while !is_ready()? {
        let mut news = [PollFd::from_borrowed_fd(table.state_waker.fd(), PollFlags::IN)];
        let time = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let _ = poll(&mut news, Some(&time));
        table.state_waker.clear();
    }
    Ok(())
}

/// Returns the identity of this host, equal on all of its ranks.
fn host_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = rustix::system::uname();
    format!("{} {}", name.nodename().to_string_lossy(), boot.trim())
}

impl Endpoint for TcpEndpoint {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Connected) {
            stage @ Stage::Opened(..) => {
                self.stage = stage;
                Ok(Some(self.send_peer_info()))
            }
            Stage::InfoSent(sockets, offer) => {
                let peers = decode_all(messages)?;
                let reports = match has_candidates(&peers) {
                    false => Some(vec![Vec::new(); peers.len()]),
                    true => offer.recall(&peers),
                };
                let Some(reports) = reports else {
                    let report = encode_report(&probe(self.rank, &peers, &sockets.cables));
                    self.stage = Stage::Probed(sockets, peers);
                    return Ok(Some(report));
                };
                self.connect(sockets, peers, &reports)?;
                Ok(Some(Vec::new()))
            }
            Stage::Probed(sockets, peers) => {
                let reports = decode_reports(messages)?;
                self.config.probes.remember(self.rank, &peers, &reports, &sockets.cables.states);
                self.connect(sockets, peers, &reports)?;
                Ok(Some(Vec::new()))
            }
            Stage::Connected => Ok(None),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.connects(a, b))
    }

    fn is_for_schedules(&self, a: u32, b: u32) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.is_for_schedules(a, b))
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        assert!(lane < self.config.lanes, "lane {lane} of {}", self.config.lanes);
        let table = self.table.as_ref().expect("links are opened after set-up");
        if let Some(channels) = self.channels.as_ref().filter(|channels| channels.is_resumable(peer)) {
            let match_acks = Arc::clone(&self.match_acks[peer as usize]);
            return Box::new(ResumableLink::new(Arc::clone(channels), match_acks, peer, lane));
        }
        Box::new(TcpLink::new(Arc::clone(table), Arc::clone(&self.match_acks[peer as usize]), peer, lane))
    }

    fn slab(&self) -> &Slab {
        &self.slab
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        let table = Arc::clone(self.table.as_ref()?);
        Some(Arc::new(SocketSleeper(table)))
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        let known = self.routes.as_ref().filter(|routes| (peer as usize) < routes.peers.len());
        let mut rails = known.map_or_else(Vec::new, |routes| routes.rails(peer));
        if let Some(channels) = &self.channels {
            rails.iter_mut().for_each(|rail| rail.is_up = !channels.is_down(peer, &rail.ours));
            for (rail, traffic) in rails.iter_mut().zip(channels.connections.traffic.to(peer)) {
                let (sent, received) = traffic.bytes();
                (rail.sent_bytes, rail.received_bytes) = (Some(sent), Some(received));
            }
        }
        rails
    }

    fn flush(&mut self, within: Duration, is_gone: &dyn Fn(u32) -> bool) -> bool {
        let Some(table) = &self.table else { return true };
        let until = Instant::now() + within;
        let is_flushed = || {
            let mut match_acks = (0..).zip(&self.match_acks);
            let is_flushed = match_acks.all(|(peer, acks)| is_gone(peer) || acks.is_flushed(table));
            let is_received = self.channels.as_ref().is_none_or(|channels| channels.is_received(is_gone));
            is_flushed && is_received && table.sockets().iter().all(|socket| socket.is_drained())
        };
        loop {
            match is_flushed() {
                false if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                is_flushed => return is_flushed,
            }
        }
    }

    fn close(&mut self, timeout: Duration) {
        self.flush(timeout, &|_| false);
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        if let Some(table) = &self.table {
            // Not in `close`: a peer that finds the connection closed reports an error, so it must know the
            // reason before.
            table.sockets().iter().for_each(|socket| socket.discard_and_shutdown());
            table.is_stopping.store(true, Release);
            table.connector_waker.wake();
        }
        if let Some(connector) = self.connector.take() {
            let _ = connector.join();
        }
    }
}
