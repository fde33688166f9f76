//! One connection during set-up, outgoing or incoming.
//!
//! ```text
//! initiator                                  responder
//!   | -- connects -------------------------->  |
//!   | <------- handshake, three messages ----> |   identifies the initiator and the connection
//!   | <--------------- verdict, encrypted ---- |   from then on both may use the connection
//! ```
//!
//! Nothing here blocks: each step runs when the socket is ready. The connector enforces deadlines.

use super::{
    connection_table::{Connection, Key, Verdict},
    probe::scoped,
    resume::Accepted,
    routes::Route,
};
use crate::secure::{Handshake, Opener, Sealer, SecureError, Session, TAG_BYTES};
use rustix::{
    event::PollFlags,
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{self, AddressFamily, SocketType},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
};

/// Bytes of a verdict, and of one with the positions of a channel.
const VERDICT_BYTES: usize = 1;
const CHANNEL_VERDICT_BYTES: usize = 13;

/// Handshake payload of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitiatorHello {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Instances of both ends, the initiator's first.
    pub(super) instances: [u64; 2],
    pub(super) lane: u8,
    pub(super) stripe: u8,
    /// Number of the attempt to replace a connection; 0 for connections that are not replaced.
    pub(super) attempt: u32,
}

impl InitiatorHello {
    const BYTES: usize = 30;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        bytes.extend(self.from.to_le_bytes());
        bytes.extend(self.to.to_le_bytes());
        self.instances.iter().for_each(|instance| bytes.extend(instance.to_le_bytes()));
        bytes.extend([self.lane, self.stripe]);
        bytes.extend(self.attempt.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<InitiatorHello> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Some(InitiatorHello {
            from: word(0),
            to: word(4),
            instances: [long(8), long(16)],
            lane: bytes[24],
            stripe: bytes[25],
            attempt: word(26),
        })
    }
}

/// Encodes the handshake payload of the responder: its rank and its instance.
pub(super) fn responder_hello(rank: u32, instance: u64) -> Vec<u8> {
    [&rank.to_le_bytes()[..], &instance.to_le_bytes()[..]].concat()
}

/// A handshake over a nonblocking socket.
#[derive(Debug)]
struct HandshakeStream {
    stream: TcpStream,
    handshake: Option<Handshake>,
}

impl HandshakeStream {
    /// Advances the handshake as far as possible. Returns the session once it is complete.
    fn progress(&mut self) -> Result<Option<Session>, SecureError> {
        let Some(handshake) = &mut self.handshake else { return Ok(None) };
        let mut bytes = [0; 1024];
        loop {
            if handshake.is_done() {
                return self.handshake.take().map(Handshake::finish).transpose();
            }
            if !handshake.outgoing().is_empty() {
                match nonblocking(self.stream.write(handshake.outgoing()))? {
                    None => return Ok(None),
                    Some(written) => handshake.mark_written(written),
                }
                continue;
            }
            let wanted = handshake.bytes_wanted().min(bytes.len());
            match nonblocking(self.stream.read(&mut bytes[..wanted]))? {
                None => return Ok(None),
                Some(0) => return Err(SecureError::Closed),
                Some(received) => handshake.receive(&bytes[..received])?,
            }
        }
    }

    fn interest(&self) -> PollFlags {
        let wants_write = self.handshake.as_ref().is_some_and(|handshake| !handshake.outgoing().is_empty());
        if wants_write { PollFlags::OUT } else { PollFlags::IN }
    }
}

fn nonblocking(done: io::Result<usize>) -> Result<Option<usize>, SecureError> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            Err(SecureError::Closed)
        }
        Err(e) => Err(e.into()),
    }
}

/// A connection that this end makes.
#[derive(Debug)]
pub(super) struct Outbound {
    handshake: HandshakeStream,
    is_connected: bool,
    /// Handshake payload that the responder must send.
    expected_hello: Vec<u8>,
    ciphers: Option<Box<(Sealer, Opener)>>,
    /// The verdict and its tag.
    verdict: [u8; CHANNEL_VERDICT_BYTES + TAG_BYTES],
    verdict_bytes: usize,
    received: usize,
}

impl Outbound {
    /// Starts to connect. `is_channel`: the verdict comes with the positions of a channel.
    pub(super) fn begin(
        route: &Route,
        buffer_bytes: Option<usize>,
        handshake: Handshake,
        expected_hello: Vec<u8>,
        is_channel: bool,
    ) -> io::Result<Outbound> {
        let Route { to, from, device } = route;
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket: OwnedFd = net::socket(family, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        super::socket::set_buffer_sizes(socket.as_fd(), buffer_bytes);
        if let Some(device) = device {
            // Without the right to bind, the routes of the system decide.
            let _ = device.bind(&socket, to.is_ipv4());
        }
        if let Some(from) = from {
            let index = device.as_ref().map_or(0, |device| device.index);
            // If the system refuses the address, it chooses one itself.
            let _ = net::bind(&socket, &scoped(*from, 0, index));
        }
        match net::connect(&socket, to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let handshake = HandshakeStream { stream: socket.into(), handshake: Some(handshake) };
        Ok(Outbound {
            handshake,
            is_connected: false,
            expected_hello,
            ciphers: None,
            verdict: [0; CHANNEL_VERDICT_BYTES + TAG_BYTES],
            verdict_bytes: if is_channel { CHANNEL_VERDICT_BYTES } else { VERDICT_BYTES },
            received: 0,
        })
    }

    /// Whether the other end's system has answered, so that the handshake can begin.
    pub(super) fn is_connected(&mut self) -> Result<bool, SecureError> {
        if !self.is_connected {
            if let Err(errno) = net::sockopt::socket_error(&self.handshake.stream).map_err(io::Error::from)? {
                return Err(io::Error::from(errno).into());
            }
            self.is_connected = self.handshake.stream.peer_addr().is_ok();
        }
        Ok(self.is_connected)
    }

    /// Advances the connection as far as possible. Returns the verdict once it has arrived, and the positions
    /// that came with it.
    pub(super) fn progress(&mut self) -> Result<Option<(Verdict, Accepted)>, SecureError> {
        if !self.is_connected()? {
            return Ok(None);
        }
        if self.ciphers.is_none() {
            let Some(session) = self.handshake.progress()? else { return Ok(None) };
            if session.hello() != self.expected_hello {
                return Err(SecureError::Malformed("the other end is not the expected rank"));
            }
            self.ciphers = Some(Box::new(session.into_ciphers()));
        }
        let all = self.verdict_bytes + TAG_BYTES;
        while self.received < all {
            match nonblocking(self.handshake.stream.read(&mut self.verdict[self.received..all]))? {
                None => return Ok(None),
                Some(0) => return Err(SecureError::Closed),
                Some(received) => self.received += received,
            }
        }
        let (plain, tag) = self.verdict[..all].split_at_mut(self.verdict_bytes);
        let ciphers = self.ciphers.as_mut().expect("after the handshake");
        ciphers.1.open(&[], plain, (&*tag).try_into().expect("the rest of it"))?;
        let received = plain[1..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let attempt = plain.last_chunk().filter(|_| plain.len() > 1);
        let accepted = Accepted { received, attempt: attempt.map_or(0, |bytes| u32::from_le_bytes(*bytes)) };
        let verdict = Verdict::from_byte(plain[0]).ok_or(SecureError::Malformed("an unknown verdict"))?;
        Ok(Some((verdict, accepted)))
    }

    pub(super) fn interest(&self) -> PollFlags {
        if self.is_connected { self.handshake.interest() } else { PollFlags::OUT }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.handshake.stream.as_fd()
    }

    /// Returns the connection; call this after the verdict.
    pub(super) fn into_connection(self, encrypted: bool) -> Connection {
        Connection { stream: self.handshake.stream, ciphers: self.ciphers.filter(|_| encrypted) }
    }

    /// Returns the connection and its ciphers; call this after the verdict.
    pub(super) fn into_parts(self) -> (TcpStream, Box<(Sealer, Opener)>) {
        (self.handshake.stream, self.ciphers.expect("after the handshake"))
    }
}

/// A connection that another process makes.
#[derive(Debug)]
pub(super) struct Inbound {
    handshake: HandshakeStream,
    pub(super) from: SocketAddr,
}

impl Inbound {
    pub(super) fn begin(stream: TcpStream, from: SocketAddr, handshake: Handshake) -> Inbound {
        Inbound { handshake: HandshakeStream { stream, handshake: Some(handshake) }, from }
    }

    /// Advances the handshake as far as possible. Returns the session once the initiator has proved that it
    /// knows the secret.
    pub(super) fn progress(&mut self) -> Result<Option<Session>, SecureError> {
        self.handshake.progress()
    }

    pub(super) fn interest(&self) -> PollFlags {
        self.handshake.interest()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.handshake.stream.as_fd()
    }

    /// Sends the verdict to the initiator, and returns the connection.
    pub(super) fn answer(
        self,
        session: Session,
        verdict: Verdict,
        encrypted: bool,
    ) -> io::Result<Connection> {
        let (stream, ciphers) = self.send_verdict(session, &[verdict as u8])?;
        Ok(Connection { stream, ciphers: encrypted.then_some(ciphers) })
    }

    /// Sends the verdict and the positions of a channel to the initiator, and returns the connection and its
    /// ciphers.
    pub(super) fn answer_for_channel(
        self,
        session: Session,
        verdict: Verdict,
        Accepted { received, attempt }: Accepted,
    ) -> io::Result<(TcpStream, Box<(Sealer, Opener)>)> {
        let positions = [&received.to_le_bytes()[..], &attempt.to_le_bytes()].concat();
        self.send_verdict(session, &[&[verdict as u8][..], &positions].concat())
    }

    fn send_verdict(
        mut self,
        session: Session,
        verdict: &[u8],
    ) -> io::Result<(TcpStream, Box<(Sealer, Opener)>)> {
        let mut ciphers = Box::new(session.into_ciphers());
        let mut bytes = verdict.to_vec();
        let tag = ciphers.0.seal(&[], &mut bytes);
        bytes.extend(tag);
        // Only the handshake was sent before, so the socket has room.
        self.handshake.stream.write_all(&bytes)?;
        Ok((self.handshake.stream, ciphers))
    }

    /// Returns the key of the connection that the initiator asks for.
    pub(super) fn key_of(hello: &InitiatorHello) -> Key {
        Key { peer: hello.from, lane: hello.lane, stripe: hello.stripe }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_survive_and_others_are_none() {
        let hello =
            InitiatorHello { from: 1, to: 1023, instances: [7, u64::MAX], lane: 2, stripe: 15, attempt: 9 };
        assert_eq!(InitiatorHello::decode(&hello.encode()), Some(hello));
        assert_eq!(InitiatorHello::decode(&hello.encode()[1..]), None);
        assert_eq!(InitiatorHello::decode(&[]), None);
    }

    #[test]
    fn verdicts_are_three() {
        let known: Vec<u8> = (0..=255).filter(|byte| Verdict::from_byte(*byte).is_some()).collect();
        assert_eq!(known, [1, 2, 3]);
    }
}
