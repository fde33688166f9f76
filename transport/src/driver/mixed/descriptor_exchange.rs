//! Exchange of arena descriptors between the ranks of one host.
//!
//! Each rank listens before it announces its socket. It connects to every lower rank, presents the token that
//! only ranks of the job know, and sends its descriptor; the lower rank answers with its own. The kernel
//! completes a connection before the listener accepts it, so no rank waits for another one's turn. On Linux
//! the socket has an abstract name, outside of any file system. Elsewhere it is a file, removed when the
//! exchange ends.

use super::location::Location;
use crate::driver::shm::{receive_descriptor, send_descriptor};
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

/// Time in which a caller must present its token and its rank.
const CALLER_TIMEOUT: Duration = Duration::from_millis(500);

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
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                stream.write_all(&location.token)?;
                stream.write_all(&rank.to_le_bytes())?;
                send_descriptor(&stream, object.as_fd())?;
                Ok(stream)
            };
            outgoing.push((peer, connect_to_peer().map_err(|error| with_rank(peer, &error))?));
        }
        let mut received = Vec::new();
        let mut awaited: BTreeSet<u32> = local_ranks.iter().copied().filter(|peer| *peer > rank).collect();
        while let Some(first) = awaited.first().copied() {
            let stream = self.accept(until).map_err(|error| with_rank(first, &error))?;
            // Foreign processes and callers that disconnect do not end the exchange.
            if let Ok((peer, theirs)) = self.handle_caller(stream, &awaited, object) {
                awaited.remove(&peer);
                received.push((peer, theirs));
            }
        }
        for (peer, stream) in outgoing {
            let theirs = receive_descriptor(&stream).map_err(|errno| with_rank(peer, &errno.into()))?;
            received.push((peer, theirs));
        }
        Ok(received)
    }

    fn accept(&self, until: Instant) -> io::Result<UnixStream> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "it did not connect in time"));
            }
            let limit = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&limit));
        }
    }

    /// Checks the caller's token and rank, receives its descriptor and sends this rank's.
    fn handle_caller(
        &self,
        mut stream: UnixStream,
        awaited: &BTreeSet<u32>,
        object: &OwnedFd,
    ) -> io::Result<(u32, OwnedFd)> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CALLER_TIMEOUT))?;
        stream.set_write_timeout(Some(CALLER_TIMEOUT))?;
        let (mut token, mut rank) = ([0; 16], [0; 4]);
        stream.read_exact(&mut token)?;
        stream.read_exact(&mut rank)?;
        let peer = u32::from_le_bytes(rank);
        // Compares all bytes, so that the time does not depend on the first difference.
        let difference = token.iter().zip(&self.token).fold(0, |all, (a, b)| all | (a ^ b));
        if difference != 0 || !awaited.contains(&peer) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let theirs = receive_descriptor(&stream)?;
        send_descriptor(&stream, object.as_fd())?;
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
