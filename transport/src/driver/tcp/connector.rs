//! The thread that makes connections: it accepts, connects, authenticates, and hands connections to the
//! table.
//!
//! It sleeps in `poll` and takes no part in moving messages. Silent, slow, wrong or excess callers cost only
//! this thread's time. A caller must finish the handshake within [`VISIT`]. Beyond [`VISITS_MOST`] callers
//! the oldest is dropped, so a rank of the job, which answers at once, always gets through.

use super::{
    Security,
    addresses::in_order,
    attempt::{Call, CallerHello, Visit, called_hello},
    confirm::Confirmations,
    introduction::Introduction,
    socket::tune,
    table::{Connection, Key, Table},
    warning::WarningHandler,
};
use crate::secure::{Handshake, Purpose, Secret, SecureError, Session};
use if_addrs::Interface;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::AsFd,
};
use std::{
    collections::{HashSet, VecDeque},
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed},
    },
    time::{Duration, Instant},
};

/// How long a caller has to prove that it is one of us.
const VISIT: Duration = Duration::from_millis(900);
/// Callers at a time.
const VISITS_MOST: usize = 128;
/// Callers taken in before others are looked after.
const ACCEPTS: usize = 64;
/// How long to wait for each of a peer's addresses but the last one.
const PLACE: Duration = Duration::from_secs(2);
/// How often a call that is cut off before it was answered is made again, and after how long.
const AGAIN: (u32, Duration) = (5, Duration::from_millis(100));
/// How long to let callers wait when the system has no descriptors for them.
const PAUSE: Duration = Duration::from_millis(50);
/// Addresses of strangers that were told of.
const STRANGERS: usize = 64;

/// Settings shared by all attempts of an endpoint.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) secret: Secret,
    pub(super) security: Security,
    pub(super) buffer_bytes: Option<usize>,
    pub(super) connect_timeout: Duration,
    pub(super) peer_timeout: Duration,
}

/// A call of ours, and what to do when it fails.
#[derive(Debug)]
struct Calling {
    key: Key,
    /// None while it is not made: the other end is to call, or it is made again later.
    call: Option<Call>,
    /// Address of the current call, and the addresses left to try.
    place: Option<SocketAddr>,
    places: VecDeque<SocketAddr>,
    /// When to give up on this place, or to call again.
    until: Instant,
    /// When to give up.
    deadline: Instant,
    repeats: u32,
    expected: bool,
}

/// The thread's own.
pub(super) struct Connector {
    pub(super) table: Arc<Table>,
    pub(super) rules: Rules,
    pub(super) listeners: Vec<TcpListener>,
    /// Introductions of all ranks, by rank.
    pub(super) everyone: Vec<Introduction>,
    pub(super) interfaces: Vec<Interface>,
    confirmations: Vec<Arc<Confirmations>>,
    pub(super) on_warning: WarningHandler,
    calls: Vec<Calling>,
    /// With when they must be through; the oldest first.
    visits: VecDeque<(Visit, Instant)>,
    strangers: HashSet<IpAddr>,
    /// No caller is taken in before.
    paused: Option<Instant>,
}

impl Connector {
    pub(super) fn new(
        table: Arc<Table>,
        confirmations: Vec<Arc<Confirmations>>,
        rules: Rules,
        listeners: Vec<TcpListener>,
        everyone: Vec<Introduction>,
        interfaces: Vec<Interface>,
        on_warning: WarningHandler,
    ) -> Connector {
        Connector {
            table,
            rules,
            listeners,
            everyone,
            interfaces,
            confirmations,
            on_warning,
            calls: Vec::new(),
            visits: VecDeque::new(),
            strangers: HashSet::new(),
            paused: None,
        }
    }

    /// Makes connections until the table says that it is to end.
    pub(super) fn run(mut self) {
        while !self.table.ending.load(Acquire) {
            self.sleep();
            self.table.work.quiet();
            for key in self.table.calls() {
                self.begin(key);
            }
            self.accept();
            self.look_after_visits();
            self.look_after_calls();
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&self) {
        let now = Instant::now();
        let paused = self.paused.filter(|until| *until > now);
        let mut fds = vec![PollFd::from_borrowed_fd(self.table.work.fd(), PollFlags::IN)];
        let listening = self.listeners.iter().filter(|_| paused.is_none());
        fds.extend(listening.map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)));
        fds.extend(self.visits.iter().map(|(v, _)| PollFd::from_borrowed_fd(v.fd(), v.interest())));
        let calls = self.calls.iter().filter_map(|calling| calling.call.as_ref());
        fds.extend(calls.map(|call| PollFd::from_borrowed_fd(call.fd(), call.interest())));
        let visits = self.visits.iter().map(|(_, until)| *until);
        let next = visits.chain(self.calls.iter().map(|calling| calling.until)).chain(paused).min();
        let time = next.map(|next| {
            // Not a moment too early, or there would be nothing to do.
            let left = next.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() }
        });
        let _ = poll(&mut fds, time.as_ref());
    }

    fn accept(&mut self) {
        if self.paused.is_some_and(|until| until > Instant::now()) {
            return;
        }
        self.paused = None;
        for at in 0..self.listeners.len() {
            for _ in 0..ACCEPTS {
                match self.listeners[at].accept() {
                    Ok((stream, from)) => {
                        let hello = called_hello(self.table.rank, self.instance_of(self.table.rank));
                        let begun = tune(
                            &stream,
                            self.rules.buffer_bytes,
                            self.rules.peer_timeout,
                            is_within_host(&stream),
                        )
                        .map_err(SecureError::from)
                        .and_then(|()| Handshake::responder(&self.rules.secret, Purpose::Data, &hello));
                        match begun {
                            Ok(handshake) => {
                                let visit = Visit::begin(stream, from, handshake);
                                self.visits.push_back((visit, Instant::now() + VISIT));
                            }
                            Err(error) => self.refuse(from, &error),
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(_) => {
                        // Out of descriptors: the oldest callers make room.
                        self.paused = Some(Instant::now() + PAUSE);
                        break;
                    }
                }
            }
        }
        let most = if self.paused.is_some() { self.visits.len() / 2 } else { VISITS_MOST };
        while self.visits.len() > most {
            if let Some((visit, _)) = self.visits.pop_front() {
                self.refuse(visit.from, &SecureError::Late);
            }
        }
    }

    fn instance_of(&self, rank: u32) -> u64 {
        self.everyone[rank as usize].instance
    }

    fn look_after_visits(&mut self) {
        let now = Instant::now();
        for (mut visit, until) in std::mem::take(&mut self.visits) {
            match visit.progress() {
                Ok(Some(session)) => self.let_in(visit, session),
                Ok(None) if now < until => self.visits.push_back((visit, until)),
                Ok(None) => self.refuse(visit.from, &SecureError::Late),
                Err(error) => self.refuse(visit.from, &error),
            }
        }
    }

    /// One of ours has called.
    fn let_in(&mut self, visit: Visit, session: Session) {
        let hello = CallerHello::decode(session.hello()).filter(|hello| {
            let is_known = self.table.knows(Visit::key_of(hello)) && hello.to == self.table.rank;
            is_known && hello.instances == [self.instance_of(hello.from), self.instance_of(hello.to)]
        });
        let Some(hello) = hello else {
            let error = SecureError::Malformed("it belongs to another communicator");
            return self.refuse(visit.from, &error);
        };
        let encrypted = self.rules.security == Security::Encrypt;
        // A caller that is gone already calls again, or its link says that it is lost.
        let key = Visit::key_of(&hello);
        let _ = self.table.called(key, |verdict| visit.answer(session, verdict, encrypted));
        self.flush_confirmations(key);
    }

    /// Sends pending confirmations if the connection that carries them has just become ready.
    fn flush_confirmations(&self, key: Key) {
        if key.lane == self.table.lanes && self.table.is_ready(key.peer, key.lane).is_ok_and(|ready| ready) {
            self.confirmations[key.peer as usize].flush(&self.table);
        }
    }

    /// Counts who was not let in, and tells of it once per address.
    #[cold]
    fn refuse(&mut self, from: SocketAddr, error: &SecureError) {
        self.table.refused.fetch_add(1, Relaxed);
        if self.strangers.len() < STRANGERS && self.strangers.insert(from.ip()) {
            self.on_warning.warn(&format!("a connection from {from} was refused: {error}"));
        }
    }

    /// Begins a call.
    fn begin(&mut self, key: Key) {
        let listening: Vec<SocketAddr> =
            self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let theirs = &self.everyone[key.peer as usize].places;
        let places = in_order(theirs, &self.interfaces, &listening).into();
        let deadline = Instant::now() + self.rules.connect_timeout;
        let mut calling = Calling {
            key,
            call: None,
            place: None,
            places,
            until: deadline,
            deadline,
            repeats: 0,
            expected: false,
        };
        if let Err(why) = self.call_next(&mut calling) {
            self.table.failed(key, why);
        } else {
            self.calls.push(calling);
        }
    }

    /// Calls the next of a peer's addresses.
    fn call_next(&self, calling: &mut Calling) -> Result<(), String> {
        let mut last = String::from("it has no address that we can call");
        while let Some(place) = calling.places.pop_front() {
            match self.call(calling.key, place) {
                Ok(call) => {
                    calling.call = Some(call);
                    calling.place = Some(place);
                    let most = Instant::now() + PLACE;
                    calling.until =
                        if calling.places.is_empty() { calling.deadline } else { most.min(calling.deadline) };
                    return Ok(());
                }
                Err(error) => last = format!("connecting to {place}: {error}"),
            }
        }
        Err(last)
    }

    fn call(&self, key: Key, place: SocketAddr) -> Result<Call, SecureError> {
        let instances = [self.instance_of(self.table.rank), self.instance_of(key.peer)];
        let hello = CallerHello {
            from: self.table.rank,
            to: key.peer,
            instances,
            lane: key.lane,
            stripe: key.stripe,
        };
        let handshake = Handshake::initiator(&self.rules.secret, Purpose::Data, &hello.encode())?;
        let from = self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).find(|own| {
            own.is_ipv4() == place.is_ipv4() && own.ip().is_loopback() == place.ip().is_loopback()
        });
        let expects = called_hello(key.peer, instances[1]);
        let from = from.map(|own| own.ip()).filter(|own| !is_link_local(*own));
        Ok(Call::begin(place, from, self.rules.buffer_bytes, handshake, expects)?)
    }

    fn look_after_calls(&mut self) {
        for calling in std::mem::take(&mut self.calls) {
            let key = calling.key;
            // A call under way is completed even if the other end's call has succeeded first: the called end
            // would count an aborted one as a foreign connection.
            if calling.call.is_none() && !self.table.is_open(key) {
                continue;
            }
            match self.go_on(calling) {
                Ok(Some(calling)) => self.calls.push(calling),
                Ok(None) => {}
                Err(why) => self.table.failed(key, why),
            }
        }
    }

    /// Goes on with a call; `None` when it is through.
    fn go_on(&self, mut calling: Calling) -> Result<Option<Calling>, String> {
        let now = Instant::now();
        let Some(mut call) = calling.call.take() else {
            if now < calling.until {
                return Ok(Some(calling));
            }
            if calling.expected || now >= calling.deadline {
                return Err(self.nobody(&calling));
            }
            calling.places.extend(calling.place);
            self.call_next(&mut calling)?;
            return Ok(Some(calling));
        };
        match call.progress() {
            Ok(Some(verdict)) => {
                let connection = call.into_connection(self.rules.security == Security::Encrypt);
                if let Err(error) = self.prepare(&connection) {
                    return Err(format!("preparing the connection: {error}"));
                }
                calling.expected = self.table.answered(calling.key, verdict, connection);
                self.flush_confirmations(calling.key);
                calling.until = calling.deadline;
                Ok(calling.expected.then_some(calling))
            }
            Ok(None) if now < calling.until => {
                calling.call = Some(call);
                Ok(Some(calling))
            }
            Ok(None) if calling.places.is_empty() => Err(self.nobody(&calling)),
            Err(SecureError::Closed) if calling.repeats < AGAIN.0 && now < calling.deadline => {
                calling.repeats += 1;
                calling.until = now + AGAIN.1;
                Ok(Some(calling))
            }
            Err(error) if calling.places.is_empty() => {
                Err(calling.place.map_or_else(String::new, |place| format!("connecting to {place}: {error}")))
            }
            Ok(None) | Err(_) => self.call_next(&mut calling).map(|()| Some(calling)),
        }
    }

    fn prepare(&self, connection: &Connection) -> io::Result<()> {
        let stream = &connection.stream;
        tune(stream, self.rules.buffer_bytes, self.rules.peer_timeout, is_within_host(stream))
    }

    fn nobody(&self, calling: &Calling) -> String {
        let place = calling.place.map_or_else(|| "its address".to_owned(), |place| place.to_string());
        format!(
            "no answer from {place} within {:.1} s; is a firewall in between, or another interface needed \
             (TBCCL_INTERFACE)?",
            self.rules.connect_timeout.as_secs_f64()
        )
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Whether both ends are on this host.
fn is_within_host(stream: &std::net::TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(ours), Ok(theirs)) => ours.ip() == theirs.ip() || theirs.ip().is_loopback(),
        _ => false,
    }
}
