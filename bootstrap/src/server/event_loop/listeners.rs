//! Accepting connections, within the limits of `admission`.

use super::{
    super::{
        super::{frame_stream::FrameStream, record_layer::RecordLayer, socket::Socket},
        connection::{InboundConnection, Stage},
    },
    EventLoop,
    admission::{HANDSHAKE_TIMEOUT, HELLO_TIMEOUT},
};
use events::Occurrence;
use mio::{Interest, Token, unix::SourceFd};
use rustix::fd::{AsRawFd, RawFd};
use std::{
    io::{self, ErrorKind},
    net::TcpListener,
    os::unix::net::{UnixListener, UnixStream},
    time::{Duration, Instant},
};
use transport::{host::is_same_user, secure::Secret};

/// Pause after the system refused to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Time for which a process that is no rank may ask questions.
const INQUIRER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of connections accepted before existing connections are served.
const BATCH: usize = 64;

/// A listening socket.
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

    /// Accepts a connection; `None` is one that has been closed, since it is not of this user.
    fn accept(&self, secret: Option<&Secret>) -> io::Result<Option<Accepted>> {
        Ok(match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let layer = || secret.map_or(Ok(RecordLayer::Open), RecordLayer::responder);
                is_same_user(&stream).then(|| Socket::unix(stream).and_then(|socket| Ok((socket, layer()?))))
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                secret.map(|secret| Ok((Socket::tcp(stream)?, RecordLayer::responder(secret)?)))
            }
        })
    }
}

/// An accepted connection, or why it is broken already.
type Accepted = io::Result<(Socket, RecordLayer)>;

/// Reason to stop accepting.
enum AcceptStop {
    /// No connection is waiting.
    Drained,
    /// Try again at this time.
    Until(Instant),
    /// Other connections are served first.
    Yield,
}

impl EventLoop {
    /// Accepts waiting connections within the limits.
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
                    Some(token) => {
                        self.close_with_reason(token, &"evicted, since other connections are waiting", now);
                    }
                    None => {
                        return AcceptStop::Until(
                            self.admission.next_eviction().unwrap_or(now + ACCEPT_PAUSE),
                        );
                    }
                }
            }
            let accepted = self.listeners[at].accept(self.secret.as_ref());
            match accepted {
                // A connection that is already broken is ignored.
                Ok(Some(Ok((socket, record_layer)))) => self.register_connection(socket, record_layer, now),
                Ok(Some(Err(_))) => {}
                Ok(None) => self.refuse_other_user(now),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return AcceptStop::Drained,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Most likely the process is out of descriptors; some may be closed meanwhile.
                Err(_) => return AcceptStop::Until(now + ACCEPT_PAUSE),
            }
        }
        AcceptStop::Yield
    }

    /// Accepts processes of this user that have questions. A listener that fails is not read again.
    pub(super) fn accept_inquirers(&mut self, now: Instant) {
        loop {
            let accepted = match &self.inquiry_listener {
                Some(listener) => listener.accept(),
                None => return,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.inquiry_listener = None,
            };
            if !is_same_user(&stream) {
                continue;
            }
            let Ok(socket) = Socket::unix(stream) else { continue };
            let frames = FrameStream::new(socket, RecordLayer::Open);
            self.register_stage(frames, Stage::Inquirer, now + INQUIRER_TIMEOUT, now);
        }
    }

    /// Takes in a connection of this process, which need not prove anything.
    pub(super) fn adopt(&mut self, stream: UnixStream, now: Instant) {
        // A socket that is refused breaks at its other end.
        if let Ok(socket) = Socket::unix(stream) {
            self.register_connection(socket, RecordLayer::Open, now);
        }
    }

    /// Counts and logs a local process of another user, whose connection is closed.
    fn refuse_other_user(&mut self, now: Instant) {
        let who = "a process of this host";
        let what = (Occurrence::OtherUser, &self.shared.counts.strangers);
        self.rejections.record(what, &who, &"it belongs to another user", now);
    }

    /// Stops accepting. Later connections wait for the next server of these sockets; accepted ones stay.
    pub(super) fn close_listeners(&mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            // Duplicates of the sockets remain open elsewhere, so closing these would not deregister them. A
            // socket that is not registered delivers no events.
            let _ = self.poll.registry().deregister(&mut SourceFd(&listener.raw_fd()));
        }
        self.pending_listeners.clear();
    }

    fn register_connection(&mut self, socket: Socket, record_layer: RecordLayer, now: Instant) {
        let is_tcp = socket.is_tcp();
        let frames = FrameStream::new(socket, record_layer);
        let stage = if frames.is_trusted() { Stage::AwaitingHello } else { Stage::Unauthenticated };
        // Processes of the same user, which alone get here over Unix sockets, need no slots.
        let timeout = if is_tcp { HANDSHAKE_TIMEOUT } else { HELLO_TIMEOUT };
        let token = self.register_stage(frames, stage, now + timeout, now);
        if let Some(token) = token.filter(|_| is_tcp) {
            self.admission.add(token, now);
        }
    }

    /// Adds a connection, which closes at the deadline unless it reaches the next stage.
    fn register_stage(
        &mut self,
        mut frames: FrameStream,
        stage: Stage,
        deadline: Instant,
        now: Instant,
    ) -> Option<Token> {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.poll.registry().register(frames.socket(), token, Interest::READABLE).ok()?;
        self.deadlines.insert((deadline, token));
        let connection = InboundConnection::new(frames, stage, now, Some(deadline));
        self.connections.insert(token, connection);
        self.ready.insert(token);
        Some(token)
    }
}
