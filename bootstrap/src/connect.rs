//! How a rank gets to a rendezvous.

use super::{
    address::{Address, resolve},
    guard::Guard,
    pipe::{Filled, Pipe},
    socket::Socket,
    unix::{connect_by_name, is_ours},
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
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
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

/// The rank in whose process a rendezvous is opened some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// Its rank in the job that meets there.
    pub rank: u32,
    /// By rank of that job: what people call it.
    pub titles: Arc<[String]>,
}

impl Keeper {
    /// What people call it.
    pub(super) fn title(&self) -> String {
        self.title_of(self.rank)
    }

    /// What people call a rank of its job.
    pub(super) fn title_of(&self, rank: u32) -> String {
        self.titles.get(rank as usize).map_or_else(|| format!("rank {rank}"), |title| format!("rank {title}"))
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
