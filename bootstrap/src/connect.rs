//! Connecting a rank to its rendezvous.
//!
//! Addresses on this host are tried first; a socket there must belong to this user. TCP addresses are tried
//! one after the other, the next one as soon as those before it have failed or not answered for a moment.
//! A server must prove possession of the job's secret, if there is one. A server that is full or not running
//! yet is tried again until a timeout that depends on the failure.

use super::{
    address::{Address, resolve},
    frame_stream::{FrameStream, ReadProgress},
    record_layer::RecordLayer,
    server::{OwnServer, Server},
    socket::Socket,
    unix::{connect_to_name, is_elsewhere, parse_name},
};
use events::{target, tracing::debug};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::AsFd,
    io::Errno,
    net::{connect, sockopt},
};
use std::{
    collections::VecDeque,
    fmt,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};
use transport::{
    host::is_same_user,
    secure::{Secret, SecureError},
};

/// Timeout of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for an address to answer before the next one is tried as well. A connection that is made and given up
/// looks like that of a stranger to the server.
const NEXT_ADDRESS_DELAY: Duration = Duration::from_millis(50);

/// Timeout of the handshake. The server limits the number of concurrent handshakes.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// The same after a host that serves late has used up the time.
const SHORTEST_PROOF_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a server that closes the connection is tried again. A full server looks like one with another
/// secret.
const CLOSED_RETRY: Duration = Duration::from_secs(3);

/// First and longest pause between attempts.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// Time for the notice of a death to arrive after a rank that has it already.
const NOTICE_TIME: Duration = Duration::from_secs(1);

/// Source of deaths among the ranks of a later communicator, of those too that have not come to it.
pub(super) trait Deaths: fmt::Debug + Send + Sync {
    /// Returns the first rank that has died, and how its process ended. Does not wait.
    fn first(&self) -> Option<(u32, String)>;
}

/// The rank whose process runs the rendezvous of a later communicator.
#[derive(Clone, Debug)]
pub struct RendezvousHost {
    /// Rank in the job that meets there.
    pub(super) rank: u32,
    /// Display label of each rank of that job, by rank.
    pub(super) labels: Arc<[String]>,
    deaths: Option<Arc<dyn Deaths>>,
}

impl RendezvousHost {
    /// Returns the description of the host: its rank, and the display label of each rank, by rank.
    #[must_use]
    pub fn new(rank: u32, labels: impl Into<Arc<[String]>>) -> RendezvousHost {
        RendezvousHost { rank, labels: labels.into(), deaths: None }
    }

    /// Returns the description with the means to learn of deaths among the ranks.
    pub(super) fn with_deaths(self, deaths: Arc<dyn Deaths>) -> RendezvousHost {
        RendezvousHost { deaths: Some(deaths), ..self }
    }

    /// Returns the first rank of the job that has died, and how its process ended.
    pub(super) fn first_death(&self) -> Option<(u32, String)> {
        self.deaths.as_ref()?.first()
    }

    /// Returns the first rank of the job that has died, after a failure that may be its consequence: a rank
    /// that learns of a death gives up, and looks to the others like one that has ended. Waits for the
    /// notice, where there is a source of deaths.
    pub(super) fn cause(&self) -> Option<(u32, String)> {
        let deaths = self.deaths.as_ref()?;
        let deadline = Instant::now() + NOTICE_TIME;
        loop {
            let death = deaths.first();
            if death.is_some() || Instant::now() >= deadline {
                return death;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the display label of the host rank.
    pub(super) fn label(&self) -> String {
        self.label_of(self.rank)
    }

    /// Returns the display label of a rank of the job.
    pub(super) fn label_of(&self, rank: u32) -> String {
        self.labels.get(rank as usize).map_or_else(|| format!("rank {rank}"), |label| format!("rank {label}"))
    }
}

/// Addresses and secret of a rendezvous, and how long to try to reach it.
#[derive(Clone, Debug)]
pub struct ConnectSpec {
    /// Addresses of the rendezvous.
    pub(super) addresses: Vec<Address>,
    /// The rendezvous itself, if it runs in this process.
    pub(super) own: Option<OwnServer>,
    /// Secret of the job. Required for TCP addresses.
    pub(super) secret: Option<Secret>,
    /// How long to try to connect: zero if the server must be running already, long if another rank starts
    /// it.
    pub(super) timeout: Duration,
    /// The rank whose listening sockets these are, for a later communicator.
    ///
    /// That rank opened the sockets before and serves them sooner or later. If nothing listens, the rank has
    /// ended. If nothing answers, the rank has not come yet.
    pub(super) rendezvous_host: Option<RendezvousHost>,
}

impl ConnectSpec {
    /// Returns the secret of the job, if it has one.
    #[must_use]
    pub fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Returns the spec for a rank whose process runs the rendezvous.
    #[must_use]
    pub fn of_own(self, server: &Server) -> ConnectSpec {
        ConnectSpec { own: Some(server.own()), ..self }
    }

    /// Returns the addresses of the rendezvous, as text.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.addresses.iter().map(ToString::to_string).collect()
    }

    /// Whether ranks of other hosts can reach the rendezvous.
    #[must_use]
    pub fn has_remote_address(&self) -> bool {
        self.addresses.iter().any(Address::is_remote)
    }

    /// Returns the TCP addresses of the rendezvous, without those of unknown hosts.
    #[must_use]
    pub fn socket_addresses(&self) -> Vec<SocketAddr> {
        self.addresses.iter().filter_map(|address| resolve(address).ok()).flatten().collect()
    }

    /// Returns the timeout of a handshake, for a connection that has been attempted since `began`.
    fn proof_timeout(&self, began: Instant) -> Duration {
        match self.rendezvous_host {
            // The host may begin to serve at any time until the timeout, at all of its addresses.
            Some(_) => self.timeout.saturating_sub(began.elapsed()).max(SHORTEST_PROOF_TIMEOUT),
            None => PROOF_TIMEOUT,
        }
    }

    /// Returns how long to try if nothing listens.
    fn unreachable_timeout(&self) -> Duration {
        if self.rendezvous_host.is_some() { Duration::ZERO } else { self.timeout }
    }
}

/// Connects to a rendezvous.
///
/// # Errors
/// A line that gives, for each address, the reason why it could not be reached.
pub(super) fn open_connection(rendezvous: &ConnectSpec) -> Result<FrameStream, String> {
    let began = Instant::now();
    if let Some(frames) = rendezvous.own.as_ref().and_then(|own| own.connect().ok()) {
        return Ok(frames);
    }
    let mut pause = RETRY_PAUSES[0];
    loop {
        let mut failures = Vec::new();
        let local = rendezvous.addresses.iter().filter(|address| !address.is_remote());
        for address in local {
            match connect_local(address, rendezvous, began) {
                Ok(frames) => return Ok(frames),
                Err(error) => {
                    let is_awaited = matches!(address, Address::Awaited(_));
                    failures.push(Failure { address: address.to_string(), is_awaited, error });
                }
            }
        }
        if let Some(frames) = connect_remote(rendezvous, &mut failures, began)? {
            return Ok(frames);
        }
        let timeout = failures.iter().map(|failure| failure.timeout(rendezvous)).max();
        if began.elapsed() + pause > timeout.unwrap_or_default() {
            let reasons: Vec<String> = failures.iter().map(ToString::to_string).collect();
            return Err(reasons.join("; "));
        }
        debug!(target: target::BOOTSTRAP, "no rendezvous yet, tries again in {pause:?}: {}",
            failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
        std::thread::sleep(pause);
        pause = (pause * 2).min(RETRY_PAUSES[1]);
    }
}

/// Reason why an address did not lead to the rendezvous.
struct Failure {
    address: String,
    /// Whether another rank may open this address later.
    is_awaited: bool,
    error: io::Error,
}

impl Failure {
    fn remote(address: String, error: io::Error) -> Failure {
        Failure { address, is_awaited: false, error }
    }

    fn secure_error(&self) -> Option<&SecureError> {
        self.error.get_ref().and_then(|inner| inner.downcast_ref())
    }

    /// Returns how long to retry after this failure.
    fn timeout(&self, rendezvous: &ConnectSpec) -> Duration {
        match self.secure_error() {
            // The whole time has passed.
            Some(SecureError::Late) if rendezvous.rendezvous_host.is_some() => Duration::ZERO,
            Some(SecureError::Closed | SecureError::Late) => CLOSED_RETRY,
            Some(_) => Duration::ZERO,
            None if self.is_awaited && self.error.kind() == ErrorKind::PermissionDenied => Duration::ZERO,
            None if self.is_awaited => rendezvous.timeout,
            // A Unix socket that does not exist now will not appear later.
            None if self.address.starts_with("unix") => Duration::ZERO,
            None => rendezvous.unreachable_timeout(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.error)
    }
}

/// Connects to a Unix socket of this user, with the handshake if the job has a secret.
fn connect_local(address: &Address, rendezvous: &ConnectSpec, began: Instant) -> io::Result<FrameStream> {
    let stream = match address {
        Address::Abstract(name) if parse_name(name).is_some_and(is_elsewhere) => {
            let why = "the socket is of another host, boot or network namespace";
            return Err(io::Error::new(ErrorKind::NotFound, why));
        }
        #[cfg(target_os = "linux")]
        Address::Abstract(name) => {
            use std::os::linux::net::SocketAddrExt;
            UnixStream::connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)?
        }
        Address::Path(path) => UnixStream::connect(path)?,
        Address::Awaited(name) => connect_to_name(*name)?,
        _ => {
            return Err(io::Error::new(
                ErrorKind::Unsupported,
                "this system does not support such addresses",
            ));
        }
    };
    // Another user may have taken the name.
    if !is_same_user(&stream) {
        let is_derived = matches!(address, Address::Awaited(_));
        let remedy =
            if is_derived { "; set TBCCL_ROOT=localhost:PORT on all ranks, with another port" } else { "" };
        let why = format!("the socket belongs to another user{remedy}");
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    let socket = Socket::unix(stream)?;
    match &rendezvous.secret {
        Some(secret) => handshake(socket, secret, rendezvous.proof_timeout(began)),
        None => Ok(FrameStream::new(socket, RecordLayer::Open)),
    }
}

/// Connects to the TCP addresses and returns the first that proves possession of the secret.
fn connect_remote(
    rendezvous: &ConnectSpec,
    failures: &mut Vec<Failure>,
    began: Instant,
) -> Result<Option<FrameStream>, String> {
    let remote: Vec<&Address> = rendezvous.addresses.iter().filter(|address| address.is_remote()).collect();
    if remote.is_empty() {
        return Ok(None);
    }
    let Some(secret) = &rendezvous.secret else {
        return Err("TBCCL_SECRET or TBCCL_SECRET_FILE is needed for a rendezvous over TCP: set it to the \
             secret of the rendezvous"
            .into());
    };
    let mut attempts = Attempts::default();
    for address in remote {
        match resolve(address) {
            Ok(found) => attempts.waiting.extend(found.into_iter().map(|to| (address, to))),
            Err(error) => failures.push(Failure::remote(address.to_string(), error)),
        }
    }
    while let Some(PendingConnect { address, stream }) = attempts.next_done() {
        let connected = stream.and_then(|stream| {
            sockopt::socket_error(&stream)?.map_err(io::Error::from)?;
            handshake(Socket::tcp(stream)?, secret, rendezvous.proof_timeout(began))
        });
        match connected {
            Ok(frames) => return Ok(Some(frames)),
            Err(error) => failures.push(Failure::remote(address, error)),
        }
    }
    let timed_out = |attempt: PendingConnect| {
        let error = io::Error::new(ErrorKind::TimedOut, format!("no answer within {CONNECT_TIMEOUT:?}"));
        Failure::remote(attempt.address, error)
    };
    failures.extend(attempts.pending.into_iter().map(timed_out));
    Ok(None)
}

/// Attempts to connect to several addresses.
#[derive(Default)]
struct Attempts<'a> {
    /// Addresses that have not been tried.
    waiting: VecDeque<(&'a Address, SocketAddr)>,
    pending: Vec<PendingConnect>,
    /// Time of the latest start.
    latest: Option<Instant>,
}

impl Attempts<'_> {
    /// Returns the next attempt that has succeeded or failed; `None` once all others have timed out.
    fn next_done(&mut self) -> Option<PendingConnect> {
        loop {
            let is_due = |latest: Instant| latest.elapsed() >= NEXT_ADDRESS_DELAY;
            if (self.pending.is_empty() || self.latest.is_none_or(is_due))
                && let Some((address, to)) = self.waiting.pop_front()
            {
                self.pending.push(PendingConnect::start(address, to));
                self.latest = Some(Instant::now());
            }
            let latest = self.latest.filter(|_| !self.pending.is_empty())?;
            let is_last = self.waiting.is_empty();
            let within = if is_last { CONNECT_TIMEOUT } else { NEXT_ADDRESS_DELAY };
            match wait_for_first(&self.pending, latest + within) {
                Some(at) => return Some(self.pending.swap_remove(at)),
                None if is_last => return None,
                None => {}
            }
        }
    }
}

/// A TCP connection attempt.
struct PendingConnect {
    address: String,
    stream: io::Result<TcpStream>,
}

impl PendingConnect {
    fn start(address: &Address, to: SocketAddr) -> PendingConnect {
        PendingConnect { address: address.to_string(), stream: start_connect(to).map_err(io::Error::from) }
    }
}

fn start_connect(to: SocketAddr) -> Result<TcpStream, Errno> {
    let socket = super::socket::tcp_socket_for(&to)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno),
    }
}

/// Waits for the first attempt that succeeds or fails and returns its index; `None` at the deadline.
fn wait_for_first(attempts: &[PendingConnect], deadline: Instant) -> Option<usize> {
    if let Some(failed) = attempts.iter().position(|attempt| attempt.stream.is_err()) {
        return Some(failed);
    }
    loop {
        let mut fds: Vec<PollFd<'_>> = attempts
            .iter()
            .filter_map(|attempt| attempt.stream.as_ref().ok())
            .map(|stream| PollFd::new(stream, PollFlags::OUT))
            .collect();
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut fds, Some(&timespec(left))) {
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => return None,
            Ok(_) => return fds.iter().position(|fd| !fd.revents().is_empty()),
        }
    }
}

pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() }
}

/// Performs the handshake in which both ends prove possession of the secret. Its last message travels with
/// the next one that the caller sends.
fn handshake(socket: Socket, secret: &Secret, within: Duration) -> io::Result<FrameStream> {
    let mut frames = FrameStream::new(socket, RecordLayer::initiator(secret)?);
    let deadline = Instant::now() + within;
    let closed = || io::Error::new(ErrorKind::PermissionDenied, SecureError::Closed);
    loop {
        if frames.is_trusted() {
            return Ok(frames);
        }
        let is_flushed = frames.flush().map_err(|_| closed())?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, SecureError::Late));
        }
        wait_for(frames.as_fd(), is_flushed, left)?;
        match frames.fill(1) {
            Ok(ReadProgress::Closed) => return Err(closed()),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Err(closed()),
            Err(e) => return Err(e),
            Ok(_) => {}
        }
    }
}

/// Waits until `fd` is readable, or writable if not flushed, for at most `timeout`.
pub(super) fn wait_for(fd: impl AsFd, is_flushed: bool, timeout: Duration) -> io::Result<()> {
    let events = if is_flushed { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
    match poll(&mut [PollFd::new(&fd, events)], Some(&timespec(timeout))) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second connection would be given up, which the server reports as that of a stranger.
    #[test]
    fn a_second_address_is_tried_only_when_the_first_fails_or_is_silent() {
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let (first, second, closed) = (listen(), listen(), listen());
        let address = |listener: &std::net::TcpListener| listener.local_addr().expect("bound");
        let name = Address::Tcp("a".to_owned(), 9);
        let done = |to: &[SocketAddr]| {
            let waiting = to.iter().map(|to| (&name, *to)).collect();
            let mut attempts = Attempts { waiting, ..Attempts::default() };
            attempts.next_done().map(|done| done.stream.and_then(|stream| stream.peer_addr()).ok())
        };
        let (first, second) = ((address(&first), first), (address(&second), second));
        assert_eq!(done(&[first.0, second.0]), Some(Some(first.0)));
        second.1.set_nonblocking(true).expect("set");
        assert!(second.1.accept().is_err(), "the second was not tried");
        let nobody = address(&closed);
        drop(closed);
        let began = Instant::now();
        let waiting = VecDeque::from([(&name, nobody), (&name, second.0)]);
        let mut attempts = Attempts { waiting, ..Attempts::default() };
        let refused = attempts.next_done().expect("an answer").stream;
        assert!(refused.is_err() || refused.is_ok_and(|stream| stream.peer_addr().is_err()));
        let next = attempts.next_done().expect("an answer").stream.expect("connected");
        assert_eq!(next.peer_addr().ok(), Some(second.0));
        assert!(began.elapsed() < CONNECT_TIMEOUT && attempts.next_done().is_none());
    }

    #[test]
    fn nobody_there_is_said_for_each_address() {
        let free = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("bound").port()
        };
        let addresses = Address::parse_list(&format!("unix-abstract:tbccl-nobody,tcp://127.0.0.1:{free}"));
        let rendezvous = ConnectSpec {
            addresses: addresses.expect("addresses"),
            secret: Some(Secret::from_bytes([1; 32])),
            own: None,
            timeout: Duration::ZERO,
            rendezvous_host: None,
        };
        let error = open_connection(&rendezvous).expect_err("nobody there");
        assert!(
            error.contains("unix-abstract:tbccl-nobody: ") && error.contains("onnection refused"),
            "{error}"
        );
        let without = ConnectSpec { secret: None, ..rendezvous };
        assert!(open_connection(&without).expect_err("no secret").contains("TBCCL_SECRET"));
    }
}
