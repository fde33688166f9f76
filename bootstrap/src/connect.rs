//! How a rank gets to a rendezvous.

use super::{
    address::{Address, resolve},
    frame_stream::{FrameStream, ReadProgress},
    record_layer::RecordLayer,
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
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the other end may take to prove that it has the secret. It has places for so many at a time.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// How long who hangs up on us is tried again: who has no place for us yet looks like who does not know us.
const CLOSED_RETRY: Duration = Duration::from_secs(3);

/// Between attempts, at first and at most.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// The rank in whose process a rendezvous is opened some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousHost {
    /// Its rank in the job that meets there.
    pub rank: u32,
    /// By rank of that job: what people call it.
    pub labels: Arc<[String]>,
}

impl RendezvousHost {
    /// What people call it.
    pub(super) fn label(&self) -> String {
        self.label_of(self.rank)
    }

    /// What people call a rank of its job.
    pub(super) fn label_of(&self, rank: u32) -> String {
        self.labels.get(rank as usize).map_or_else(|| format!("rank {rank}"), |label| format!("rank {label}"))
    }
}

/// Where a rendezvous is and what it takes to be let in.
#[derive(Clone, Debug)]
pub struct ConnectSpec {
    /// The ways there.
    pub addresses: Vec<Address>,
    /// What is needed for those over TCP.
    pub secret: Option<Secret>,
    /// How long to try: not at all again where it must be there already, long where it is opened by another rank.
    pub timeout: Duration,
    /// The rank whose sockets these are, where one has had them open all the time and serves them sooner or later: if
    /// they are not there it is gone, and if they don't answer it has not come yet.
    pub rendezvous_host: Option<RendezvousHost>,
}

impl ConnectSpec {
    /// How long the other end may take to prove that it has the secret.
    fn proof_timeout(&self) -> Duration {
        if self.rendezvous_host.is_some() { self.timeout } else { PROOF_TIMEOUT }
    }

    /// How long to try where nobody listens.
    fn patience_with_nobody(&self) -> Duration {
        if self.rendezvous_host.is_some() { Duration::ZERO } else { self.timeout }
    }
}

/// Connects to a rendezvous.
///
/// # Errors
/// Says for each address why not.
pub(super) fn open_connection(rendezvous: &ConnectSpec) -> Result<FrameStream, String> {
    let began = Instant::now();
    let mut pause = RETRY_PAUSES[0];
    loop {
        let mut failures = Vec::new();
        let local = rendezvous.addresses.iter().filter(|address| !address.is_remote());
        for address in local {
            match connect_local(address) {
                Ok(frames) => return Ok(frames),
                Err(error) => {
                    let is_awaited = matches!(address, Address::Awaited(_));
                    failures.push(Failure { address: address.to_string(), is_awaited, error });
                }
            }
        }
        if let Some(frames) = connect_remote(rendezvous, &mut failures)? {
            return Ok(frames);
        }
        let timeout = failures.iter().map(|failure| failure.timeout(rendezvous)).max();
        if began.elapsed() + pause > timeout.unwrap_or_default() {
            let reasons: Vec<String> = failures.iter().map(ToString::to_string).collect();
            return Err(reasons.join("; "));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(RETRY_PAUSES[1]);
    }
}

/// Why an address did not lead to the rendezvous.
struct Failure {
    address: String,
    /// Is it one where somebody will be?
    is_awaited: bool,
    error: io::Error,
}

impl Failure {
    fn remote(address: String, error: io::Error) -> Failure {
        Failure { address, is_awaited: false, error }
    }

    fn secure(&self) -> Option<&SecureError> {
        self.error.get_ref().and_then(|inner| inner.downcast_ref())
    }

    /// How long it is worth trying again.
    fn timeout(&self, rendezvous: &ConnectSpec) -> Duration {
        match self.secure() {
            Some(SecureError::Closed | SecureError::Late) => CLOSED_RETRY,
            Some(_) => Duration::ZERO,
            None if self.is_awaited && self.error.kind() == ErrorKind::PermissionDenied => Duration::ZERO,
            None if self.is_awaited => rendezvous.timeout,
            // A socket of this host is there, or will not be.
            None if self.address.starts_with("unix") => Duration::ZERO,
            None => rendezvous.patience_with_nobody(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.error)
    }
}

fn connect_local(address: &Address) -> io::Result<FrameStream> {
    let stream = match address {
        #[cfg(target_os = "linux")]
        Address::Abstract(name) => {
            use std::os::linux::net::SocketAddrExt;
            UnixStream::connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)?
        }
        Address::Path(path) => UnixStream::connect(path)?,
        Address::Awaited(name) => {
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
    Ok(FrameStream::new(Socket::unix(stream)?, RecordLayer::Open))
}

/// Connects to all addresses over TCP at once; the first that proves that it has the secret is taken.
fn connect_remote(
    rendezvous: &ConnectSpec,
    failures: &mut Vec<Failure>,
) -> Result<Option<FrameStream>, String> {
    let remote: Vec<&Address> = rendezvous.addresses.iter().filter(|address| address.is_remote()).collect();
    if remote.is_empty() {
        return Ok(None);
    }
    let Some(secret) = &rendezvous.secret else {
        return Err(
            "TBCCL_SECRET or TBCCL_SECRET_FILE is needed for a rendezvous over TCP: set it to what the \
                    rendezvous has"
                .into(),
        );
    };
    let mut attempts = Vec::new();
    for address in remote {
        match resolve(address) {
            Ok(found) => attempts.extend(found.into_iter().map(|to| PendingConnect::begin(address, to))),
            Err(error) => failures.push(Failure::remote(address.to_string(), error)),
        }
    }
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    while !attempts.is_empty() {
        let Some(at) = wait_for_first(&attempts, deadline) else { break };
        let PendingConnect { address, stream } = attempts.swap_remove(at);
        let connected = stream.and_then(|stream| {
            sockopt::socket_error(&stream)?.map_err(io::Error::from)?;
            handshake(stream, secret, rendezvous.proof_timeout())
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
    failures.extend(attempts.into_iter().map(timed_out));
    Ok(None)
}

/// A connection that is being made.
struct PendingConnect {
    address: String,
    stream: io::Result<TcpStream>,
}

impl PendingConnect {
    fn begin(address: &Address, to: SocketAddr) -> PendingConnect {
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

/// Which call has come to something, good or bad; none by the deadline.
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

/// Proves to the other end that we have the secret, and has it prove the same.
fn handshake(stream: TcpStream, secret: &Secret, within: Duration) -> io::Result<FrameStream> {
    let mut frames = FrameStream::new(Socket::tcp(stream)?, RecordLayer::initiator(secret)?);
    let deadline = Instant::now() + within;
    let closed = || io::Error::new(ErrorKind::PermissionDenied, SecureError::Closed);
    loop {
        let is_flushed = frames.flush().map_err(|_| closed())?;
        if frames.is_trusted() && is_flushed {
            return Ok(frames);
        }
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

/// Waits until there is something to read, or to write if that is wanted, for so long at most.
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
