//! Where guests come in: as many at a time as there are places for those who have not said who they are.

use super::{
    super::{
        super::{frame_stream::FrameStream, record_layer::RecordLayer, socket::Socket, unix::same_user},
        connection::{InboundConnection, Stage},
    },
    EventLoop,
    admission::{HANDSHAKE_TIMEOUT, HELLO_TIMEOUT},
};
use mio::{Interest, Token, unix::SourceFd};
use rustix::fd::{AsRawFd, RawFd};
use std::{
    io::ErrorKind,
    net::TcpListener,
    os::unix::net::UnixListener,
    time::{Duration, Instant},
};

/// How long nobody is taken in when the system refuses.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The most connections taken in at a time, before those that are there have their turn.
const BATCH: usize = 64;

/// Where guests come in.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    pub(super) fn raw_fd(&self) -> RawFd {
        match self {
            Listener::Unix(listener) => listener.as_raw_fd(),
            Listener::Tcp(listener) => listener.as_raw_fd(),
        }
    }
}

/// Why nobody is taken in for now.
enum AcceptStop {
    /// Nobody is at the door.
    Drained,
    /// Until then.
    Until(Instant),
    /// Others have their turn first.
    Yield,
}

impl EventLoop {
    /// Takes in those who are at the doors, as many as there is place for.
    pub(super) fn accept_all(&mut self, now: Instant) {
        if self.accept_paused_until.is_some_and(|until| until > now) {
            return;
        }
        self.accept_paused_until = None;
        for at in std::mem::take(&mut self.pending_listeners) {
            if self.listeners.get(at).is_none() {
                continue;
            }
            match self.accept_from(at, now) {
                AcceptStop::Drained => {}
                AcceptStop::Yield => {
                    self.pending_listeners.insert(at);
                }
                AcceptStop::Until(then) => {
                    self.pending_listeners.insert(at);
                    self.accept_paused_until = Some(then);
                }
            }
        }
    }

    fn accept_from(&mut self, at: usize, now: Instant) -> AcceptStop {
        for _ in 0..BATCH {
            let is_remote = matches!(self.listeners[at], Listener::Tcp(_));
            if is_remote && !self.admission.has_room() {
                match self.admission.evictable(now) {
                    Some(token) => self.close_with_reason(token, &"others are waiting to come in", now),
                    None => {
                        return AcceptStop::Until(
                            self.admission.next_eviction().unwrap_or(now + ACCEPT_PAUSE),
                        );
                    }
                }
            }
            let accepted = match &self.listeners[at] {
                Listener::Unix(listener) => listener.accept().map(|(stream, _)| {
                    same_user(&stream).then(|| Socket::unix(stream).map(|socket| (socket, RecordLayer::Open)))
                }),
                Listener::Tcp(listener) => listener.accept().map(|(stream, _)| {
                    self.secret
                        .as_ref()
                        .map(|secret| Ok((Socket::tcp(stream)?, RecordLayer::responder(secret)?)))
                }),
            };
            match accepted {
                // A connection that is broken already is nobody.
                Ok(Some(Ok((socket, record_layer)))) => self.register_connection(socket, record_layer, now),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return AcceptStop::Drained,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Out of descriptors, most likely: others may be closed meanwhile.
                Err(_) => return AcceptStop::Until(now + ACCEPT_PAUSE),
            }
        }
        AcceptStop::Yield
    }

    /// From now on whoever comes to our doors meets those who serve them next. Who has come in stays.
    pub(super) fn close_listeners(&mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            // The sockets stay open elsewhere, so that closing ours would not end our interest in them. One that the
            // system does not know any more tells us nothing either.
            let _ = self.poll.registry().deregister(&mut SourceFd(&listener.raw_fd()));
        }
        self.pending_listeners.clear();
    }

    fn register_connection(&mut self, mut socket: Socket, record_layer: RecordLayer, now: Instant) {
        let token = Token(self.next_token);
        self.next_token += 1;
        let both = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, token, both).is_err() {
            return;
        }
        let frames = FrameStream::new(socket, record_layer);
        let (stage, timeout) = if frames.is_trusted() {
            (Stage::AwaitingHello, HELLO_TIMEOUT)
        } else {
            (Stage::Unauthenticated, HANDSHAKE_TIMEOUT)
        };
        if matches!(stage, Stage::Unauthenticated) {
            self.admission.add(token, now);
        }
        let deadline = now + timeout;
        self.deadlines.insert((deadline, token));
        self.connections
            .insert(token, InboundConnection { frames, stage, since: now, deadline: Some(deadline) });
        self.ready.insert(token);
    }
}
