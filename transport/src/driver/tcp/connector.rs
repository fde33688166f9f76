//! The thread that makes connections: it accepts, connects, authenticates, and hands connections to the
//! table.
//!
//! It sleeps in `poll` and takes no part in moving messages. Silent, slow, wrong or excess callers cost only
//! this thread's time. A caller must finish the handshake within [`HANDSHAKE_TIMEOUT`]. Beyond
//! [`MAX_INBOUND`] callers the oldest is dropped, so a rank of the job, which answers at once, always gets
//! through.

use super::{
    Security,
    connection_table::{ConnectionTable, Key},
    dialer::Dialer,
    match_acks::MatchAcks,
    pending::{Inbound, InitiatorHello, Outbound, responder_hello},
    reconnect::Reconnects,
    resume::ChannelTable,
    routes::Route,
    warning::WarningHandler,
};
use crate::secure::{Handshake, Purpose, SecureError, Session};
use events::{Occurrence, audit, target, tracing::debug};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::AsFd,
};
use std::{
    collections::{HashSet, VecDeque},
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed},
    },
    time::{Duration, Instant},
};

/// Time in which a caller must prove that it belongs to the job.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(900);
/// Maximum number of handshakes of callers at a time.
const MAX_INBOUND: usize = 128;
/// Maximum number of callers accepted in a row, before other work continues.
const MAX_ACCEPTS: usize = 64;
/// Time for each of a peer's addresses except the last one, which gets the rest of the connect timeout.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of repeated attempts after the other end closed the connection during the handshake.
const MAX_RETRIES: u32 = 5;
/// Time before such a repeated attempt.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time without accepting after the system has run out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of addresses that a warning is given for.
const MAX_WARNED_ADDRESSES: usize = 64;

/// The connections that this end makes: one task per connection.
#[derive(Debug)]
struct OutboundTask {
    key: Key,
    /// The current attempt; `None` while the other end connects, or before a repeated attempt.
    attempt: Option<Outbound>,
    /// Way of the current attempt, and the ways left to try.
    route: Option<Route>,
    routes: VecDeque<Route>,
    /// When to give up on this address, or to repeat the attempt.
    until: Instant,
    /// When to give up on the connection.
    deadline: Instant,
    retries: u32,
    awaits_peer: bool,
}

/// State of the connector's thread.
pub(super) struct Connector {
    table: Arc<ConnectionTable>,
    dialer: Dialer,
    listeners: Vec<TcpListener>,
    match_acks: Vec<Arc<MatchAcks>>,
    on_warning: WarningHandler,
    reconnects: Reconnects,
    outbound: Vec<OutboundTask>,
    /// Handshakes of callers with their deadlines, the oldest first.
    inbound: VecDeque<(Inbound, Instant)>,
    warned_addresses: HashSet<IpAddr>,
    /// Time until which no caller is accepted.
    paused_until: Option<Instant>,
}

impl Connector {
    pub(super) fn new(
        channels: Arc<ChannelTable>,
        match_acks: Vec<Arc<MatchAcks>>,
        dialer: Dialer,
        listeners: Vec<TcpListener>,
        on_warning: WarningHandler,
    ) -> Connector {
        Connector {
            table: Arc::clone(&channels.connections),
            reconnects: Reconnects::new(channels, match_acks.clone(), on_warning.clone()),
            dialer,
            listeners,
            match_acks,
            on_warning,
            outbound: Vec::new(),
            inbound: VecDeque::new(),
            warned_addresses: HashSet::new(),
            paused_until: None,
        }
    }

    /// Makes connections until the table tells the thread to end.
    pub(super) fn run(mut self) {
        while !self.table.is_stopping.load(Acquire) {
            self.sleep();
            self.table.connector_waker.clear();
            for key in self.table.take_requests() {
                self.start_outbound(key);
            }
            self.accept();
            self.progress_inbound();
            self.progress_outbound();
            self.reconnects.progress(&self.dialer);
        }
    }

    /// Sleeps until a socket is ready, a deadline has come, or the table wakes the thread.
    fn sleep(&self) {
        let now = Instant::now();
        let paused_until = self.paused_until.filter(|until| *until > now);
        let mut fds = vec![PollFd::from_borrowed_fd(self.table.connector_waker.fd(), PollFlags::IN)];
        let listening = self.listeners.iter().filter(|_| paused_until.is_none());
        fds.extend(listening.map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)));
        fds.extend(self.inbound.iter().map(|(v, _)| PollFd::from_borrowed_fd(v.fd(), v.interest())));
        let outbound = self.outbound.iter().filter_map(|task| task.attempt.as_ref());
        fds.extend(outbound.map(|attempt| PollFd::from_borrowed_fd(attempt.fd(), attempt.interest())));
        self.reconnects.add_descriptors(&mut fds);
        let inbound = self.inbound.iter().map(|(_, until)| *until);
        let outbound = self.outbound.iter().map(|task| task.until);
        let next = inbound.chain(outbound).chain(paused_until).chain(self.reconnects.next_deadline()).min();
        let time = next.map(|next| {
            // Rounds up: a sleep that ends before the deadline would be repeated at once.
            let left = next.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() }
        });
        let _ = poll(&mut fds, time.as_ref());
    }

    fn accept(&mut self) {
        if self.paused_until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        self.paused_until = None;
        for at in 0..self.listeners.len() {
            for _ in 0..MAX_ACCEPTS {
                match self.listeners[at].accept() {
                    Ok((stream, from)) => {
                        let dialer = &self.dialer;
                        let hello = responder_hello(self.table.rank, dialer.instance_of(self.table.rank));
                        let begun = dialer.configure(&stream).map_err(SecureError::from).and_then(|()| {
                            Handshake::responder(&dialer.config.secret, Purpose::Data, &hello)
                        });
                        match begun {
                            Ok(handshake) => {
                                let caller = Inbound::begin(stream, from, handshake);
                                self.inbound.push_back((caller, Instant::now() + HANDSHAKE_TIMEOUT));
                            }
                            Err(error) => self.refuse(from, &error),
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(_) => {
                        // Out of descriptors: the oldest callers are dropped to free some.
                        self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
        }
        let max = if self.paused_until.is_some() { self.inbound.len() / 2 } else { MAX_INBOUND };
        while self.inbound.len() > max {
            if let Some((caller, _)) = self.inbound.pop_front() {
                self.refuse(caller.from, &SecureError::Late);
            }
        }
    }

    fn progress_inbound(&mut self) {
        let now = Instant::now();
        for (mut caller, until) in std::mem::take(&mut self.inbound) {
            match caller.progress() {
                Ok(Some(session)) => self.admit(caller, session),
                Ok(None) if now < until => self.inbound.push_back((caller, until)),
                Ok(None) => self.refuse(caller.from, &SecureError::Late),
                Err(error) => self.refuse(caller.from, &error),
            }
        }
    }

    /// Offers an authenticated caller's connection to the table.
    fn admit(&mut self, caller: Inbound, session: Session) {
        let hello = InitiatorHello::decode(session.hello()).filter(|hello| {
            let is_known = self.table.is_valid(Inbound::key_of(hello)) && hello.to == self.table.rank;
            let instance_of = |rank| self.dialer.instance_of(rank);
            is_known && hello.instances == [instance_of(hello.from), instance_of(hello.to)]
        });
        let Some(hello) = hello else {
            let error = SecureError::Malformed("it belongs to another communicator");
            return self.refuse(caller.from, &error);
        };
        let encrypted = self.dialer.config.security == Security::Encrypt;
        // An error here means that the caller is gone. It connects again, or its link reports the loss.
        let key = Inbound::key_of(&hello);
        if self.reconnects.is_resumable(key.peer) {
            return self.reconnects.admit(caller, session, &hello);
        }
        let _ = self.table.accept(key, |verdict| caller.answer(session, verdict, encrypted));
        self.flush_match_acks(key);
    }

    /// Sends pending match acknowledgements if the connection that carries them has just become ready.
    fn flush_match_acks(&self, key: Key) {
        if key.lane == self.table.lanes && self.table.is_ready(key.peer, key.lane).is_ok_and(|ready| ready) {
            self.match_acks[key.peer as usize].flush(&self.table);
        }
    }

    /// Counts and audits a refused caller, and warns about it once per address.
    #[cold]
    fn refuse(&mut self, from: SocketAddr, error: &SecureError) {
        self.table.refused.fetch_add(1, Relaxed);
        let what = match error {
            SecureError::Version(_) => Occurrence::WrongVersion,
            _ => Occurrence::FailedProof,
        };
        let facts = [("rank", self.table.rank.into()), ("why", error.to_string().into())];
        audit(what, &from.to_string(), &facts);
        // A rank whose path fails while it connects is no stranger.
        let is_cut_off = matches!(error, SecureError::Closed | SecureError::Late | SecureError::Io(_))
            && self.dialer.routes.is_of_a_rank(from.ip());
        let is_new = || self.warned_addresses.len() < MAX_WARNED_ADDRESSES;
        if !is_cut_off && is_new() && self.warned_addresses.insert(from.ip()) {
            self.on_warning.warn(&format!("a connection from {from} was refused: {error}"));
        }
    }

    /// Starts to make a connection.
    fn start_outbound(&mut self, key: Key) {
        let routes = self.dialer.routes.to(key.peer, key.stripe);
        let deadline = Instant::now() + self.dialer.config.connect_timeout;
        let mut task = OutboundTask {
            key,
            attempt: None,
            route: None,
            routes,
            until: deadline,
            deadline,
            retries: 0,
            awaits_peer: false,
        };
        if let Err(why) = self.try_next_route(&mut task) {
            self.table.fail(key, why);
        } else {
            self.outbound.push(task);
        }
    }

    /// Starts an attempt over the next way to a peer.
    fn try_next_route(&self, task: &mut OutboundTask) -> Result<(), String> {
        let mut last = String::from("it has no address to connect to");
        while let Some(route) = task.routes.pop_front() {
            match self.dialer.dial(task.key, &route, None) {
                Ok(attempt) => {
                    task.attempt = Some(attempt);
                    task.route = Some(route);
                    let next = Instant::now() + ADDRESS_TIMEOUT;
                    task.until = if task.routes.is_empty() { task.deadline } else { next.min(task.deadline) };
                    return Ok(());
                }
                Err(error) => {
                    self.note_failure(&route);
                    last = format!("connecting to {}: {error}", route.to);
                }
            }
        }
        Err(last)
    }

    fn progress_outbound(&mut self) {
        for task in std::mem::take(&mut self.outbound) {
            let key = task.key;
            // An attempt in progress is completed even if the other end's attempt has succeeded first: the
            // responder would count an aborted attempt as a foreign connection.
            if task.attempt.is_none() && !self.table.is_pending(key) {
                continue;
            }
            match self.advance(task) {
                Ok(Some(task)) => self.outbound.push(task),
                Ok(None) => {}
                Err(why) => self.table.fail(key, why),
            }
        }
    }

    /// Advances a task; returns `None` once it is done.
    fn advance(&self, mut task: OutboundTask) -> Result<Option<OutboundTask>, String> {
        let now = Instant::now();
        let Some(mut attempt) = task.attempt.take() else {
            if now < task.until {
                return Ok(Some(task));
            }
            if task.awaits_peer || now >= task.deadline {
                return Err(self.no_answer(&task));
            }
            task.routes.extend(task.route.clone());
            self.try_next_route(&mut task)?;
            return Ok(Some(task));
        };
        let progress = attempt.progress();
        if let Some(route) = task.route.as_ref().filter(|_| is_without_answer(&progress, now >= task.until)) {
            self.note_failure(route);
        }
        match progress {
            Ok(Some((verdict, _))) => {
                let encrypted = self.dialer.config.security == Security::Encrypt;
                let connection = attempt.into_connection(encrypted);
                if let Err(error) = self.dialer.configure(&connection.stream) {
                    return Err(format!("preparing the connection: {error}"));
                }
                if let Some(route) = &task.route {
                    debug!(target: target::TCP, rank = self.table.rank,
                        "lane {} to rank {} has connected to {}", task.key.lane, task.key.peer, route.to);
                }
                task.awaits_peer = self.table.record_verdict(task.key, verdict, connection);
                self.flush_match_acks(task.key);
                task.until = task.deadline;
                Ok(task.awaits_peer.then_some(task))
            }
            Ok(None) if now < task.until => {
                task.attempt = Some(attempt);
                Ok(Some(task))
            }
            Ok(None) if task.routes.is_empty() => Err(self.no_answer(&task)),
            Err(SecureError::Closed) if task.retries < MAX_RETRIES && now < task.deadline => {
                task.retries += 1;
                debug!(target: target::TCP, rank = self.table.rank,
                    "rank {} has closed the connection; attempt {} follows", task.key.peer, task.retries + 1);
                task.until = now + RETRY_DELAY;
                Ok(Some(task))
            }
            Err(error) if task.routes.is_empty() => Err(task
                .route
                .map_or_else(String::new, |route| format!("connecting to {}: {error}", route.to))),
            Ok(None) | Err(_) => self.try_next_route(&mut task).map(|()| Some(task)),
        }
    }

    /// Voids earlier probes if a route that has failed is a cable.
    fn note_failure(&self, route: &Route) {
        if route.device.is_some() {
            self.table.probes.forget();
        }
    }

    fn no_answer(&self, task: &OutboundTask) -> String {
        let route = task.route.as_ref();
        let address = route.map_or_else(|| "its address".to_owned(), |route| route.to.to_string());
        format!(
            "no answer from {address} within {:.1} s; is a firewall in between, or another interface needed \
             (TBCCL_INTERFACE)?",
            self.dialer.config.connect_timeout.as_secs_f64()
        )
    }
}

/// Whether an attempt to connect has failed without any answer of the peer's host.
fn is_without_answer<T>(progress: &Result<Option<T>, SecureError>, is_late: bool) -> bool {
    match progress {
        Ok(None) => is_late,
        Err(SecureError::Io(error)) => !matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
        Ok(Some(_)) | Err(_) => false,
    }
}
