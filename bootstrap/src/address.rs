//! Where a rendezvous is, as text, and how a rank gets there.
//!
//! An address is `tcp://HOST:PORT` (an IPv6 address in brackets), `unix-abstract:NAME` or `unix:PATH`; several are
//! separated by commas, for a host that is reached in several ways. Those on this host are tried first; of the others
//! all at once, and the first that answers with the job's secret is taken. Who has no place for us yet, or is not
//! there yet, is tried again.

use super::{
    guard::Guard,
    muster::Keeper,
    pipe::{Filled, Pipe},
    server::{connect_by_name, is_ours, local_address},
    socket::Socket,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::AsFd,
    io::Errno,
    net::{connect, sockopt},
};
use std::{
    fmt,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};
use transport::secure::{Secret, SecureError};

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// How long the other end may take to prove that it has the secret. It has places for so many at a time.
const PROOF: Duration = Duration::from_secs(5);

/// How long who hangs up on us is tried again: who has no place for us yet looks like who does not know us.
const HUNG_UP: Duration = Duration::from_secs(3);

/// Between attempts, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// One way to a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Under this name in the abstract space of this host.
    Abstract(String),
    /// Under this path on this host.
    Path(String),
    /// Over TCP: a host by name or number, and a port.
    Tcp(String, u16),
    /// The Unix socket of this name on this host, which another rank opens sooner or later.
    Coming(u128),
}

impl Address {
    /// Those in a list that is separated by commas.
    ///
    /// # Errors
    /// Says what is not an address, and how one is written.
    pub fn list(text: &str) -> Result<Vec<Address>, String> {
        let addresses: Result<Vec<Address>, String> =
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Address::one).collect();
        match addresses {
            Ok(addresses) if addresses.is_empty() => Err(Address::wrong(text)),
            other => other,
        }
    }

    fn wrong(text: &str) -> String {
        format!("`{text}` is not the address of a rendezvous; write it as tcp://HOST:PORT")
    }

    fn one(text: &str) -> Result<Address, String> {
        if let Some(name) = text.strip_prefix("unix-abstract:").filter(|name| !name.is_empty()) {
            return Ok(Address::Abstract(name.to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Address::Path(path.to_owned()));
        }
        let rest = text.strip_prefix("tcp://").ok_or_else(|| Address::wrong(text))?;
        let (host, port) = host_and_port(rest).ok_or_else(|| Address::wrong(text))?;
        Ok(Address::Tcp(host, port))
    }

    /// Whether this is a TCP address.
    pub fn is_remote(&self) -> bool {
        matches!(self, Address::Tcp(..))
    }
}

/// A host and a port as people write them: `host:7777`, `10.0.0.1:7777`, `[fe80::1%en0]:7777`.
pub fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let has_colon = bare.is_none() && host.contains(':');
    let host = bare.unwrap_or(host);
    (!host.is_empty() && !has_colon && !host.contains(['[', ']'])).then(|| (host.to_owned(), port))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Abstract(name) => write!(f, "unix-abstract:{name}"),
            Address::Path(path) => write!(f, "unix:{path}"),
            Address::Tcp(host, port) if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "tcp://{host}:{port}"),
            Address::Coming(name) => f.write_str(&local_address(*name)),
        }
    }
}

/// Where a rendezvous is and what it takes to be let in.
#[derive(Clone, Debug)]
pub struct Place {
    /// The ways there.
    pub addresses: Vec<Address>,
    /// What is needed for those over TCP.
    pub secret: Option<Secret>,
    /// How long to try: not at all again where it must be there already, long where it is opened by another rank.
    pub patience: Duration,
    /// The rank whose sockets these are, where one has had them open all the time and serves them sooner or later: if
    /// they are not there it is gone, and if they don't answer it has not come yet.
    pub keeper: Option<Keeper>,
}

impl Place {
    /// How long the other end may take to prove that it has the secret.
    fn proof(&self) -> Duration {
        if self.keeper.is_some() { self.patience } else { PROOF }
    }

    /// How long to try where nobody listens.
    fn patience_with_nobody(&self) -> Duration {
        if self.keeper.is_some() { Duration::ZERO } else { self.patience }
    }
}

/// Connects to a rendezvous.
///
/// # Errors
/// Says for each address why not.
pub(super) fn go_to(place: &Place) -> Result<Pipe, String> {
    let began = Instant::now();
    let mut pause = PAUSES[0];
    loop {
        let mut failures = Vec::new();
        let local = place.addresses.iter().filter(|address| !address.is_remote());
        for address in local {
            match go_to_local(address) {
                Ok(pipe) => return Ok(pipe),
                Err(error) => {
                    let is_coming = matches!(address, Address::Coming(_));
                    failures.push(Failure { address: address.to_string(), is_coming, error });
                }
            }
        }
        if let Some(pipe) = go_to_remote(place, &mut failures)? {
            return Ok(pipe);
        }
        let patience = failures.iter().map(|failure| failure.patience(place)).max();
        if began.elapsed() + pause > patience.unwrap_or_default() {
            let said: Vec<String> = failures.iter().map(ToString::to_string).collect();
            return Err(said.join("; "));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES[1]);
    }
}

/// Why an address did not lead to the rendezvous.
struct Failure {
    address: String,
    /// Is it one where somebody will be?
    is_coming: bool,
    error: io::Error,
}

impl Failure {
    fn remote(address: String, error: io::Error) -> Failure {
        Failure { address, is_coming: false, error }
    }

    fn secure(&self) -> Option<&SecureError> {
        self.error.get_ref().and_then(|inner| inner.downcast_ref())
    }

    /// How long it is worth trying again.
    fn patience(&self, place: &Place) -> Duration {
        match self.secure() {
            Some(SecureError::Closed | SecureError::Late) => HUNG_UP,
            Some(_) => Duration::ZERO,
            None if self.is_coming && self.error.kind() == ErrorKind::PermissionDenied => Duration::ZERO,
            None if self.is_coming => place.patience,
            // A socket of this host is there, or will not be.
            None if self.address.starts_with("unix") => Duration::ZERO,
            None => place.patience_with_nobody(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.error)
    }
}

fn go_to_local(address: &Address) -> io::Result<Pipe> {
    let stream = match address {
        #[cfg(target_os = "linux")]
        Address::Abstract(name) => {
            use std::os::linux::net::SocketAddrExt;
            UnixStream::connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)?
        }
        Address::Path(path) => UnixStream::connect(path)?,
        Address::Coming(name) => {
            let stream = connect_by_name(*name)?;
            // Its name can be guessed, so somebody else may have taken it.
            if !is_ours(&stream, *name) {
                let why = "it belongs to another user; choose another port";
                return Err(io::Error::new(ErrorKind::PermissionDenied, why));
            }
            stream
        }
        _ => {
            return Err(io::Error::new(ErrorKind::Unsupported, "there are no such addresses on this system"));
        }
    };
    Ok(Pipe::new(Socket::unix(stream)?, Guard::Open))
}

/// Connects to all addresses over TCP at once; the first that proves that it has the secret is taken.
fn go_to_remote(place: &Place, failures: &mut Vec<Failure>) -> Result<Option<Pipe>, String> {
    let remote: Vec<&Address> = place.addresses.iter().filter(|address| address.is_remote()).collect();
    if remote.is_empty() {
        return Ok(None);
    }
    let Some(secret) = &place.secret else {
        return Err(
            "TBCCL_SECRET or TBCCL_SECRET_FILE is needed for a rendezvous over TCP: set it to what the \
                    rendezvous has"
                .into(),
        );
    };
    let mut calls = Vec::new();
    for address in remote {
        match resolve(address) {
            Ok(found) => calls.extend(found.into_iter().map(|to| Call::begin(address, to))),
            Err(error) => failures.push(Failure::remote(address.to_string(), error)),
        }
    }
    let deadline = Instant::now() + ATTEMPT;
    while !calls.is_empty() {
        let Some(at) = first_answered(&calls, deadline) else { break };
        let Call { address, stream } = calls.swap_remove(at);
        let shaken = stream.and_then(|stream| {
            sockopt::socket_error(&stream)?.map_err(io::Error::from)?;
            shake_hands(stream, secret, place.proof())
        });
        match shaken {
            Ok(pipe) => return Ok(Some(pipe)),
            Err(error) => failures.push(Failure::remote(address, error)),
        }
    }
    let silent = |call: Call| {
        let error = io::Error::new(ErrorKind::TimedOut, format!("no answer within {ATTEMPT:?}"));
        Failure::remote(call.address, error)
    };
    failures.extend(calls.into_iter().map(silent));
    Ok(None)
}

/// The sockets that an address over TCP stands for.
pub fn resolve(address: &Address) -> io::Result<Vec<SocketAddr>> {
    let Address::Tcp(host, port) = address else { return Ok(Vec::new()) };
    let found: Vec<SocketAddr> = (host.as_str(), *port)
        .to_socket_addrs()
        .map_err(|e| io::Error::new(e.kind(), format!("no address is known of `{host}`: {e}")))?
        .collect();
    Ok(found)
}

/// A connection that is being made.
struct Call {
    address: String,
    stream: io::Result<TcpStream>,
}

impl Call {
    fn begin(address: &Address, to: SocketAddr) -> Call {
        Call { address: address.to_string(), stream: call(to).map_err(io::Error::from) }
    }
}

fn call(to: SocketAddr) -> Result<TcpStream, Errno> {
    let socket = super::socket::for_address(&to)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno),
    }
}

/// Which call has come to something, good or bad; none by the deadline.
fn first_answered(calls: &[Call], deadline: Instant) -> Option<usize> {
    if let Some(failed) = calls.iter().position(|call| call.stream.is_err()) {
        return Some(failed);
    }
    loop {
        let mut fds: Vec<PollFd<'_>> = calls
            .iter()
            .filter_map(|call| call.stream.as_ref().ok())
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

/// Proves to the other end that we have the secret, and has it prove the same.
fn shake_hands(stream: TcpStream, secret: &Secret, within: Duration) -> io::Result<Pipe> {
    let mut pipe = Pipe::new(Socket::tcp(stream)?, Guard::initiator(secret)?);
    let deadline = Instant::now() + within;
    let closed = || io::Error::new(ErrorKind::PermissionDenied, SecureError::Closed);
    loop {
        let is_flushed = pipe.flush().map_err(|_| closed())?;
        if pipe.is_trusted() && is_flushed {
            return Ok(pipe);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, SecureError::Late));
        }
        wait_for(pipe.as_fd(), is_flushed, left)?;
        match pipe.fill(1) {
            Ok(Filled::Ended) => return Err(closed()),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Err(closed()),
            Err(e) => return Err(e),
            Ok(_) => {}
        }
    }
}

/// Waits until there is something to read, or to write if that is wanted, for so long at most.
pub(super) fn wait_for(fd: impl AsFd, is_flushed: bool, most: Duration) -> io::Result<()> {
    let events = if is_flushed { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
    match poll(&mut [PollFd::new(&fd, events)], Some(&timespec(most))) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let text =
            "unix-abstract:tbccl-1,tcp://10.0.0.1:80, tcp://[fe80::1%en0]:7777,unix:/a/b,tcp://host-1:1";
        let list = Address::list(text).expect("addresses");
        assert_eq!(list.len(), 5);
        assert_eq!(list[2], Address::Tcp("fe80::1%en0".into(), 7777));
        let written: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(written.join(","), text.replace(", ", ","));
    }

    #[test]
    fn what_is_no_address_is_an_error_that_shows_one() {
        for text in [
            "",
            ",",
            "10.0.0.1:80",
            "tcp://host",
            "tcp://:80",
            "tcp://h:0",
            "tcp://h:70000",
            "tcp://::1:80",
            "unix:",
            "tcp://[a]b]:80",
        ] {
            let error = Address::list(text).expect_err(text);
            assert!(error.contains("tcp://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn nobody_there_is_said_for_each_address() {
        let free = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("bound").port()
        };
        let addresses = Address::list(&format!("unix-abstract:tbccl-nobody,tcp://127.0.0.1:{free}"));
        let place = Place {
            addresses: addresses.expect("addresses"),
            secret: Some(Secret::from_bytes([1; 32])),
            patience: Duration::ZERO,
            keeper: None,
        };
        let error = go_to(&place).expect_err("nobody there");
        assert!(
            error.contains("unix-abstract:tbccl-nobody: ") && error.contains("onnection refused"),
            "{error}"
        );
        let without = Place { secret: None, ..place };
        assert!(go_to(&without).expect_err("no secret").contains("TBCCL_SECRET"));
    }
}
