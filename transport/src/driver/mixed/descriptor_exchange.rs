//! Exchange of arena descriptors between the ranks of one host.
//!
//! Each rank listens before it announces its socket. It connects to every lower rank, presents the token that
//! only ranks of the job know, and sends its descriptor; the lower rank answers with its own. The kernel
//! completes a connection before the listener accepts it, so no rank waits for another one's turn. On Linux
//! the socket has an abstract name, outside of any file system. Elsewhere it is a file, removed when the
//! exchange ends.
//!
//! Both ends check that the other one is of this user before they send or read a byte. Callers are served
//! side by side, so one that sends nothing delays no other.

use super::location::Location;
use crate::{
    driver::shm::{receive_descriptor, send_descriptor},
    host::is_same_user,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, OwnedFd},
};
use std::{
    collections::BTreeSet,
    io::{self, ErrorKind, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    time::{Duration, Instant},
};

/// Time in which a caller must present its token, its rank and its descriptor.
const CALLER_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of callers that are served at a time; others wait in the kernel's backlog.
const MAX_CALLERS: usize = 256;

/// Bytes of a caller's token and rank.
const GREETING_BYTES: usize = 20;

/// A process of this user that has connected.
struct Caller {
    stream: UnixStream,
    greeting: [u8; GREETING_BYTES],
    /// Bytes of the greeting that have arrived.
    received: usize,
    deadline: Instant,
}

/// Listening socket of this rank for the descriptor exchange.
#[derive(Debug)]
pub(super) struct DescriptorExchange {
    listener: UnixListener,
    socket: String,
    token: [u8; 16],
}

impl DescriptorExchange {
    /// Opens the listening socket and chooses the token.
    pub(super) fn open() -> io::Result<DescriptorExchange> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let mut token = [0; 16];
        token.copy_from_slice(&random[16..]);
        let name: String = random[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let (listener, socket) = listen(&name)?;
        listener.set_nonblocking(true)?;
        Ok(DescriptorExchange { listener, socket, token })
    }

    pub(super) fn socket(&self) -> &str {
        &self.socket
    }

    pub(super) fn token(&self) -> &[u8; 16] {
        &self.token
    }

    /// Exchanges descriptors with all of `local_ranks` except this one. Returns the peers' descriptors, by
    /// rank.
    ///
    /// # Errors
    /// The system's error if a peer can't be reached, and `TimedOut` if one does not connect in time.
    pub(super) fn exchange(
        &self,
        rank: u32,
        local_ranks: &[u32],
        locations: &[Location],
        object: &OwnedFd,
        timeout: Duration,
    ) -> io::Result<Vec<(u32, OwnedFd)>> {
        let until = Instant::now() + timeout;
        let mut outgoing = Vec::new();
        for peer in local_ranks.iter().copied().filter(|peer| *peer < rank) {
            let location = &locations[peer as usize];
            let connect_to_peer = || {
                let mut stream = connect(&location.socket)?;
                if !is_same_user(&stream) {
                    let why = "its socket belongs to another user";
                    return Err(io::Error::new(ErrorKind::PermissionDenied, why));
                }
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                stream.write_all(&location.token)?;
                stream.write_all(&rank.to_le_bytes())?;
                send_descriptor(&stream, object.as_fd())?;
                Ok(stream)
            };
            outgoing.push((peer, connect_to_peer().map_err(|error| with_rank(peer, &error))?));
        }
        let awaited = local_ranks.iter().copied().filter(|peer| *peer > rank).collect();
        let mut received = self.serve_callers(awaited, object, until)?;
        for (peer, stream) in outgoing {
            let theirs = receive_descriptor(&stream).map_err(|errno| with_rank(peer, &errno.into()))?;
            received.push((peer, theirs));
        }
        Ok(received)
    }

    /// Exchanges descriptors with the ranks that connect to this one, until none is awaited.
    fn serve_callers(
        &self,
        mut awaited: BTreeSet<u32>,
        object: &OwnedFd,
        until: Instant,
    ) -> io::Result<Vec<(u32, OwnedFd)>> {
        let (mut received, mut callers) = (Vec::new(), Vec::new());
        while let Some(first) = awaited.first().copied() {
            self.accept_all(&mut callers).map_err(|error| with_rank(first, &error))?;
            let now = Instant::now();
            // Callers that disconnect, are late or present something else do not end the exchange.
            callers.retain_mut(|caller: &mut Caller| match self.advance(caller, &awaited, object) {
                Ok((peer, theirs)) => {
                    awaited.remove(&peer);
                    received.push((peer, theirs));
                    false
                }
                Err(error) => {
                    let goes_on = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                    goes_on && now < caller.deadline
                }
            });
            if awaited.is_empty() {
                break;
            }
            if now >= until {
                let late = io::Error::new(ErrorKind::TimedOut, "it did not connect in time");
                return Err(with_rank(first, &late));
            }
            self.wait(&callers, until);
        }
        Ok(received)
    }

    /// Accepts waiting callers, within the limit. Processes of other users are turned away.
    fn accept_all(&self, callers: &mut Vec<Caller>) -> io::Result<()> {
        while callers.len() < MAX_CALLERS {
            match self.listener.accept() {
                Ok((stream, _)) if is_same_user(&stream) => {
                    stream.set_nonblocking(true)?;
                    let deadline = Instant::now() + CALLER_TIMEOUT;
                    callers.push(Caller { stream, greeting: [0; GREETING_BYTES], received: 0, deadline });
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until a caller connects, sends or is late.
    fn wait(&self, callers: &[Caller], until: Instant) {
        let next = callers.iter().map(|caller| caller.deadline).min().map_or(until, |at| at.min(until));
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let limit = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        let streams = callers.iter().map(|caller| PollFd::new(&caller.stream, PollFlags::IN));
        let listener = (callers.len() < MAX_CALLERS).then(|| PollFd::new(&self.listener, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = streams.chain(listener).collect();
        let _ = poll(&mut fds, Some(&limit));
    }

    /// Reads what a caller has sent. When that is complete, checks its token and rank, receives its
    /// descriptor and sends this rank's.
    ///
    /// # Errors
    /// `WouldBlock` while something is missing.
    fn advance(
        &self,
        caller: &mut Caller,
        awaited: &BTreeSet<u32>,
        object: &OwnedFd,
    ) -> io::Result<(u32, OwnedFd)> {
        while caller.received < GREETING_BYTES {
            match caller.stream.read(&mut caller.greeting[caller.received..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                len => caller.received += len,
            }
        }
        let (token, rank) = caller.greeting.split_at(self.token.len());
        let peer = u32::from_le_bytes(rank.try_into().expect("four bytes"));
        // Compares all bytes, so that the time does not depend on the first difference.
        let difference = token.iter().zip(&self.token).fold(0, |all, (a, b)| all | (a ^ b));
        if difference != 0 || !awaited.contains(&peer) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let theirs = receive_descriptor(&caller.stream)?;
        send_descriptor(&caller.stream, object.as_fd())?;
        Ok((peer, theirs))
    }
}

fn with_rank(peer: u32, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("rank {peer}: {error}"))
}

#[cfg(target_os = "linux")]
fn listen(name: &str) -> io::Result<(UnixListener, String)> {
    let socket = format!("tbccl-meeting-{name}");
    Ok((UnixListener::bind_addr(&address(&socket)?)?, socket))
}

#[cfg(target_os = "linux")]
fn connect(socket: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&address(socket)?)
}

#[cfg(target_os = "linux")]
fn address(socket: &str) -> io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    std::os::unix::net::SocketAddr::from_abstract_name(socket)
}

#[cfg(not(target_os = "linux"))]
fn listen(name: &str) -> io::Result<(UnixListener, String)> {
    let path = std::env::temp_dir().join(format!("tbccl-{}", &name[..12]));
    Ok((UnixListener::bind(&path)?, path.to_string_lossy().into_owned()))
}

#[cfg(not(target_os = "linux"))]
fn connect(socket: &str) -> io::Result<UnixStream> {
    UnixStream::connect(socket)
}

#[cfg(not(target_os = "linux"))]
impl Drop for DescriptorExchange {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, thread};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn object() -> OwnedFd {
        File::open("/dev/null").expect("it is there").into()
    }

    fn locations(exchanges: &[DescriptorExchange]) -> Vec<Location> {
        exchanges
            .iter()
            .map(|descriptor_exchange| {
                Location::of_this_process(descriptor_exchange.socket(), descriptor_exchange.token(), "")
            })
            .collect()
    }

    #[test]
    fn all_neighbours_meet_and_nobody_else() {
        let exchanges: Vec<DescriptorExchange> =
            (0..5).map(|_| DescriptorExchange::open().expect("a socket")).collect();
        let locations = locations(&exchanges);
        let local_ranks = [0, 1, 3, 4];
        thread::scope(|scope| {
            for rank in local_ranks {
                let (descriptor_exchange, locations) = (&exchanges[rank as usize], &locations);
                scope.spawn(move || {
                    let received = descriptor_exchange
                        .exchange(rank, &local_ranks, locations, &object(), PATIENCE)
                        .expect("all");
                    let mut peers: Vec<u32> = received.iter().map(|(peer, _)| *peer).collect();
                    peers.sort_unstable();
                    assert!(peers.iter().eq(local_ranks.iter().filter(|peer| **peer != rank)), "{peers:?}");
                });
            }
        });
    }

    #[test]
    fn strangers_are_turned_away_and_the_right_one_gets_in() {
        let exchanges: Vec<DescriptorExchange> =
            (0..2).map(|_| DescriptorExchange::open().expect("a socket")).collect();
        let locations = locations(&exchanges);
        let socket = &locations[0].socket;
        let silent = connect(socket).expect("it listens");
        let mut wrong = connect(socket).expect("it listens");
        wrong.write_all(&[7; 20]).expect("room");
        // Knows the token, but presents a rank that is not expected.
        let mut surplus = connect(socket).expect("it listens");
        surplus.write_all(&locations[0].token).expect("room");
        surplus.write_all(&9u32.to_le_bytes()).expect("room");
        drop(connect(socket).expect("it listens"));
        thread::scope(|scope| {
            scope.spawn(|| exchanges[1].exchange(1, &[0, 1], &locations, &object(), PATIENCE).expect("met"));
            let received = exchanges[0].exchange(0, &[0, 1], &locations, &object(), PATIENCE).expect("met");
            assert_eq!(received.len(), 1);
        });
        drop(silent);
    }

    #[test]
    fn silent_callers_cost_no_rank_time_however_many_they_are() {
        let exchanges: Vec<DescriptorExchange> =
            (0..2).map(|_| DescriptorExchange::open().expect("a socket")).collect();
        let locations = locations(&exchanges);
        let silent: Vec<UnixStream> =
            (0..20).map(|_| connect(&locations[0].socket).expect("it listens")).collect();
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| exchanges[1].exchange(1, &[0, 1], &locations, &object(), PATIENCE).expect("met"));
            exchanges[0].exchange(0, &[0, 1], &locations, &object(), PATIENCE).expect("met");
        });
        assert!(began.elapsed() < CALLER_TIMEOUT, "{:?}", began.elapsed());
        drop(silent);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_user_that_knows_the_token_gets_no_descriptor() {
        let exchange = DescriptorExchange::open().expect("a socket");
        let locations = locations(std::slice::from_ref(&exchange));
        let call = || {
            let mut stream = connect(&locations[0].socket).expect("it listens");
            stream.write_all(&locations[0].token).expect("room");
            stream.write_all(&1u32.to_le_bytes()).expect("room");
            send_descriptor(&stream, object().as_fd()).expect("room");
            stream
        };
        let Some(stream) = support::as_another_user(call) else {
            return support::missing("another user, whom only root can become");
        };
        let soon = Duration::from_millis(300);
        exchange.exchange(0, &[0, 1], &locations, &object(), soon).expect_err("rank 1 does not come");
        assert!(receive_descriptor(&stream).is_err(), "it got a rank's memory");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_user_that_has_taken_the_name_learns_no_token() {
        let exchanges: Vec<DescriptorExchange> =
            (0..2).map(|_| DescriptorExchange::open().expect("a socket")).collect();
        let mut locations = locations(&exchanges);
        let Some((listener, taken)) =
            support::as_another_user(|| listen(&format!("stolen-{}", std::process::id())).expect("free"))
        else {
            return support::missing("another user, whom only root can become");
        };
        locations[0].socket = taken;
        let error = exchanges[1].exchange(1, &[0, 1], &locations, &object(), PATIENCE).expect_err("stolen");
        assert!(error.to_string().contains("belongs to another user"), "{error}");
        let (mut caller, _) = listener.accept().expect("it has connected");
        let mut heard = Vec::new();
        let _ = caller.read_to_end(&mut heard);
        assert!(heard.is_empty(), "told {} bytes", heard.len());
    }

    #[test]
    fn one_who_does_not_come_is_an_error_that_names_it() {
        let exchanges: Vec<DescriptorExchange> =
            (0..2).map(|_| DescriptorExchange::open().expect("a socket")).collect();
        let locations = locations(&exchanges);
        let soon = Duration::from_millis(50);
        let error = exchanges[0].exchange(0, &[0, 1], &locations, &object(), soon).expect_err("nobody comes");
        assert!(error.to_string().contains("rank 1: it did not connect in time"), "{error}");
        drop(exchanges);
        let gone = DescriptorExchange::open().expect("a socket");
        let error = gone.exchange(1, &[0, 1], &locations, &object(), soon).expect_err("nobody is there");
        assert!(error.to_string().starts_with("rank 0: "), "{error}");
    }
}
